"""One training of a study: its data, its arguments, and the processes that train it and evaluate its model.

    Training, Texts -> transduce train -> transduce evaluate -> figures
                                       -> transduce average -> transduce evaluate

A training is a row of the table with a seed. It trains in OUT/runs/ROW-SEED, and its processes write their messages to
OUT/runs/ROW-SEED.log. `schedule` runs several trainings at a time.
"""

import math
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from transduce.config.files import from_json
from transduce.config.recipes import configure
from transduce.config.schema import Config
from transduce.console import import_path, module_command, printable
from transduce.data import corpora, text
from transduce.data.corpora import Corpus
from transduce.data.system import ask_to_end, processor_seconds, start_apart
from transduce.data.text import FilePair
from transduce.errors import UserError
from transduce.evaluation.metrics import Score, check_settings
from transduce.evaluation.page import duration
from transduce.storage.run_log import reports
from transduce.studies.results import JsonObject, Percent, PositiveInt, encode_config, figures_type
from transduce.studies.runner import Ending

# ---- the data of a training --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """The texts of a training, each as source and target, and the evaluation of its model; of another task, a subclass.

    test: None if the study has no test text. language: code of the target language, for the Moses tokenizer.
    headline: the keys of the main figures of the validation text, and their names in messages.
    """

    train: FilePair
    valid: FilePair
    test: FilePair | None = None
    language: str = "en"

    headline: ClassVar[Mapping[str, str]] = {"perplexity": "perplexity", "bleu": "BLEU"}

    def read(self) -> dict[str, str]:
        """Return the hashes of the texts, by their names. Raises UserError for unusable texts or a wrong language."""
        pairs = {"training text": self.train, "validation text": self.valid}
        if self.test:
            pairs["test text"] = self.test
        problems = corpora.problems([Corpus(*pair) for pair in pairs.values()])
        if problems:
            raise UserError(*problems)
        check_settings(language=self.language, tokenize="13a")
        for pair in pairs.values():
            for _ in text.read_pairs(*pair):
                pass
        return {name: " ".join(text.file_sha256(path) for path in pair) for name, pair in pairs.items()}

    def evaluations(self) -> dict[str, list[str]]:
        """Return the arguments of `transduce evaluate MODEL` by text: "valid", and "test" if there is one."""
        pairs = {"valid": self.valid, **({"test": self.test} if self.test else {})}
        return {
            name: ["--src", str(src), "--ref", str(ref), "--language", self.language, "--json"]
            for name, (src, ref) in pairs.items()
        }

    def figures(self, output: JsonObject) -> JsonObject:
        """Return the JSON output of an evaluation as figures of an entry."""
        scores = msgspec.convert(output["systems"]["model"], list[Score])
        return score_figures(output["lines"], output["perplexity"], scores)


def score_figures(lines: int, perplexity: float, scores: Sequence[Score]) -> JsonObject:
    """Return an evaluation as figures of an entry: the scores by name, their brevity penalties and signatures."""
    return {
        "lines": lines,
        "perplexity": round(perplexity, 4),
        **{score.name: round(score.value, 4) for score in scores},
        "brevity": {score.name: asdict(score.brevity) for score in scores if score.brevity},
        "signatures": {score.name: score.signature for score in scores},
    }


# ---- entries in results.json -------------------------------------------------------------------------------------

_PENALTY = figures_type(
    penalty=Annotated[float, Meta(ge=0, le=1)],
    hyp_tokens=Annotated[int, Meta(ge=0)],
    ref_tokens=Annotated[int, Meta(ge=0)],
)
_OTHER_SCORES = {"bleu_compound_split": Percent, "brevity": dict[str, _PENALTY]}
# The scores of a second evaluation: of the mean of checkpoints, or on a second text.
SCORES = figures_type("perplexity", "bleu", optional=_OTHER_SCORES)
# A training of `TrainingProcess`. Entries of 0.1.0 have no configuration, no brevity penalties, and no mean.
TRAINING = figures_type(
    *("row", "seed", "parameters", "seconds", "cpu_seconds"),
    optional={"ended_at": str, "config": JsonObject},
)
TRANSLATION = figures_type(
    "perplexity",
    "bleu",
    optional={"steps": PositiveInt, "valid": figures_type(optional=_OTHER_SCORES), "valid_mean": SCORES},
)

# ---- a training --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A model from the middle of a training: the mean of the newest `averaged` checkpoints up to `step`."""

    step: int
    averaged: int

    def arguments(self) -> list[str]:
        """Return the arguments of `transduce average RUN` that select its checkpoints."""
        return ["--last", str(self.averaged), "--until", str(self.step)]


