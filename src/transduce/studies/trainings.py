"""The cells of a study: trainings, each a process of its own, several side by side, judged when they end.

    cell -> transduce train -> transduce evaluate -> results.json

A cell is a row of the table with a seed. It trains in OUT/runs/ROW-SEED and is judged with what came of it; what its
processes say is in OUT/runs/ROW-SEED.log. On a machine with GPUs each has one to itself, on a CPU an equal share of the
cores. Whatever interrupts a study, the same command goes on with it: cells that are done stay so, and the others go on
from their checkpoints. Nothing in OUT/runs is needed once the cells are done.
"""

import fcntl
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from transduce.config.schema import Config
from transduce.data import corpora, text
from transduce.data.corpora import Corpus
from transduce.errors import UserError
from transduce.evaluation.metrics import check_settings
from transduce.evaluation.model_size import parameter_count
from transduce.evaluation.page import duration
from transduce.recipes import configure
from transduce.storage.run_log import reports
from transduce.studies.results import Results, cores, read_results, visible_gpus
from transduce.training.signals import StopSignal

Pair = tuple[Path, Path]


@dataclass(frozen=True)
class Texts:
    """What all cells of a study learn from and are judged by. language: of the target, for the Moses tokenizer."""

    train: Pair
    valid: Pair
    test: Pair | None = None
    language: str = "en"

    def read(self) -> dict[str, str]:
        """The hashes of the texts, by their names. UserError for what keeps texts or language from being used."""
        given = {"training text": self.train, "validation text": self.valid}
        if self.test:
            given["test text"] = self.test
        found = corpora.problems([Corpus(*pair) for pair in given.values()])
        if found:
            raise UserError(*found)
        check_settings(language=self.language, tokenize="13a")
        for pair in given.values():
            for _ in text.read_pairs(*pair):
                pass
        return {name: " ".join(text.file_sha256(path) for path in pair) for name, pair in given.items()}


@dataclass(frozen=True)
class Cell:
    """One training of a study: a row of the table, with a seed. recipe, settings: as for `transduce train`."""

    row: str
    seed: int
    recipe: str
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.row}-{self.seed}"

    def config(self) -> Config:
        """What it is trained with. UserError if the recipe and the settings do not make one."""
        config, problems = configure(self.recipe, self._all_settings())
        if problems:
            raise UserError(*problems)
        return config

    def training(self, texts: Texts, run: Path) -> list[str]:
        """The arguments of `transduce` that train it in the folder `run`, or go on with it."""
        settings = [word for setting in self._all_settings() for word in ("--set", setting)]
        given = ["--train", *map(str, texts.train), "--valid", *map(str, texts.valid), "--out", str(run)]
        return ["train", "--recipe", self.recipe, *settings, *given, "--resume"]

    def judging(self, src: Path, ref: Path, language: str, run: Path) -> list[str]:
        """The arguments of `transduce` that judge what came of it."""
        given = ["--src", str(src), "--ref", str(ref), "--language", language]
        return ["evaluate", str(run / "model"), *given, "--json"]

    def _all_settings(self) -> list[str]:
        return [*self.settings, f"train.seed={self.seed}"]


def run_cells(cells: Sequence[Cell], texts: Texts, results: Results, *, jobs: int | None = None) -> None:
    """Train and judge those of `cells` that are not done, `jobs` at a time, in their order, beside `results.path`.

    jobs: None means one on each GPU, or one on a machine without. Each figure is in results.json as soon as its cell
    has ended. A cell that fails says so there and on stderr, and the others go on.
    SIGINT and SIGTERM let the trainings save and end; a second one ends the study at once.
    Raises UserError, before anything runs, if there is something wrong with a cell, or another study is at work in the
    same folder; and at the end, if cells have failed. KeyboardInterrupt if it was stopped.
    """
    runs = results.path.parent / "runs"
    queue = [_Work(cell, texts, runs / cell.name) for cell in cells if not results.is_done(cell.name)]
    if not queue:
        _say(f"{results.path} has all {len(cells)} cells; nothing is left to do")
        return
    places = _places(jobs, len(queue))
    pace = _Pace(cells, results, len(places))
    running: list[_Work] = []
    failed: list[str] = []
    with _alone(results) as lock, StopSignal() as stop, _Line() as line:
        results.begin([cell.name for cell in cells])
        try:
            while running or (queue and not stop.wanted):
                while queue and places and not stop.wanted:
                    running.append(queue.pop(0))
                    running[-1].begin(places.pop(0), lock)
                for work in [*running]:
                    if stop.wanted:
                        work.stop()
                    if not work.has_ended():
                        continue
                    running.remove(work)
                    places.append(work.environment)
                    line.say(work.outcome())
                    if work.problem:
                        failed.append(work.cell.name)
                        results.record(work.cell.name, "failed", **work.origin(), why=work.problem)
                    elif work.is_done:
                        results.record(work.cell.name, "done", **work.origin(), **work.figures())
                if running:
                    line.show(lambda: pace.in_words(running, queue))
                time.sleep(0.1)
        except Exception:  # ours, such as a full disk
            for work in running:
                work.stop()
                work.process.wait()
            raise
    if stop.wanted:
        raise KeyboardInterrupt
    if failed:
        raise UserError(
            f"{len(failed)} of {len(cells)} cells failed: {', '.join(failed)}; their logs are in {runs}. "
            "The same command tries them again, and from the beginning if you remove their folders there"
        )


