"""The folder of a run, RUN: its configuration and tokenizer, its newest checkpoint, and models of its checkpoints."""

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.config.files import ADDED_LATER, differences, from_json, to_json
from transduce.config.schema import Config, TrainConfig
from transduce.data.system import locked
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import TokenizerLike
from transduce.errors import NotFiniteError, UserError
from transduce.model import devices
from transduce.storage.atomic_folder import check_folder, remove_unfinished, write_file
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
from transduce.storage.run_log import evaluations
from transduce.storage.run_request import TrainRequest
from transduce.storage.tensors import average
from transduce.training import distributed
from transduce.training.state import TrainingState
from transduce.training.weights import weights

RUN_FILES = r"model|config\.json|tokenizer\.json|report\.html"  # this program replaces them


@contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """Lock the folder of a run against other trainings, until the block or this process ends. Only rank 0 locks.

    Creates the folder, and removes it if it is empty at the end. Raises UserError if another training on this machine
    holds the lock. A network file system may not pass the lock on to other machines.
    """
    if not distributed.is_leader():
        yield
        return
    new_folders = [path for path in (out, *out.parents) if not path.exists()]
    out.mkdir(parents=True, exist_ok=True)
    expected = "expected a run that no other training writes; wait for the other one or end it, or give another --out"
    try:
        with locked(out, f"{out}: {expected}"):
            yield
    finally:
        with suppress(OSError):
            for path in new_folders:
                path.rmdir()


# ---- resuming ----------------------------------------------------------------------------------------------------


def find_run(out: Path, until: int | None = None) -> tuple[Path | None, list[str]]:
    """Return the newest undamaged checkpoint, None if there is none at all, and a warning about each damaged newer one.

    until: ignore checkpoints of later steps; None uses all. Raises UserError if all checkpoints are damaged.
    """
    newest = newest_checkpoint(out, until)
    if newest is None:
        return None, []
    path, problems = newest
    return path, [*problems, f"the run resumes from {path.name} instead"] if problems else []


def fingerprint(config: Config, tokenizer: TokenizerLike) -> dict[str, Any]:
    """Return the hashes of model and tokenizer, and what the rounding depends on. Every checkpoint stores it.

    The hash of the model does not depend on keys that later versions add and this model does not use.
    """
    values = dataclasses.asdict(config.model)
    used = {key: value for key, value in values.items() if ADDED_LATER.get(f"model.{key}", ...) != value}
    return {
        "model": hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest(),
        "tokenizer": tokenizer.sha256,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "device": _device_name(),
    }


def _device_name() -> str:
    device = devices.device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def run_config(out: Path) -> Config:
    """Return the configuration of a run."""
    path = out / "config.json"
    return from_json(path.read_bytes(), path)


def run_tokenizer(out: Path, checkpoint: Path | None) -> TokenizerLike:
    """Return the tokenizer of a run. Raises UserError if `checkpoint`, None before the first, has another one."""
    path = out / "tokenizer.json"
    if checkpoint is None:
        return Tokenizer.load(path)
    sha256 = load_state(checkpoint)["made_with"]["tokenizer"]
    if tokenizer := _tokenizer_of(path, sha256):
        return tokenizer
    copy = out / "model" / "tokenizer.json"
    restore = f"restore it: cp {shlex.quote(f'{copy}')} {shlex.quote(f'{path}')}"
    other = "use another copy, or start a new run with another --out"
    raise _wrong_file(path, checkpoint, restore if _tokenizer_of(copy, sha256) else other)


def _tokenizer_of(path: Path, sha256: str) -> TokenizerLike | None:
    """Return the tokenizer of a file; None if it has another hash, or if the file is missing or damaged."""
    with suppress(UserError):
        tokenizer = Tokenizer.load(path)
        return tokenizer if tokenizer.sha256 == sha256 else None
    return None


def _wrong_file(file: Path, checkpoint: Path, remedy: str = "use another copy") -> UserError:
    problem = "it was changed" if file.exists() else "it is missing"
    return UserError(f"{file}: expected the file that {checkpoint} was trained with, but {problem}; {remedy}")


