"""The folder of a run, RUN: its configuration and tokenizer, its newest checkpoint, and models of its checkpoints."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.config.files import CHANGEABLE, differences, from_json, to_json
from transduce.config.schema import Config, TrainConfig
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import TokenizerLike
from transduce.errors import UserError
from transduce.storage.atomic_folder import check_folder, write_file
from transduce.storage.checkpoints import (
    checkpoint_path,
    checkpoints,
    drop_checkpoints_after,
    load_checkpoint,
    load_state,
    newest_checkpoint,
    regular_checkpoints,
    step_of,
)
from transduce.storage.model_card import model_card
from transduce.storage.model_folder import load_model, save_model
from transduce.storage.run_request import TrainRequest
from transduce.storage.tensors import average
from transduce.training import distributed
from transduce.training.state import TrainingState
from transduce.training.weights import weights

# ---- resuming ----------------------------------------------------------------------------------------------------


def find_run(out: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that is not damaged, None if there is none, and a line for each damaged one.

    Raises UserError if all are damaged.
    """
    newest = newest_checkpoint(out)
    if newest is None:
        return None, []
    path, refused = newest
    return path, [*refused, f"the run goes on from {path.name} instead"] if refused else []


def fingerprint(config: Config, tokenizer: TokenizerLike) -> dict[str, Any]:
    """Return what identifies a run and the program that trains it: every checkpoint stores it.

    The hash of the configuration leaves out the keys that may change within a run.
    """
    defaults = {key: getattr(TrainConfig(), key) for key in (name.removeprefix("train.") for name in CHANGEABLE)}
    text = to_json(dataclasses.replace(config, train=dataclasses.replace(config.train, **defaults)))
    return {
        "config": hashlib.sha256(text.encode()).hexdigest(),
        "tokenizer": tokenizer.sha256,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }


def run_tokenizer(out: Path, checkpoint: Path | None) -> TokenizerLike:
    """RUN/tokenizer.json. UserError if it is not the one that `checkpoint` was made with."""
    tokenizer = Tokenizer.load(out / "tokenizer.json")
    if checkpoint is not None and load_state(checkpoint)["made_with"]["tokenizer"] != tokenizer.sha256:
        raise _other(out / "tokenizer.json", checkpoint)
    return tokenizer


def _other(file: Path, checkpoint: Path) -> UserError:
    return UserError(
        f"{file} is not the one that {checkpoint} was made with; it is damaged or was changed, use another copy"
    )


def resume(request: TrainRequest, state: TrainingState, path: Path) -> list[str]:
    """Restore `state` from the checkpoint in `path`, and remove the later ones, which are damaged.

    Returns a line if this program rounds differently from the one that wrote the checkpoint. Raises UserError if the
    texts have changed since.
    """
    checkpoint = load_checkpoint(path)
    for name, key in state.record["texts"].items():
        if checkpoint.state["texts"][name] != key:
            text = request.text_names()[name]
            raise UserError(f"{request.out} was begun with other text than {text} hold now; restore it, or begin anew")
    state.restore(checkpoint, path)
    if distributed.is_leader():
        drop_checkpoints_after(request.out, state.counters.step)
    return _rounding_difference(checkpoint.state["made_with"], state.record["made_with"])


