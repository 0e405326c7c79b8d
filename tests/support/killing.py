"""A run that is killed, at any moment and any number of times, ends as one that nothing disturbed: the harness.

    python tests/support/killing.py --kills 500

trains a tiny model again and again with everything on that a resumed run could get wrong, kills the trainer, resumes,
and compares every file of the run with those of a run that was left alone: at every file operation of a run, and at so
many random moments. A server that has imported torch once forks the trainers, so that a life takes a fraction of a
second.
"""

import argparse
import hashlib
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
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig
from transduce.storage.atomic_folder import read_folder
from transduce.storage.run_log import read_log
from transduce.storage.run_request import TrainRequest
from transduce.train import train

Texts = dict[str, tuple[Path, Path]]

# ---- what is trained ---------------------------------------------------------------------------------------------

# Reports, evaluations and checkpoints fall on different steps, and epochs end between them.
AVERAGE = Config(
    model=ModelConfig(vocab_size=None, d_model=16, n_layers=1, n_heads=2, d_ff=32, dropout=0.2, attention_dropout=0.1),
    data=DataConfig(vocab_size=290, batch_tokens=150, max_tokens=24, bpe_dropout=0.2),
    train=TrainConfig(
        max_steps=32,
        warmup_steps=20,
        accumulate=2,
        patience=9,
        log_every_steps=5,
        evaluate_every_steps=9,
        checkpoint_every_steps=6,
        keep_checkpoints=3,
        average_checkpoints=3,
    ),
    search=SearchConfig(max_extra_tokens=2),
)
CONFIGS = {
    "average": AVERAGE,
    "ema": replace(AVERAGE, train=replace(AVERAGE.train, use="ema", ema_decay=0.9, keep_checkpoints=1)),
    # The first evaluation has the best BLEU, so the run stops early, after the third.
    "best": replace(AVERAGE, train=replace(AVERAGE.train, use="best", best_by="bleu", patience=2)),
}


def write_texts(folder: Path) -> Texts:
    """A corpus of 90 pairs, and 4 to judge by: lines of up to six letters, and the same turned round."""
    rng = random.Random(1)
    texts = {}
    for name, count in (("train", 90), ("valid", 4)):
        lines = [rng.sample("abcdefghij", rng.randint(1, 6)) for _ in range(count)]
        texts[name] = folder / f"{name}.src", folder / f"{name}.tgt"
        for path, side in zip(texts[name], (lines, [line[::-1] for line in lines]), strict=True):
            path.write_text("".join(" ".join(line) + "\n" for line in side), encoding="utf-8")
    return texts


# ---- how a trainer dies ------------------------------------------------------------------------------------------


How = Literal["kill", "torn", "power"]
HOWS: tuple[How, ...] = ("kill", "power", "torn")


@dataclass(frozen=True)
class Trap:
    """Death at file operation number `at` of a life, counted from 0, just before it is done.

    kill: SIGKILL. torn: the next file that grows past `size` bytes is cut off there, and the system kills the writer.
    power: SIGKILL, and what was not flushed to the disk is lost: contents of files, and renamings.
    """

    at: int
    how: How = "kill"
    size: int = 0


