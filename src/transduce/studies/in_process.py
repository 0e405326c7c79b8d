"""Trainings in the process of the study, for models that no model folder can hold.

Their task is not a task of `transduce train`: it builds a model with another attention. Their folders are removed when
their figures are known, since others would read RUN/model as the model of its configuration.
"""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from transduce.data.tokenizer import Tokenizer
from transduce.model.transformer import parameter_count
from transduce.storage.checkpoints import checkpoints, load_checkpoint, step_of
from transduce.storage.model_folder import LoadedModel
from transduce.storage.run_request import TrainRequest
from transduce.studies.results import Results, encode_config
from transduce.studies.runner import Task, in_turn, run_cells, timed
from transduce.studies.schedule import outdated_trainings
from transduce.studies.trainings import Texts, Training, read_config
from transduce.train import TranslationTask, train
from transduce.training.weights import set_weights


def run_in_process(
    trainings: Sequence[Training], results: Results, measure: Callable[[Training, Path], dict[str, Any]], *, rerun: bool
) -> None:
    """Train the models that are not done, one by one, and record their figures.

    measure: trains in a folder, or resumes there, and returns the figures. A training that diverged has an entry with
    `diverged`, and is not trained again without `rerun`. A training that fails is only recorded. rerun: train also
    the models that diverged, and the models whose settings have changed since their entry.
    """
    runs = results.path.parent / "runs"
    by_name = {training.name: training for training in trainings if rerun or not results.has_diverged(training.name)}

    def tidy() -> None:
        for training in trainings:
            if results.is_done(training.name) or results.has_diverged(training.name):
                _remove(runs / training.name)

    def work(name: str) -> dict[str, Any]:
        tidy()
        return timed(measure, by_name[name], runs / name)

    def make(names: list[str]) -> list[Task]:
        origins = {name: {"row": by_name[name].row, "seed": by_name[name].seed} for name in names}
        return [Task(name, origins[name], partial(work, name)) for name in names]

    diverged = filter(results.has_diverged, (training.name for training in trainings))
    names = [*outdated_trainings(trainings, results), *diverged] if rerun else []
    again = {name: partial(_remove, runs / name) for name in names}
    try:
        run_cells([*by_name], make, in_turn, results, again=again)
    finally:
        tidy()


def _remove(run: Path) -> None:
    shutil.rmtree(run, ignore_errors=True)


def train_here(training: Training, texts: Texts, run: Path, task: TranslationTask) -> tuple[LoadedModel, Path]:
    """Train in the folder `run`, or resume there; return the model with its first weights, and the last checkpoint.

    Raises KeyboardInterrupt after a signal, and NotFiniteError if the training diverged.
    """
    settings = training.all_settings()
    train(TrainRequest(training.recipe, texts.train, texts.valid, run, settings, resume=True), task)
    config, tokenizer = read_config(run), Tokenizer.load(run / "tokenizer.json")
    last = checkpoints(run)[-1]
    if step_of(last) < config.train.max_steps:
        raise KeyboardInterrupt
    torch.manual_seed(config.train.seed)
    return LoadedModel(task.build(config).eval(), config, tokenizer), last


def load_last(loaded: LoadedModel, last: Path) -> dict[str, Any]:
    """Give the model the weights of its last checkpoint, and return its size, its steps and its configuration."""
    set_weights(loaded.model, load_checkpoint(last).weights, last)
    sizes = {"parameters": parameter_count(loaded.model), "steps": step_of(last)}
    return {**sizes, "config": encode_config(loaded.config)}
