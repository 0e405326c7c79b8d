"""Checkpoints of a run: RUN/checkpoints/step-00012345/.

A checkpoint is a folder with a manifest (`transduce.storage.atomic_folder`). It has the files model.safetensors,
optimizer.safetensors and state.json, and ema.safetensors if the run has a moving average of the weights.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transduce.config.schema import TrainConfig
from transduce.errors import UserError
from transduce.storage.atomic_folder import (
    check_folder,
    decode_json,
    encode_json,
    listed_files,
    read_verified,
    remove,
    remove_unfinished,
    write_folder,
)
from transduce.storage.run_log import RunLog
from transduce.storage.tensors import encode_tensors, read_tensors
from transduce.training import distributed
from transduce.training.state import Checkpoint, check_state
from transduce.training.weights import check_finite

CHECKPOINT_FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
STEP_NAME = r"step-\d{8,}"
LEAST_KEPT = 2  # checkpoints: one of them may become unreadable
MAX_FAILED_SAVES = 3  # in a row, on a disk that is full or broken


def checkpoint_path(run: Path, step: int) -> Path:
    """Return RUN/checkpoints/step-00012345."""
    return run / "checkpoints" / f"step-{step:08d}"


def save_checkpoint(run: Path, checkpoint: Checkpoint) -> Path:
    """Write `checkpoint` under its step and return its folder. Raises UserError if a value is not finite."""
    path = checkpoint_path(run, checkpoint.state["step"])
    for tensors in (checkpoint.weights, checkpoint.optimizer, checkpoint.ema or {}):
        check_finite(
            tensors,
            path,
            "start a new run with a lower train.lr_factor or more train.warmup_steps, or use --resume if the machine "
            "was at fault",
        )
    files = {
        "model.safetensors": encode_tensors(checkpoint.weights),
        "optimizer.safetensors": encode_tensors(checkpoint.optimizer),
        "state.json": [encode_json(checkpoint.state)],
    }
    if checkpoint.ema is not None:
        files["ema.safetensors"] = encode_tensors(checkpoint.ema)
    write_folder(path, files)
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises UserError if it is incomplete or damaged."""
    names = listed_files(path, kind="checkpoint", needed=CHECKPOINT_FILES)
    tensors = {name: read_tensors(path, name) for name in names if name.endswith(".safetensors")}
    return Checkpoint(
        tensors["model.safetensors"],
        tensors["optimizer.safetensors"],
        tensors.get("ema.safetensors"),
        load_state(path),
    )


def load_state(path: Path) -> dict[str, Any]:
    """Read only the state of a checkpoint. Raises UserError if it is damaged, or has not the step of the folder."""
    listed_files(path, kind="checkpoint", needed=["state.json"])
    try:
        state = decode_json(read_verified(path, "state.json"))
        check_state(state)
    except ValueError as problem:
        raise UserError(f"{path / 'state.json'}: expected the state of a run ({problem}); use another copy") from None
    if checkpoint_path(path, state["step"]).name != path.name:
        raise UserError(f"{path}: expected the name of step {state['step']:,}, which it holds; restore its name")
    return state


def checkpoints(run: Path) -> list[Path]:
    """Return the checkpoint folders of a run, oldest first. Does not verify them."""
    paths = (path for path in (run / "checkpoints").glob("step-*") if re.fullmatch(STEP_NAME, path.name))
    return sorted(paths, key=step_of)


def newest_checkpoint(run: Path, until: int | None = None) -> tuple[Path, list[str]] | None:
    """Return the newest undamaged checkpoint of `run`, and a problem for each newer one that is damaged.

    until: ignore checkpoints of later steps; None uses all. Returns None if the run has no checkpoint. Raises UserError
    if all its checkpoints are damaged.
    """
    problems: list[str] = []
    paths = checkpoints(run)
    for path in reversed([path for path in paths if until is None or step_of(path) <= until]):
        try:
            check_folder(path)
            load_state(path)
        except UserError as problem:
            problems.append(str(problem))
        else:
            return path, problems
    if problems:
        where = "" if until is None else f" up to step {until:,}"
        lines = [f"{run}: expected an undamaged checkpoint{where}; start a new run with another --out:", *problems]
        raise UserError("\n  ".join(lines))
    return None


def step_of(path: Path) -> int:
    """Return the step of a checkpoint folder."""
    return int(path.name.removeprefix("step-"))


def regular_checkpoints(run: Path, every: int) -> list[Path]:
    """Return the checkpoints at multiples of `every` steps, and the newest one: oldest first.

    They do not depend on the steps at which the run was interrupted and saved. Step 0, the model that a run starts
    from, is no multiple.
    """
    paths = checkpoints(run)
    return [path for path in paths if (step_of(path) and step_of(path) % every == 0) or path == paths[-1]]