class Disk:
    """The file operations within a folder, as a trainer does them: counted, named, and a trap set among them.

    Operations are opening to write, flushing to disk, making, renaming and removing. Flushing is noted and not done: it
    is what a power cut asks after, and a process that dies takes nothing with it.
    """

    def __init__(self, folder: Path, trap: Trap | None) -> None:
        self.folder, self.trap = folder, trap
        self.operations: list[str] = []
        self.flushed = {file.stat().st_ino: file.stat().st_size for file in _files(folder)}  # bytes by inode
        self.renamed: list[tuple[Path, Path, Path | None]] = []  # from, to, and what was there before; not yet durable
        self.watching = True

    def watch(self) -> None:
        """From now on. An audit hook stays for the life of the process."""
        sys.addaudithook(self._hear)
        os.fsync = self._fsync

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.watching or event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"):
            return
        if event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        in_a_tree = event in ("os.remove", "os.rmdir") and given[-1] != -1  # which is removed: there is no whole path
        if not in_a_tree and not str(given[0]).startswith(str(self.folder)):
            return
        self._operation(f"{event} {given[0]}")
        if event == "open" and given[2] & os.O_TRUNC and os.path.exists(given[0]):
            self.flushed.pop(os.stat(given[0]).st_ino, None)
        if event == "os.remove":
            self.flushed.pop(os.stat(given[0], dir_fd=given[-1] if in_a_tree else None).st_ino, None)
        if event == "os.rename":
            self._note_renaming(Path(given[0]), Path(given[1]))

    def _fsync(self, descriptor: int) -> None:
        self._operation(f"fsync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self.renamed = [entry for entry in self.renamed if entry[1].parent.stat().st_ino != found.st_ino]
        else:
            self.flushed[found.st_ino] = found.st_size

    def _operation(self, name: str) -> None:
        if self.trap is not None and len(self.operations) == self.trap.at:
            self._die(self.trap)
        self.operations.append(name)

    def _note_renaming(self, old: Path, new: Path) -> None:
        before = None
        if new.is_file():
            before = self.folder.with_name(f"{self.folder.name}.before-{len(self.operations)}-of-{os.getpid()}")
            os.link(new, before)
        self.renamed.append((old, new, before))

    def _die(self, trap: Trap) -> None:
        self.watching = False
        if trap.how == "torn":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (trap.size, resource.RLIM_INFINITY))
            return
        if trap.how == "power":
            self._lose_unflushed()
        os.kill(os.getpid(), signal.SIGKILL)

    def _lose_unflushed(self) -> None:
        for file in _files(self.folder):
            os.truncate(file, min(file.stat().st_size, self.flushed.get(file.stat().st_ino, 0)))
        for old, new, before in reversed(self.renamed):
            if new.exists():
                new.rename(old)
            if before is not None:
                before.rename(new)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


FAILED = 99  # exit code; a trainer that is interrupted before it listens exits with 1


def live(config: Config, texts: Texts, out: Path, trap: Trap | None, report: Path) -> None:
    """Begin the run in `out` or go on with it, in a process of its own.

    What it did, or why it FAILED, is told in the file `report`, unless it is killed.
    """
    torch.set_num_threads(1)
    sys.stderr = io.StringIO()  # a pipe would fill, and a file be cut off by a torn write
    disk = Disk(out, trap)
    disk.watch()
    try:
        train(TrainRequest(config, texts["train"], texts["valid"], out, resume=True))
    except Exception:
        disk.watching = False
        report.write_text(traceback.format_exc(), encoding="utf-8")
        sys.exit(FAILED)
    disk.watching = False
    report.write_text(json.dumps(disk.operations), encoding="utf-8")


# ---- how a run ends ----------------------------------------------------------------------------------------------

TIMES = ("seconds", "processor_seconds", "tokens_per_second")


