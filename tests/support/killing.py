"""Kill runs and resume them: each must end like an undisturbed run. The long form of `test_killed.py`.

    cd tests && python -m support.killing --kills 500

This trains the small runs, kills the training process at every file operation and at random moments, and resumes. Then
it compares every file with the files of an undisturbed run. A fork server, which has imported torch once, forks the
training processes, so each starts in a fraction of a second.
"""

import argparse
import io
import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from support.small_runs import CONFIGS, Texts, differences, ending, train_on, write_texts
from transduce.config.schema import Config

# ---- kinds of death ----------------------------------------------------------------------------------------------


Death = Literal["kill", "torn", "power"]
DEATHS: tuple[Death, ...] = ("kill", "power", "torn")


@dataclass(frozen=True)
class Trap:
    """Death just before file operation number `at` of a process, counted from 0.

    - kill: SIGKILL
    - torn: the next file that grows past `size` bytes is cut off there, and the system kills the process
    - power: SIGKILL, and the loss of all content and renames that were not flushed to disk
    """

    at: int
    death: Death = "kill"
    size: int = 0


OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")  # audit events


class Disk:
    """Records the file operations of this process within a folder, and springs a trap at one of them.

    Operations are: open for writing, fsync, mkdir, rename, remove and rmdir. An fsync is recorded but not executed,
    because only a simulated power failure needs it.
    """

    def __init__(self, folder: Path, trap: Trap | None) -> None:
        self.folder, self.trap = folder, trap
        self.operations: list[str] = []
        self.flushed_sizes = {file.stat().st_ino: file.stat().st_size for file in _files(folder)}  # by inode
        self.renames: list[tuple[Path, Path, Path | None]] = []  # unflushed: old, new, copy of a replaced file
        self.is_watching = True
        self.lock = threading.RLock()  # a thread writes checkpoints

    def watch(self) -> None:
        """Start recording. The audit hook remains until the process ends."""
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it; a thread cannot change that
        sys.addaudithook(self._audit)
        os.fsync = self._fsync

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event in OPERATIONS:
            with self.lock:
                if self.is_watching:
                    self._record(event, args)

    def _record(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        is_in_rmtree = event in ("os.remove", "os.rmdir") and args[-1] != -1  # args[0] is then a relative path
        if not is_in_rmtree and not str(args[0]).startswith(str(self.folder)):
            return
        self._operation(f"{event} {args[0]}")
        if event == "open" and args[2] & os.O_TRUNC and os.path.exists(args[0]):
            self.flushed_sizes.pop(os.stat(args[0]).st_ino, None)
        if event == "os.remove":
            self.flushed_sizes.pop(os.stat(args[0], dir_fd=args[-1] if is_in_rmtree else None).st_ino, None)
        if event == "os.rename":
            self._record_rename(Path(args[0]), Path(args[1]))

    def _fsync(self, descriptor: int) -> None:
        with self.lock:
            self._operation(f"fsync {os.readlink(f'/proc/self/fd/{descriptor}')}")
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                self.renames = [entry for entry in self.renames if entry[1].parent.stat().st_ino != status.st_ino]
            else:
                self.flushed_sizes[status.st_ino] = status.st_size

    def _operation(self, name: str) -> None:
        if self.trap is not None and len(self.operations) == self.trap.at:
            self._die(self.trap)
        self.operations.append(name)

    def _record_rename(self, old: Path, new: Path) -> None:
        before = None
        if new.is_file():
            before = self.folder.with_name(f"{self.folder.name}.before-{len(self.operations)}-of-{os.getpid()}")
            os.link(new, before)
        self.renames.append((old, new, before))

    def _die(self, trap: Trap) -> None:
        self.is_watching = False
        if trap.death == "torn":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (trap.size, resource.RLIM_INFINITY))
            return
        if trap.death == "power":
            self._lose_unflushed()
        os.kill(os.getpid(), signal.SIGKILL)

    def _lose_unflushed(self) -> None:
        for file in _files(self.folder):
            os.truncate(file, min(file.stat().st_size, self.flushed_sizes.get(file.stat().st_ino, 0)))
        for old, new, before in reversed(self.renames):
            if new.exists():
                new.rename(old)
            if before is not None:
                before.rename(new)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


FAILED = 99  # exit code; a process that is interrupted before it handles signals exits with 1


def train_with_trap(config: Config, texts: Texts, out: Path, trap: Trap | None, report: Path) -> None:
    """Start or resume the run in `out`. Other processes call it.

    report: a file for the list of operations or, if the exit code is FAILED, the traceback.
    """
    torch.set_num_threads(1)
    sys.stderr = io.StringIO()  # a pipe would fill up, and a file would be cut off by a torn write
    disk = Disk(out, trap)
    disk.watch()
    try:
        train_on(texts, out, config, resume=True)
    except Exception:
        disk.is_watching = False
        report.write_text(traceback.format_exc(), encoding="utf-8")
        sys.exit(FAILED)
    disk.is_watching = False
    report.write_text(json.dumps(disk.operations), encoding="utf-8")


