"""The folder of a run, RUN: whether one may begin there or go on, and the model that its checkpoints make."""

import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from transduce.card import model_card
from transduce.checkpoint import (
    average,
    checkpoint_path,
    checkpoints,
    load_checkpoint,
    load_model,
    newest_checkpoint,
    regular_checkpoints,
    save_model,
    weights,
)
from transduce.config import Config, TrainConfig, differences, from_json, to_json
from transduce.errors import UserError
from transduce.tokens import Tokenizer


def refuse_missing(paths: Sequence[Path]) -> None:
    """Raise UserError naming every path that is not a file."""
    missing = [f"{path} is no file" for path in paths if not path.is_file()]
    if missing:
        raise UserError("\n".join([*missing, "expected text files, line by line translations of each other"]))


def find_run(out: Path, resume: bool) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, and what to say about newer ones that are damaged.

    UserError if `out` holds a run and going on was not asked for, or holds what is no run.
    """
    if checkpoints(out) and not resume:
        raise UserError(f"{out} holds a run already; add --resume to go on with it, or give another --out")
    _refuse_other(out)
    newest = newest_checkpoint(out) if resume else None
    if newest is None:
        return None, []
    path, refused = newest
    return path, [*refused, f"the run goes on from {path.name} instead"] if refused else []


def _refuse_other(out: Path) -> None:
    """Protect what is not ours: a run would overwrite its config.json, and remove its data/."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out expects a folder")
    if (out / "manifest.json").exists():
        raise UserError(f"{out} is a model; give another --out")
    if (out / "config.json").exists():
        from_json((out / "config.json").read_bytes(), out / "config.json")
        return
    for name in ("checkpoints", "data", "log.jsonl", "model", "tokenizer.json"):
        if (out / name).exists():
            raise UserError(f"{out / name} exists, but {out} is no run: it has no config.json; give another --out")


def claim(out: Path, config: Config, tokenizer: Tokenizer) -> None:
    """Write config.json and tokenizer.json, or refuse to go on with another configuration than the run's."""
    path = out / "config.json"
    if checkpoints(out):
        changed = differences(from_json(path.read_bytes(), path), config)
        if changed:
            raise UserError("\n".join([f"{out} was begun with another configuration:", *changed]))
        return
    out.mkdir(parents=True, exist_ok=True)
    building = out / ".tmp-config.json"
    building.write_text(to_json(config), encoding="utf-8")
    os.replace(building, path)  # first of all, and whole: by it a run is known
    tokenizer.save(out / "tokenizer.json")


def final_weights(train: TrainConfig, out: Path, best_step: int | None) -> tuple[dict[str, Tensor], str]:
    """The weights that `train.use` asks for, and in words what they are."""
    last = checkpoints(out)[-1]
    if train.use == "average":
        newest = regular_checkpoints(out, train.checkpoint_every_steps)[-train.average_checkpoints :]
        return average(newest), "the mean of the checkpoints " + ", ".join(path.name for path in newest)
    if train.use == "best" and best_step is not None:
        best = checkpoint_path(out, best_step)
        return load_checkpoint(best).weights, f"the best checkpoint by validation {train.best_by}, {best.name}"
    if train.use == "ema":
        return load_checkpoint(last).ema or {}, f"the exponential moving average at {last.name}"
    return load_checkpoint(last).weights, f"the last checkpoint, {last.name}"


def holds(folder: Path, tensors: dict[str, Tensor]) -> bool:
    """Whether `folder` is a whole model with just these weights."""
    try:
        found = weights(load_model(folder).model)
    except UserError:
        return False
    return found.keys() == tensors.keys() and all(found[name].equal(tensors[name]) for name in found)


def average_run(run: Path, *, last: int, out: Path) -> None:
    """Write the mean of the newest `last` checkpoints of `run` (§6.1) as the model folder `out`.

    Raises UserError if there are not so many, or `out` is there already.
    """
    if not checkpoints(run):
        raise UserError(f"{run} holds no checkpoints; give the folder of a training run, as train's --out")
    if out.exists():
        raise UserError(f"{out} exists already; give the name of a new folder")
    config = from_json((run / "config.json").read_bytes(), run / "config.json")
    paths = regular_checkpoints(run, config.train.checkpoint_every_steps)
    if not 1 <= last <= len(paths):
        raise UserError(f"--last {last}, but {run} has {len(paths)} checkpoints; expected 1 to {len(paths)}")
    tokenizer = Tokenizer.load(run / "tokenizer.json")
    origin = "the mean of the checkpoints " + ", ".join(path.name for path in paths[-last:])
    save_model(out, average(paths[-last:]), config, tokenizer, model_card(config, origin))