def ending(run: Path) -> dict[str, Any]:
    """All that is in the folder of a run, by name: the SHA-256 of a file, or what it says where it also tells times.

    Whatever has a manifest is verified. The log must have no gap and no step twice.
    """
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir():
            found[name] = "folder"
        elif path.name == "manifest.json":  # lists a hash of times
            found[name] = sorted(read_folder(path.parent))
        elif path.name in ("README.md", "report.html"):
            found[name] = "page"
        elif path.name == "state.json":
            found[name] = _without_times(json.loads(path.read_bytes()))
        elif path.name == "log.jsonl":
            found[name] = [_without_times(line) for line in read_log(run)]
            assert path.read_bytes().count(b"\n") == len(found[name])
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _without_times(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in TIMES}


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Where two endings differ."""
    names = sorted(found.keys() | expected.keys())
    return [
        f"{name}: {found.get(name, 'missing')}, expected {expected.get(name, 'nothing')}"
        for name in names
        if found.get(name) != expected.get(name)
    ]


# ---- killing -----------------------------------------------------------------------------------------------------


IMPORTED_LATE = ("torch._dynamo", "sacrebleu")  # in the course of training: here once, for all trainers


class Killer:
    """Runs of one configuration, killed in many ways. Each is compared with one that nothing disturbed."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        folder.mkdir(parents=True)
        self.texts, self.report = write_texts(folder), folder / "report"
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["transduce.train", *IMPORTED_LATE])
        self.numbers = itertools.count()
        self.kills = self.runs = 0
        self.life(self.new_run())  # waits for the server
        whole, began_at = self.new_run(), time.monotonic()
        assert self.life(whole) == 0
        self.seconds = time.monotonic() - began_at
        self.operations: list[str] = json.loads(self.report.read_text("utf-8"))
        self.expected = ending(whole)

    def new_run(self) -> Path:
        """The folder of a run that is yet to begin."""
        return self.folder / f"run-{next(self.numbers)}"

    def first(self, name: str) -> int:
        """The number of the first file operation of a whole run that has to do with `name`."""
        return next(number for number, operation in enumerate(self.operations) if name in operation)

    def life(self, out: Path, trap: Trap | None = None, *, seconds: float = 600, by: int = signal.SIGKILL) -> int:
        """Let a trainer live until it is done or its trap closes; after `seconds` it gets the signal `by`.

        Returns the exit code, or the number of the signal it died of, negative.
        """
        trainer = self.context.Process(target=live, args=(self.config, self.texts, out, trap, self.report))
        trainer.start()
        trainer.join(seconds)
        if trainer.exitcode is None:
            assert trainer.pid is not None
            os.kill(trainer.pid, by)
            trainer.join(600)
        code = trainer.exitcode
        assert code is not None, "the trainer hangs"
        assert code != FAILED, self.report.read_text("utf-8")
        self.kills += code in (-signal.SIGKILL, -signal.SIGXFSZ)
        return code

    def finish(self, out: Path, story: str) -> None:
        """Let the run come to its end, compare it, and remove it."""
        while self.life(out) != 0:
            pass
        self.runs += 1
        found = differences(ending(out), self.expected)
        assert not found, "\n".join([f"{story}: the run ended otherwise than one that nothing disturbed", *found])
        shutil.rmtree(out)
        for file in self.folder.glob(f"{out.name}.*"):
            file.unlink()

    def killed_at(self, *traps: Trap) -> None:
        """A run whose first lives end in `traps`, one after the other."""
        out = self.new_run()
        for trap in traps:
            self.life(out, trap)
        self.finish(out, f"{traps}, {self.operations[traps[0].at]}")

    def killed_at_random(self, rng: random.Random, *signals: int) -> None:
        """A run that gets one of `signals` at random moments, until it has ended."""
        out, lives = self.new_run(), []
        while len(lives) < 20 and (not lives or lives[-1] != 0):
            seconds = rng.uniform(0, rng.choice((0.3, 0.6, 1.2)) * self.seconds)
            lives.append(self.life(out, seconds=seconds, by=rng.choice(signals)))
        self.finish(out, f"lives that ended with {lives}")


def kill_everywhere(folder: Path, kills: int, seed: int) -> Iterator[str]:
    """The long form: a line on what came of it for each configuration, and one in all.

    A run dies at every file operation, and again at a random one when it is resumed. Beside these there are `kills`
    times SIGKILL at random moments.
    """
    rng, killers, began_at = random.Random(seed), [], time.monotonic()
    for number, (name, config) in enumerate(CONFIGS.items()):
        killer = Killer(config, folder / name)
        killers.append(killer)
        count = len(killer.operations)
        for at in range(count):
            how = HOWS[(number + at) % 3]
            killer.killed_at(Trap(at, how, rng.choice((1, 100, 1_000))), Trap(rng.randrange(count)))
        everywhere = killer.kills
        while (killer.kills - everywhere) * len(CONFIGS) < kills:
            killer.killed_at_random(rng, signal.SIGKILL)
        yield f"{name}: {count} operations, {everywhere} kills at them, {killer.kills - everywhere} at random"
    all_kills, runs = sum(killer.kills for killer in killers), sum(killer.runs for killer in killers)
    yield f"{all_kills} kills, {runs} runs, {runs} equal, {time.monotonic() - began_at:.0f} s"


def main() -> None:
    """Kill as often as the command line asks, and print what came of it. A run that ends otherwise is an error."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kills", type=int, default=500, help="SIGKILLs at random moments")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for line in kill_everywhere(Path(folder), asked.kills, asked.seed):
            print(line, flush=True)


if __name__ == "__main__":
    main()