def resume(request: TrainRequest, config: Config, state: TrainingState, path: Path) -> list[str]:
    """Restore `state` from the checkpoint in `path`, remove the later checkpoints, and write the new configuration.

    The later checkpoints are damaged, or the run goes back to have more steps. They go first: the new configuration
    would take them for the middle of its training.

    Returns a warning if this program may round differently from the one that wrote the checkpoint, and the new best
    step if `train.best_by` has changed. Raises UserError, before it removes anything, if a text has changed since, or
    the model that the loss compares with.
    """
    checkpoint = load_checkpoint(path)
    for name, key in state.record["texts"].items():
        if checkpoint.state["texts"].get(name, key) != key:  # older versions did not store "reference"
            text = request.text_names()[name]
            expected = {"train": "the text and the weight", "valid": "the text", "reference": "the model"}[name]
            raise UserError(
                f"{text}: expected {expected} that {request.out} started with; restore it, or start a new run"
            )
    state.restore(checkpoint, path)
    if distributed.is_leader():
        drop_checkpoints_after(request.out, state.counters.step)
        write_config(request.out, config)
    lines = _rounding_difference(checkpoint.state["made_with"], state.record["made_with"])
    if state.choose_best(evaluations(request.out), [step_of(path) for path in checkpoints(request.out)]):
        best = "no step" if state.counters.best_step is None else f"step {state.counters.best_step:,}"
        lines.append(f"the best by validation {state.config.best_by} is {best}, of the checkpoints that are left")
    return lines