def _places(jobs: int | None, cells: int) -> list[dict[str, str]]:
    """For each job the environment of its processes: a GPU, as far as there are, or an equal share of the cores."""
    cards = visible_gpus()
    count = min(jobs or len(cards) or 1, cells)
    shared = {"OMP_NUM_THREADS": str(max(1, cores() // count)), **os.environ}
    return [{**shared, **({"CUDA_VISIBLE_DEVICES": cards[i % len(cards)]} if cards else {})} for i in range(count)]


@contextmanager
def _alone(results: Results) -> Iterator[IO[bytes]]:
    """Keep other studies out of the folder of `results` until we and all processes that we started have ended.

    UserError if one is at work there, or was since `results` were read.
    """
    out = results.path.parent
    (out / "runs").mkdir(parents=True, exist_ok=True)
    with (out / "runs" / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"a study is at work in {out}, or trainings that one left behind when it was killed: wait for them, "
                "end them, or give another --out"
            ) from None
        if results.path.exists() and read_results(results.path).cells != results.cells:
            raise UserError(f"another study has just been at work in {out}; give the command again")
        yield lock


# ---- one cell at work --------------------------------------------------------------------------------------------


class _Work:
    """A cell on its way through its stages, training and then judging on each text: one process at a time."""

    def __init__(self, cell: Cell, texts: Texts, run: Path) -> None:
        self.cell, self.texts, self.run, self.config = cell, texts, run, cell.config()
        judged = {"valid": texts.valid, **({"test": texts.test} if texts.test else {})}
        self.stages = [("train", cell.training(texts, run))]
        self.stages += [(name, cell.judging(*pair, texts.language, run)) for name, pair in judged.items()]
        self.problem: str | None = None
        self.is_done = self.is_stopping = False

    def begin(self, environment: dict[str, str], lock: IO[bytes]) -> None:
        """Start with the first stage. lock: stays locked as long as a process of the cell lives."""
        self.environment, self.lock = environment, lock
        self._start()

    def _start(self) -> None:
        name, arguments = self.stages[0]
        self.stage_started_at = time.monotonic()
        with self._file("log").open("ab") as log, self._file(f"{name}.json").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "transduce", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=self.environment,
                pass_fds=[self.lock.fileno()],
                start_new_session=True,  # so that a Ctrl-C reaches it once, through us
            )

    def _file(self, kind: str) -> Path:
        return self.run.with_name(f"{self.run.name}.{kind}")

    def stop(self) -> None:
        """Ask the process to save and end."""
        if not self.is_stopping:
            self.is_stopping = True
            self.process.send_signal(signal.SIGTERM)

    def has_ended(self) -> bool:
        """Whether nothing of the cell runs any more. If a stage has ended well, the next one is started."""
        pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if pid == 0:
            return False
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self._spend(usage.ru_utime + usage.ru_stime)
        if self.is_stopping:
            return True
        name, _ = self.stages.pop(0)
        if self.process.returncode:
            self.problem = f"{name}: {self._last_words()}"
        elif name == "train" and self.step() < self.config.train.max_steps and self.config.train.patience is None:
            self.problem = f"train: ended at step {self.step():,} of {self.config.train.max_steps:,}"
        elif self.stages:
            self._start()
            return False
        else:
            self.is_done = True
        return True

    def step(self) -> int:
        """The last one that the run has reported."""
        return max((report["step"] for report in reports(self.run)), default=0)

    def _last_words(self) -> str:
        said = self._file("log").read_text(encoding="utf-8", errors="replace").splitlines()
        code = self.process.returncode
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return next((f"{line.strip()} ({how})" for line in reversed(said) if line.strip() and code > 0), how)

    def _spend(self, cpu_seconds: float) -> None:
        """Add the stage that has ended to what the cell has cost."""
        spent = self.spent()
        spent["seconds"] += time.monotonic() - self.stage_started_at
        spent["cpu_seconds"] += cpu_seconds
        self._file("spent.json").write_bytes(msgspec.json.encode(spent))

    def spent(self) -> dict[str, float]:
        """What the cell has cost in this session and earlier ones: seconds by the clock, and of processor time."""
        path = self._file("spent.json")
        return msgspec.json.decode(path.read_bytes()) if path.exists() else {"seconds": 0.0, "cpu_seconds": 0.0}

    # ---- what came of it -----------------------------------------------------------------------------------------

    def origin(self) -> dict[str, Any]:
        """Row, seed, and the command that does the same by hand."""
        command = shlex.join(["transduce", *self.cell.training(self.texts, self.run)])
        return {"row": self.cell.row, "seed": self.cell.seed, "command": command}

    def figures(self) -> dict[str, Any]:
        """Perplexity and BLEU on the validation text, everything that was measured beside them, size and cost."""
        judged = {name: self._judged(name) for name in ("valid", "test") if self._file(f"{name}.json").exists()}
        return {
            "perplexity": judged["valid"]["perplexity"],
            "bleu": judged["valid"]["bleu"],
            "parameters": stored_parameters(self.run / "model"),
            "steps": self.step(),
            **judged,
            **{name: round(value, 1) for name, value in self.spent().items()},
            "threads": int(self.environment["OMP_NUM_THREADS"]),
            "gpu": self.environment.get("CUDA_VISIBLE_DEVICES"),
        }

    def _judged(self, name: str) -> dict[str, Any]:
        judged = msgspec.json.decode(self._file(f"{name}.json").read_bytes())
        scores = judged["systems"]["model"]
        figures = {score["name"]: round(score["value"], 4) for score in scores}
        signatures = {score["name"]: score["signature"] for score in scores}
        return {
            "lines": judged["lines"],
            "perplexity": round(judged["perplexity"], 4),
            **figures,
            "signatures": signatures,
        }

    def outcome(self) -> str:
        """How it ended, in a line."""
        if self.problem:
            return f"{self.cell.name}: failed, {self.problem}"
        if not self.is_done:
            return f"{self.cell.name}: interrupted at step {self.step():,} of {self.config.train.max_steps:,}"
        found = self.figures()
        took = f"{duration(found['seconds'])}, {duration(found['cpu_seconds'])} of processor time"
        return f"{self.cell.name}: perplexity {found['perplexity']:.2f}, BLEU {found['bleu']:.2f}; {took}"

    def state(self) -> str:
        """Where it is, in a few words."""
        if self.stages and self.stages[0][0] != "train":
            return f"{self.cell.name} judging"
        return f"{self.cell.name} step {self.step():,} of {self.config.train.max_steps:,}"

    def share(self) -> float:
        """How much of the training is done, from 0 to 1."""
        return min(1.0, self.step() / self.config.train.max_steps)

    def trained_seconds(self) -> float:
        """How long the training has taken up to its last report, in all sessions."""
        return max((report.get("seconds", 0.0) for report in reports(self.run)), default=0.0)


def stored_parameters(model: Path) -> int:
    """How many values the tensors of a model folder hold; a tied matrix is stored, and counted, once."""
    with (model / "model.safetensors").open("rb") as file:
        header = msgspec.json.decode(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


# ---- what a person sees ------------------------------------------------------------------------------------------


class _Pace:
    """How far a study is, and when it will have ended: by what its cells have taken so far and the work in each."""

    def __init__(self, cells: Sequence[Cell], results: Results, jobs: int) -> None:
        self.results, self.jobs = results, jobs
        self.work = {cell.name: _operations(cell.config()) for cell in cells}

    def in_words(self, running: Sequence[_Work], queue: Sequence[_Work]) -> str:
        """`3 of 26 cells done; base-2 step 400 of 900, h1-1 judging; about 43 min left`."""
        done = sum(map(self.results.is_done, self.work))
        states = ", ".join(work.state() for work in running)
        return f"{done} of {len(self.work)} cells done; {states}{self._left(running, queue)}"

    def _left(self, running: Sequence[_Work], queue: Sequence[_Work]) -> str:
        done = [name for name in self.work if self.results.is_done(name)]
        seconds = sum(self.results.cells[name]["seconds"] for name in done)
        operations = sum(self.work[name] for name in done)
        if not done:  # by the cells that run
            seconds = sum(work.trained_seconds() for work in running)
            operations = sum(self.work[work.cell.name] * work.share() for work in running)
        if not operations:
            return ""
        left = [self.work[work.cell.name] * (1 - work.share()) for work in running]
        waiting = sum(self.work[work.cell.name] for work in queue)
        longest = max((sum(left) + waiting) / self.jobs, *left, 0.0)
        return f"; about {duration(longest * seconds / operations)} left"


def _operations(config: Config) -> float:
    """How much work a training is, in a unit of its own."""
    size = parameter_count(config.model, config.model.vocab_size or config.data.vocab_size)
    return float(config.train.max_steps * config.data.batch_tokens * size)


class _Line:
    """The state of a study on stderr: on a terminal a line that is written over, elsewhere a line a minute."""

    def __init__(self) -> None:
        self.is_live, self.shown_at = sys.stderr.isatty(), -math.inf

    def __enter__(self) -> "_Line":
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._clear()
        _say(line)
        self.shown_at = -math.inf

    def show(self, state: Callable[[], str]) -> None:
        """The state, if it is time for it."""
        if time.monotonic() - self.shown_at < (1 if self.is_live else 60):
            return
        self.shown_at = time.monotonic()
        if self.is_live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{state()[:width]}", end="", file=sys.stderr, flush=True)
        else:
            _say(state())

    def _clear(self) -> None:
        if self.is_live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