def _rounding_difference(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    if (then["torch"], then["threads"]) == (now["torch"], now["threads"]):
        return []
    return [
        f"saved by torch {then['torch']} on {then['threads']} threads, and now it is {now['torch']} on "
        f"{now['threads']}: sums may be rounded otherwise, and weights come out a little different"
    ]


def claim(out: Path, config: Config, tokenizer: TokenizerLike, allow_change: Sequence[str]) -> None:
    """Write config.json and tokenizer.json, or refuse to go on with another configuration than the run's.

    allow_change: the keys in which it may differ; config.json then holds the new values.
    """
    path = out / "config.json"
    if checkpoints(out):
        begun_with = from_json(path.read_bytes(), path)
        _refuse_change(out, begun_with, config, allow_change)
        if path.read_bytes() != to_json(config).encode():
            write_file(path, to_json(config).encode())
        return
    out.mkdir(parents=True, exist_ok=True)
    write_file(path, to_json(config).encode())  # first of all: by it a run is known
    write_file(out / "tokenizer.json", tokenizer.to_json().encode())


def _refuse_change(out: Path, old: Config, new: Config, allow_change: Sequence[str]) -> None:
    changed = differences(old, new, allow_change)
    if changed:
        remedy = "give the recipe and the settings that it was begun with, or begin another run with another --out"
        raise UserError("\n".join([f"{out} was begun with another configuration:", *changed, remedy]))
    done = step_of(checkpoints(out)[-1])
    if new.train.max_steps < done:
        raise UserError(
            f"train.max_steps={new.train.max_steps}, but {out} has done {done} steps; expected at least that"
        )


# ---- the model ---------------------------------------------------------------------------------------------------


def final_weights(train: TrainConfig, out: Path, best_step: int | None) -> tuple[dict[str, Tensor], str]:
    """The weights that `train.use` asks for, and in words what they are."""
    last = checkpoints(out)[-1]
    if train.use == "average":
        whole = [path for path in regular_checkpoints(out, train.checkpoint_every_steps) if _is_whole(path)]
        newest = whole[-train.average_checkpoints :]
        return average(newest), "the mean of the checkpoints " + ", ".join(path.name for path in newest)
    if train.use == "best" and best_step is not None:
        best = checkpoint_path(out, best_step)
        if not _is_whole(best):
            lost = f"for the best one, {best.name}, is damaged or could not be saved"
            return load_checkpoint(last).weights, f"the last checkpoint, {last.name}, {lost}"
        return load_checkpoint(best).weights, f"the best checkpoint by validation {train.best_by}, {best.name}"
    if train.use == "ema":
        return load_checkpoint(last).ema or {}, f"the exponential moving average at {last.name}"
    return load_checkpoint(last).weights, f"the last checkpoint, {last.name}"


def _is_whole(checkpoint: Path) -> bool:
    try:
        check_folder(checkpoint)
    except UserError:
        return False
    return True


def holds(folder: Path, tensors: dict[str, Tensor], config: Config | None = None) -> bool:
    """Whether `folder` is a whole model with just these weights and, if it is given, this configuration."""
    try:
        model = load_model(folder)
    except UserError:
        return False
    found = weights(model.model)
    same_config = config is None or model.config == config
    return same_config and found.keys() == tensors.keys() and all(found[name].equal(tensors[name]) for name in found)


def average_run(run: Path, *, last: int, out: Path, until: int | None = None) -> None:
    """Write the mean of the newest `last` checkpoints of `run` (§6.1) as the model folder `out`.

    until: the step after which checkpoints are left out. Raises UserError if there are not so many, or `out` is there
    already.
    """
    if not checkpoints(run):
        raise UserError(f"{run} holds no checkpoints; give the folder of a training run, as train's --out")
    if out.exists():
        raise UserError(f"{out} exists already; give the name of a new folder")
    config = from_json((run / "config.json").read_bytes(), run / "config.json")
    paths = regular_checkpoints(run, config.train.checkpoint_every_steps)
    paths = [path for path in paths if until is None or step_of(path) <= until]
    if not 1 <= last <= len(paths):
        where = f"up to step {until}" if until is not None else ""
        raise UserError(f"--last {last}, but {run} has {len(paths)} checkpoints {where}; expected 1 to {len(paths)}")
    tokenizer = run_tokenizer(run, paths[-1])
    state = load_state(paths[-1])
    if state["made_with"]["config"] != fingerprint(config, tokenizer)["config"]:
        raise _other(run / "config.json", paths[-1])
    origin = "the mean of the checkpoints " + ", ".join(path.name for path in paths[-last:])
    facts = {**state["made_of"], "training": f"{state['step']:,} steps"}
    save_model(out, average(paths[-last:]), config, tokenizer, model_card(config, origin, facts))


# ---- divergence --------------------------------------------------------------------------------------------------


def diverged(problem: str, step: int, out: Path) -> UserError:
    """Return the error that ends a run whose numbers are not finite: it names the ways out."""
    anew = "begin anew with a lower train.lr_factor or more train.warmup_steps"
    paths = checkpoints(out)
    if not paths:
        return UserError(f"{problem} at step {step:,}: the training diverged before its first checkpoint; {anew}")
    return UserError(
        f"{problem} at step {step:,}: the training diverged after its last good checkpoint, {paths[-1]}. To go on "
        f"from there with other settings, make a model of it, transduce average {out} --last 1 --out GOOD, and begin "
        f"another run with train --from GOOD; or {anew}. If the machine was at fault, go on with --resume"
    )
