"""Trainings in the process of the study, for models that no model folder can hold.

Their task is not one of `transduce train`: it builds a model with another attention. Their folders are removed when
their figures are known, since others would read RUN/model as the model of its configuration.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transduce.config.schema import Config
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import TokenizerLike
from transduce.errors import NotFiniteError, UserError
from transduce.model.transformer import Transformer
from transduce.storage.checkpoints import checkpoints, load_checkpoint, step_of
from transduce.storage.run_request import TrainRequest
from transduce.studies.results import Results
from transduce.studies.schedule import exclusive_folder, outdated_trainings
from transduce.studies.texts import Texts
from transduce.studies.trainings import Training, read_config
from transduce.train import TranslationTask, train
from transduce.training.weights import set_weights

Measure = Callable[[Training, Path], dict[str, Any]]


def run_in_process(trainings: Sequence[Training], results: Results, measure: Measure, *, rerun: bool) -> None:
    """Train the models that are not done, one by one, and record their figures.

    measure: trains in a folder, or resumes there, and returns the figures. A training that diverged has an entry with
    `diverged`, and is not trained again without `rerun`. Another UserError is recorded, too, and the next training
    starts. rerun: train also those that diverged, and those whose settings have changed since their entry.
    """
    runs = results.path.parent / "runs"
    outdated = outdated_trainings(trainings, results) if rerun else {}
    queue = [one for one in trainings if one.name in outdated or not _has_ended(one, results, rerun)]
    if not queue:
        return
    with exclusive_folder(results):
        results.start_session([training.name for training in queue])
        for training in queue:
            run = runs / training.name
            if training.name in outdated:
                _remove(run)
            started_at, processor_started_at = time.monotonic(), time.process_time()
            origin = {"row": training.row, "seed": training.seed}
            try:
                figures = measure(training, run)
            except UserError as problem:
                diverged = {"diverged": True} if isinstance(problem, NotFiniteError) else {}
                results.record(training.name, "failed", **origin, why=str(problem).splitlines()[0], **diverged)
                if diverged:
                    _remove(run)
                continue
            seconds, cpu_seconds = time.monotonic() - started_at, time.process_time() - processor_started_at
            cost = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)}  # of the last session
            results.record(training.name, "done", **origin, **figures, **cost)
            _remove(run)


def _has_ended(training: Training, results: Results, rerun: bool) -> bool:
    diverged = results.entries.get(training.name, {}).get("diverged", False)
    return results.is_done(training.name) or (diverged and not rerun)


def _remove(run: Path) -> None:
    shutil.rmtree(run, ignore_errors=True)


@dataclass(frozen=True)
class Trained:
    """A model after its training. last: its newest checkpoint, whose weights it does not have yet."""

    model: Transformer
    config: Config
    tokenizer: TokenizerLike
    last: Path

    @property
    def steps(self) -> int:
        return step_of(self.last)

    def load_last(self) -> None:
        """Give the model the weights of its newest checkpoint instead of those that the training began with."""
        set_weights(self.model, load_checkpoint(self.last).weights, self.last)


def train_here(training: Training, texts: Texts, run: Path, task: TranslationTask) -> Trained:
    """Train in the folder `run`, or resume there, and return the model with the weights of the beginning.

    Raises KeyboardInterrupt after a signal, and NotFiniteError if the training diverged.
    """
    settings = [*training.settings, f"train.seed={training.seed}"]
    train(TrainRequest(training.recipe, texts.train, texts.valid, run, settings, resume=True), task)
    config, tokenizer = read_config(run), Tokenizer.load(run / "tokenizer.json")
    last = checkpoints(run)[-1]
    if step_of(last) < config.train.max_steps:
        raise KeyboardInterrupt
    torch.manual_seed(config.train.seed)
    model = task.build(config)
    assert isinstance(model, Transformer)
    return Trained(model.eval(), config, tokenizer, last)
