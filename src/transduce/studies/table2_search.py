"""The search of Table 2: the same for each system, judged on the validation text after the same number of steps.

    two learning rates -> the next ones, outwards -> the other shape -> the next dropouts -> the best of all

A step to the next value of a grid ends when it is worse, so a system has 5 to 7 trainings. A learning rate is given by
its peak, and a tenth of the steps is warm-up, as in the trainings that the search serves: with a shorter warm-up, the
same `lr_factor` would have a higher peak. The choices are written into `recipes.table2.CHOICES` by hand.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transduce.config.recipes.studies.table2 import SHAPES, lr_factor
from transduce.errors import UserError
from transduce.evaluation.study_report import NOT_RUN, Report, Table, rows_table
from transduce.studies.comparison import report_of
from transduce.studies.results import Results, Study
from transduce.studies.runner import reported
from transduce.studies.schedule import run_trainings
from transduce.studies.trainings import TRAINING, TRANSLATION, Texts, Training

PEAKS = (0.9e-3, 1.8e-3, 3.6e-3, 7.2e-3, 14.4e-3)  # of the learning rate; the search starts with the 3rd and the 4th
DROPOUTS = (0.1, 0.2, 0.3)  # the search starts with the first
FIRST_SHAPE, OTHER_SHAPE = "wide", "deep"
STEPS, WARMUP = 1_000, 100
SYSTEMS = {
    "post-norm": "Transformer, post-norm",
    "pre-norm": "Transformer, pre-norm",
    "recurrent": "LSTM with attention",
    "convolutional": "gated convolutions",
}
STUDY = Study("table2-search", lambda name, settings: [TRAINING, TRANSLATION])


@dataclass(frozen=True)
class Candidate:
    """A combination of settings of a system."""

    system: str
    shape: str
    peak: float
    dropout: float

    @property
    def name(self) -> str:
        return self.training().name

    def training(self) -> Training:
        """Return the training of the candidate: the recipe of the system with all settings that depend on a choice."""
        model = {**SHAPES[self.system][self.shape], "dropout": self.dropout}
        factor = lr_factor(self.peak, SHAPES[self.system][self.shape]["d_model"], WARMUP)
        train: dict[str, Any] = {"max_steps": STEPS, "warmup_steps": WARMUP, "lr_factor": factor, "use": "last"}
        train |= {"evaluate_every_steps": STEPS, "checkpoint_every_steps": STEPS, "keep_checkpoints": 2}
        settings = [f"model.{name}={value}" for name, value in model.items()]
        settings += [f"train.{name}={value}" for name, value in train.items()]
        row = f"{self.system}-{self.shape}-peak{1000 * self.peak:g}e-3-dropout{self.dropout}"
        return Training(row, 1, f"small-table2-{self.system}", tuple(settings))

    def at_edges(self) -> list[str]:
        """Return the settings that are the first or the last value of their grid."""
        grids = (("learning rate", self.peak, PEAKS), ("dropout", self.dropout, DROPOUTS))
        return [f"{name} {value:g}" for name, value, grid in grids if value in (grid[0], grid[-1])]


def candidates(system: str) -> Generator[list[Candidate], Candidate, None]:
    """Yield the candidates of a system, a few at a time, and receive the best of all so far after each."""
    low, high = 2, 3
    best = yield [Candidate(system, FIRST_SHAPE, PEAKS[number], DROPOUTS[0]) for number in (low, high)]
    outwards = reversed(PEAKS[:low]) if best.peak == PEAKS[low] else iter(PEAKS[high + 1 :])
    for peak in outwards:
        best = yield [replace(best, peak=peak)]
        if best.peak != peak:
            break
    best = yield [replace(best, shape=OTHER_SHAPE)]
    for dropout in DROPOUTS[1:]:
        best = yield [replace(best, dropout=dropout)]
        if best.dropout != dropout:
            break


@dataclass(frozen=True)
class SearchProgress:
    """The state of the search of a system: its candidates so far, and the choice, None until all have ended.

    A candidate that diverged cannot be the choice.
    """

    candidates: list[Candidate]
    choice: Candidate | None


def search(system: str, results: Results) -> SearchProgress:
    """Return how far the search of a system is in `results`."""

    def perplexity(candidate: Candidate) -> float:  # infinity if it diverged
        return results.entries[candidate.name].get("perplexity", math.inf)

    so_far: list[Candidate] = []
    batches = candidates(system)
    batch = next(batches)
    while True:
        so_far += batch
        if not all(has_ended(candidate, results) for candidate in so_far):
            return SearchProgress(so_far, None)
        best = min(so_far, key=perplexity)
        try:
            batch = batches.send(best)
        except StopIteration:
            return SearchProgress(so_far, best if perplexity(best) < math.inf else None)


def has_ended(candidate: Candidate, results: Results) -> bool:
    """Check whether a candidate is done or diverged. Another failure, such as a full disk, tells nothing about it."""
    return results.is_done(candidate.name) or results.has_diverged(candidate.name)


def run_search(texts: Texts, out: Path, *, jobs: int | None = None, rerun: bool = False) -> Results:
    """Train the candidates that are not yet in OUT/results.json, and write the report with the choices.

    The search continues after a candidate that diverged, which is trained again only with `rerun`. texts: without a
    test text, since all is chosen by the validation text. jobs, rerun: as in `schedule.run_trainings`.
    Raises UserError for a test text, and after another failure of a training.
    """
    if texts.test is not None:
        raise UserError("--test: must not be set with --search, which uses only the other texts; leave it out")
    results = STUDY.open(out, {"language": texts.language, **texts.read()})
    with reported(results, report):
        while True:
            known = map(Candidate.training, _known(results))
            trainings = [training for training in known if rerun or not results.has_diverged(training.name)]
            try:
                run_trainings(trainings, texts, results, jobs=jobs, rerun=rerun)
            except UserError:
                failed = [training.name for training in trainings if results.has_failed(training.name)]
                if not failed or not all(map(results.has_diverged, failed)):
                    raise
            rerun = False
            if not waiting(results):
                return results


def _known(results: Results) -> list[Candidate]:
    """Return the candidates of all systems so far."""
    return [candidate for system in SYSTEMS for candidate in search(system, results).candidates]


def waiting(results: Results) -> list[Candidate]:
    """Return the candidates that the searches of all systems need next."""
    return [candidate for candidate in _known(results) if not has_ended(candidate, results)]


def choices(results: Results) -> dict[str, Candidate]:
    """Return the best candidate of each system whose search is done."""
    winners = {system: search(system, results).choice for system in SYSTEMS}
    return {system: winner for system, winner in winners.items() if winner is not None}


def report(results: Results) -> Report:
    """Return the report: the choices, and the validation perplexity of each candidate."""
    winners = choices(results)
    edges = [
        f"{SYSTEMS[system]}: {' and '.join(best.at_edges())}" for system, best in winners.items() if best.at_edges()
    ]
    tables: dict[str, Any] = {system: _candidates(system, results, winners) for system in SYSTEMS}
    unfinished = [title for system, title in SYSTEMS.items() if system not in winners]
    return report_of(
        results,
        unfinished=f" Not finished: {'; '.join(unfinished)}." if unfinished else "",
        choices=[
            f'    "{system}": Choice("{best.shape}", {best.dropout}, {1000 * best.peak:g}e-3),'
            for system, best in winners.items()
        ],
        edges=[f"At the edge of its grid, beyond which the best may be: {'; '.join(edges)}."] if edges else [],
        steps=STEPS,
        warmup=WARMUP,
        shape=FIRST_SHAPE,
        dropout=DROPOUTS[0],
        low_peak=PEAKS[2],
        high_peak=PEAKS[3],
        **tables,
    )


def _candidates(system: str, results: Results, winners: dict[str, Candidate]) -> Table:
    rows = []
    for candidate in search(system, results).candidates:
        entry = results.entries.get(candidate.name, {"status": NOT_RUN})
        sizes = ", ".join(f"{name} {value}" for name, value in SHAPES[system][candidate.shape].items())
        cells = [entry["status"]]  # "failed" or "not run"
        if results.is_done(candidate.name):
            mark = "chosen" if winners.get(system) == candidate else ""
            cells = [f"{entry['perplexity']:.2f}", f"{entry['bleu']:.2f}", mark]
        rows.append([f"{candidate.shape}: {sizes}", f"{candidate.peak:g}", f"{candidate.dropout:g}", *cells])
    head = ["shape", "highest learning rate", "dropout", "perplexity", "BLEU", ""]
    return rows_table(head, rows, words=frozenset({0, 5}))