@dataclass(frozen=True)
class Training:
    """A row of the table with a seed. recipe, settings: as for `transduce train`.

    averaged: number of newest checkpoints whose mean is evaluated, besides RUN/model; 0 for none.
    points: models to evaluate on the test text instead of RUN/model, which then does not see it.
    """

    row: str
    seed: int
    recipe: str
    settings: tuple[str, ...] = ()
    averaged: int = 0
    points: tuple[Point, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.row}-{self.seed}"

    def config(self) -> Config:
        """Return the configuration. Raises UserError if the recipe and the settings are not valid."""
        config, problems, _ = configure(self.recipe, self.all_settings())
        if problems:
            raise UserError(*problems)
        return config

    def train_arguments(self, data: Texts, run: Path) -> list[str]:
        """Return the arguments of `transduce` that start or resume the training in the folder `run`."""
        settings = [word for setting in self.all_settings() for word in ("--set", setting)]
        paths = ["--train", *map(str, data.train), "--valid", *map(str, data.valid), "--out", str(run)]
        return ["train", "--recipe", self.recipe, *settings, *paths, "--resume"]

    def all_settings(self) -> list[str]:
        """Return the settings, with the seed."""
        return [*self.settings, f"train.seed={self.seed}"]


class TrainingProcess:
    """The stages of a training: `train`, `evaluate` on each text, `average` and `evaluate` of each mean.

    One process runs at a time.
    """

    def __init__(self, training: Training, data: Texts, run: Path) -> None:
        self.training = training
        self.data = data
        self.run = run
        self.config = training.config()
        self.stages: list[tuple[str, list[str]]] = []
        self.problem: str | None = None
        self.is_done = False
        self.is_stopping = False

    @property
    def name(self) -> str:
        return self.training.name

    def start(self, environment: dict[str, str], lock: int) -> None:
        """Start the first stage. lock: the number of an open file, which every process inherits."""
        self.environment = environment
        self.lock = lock
        self.stages = self._all_stages()
        self._start_stage()

    def _all_stages(self) -> list[tuple[str, list[str]]]:
        """Return the name of each stage, and its arguments of `transduce`, without means that are already written."""
        evaluations = self.data.evaluations()
        points = self.training.points
        averaged = self.training.averaged
        stages = [("train", self.training.train_arguments(self.data, self.run))]
        for name, arguments in evaluations.items():
            if name == "valid" or not points:
                stages.append((name, ["evaluate", str(self.run / "model"), *arguments]))
        means = [("valid_mean", "valid", ["--last", str(averaged)])] if averaged else []
        means += [(f"test_{point.step}", "test", point.arguments()) for point in points]
        for name, kind, checkpoints in means:
            mean = self._file(f"{name}.model")
            if not mean.exists():
                stages.append(("average", ["average", str(self.run), *checkpoints, "--out", str(mean)]))
            stages.append((name, ["evaluate", str(mean), *evaluations[kind]]))
        return stages

    def _start_stage(self) -> None:
        name, arguments = self.stages[0]
        self.stage_started_at = time.monotonic()
        with self._file("log").open("ab") as log, self._file(f"{name}.json").open("wb") as out:
            self.process = start_apart(
                module_command("transduce", *arguments),
                self.lock,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env={**self.environment, "PYTHONPATH": import_path()},
            )

    def _file(self, kind: str) -> Path:
        """Return the path OUT/runs/ROW-SEED.KIND."""
        return self.run.with_name(f"{self.run.name}.{kind}")

    def stop(self) -> None:
        """Let the process save its state and end."""
        if not self.is_stopping:
            self.is_stopping = True
            ask_to_end(self.process)

    def poll(self) -> bool:
        """Start the next stage if the current one succeeded. Return True if no stage runs any more."""
        cpu_seconds = processor_seconds(self.process)
        if cpu_seconds is None:
            return False
        cost = self.cost()
        cost["seconds"] += time.monotonic() - self.stage_started_at
        cost["cpu_seconds"] += cpu_seconds
        self._file("spent.json").write_bytes(msgspec.json.encode(cost))
        if self.is_stopping:
            return True
        name, *_ = self.stages.pop(0)
        if self.process.returncode:
            self.problem = f"{name}: {self._last_message()}"
        elif name == "train" and self.step() < self.config.train.max_steps and self.config.train.patience is None:
            self.problem = f"train: ended at step {self.step():,} of {self.config.train.max_steps:,}"
        elif self.stages:
            self._start_stage()
            return False
        else:
            self.is_done = True
        return True

    def step(self) -> int:
        """Return the last step that the run has reported."""
        return max((report["step"] for report in reports(self.run)), default=0)

    def _last_message(self) -> str:
        """Return the last message of the log and the exit code, or the signal that ended the process.

        Of a message of several lines, of which all but the first are indented, that is the first line.
        """
        lines = self._file("log").read_text(encoding="utf-8", errors="replace").splitlines()
        code = self.process.returncode
        ending = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        messages = (
            f"{line.strip()} ({ending})" for line in reversed(lines) if line.strip() and line[0] != " " and code > 0
        )
        return next(messages, ending)

    def cost(self) -> dict[str, float]:
        """Return the cost of the training in all sessions: seconds by the clock, and of processor time."""
        return self._output("spent") if self._file("spent.json").exists() else {"seconds": 0.0, "cpu_seconds": 0.0}

    # ---- results -------------------------------------------------------------------------------------------------

    def origin(self) -> JsonObject:
        """Return row, seed, and the command that repeats the training by hand."""
        command = shlex.join(["transduce", *self.training.train_arguments(self.data, self.run)])
        return {"row": self.training.row, "seed": self.training.seed, "command": printable(command)}

    def figures(self) -> JsonObject:
        """Return the headline and all other scores, configuration, size and cost."""
        outputs = {name: self._output(name) for name in EVALUATIONS if self._file(f"{name}.json").exists()}
        evaluations = {name: self.data.figures(output) for name, output in outputs.items()}
        points = [
            {**asdict(point), **self.data.figures(self._output(f"test_{point.step}"))} for point in self.training.points
        ]
        return {
            **{key: evaluations["valid"][key] for key in self.data.headline},
            "parameters": stored_parameters(self.run / "model"),
            "steps": self.step(),
            "config": encode_config(read_config(self.run)),
            "curve": [line for line in reports(self.run) if "valid_loss" in line],
            **evaluations,
            **({"points": points} if points else {}),
            **{name: round(value, 1) for name, value in self.cost().items()},
            "threads": int(self.environment["OMP_NUM_THREADS"]),
            "gpu": self.environment.get("CUDA_VISIBLE_DEVICES"),
        }

    def _output(self, name: str) -> JsonObject:
        """Return the JSON of OUT/runs/ROW-SEED.NAME.json, such as the output of a stage."""
        return msgspec.json.decode(self._file(f"{name}.json").read_bytes())

    def ending(self) -> Ending:
        """Return how the training has ended."""
        if self.problem:
            return Ending(self.name, self.origin(), problem=self.problem, has_diverged=DIVERGED in self.problem)
        if not self.is_done:
            words = f"interrupted at step {self.step():,} of {self.config.train.max_steps:,}"
            return Ending(self.name, self.origin(), words=words)
        figures = self.figures()
        cost = f"{duration(figures['seconds'])}, {duration(figures['cpu_seconds'])} of processor time"
        scores = ", ".join(f"{name} {figures[key]:.2f}" for key, name in self.data.headline.items())
        return Ending(self.name, self.origin(), figures, words=f"{scores}; {cost}")

    def state(self) -> str:
        """Return the stage and the step in a few words."""
        if self.stages and self.stages[0][0] != "train":
            return f"{self.name} evaluating"
        return f"{self.name} step {self.step():,} of {self.config.train.max_steps:,}"

    def fraction_done(self) -> float:
        """Return the fraction of the training steps that are done, from 0 to 1."""
        return min(1.0, self.step() / self.config.train.max_steps)

    def training_seconds(self) -> float:
        """Return the time of the training up to its last report, over all sessions."""
        return max((report.get("seconds", 0.0) for report in reports(self.run)), default=0.0)


DIVERGED = "the training diverged"  # in the message of `run_folder.diverged`
EVALUATIONS = ("valid", "test", "valid_mean")  # stages, and keys of an entry


def read_config(run: Path) -> Config:
    """Return the configuration of a run. Raises UserError if its folder is missing."""
    path = run / "config.json"
    if not path.is_file():
        raise UserError(f"{run}: expected the folder of a training, which the study still needs; give another --out")
    return from_json(path.read_bytes(), path)


def remove_training(run: Path) -> None:
    """Remove the folder of a training and all other files that the study wrote for it."""
    for path in [run, *run.parent.glob(f"{run.name}.*")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def stored_parameters(model: Path) -> int:
    """Return the number of values in the tensors of a model folder, where a tied matrix is stored once."""
    with (model / "model.safetensors").open("rb") as file:
        header = msgspec.json.decode(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