def _rounding_difference(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    if all(old[name] == new[name] for name in ("torch", "threads", "device") if name in old):
        return []
    of, this = (
        f"torch {made['torch']} with {made['threads']} threads on {made.get('device', 'an unknown device')}"
        for made in (old, new)
    )
    return [f"the checkpoint is of {of}, this is {this}: rounding may differ, and the weights slightly with it"]


def claim(out: Path, config: Config, tokenizer: TokenizerLike, allow_change: Sequence[str]) -> None:
    """Write config.json and tokenizer.json of a new run, or check that a run in `out` has this configuration.

    Removes the temporary files of interrupted sessions.

    allow_change: keys in which the configuration may differ; `resume` then writes the new values. Raises UserError
    if another key differs.
    """
    has_run = bool(checkpoints(out))
    if has_run:
        _check_changes(out, run_config(out), config, allow_change)
    remove_unfinished(out, RUN_FILES)
    if not has_run:
        write_config(out, config)  # the first file: it marks the folder as a run
        write_file(out / "tokenizer.json", tokenizer.to_json().encode())


def write_config(out: Path, config: Config) -> None:
    """Write config.json unless it has this content."""
    path = out / "config.json"
    content = to_json(config).encode()
    if not path.exists() or path.read_bytes() != content:
        write_file(path, content)


def _check_changes(out: Path, old: Config, new: Config, allow_change: Sequence[str]) -> None:
    changes = differences(old, new, allow_change)
    if changes:
        remedy = "give the recipe and the settings of this run, or start a new run with another --out"
        raise UserError("\n".join([f"{out}: expected the configuration that the run started with:", *changes, remedy]))
    step = step_of(checkpoints(out)[-1])
    if new.train.max_steps < step:
        raise UserError(
            f"train.max_steps={new.train.max_steps}: expected at least {step}, the step of the newest checkpoint of "
            f"{out}; give a larger value"
        )


# ---- the model ---------------------------------------------------------------------------------------------------


def final_weights(train: TrainConfig, out: Path, best_step: int | None) -> tuple[dict[str, Tensor], str]:
    """Return the weights that `train.use` names, and their origin in words, for the model card."""
    last = checkpoints(out)[-1]
    if train.use == "average":
        members = averaged_checkpoints(train, out)
        return average(members), "the mean of the checkpoints " + ", ".join(path.name for path in members)
    if train.use == "best" and best_step is not None:
        best = checkpoint_path(out, best_step)
        if _is_whole(best):
            return evaluated_weights(best), f"the best checkpoint by validation {train.best_by}, {best.name}"
        reason = f"because the best one, {best.name}, is damaged or could not be saved"
        return load_checkpoint(last).weights, f"the last checkpoint, {last.name}, {reason}"
    if train.use == "ema":
        return load_checkpoint(last).ema or {}, f"the exponential moving average at {last.name}"
    return load_checkpoint(last).weights, f"the last checkpoint, {last.name}"


def evaluated_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of a checkpoint that the run evaluated: the moving average or, if there is none, its own."""
    checkpoint = load_checkpoint(path)
    return checkpoint.ema or checkpoint.weights


def averaged_checkpoints(train: TrainConfig, out: Path) -> list[Path]:
    """Return the checkpoints whose mean is the final model with `train.use="average"`."""
    candidates = [path for path in regular_checkpoints(out, train.checkpoint_every_steps) if _is_whole(path)]
    return candidates[-train.average_checkpoints :]


def rivals_of_final(train: TrainConfig, out: Path, best_step: int | None) -> list[Path]:
    """Return the checkpoints that replace the final model of a run if it is worse than they.

    These are the members of a mean and, with patience, the best checkpoint: after early stopping, the newest ones all
    come after it. The rival of the best checkpoint is the last one, whose evaluation may be out of turn.
    """
    if train.use == "best":
        return checkpoints(out)[-1:]
    members = averaged_checkpoints(train, out) if train.use == "average" else []
    best = [] if train.patience is None or best_step is None else [checkpoint_path(out, best_step)]
    return [*members, *(path for path in best if members and path not in members and _is_whole(path))]


def _is_whole(checkpoint: Path) -> bool:
    try:
        check_folder(checkpoint)
    except UserError:
        return False
    return True


def holds(folder: Path, tensors: dict[str, Tensor], config: Config | None = None) -> bool:
    """Return True if `folder` is an undamaged model with these weights and, unless it is None, this configuration."""
    try:
        model = load_model(folder)
    except UserError:
        return False
    if config is not None and model.config != config:
        return False
    values = weights(model.model)
    return values.keys() == tensors.keys() and all(values[name].equal(tensors[name]) for name in values)


def has_finished_model(out: Path, config: Config) -> bool:
    """Return True if RUN/model has the weights after a shorter training, at the end of which the learning rate was 0.

    The weights of an interrupted longer training, whose learning rate is high, are worse.
    """
    with suppress(OSError, UserError):
        path = out / "model" / "config.json"
        old = from_json(path.read_bytes(), path).train
        return old.decay_steps > 0 and old.max_steps < config.train.max_steps
    return False


def average_run(run: Path, *, last: int, out: Path, until: int | None = None) -> None:
    """Write the mean of the newest `last` checkpoints of `run` (§6.1) as the model folder `out`.

    until: ignore checkpoints of later steps; None uses all. Raises UserError if the run has fewer than `last`, or if
    `out` exists.
    """
    if not checkpoints(run):
        raise UserError(f"{run}: expected a run with checkpoints; give the folder of a run, as train's --out")
    if out.exists():
        raise UserError(f"{out}: expected the name of a new folder, but it exists; give another --out")
    config = run_config(run)
    paths = regular_checkpoints(run, config.train.checkpoint_every_steps)
    paths = [path for path in paths if until is None or step_of(path) <= until]
    if not 1 <= last <= len(paths):
        where = f" up to step {until}" if until is not None else ""
        raise UserError(
            f"--last={last}: expected 1 to {len(paths)}, the number of checkpoints of {run}{where}; give another number"
        )
    tokenizer = run_tokenizer(run, paths[-1])
    state = load_state(paths[-1])
    made_with = fingerprint(config, tokenizer)
    if state["made_with"].get("model", made_with["model"]) != made_with["model"]:  # older versions did not store it
        raise _wrong_file(run / "config.json", paths[-1])
    origin = "the mean of the checkpoints " + ", ".join(path.name for path in paths[-last:])
    facts = {**state["made_of"], "training": f"{state['step']:,} steps"}
    save_model(out, average(paths[-last:]), config, tokenizer, model_card(config, origin, facts))


# ---- divergence --------------------------------------------------------------------------------------------------


def check_parameters(state: TrainingState, out: Path) -> None:
    """Raise UserError if a parameter holds a value that is not finite. Every rank calls it. out: folder of the run."""
    name = state.nonfinite_parameter()
    if name is not None:
        raise diverged(f"{name} holds values that are not finite numbers", state.counters.step, out)


def diverged(problem: str, step: int, out: Path) -> NotFiniteError:
    """Return the error that ends a run with numbers that are not finite, with the remedies.

    problem: what is not finite. step: the step of the problem. out: the folder of the run.
    """
    new_run = "start a new run with a lower train.lr_factor or more train.warmup_steps"
    paths = checkpoints(out)
    if not paths:
        where = f"at step {step:,}: the training diverged before its first checkpoint"
        return NotFiniteError(f"{problem} {where}; {new_run}")
    lines = [
        f"{problem} at step {step:,}: the training diverged after its last good checkpoint, {paths[-1]}; do one of:",
        f"- {new_run}",
        f"- transduce average {out} --last 1 --out GOOD, then train with --from GOOD and other settings",
        "- train with --resume, if the machine was at fault",
    ]
    return NotFiniteError("\n  ".join(lines))