# ---- killing -----------------------------------------------------------------------------------------------------


# Training imports the first two late, and these modules import pytest. The fork server imports them once.
LATE_IMPORTS = ("torch._dynamo", "sacrebleu", "pytest")


class Killer:
    """Kills runs of one configuration in many ways, and compares each with an undisturbed run."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        folder.mkdir(parents=True)
        self.texts, self.report = write_texts(folder), folder / "report"
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["transduce.train", *LATE_IMPORTS])
        self.numbers = itertools.count()
        self.kills = self.runs = 0
        self.run_process(self.new_run())  # waits for the fork server
        run, started_at = self.new_run(), time.monotonic()
        assert self.run_process(run) == 0
        self.seconds = time.monotonic() - started_at
        self.operations: list[str] = json.loads(self.report.read_text("utf-8"))
        self.expected = ending(run)

    def new_run(self) -> Path:
        """Return the folder for a new run."""
        return self.folder / f"run-{next(self.numbers)}"

    def first(self, name: str) -> int:
        """Return the number of the first file operation of an undisturbed run with `name` in its path."""
        return next(number for number, operation in enumerate(self.operations) if name in operation)

    def run_process(
        self, out: Path, trap: Trap | None = None, *, seconds: float = 600, by: int = signal.SIGKILL
    ) -> int:
        """Start or resume a run in another process, with a trap. After `seconds` the process gets the signal `by`.

        Returns the exit code, or the negative number of the signal that killed the process.
        """
        process = self.context.Process(target=train_with_trap, args=(self.config, self.texts, out, trap, self.report))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            assert process.pid is not None
            os.kill(process.pid, by)
            process.join(600)
        code = process.exitcode
        assert code is not None, "the process hangs"
        assert code != FAILED, self.report.read_text("utf-8")
        self.kills += code in (-signal.SIGKILL, -signal.SIGXFSZ)
        return code

    def finish(self, out: Path, story: str) -> None:
        """Resume the run until it ends, compare it, and remove it. story: for the message of a failure."""
        while self.run_process(out) != 0:
            pass
        self.runs += 1
        lines = differences(ending(out), self.expected)
        assert not lines, "\n".join([f"{story}: the run differs from an undisturbed one", *lines])
        shutil.rmtree(out)
        for file in self.folder.glob(f"{out.name}.*"):
            file.unlink()

    def kill_at(self, *traps: Trap) -> None:
        """Kill the first processes of a run with `traps`, one each, then finish and compare it."""
        out = self.new_run()
        for trap in traps:
            self.run_process(out, trap)
        self.finish(out, f"{traps}, {self.operations[traps[0].at]}")

    def kill_twice_at(self, numbers: Iterable[int], rng: random.Random, first_death: int = 0) -> None:
        """Kill a run at each of these file operations, and once more when it resumes. The kinds of death take turns."""
        count = len(self.operations)
        for at in numbers:
            death = DEATHS[(first_death + at) % 3]
            self.kill_at(Trap(at, death, rng.choice((1, 100, 1_000))), Trap(rng.randrange(count)))

    def kill_at_random_moments(self, kills: int, rng: random.Random) -> None:
        """Kill runs at random moments until there are at least `kills` more kills."""
        kills += self.kills
        while self.kills < kills:
            self.kill_at_random(rng, signal.SIGKILL)

    def kill_at_random(self, rng: random.Random, *signals: int) -> None:
        """Send one of `signals` at random moments until a run has ended, then compare it."""
        out, codes = self.new_run(), []
        while len(codes) < 20 and (not codes or codes[-1] != 0):
            seconds = rng.uniform(0, rng.choice((0.3, 0.6, 1.2)) * self.seconds)
            codes.append(self.run_process(out, seconds=seconds, by=rng.choice(signals)))
        self.finish(out, f"exit codes {codes}")


def kill_everywhere(folder: Path, kills: int, seed: int) -> Iterator[str]:
    """Kill runs at every file operation, and once more when they resume; then `kills` runs at random moments.

    Yields a line for each configuration, and one for all.
    """
    rng, started_at = random.Random(seed), time.monotonic()
    killers = []
    for number, (name, config) in enumerate(CONFIGS.items()):
        killer = Killer(config, folder / name)
        killers.append(killer)
        count = len(killer.operations)
        killer.kill_twice_at(range(count), rng, number)
        at_operations = killer.kills
        killer.kill_at_random_moments(-(-kills // len(CONFIGS)), rng)
        yield f"{name}: {count} operations, {at_operations} kills at them, {killer.kills - at_operations} at random"
    all_kills, runs = sum(killer.kills for killer in killers), sum(killer.runs for killer in killers)
    yield f"{all_kills} kills, {runs} runs, {runs} equal, {time.monotonic() - started_at:.0f} s"


def main() -> None:
    """Kill runs as often as the command line says, and print the counts. A run that differs is an error."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kills", type=int, default=500, help="SIGKILLs at random moments")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for line in kill_everywhere(Path(folder), options.kills, options.seed):
            print(line, flush=True)


if __name__ == "__main__":
    main()