def before_decay(run: Path, every: int, decay_start: int) -> Path | None:
    """Return the newest checkpoint at a multiple of `every` steps up to `decay_start`; None if there is none.

    From it, a finished run can continue with more steps as if its learning rate had not fallen yet.
    """
    paths = [path for path in checkpoints(run) if step_of(path) % every == 0 and 0 < step_of(path) <= decay_start]
    return paths[-1] if paths else None


def prune_checkpoints(
    run: Path, keep: int, best_step: int | None, *, every: int = 1, decay_start: int | None = None
) -> None:
    """Remove older checkpoints, and the temporary files of interrupted saves. These checkpoints remain:

    - the newest `keep` at multiples of `every` steps, but at least `LEAST_KEPT`
    - the newest of all
    - the one at `best_step`
    - the one of `before_decay`, unless the learning rate never falls to 0 (`decay_start` is None)
    """
    paths = checkpoints(run)
    regular = [path for path in paths if step_of(path) % every == 0]
    remaining: set[Path | None] = {*regular[-max(keep, LEAST_KEPT) :], *paths[-1:]}
    if decay_start is not None:
        remaining |= {before_decay(run, every, decay_start)}
    for path in paths:
        if path not in remaining and step_of(path) != best_step:
            remove(path)
    remove_unfinished(run / "checkpoints", STEP_NAME)


def drop_checkpoints_after(run: Path, step: int) -> None:
    """Remove the checkpoints of later steps. The resumed run writes them again."""
    for path in checkpoints(run):
        if step_of(path) > step:
            remove(path)


class CheckpointWriter:
    """Writes the checkpoints of a run while it trains. Every rank calls `save` and `wait`; a thread of rank 0 writes.

    As a context manager it waits at the end until the thread has finished.

    run: the folder of the run. log: flushed to disk before each checkpoint, so no checkpoint is newer than its lines.
    print_lines: prints warnings. train: which checkpoints remain (see `prune_checkpoints`). step: step of the
    checkpoint from which the run resumed; None for a new run.
    """

    def __init__(
        self,
        run: Path,
        log: RunLog,
        print_lines: Callable[[list[str]], None],
        train: TrainConfig,
        step: int | None = None,
    ) -> None:
        self.run = run
        self.log = log
        self.print_lines = print_lines
        self.train = train
        self.step = step  # of the newest save
        self.failures: dict[int, OSError] = {}  # by step, since the last checkpoint that was written
        self.thread = ThreadPoolExecutor(1, "checkpoints")
        self.writing: Future[None] | None = None

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.shutdown()

    def save(self, step: int, snapshot: Callable[[], Checkpoint]) -> None:
        """Let the thread write `snapshot()` unless an earlier call was for `step`. First wait for the earlier save.

        snapshot: every rank calls it; only rank 0 uses the result, which shares no memory with the training. A failed
        write is printed and does not stop the training. After one, `save` waits for its own write. It raises OSError
        at the failure number `MAX_FAILED_SAVES` in a row.
        """
        if step == self.step:
            return
        self.wait()
        self.step = step
        has_failed = distributed.any_rank(bool(self.failures))
        checkpoint = snapshot()
        if distributed.is_leader():
            self.writing = self.thread.submit(self._write, step, checkpoint)
        if has_failed:
            self.wait()

    def wait(self) -> None:
        """Wait until the newest save has been written or has failed. Raises its error if the run must end."""
        writing = self.writing
        self.writing = None
        with distributed.leader_first():
            if writing is not None:
                writing.result()

    def _write(self, step: int, checkpoint: Checkpoint) -> None:
        try:
            self.log.sync()
            save_checkpoint(self.run, checkpoint)
            self.prune(checkpoint.state["best_step"])
            self.failures.clear()
        except OSError as problem:
            self.failures[step] = problem
            if len(self.failures) == MAX_FAILED_SAVES:
                raise
            warning = f"not saved at step {step:,}: {problem}; the training continues and saves its next checkpoint"
            self.print_lines([warning])

    def prune(self, best_step: int | None) -> None:
        """Remove older checkpoints (see `prune_checkpoints`). Only rank 0 calls it."""
        train = self.train
        decay_start = train.max_steps - train.decay_steps if train.decay_steps else None
        every = train.checkpoint_every_steps
        prune_checkpoints(self.run, train.keep_checkpoints, best_step, every=every, decay_start=decay_start)

    def raise_failure(self, step: int) -> None:
        """Raise the OSError of the save at `step` if it failed. Only rank 0 calls it, after `wait`."""
        if step in self.failures:
            raise self.failures[step]
