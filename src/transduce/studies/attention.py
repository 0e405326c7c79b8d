"""Forms of attention, measured: time and memory against the length, and the loss of a small model with each.

The costs of all forms at one length are measured in turn, and are one entry of results.json. Each training is another.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from transduce.studies import attention_forms, attention_models
from transduce.studies.attention_forms import SIZES, AttentionSizes
from transduce.studies.attention_models import TrainedForm
from transduce.studies.attention_report import report
from transduce.studies.results import Cost, Count, Duration, Results, Study, open_results
from transduce.studies.runner import Control, Endings, Task, Work, in_turn, print_line, run_tasks, timed
from transduce.studies.small_models import Streams, hashes
from transduce.training.halves import threads


class FormCosts(TypedDict):
    """The costs of a form of attention, or of a layer with it, at a length."""

    forward_seconds: Cost
    backward_seconds: Cost
    peak_bytes: Count
    cache_bytes_per_token: NotRequired[Count]


class CostsCell(TypedDict):
    """The costs of all forms at length n. forms: by name."""

    n: Count
    forms: dict[str, FormCosts]


class AttentionCell(TypedDict):
    """A training of a small model with a form of attention. loss: in nats for each predicted token."""

    row: str
    seed: int
    loss: Duration
    parameters: Count
    cpu_seconds: Duration


class AttentionSettings(TypedDict):
    sizes: AttentionSizes


def _entry_types(name: str, settings: Mapping[str, Any]) -> list[Any]:
    return [CostsCell if name.startswith("costs-") else AttentionCell]


STUDY = Study("attention", _entry_types, AttentionSettings)


def run_attention(train: Path, valid: Path, out: Path, *, sizes: AttentionSizes = SIZES) -> Results:
    """Measure and train what is not yet in OUT/results.json, and write the report.

    train, valid: texts whose lines follow one another. It runs on the CPU, with torch's number of threads. An
    interrupted training starts again. Raises UserError if `out` has results of other texts or sizes, or for an unusable
    text. Raises the errors of `runner.run_cells`, too.
    """
    results = open_results(out, STUDY, {**hashes(train, valid), "sizes": sizes})
    trainings = {f"{row.name}-{seed}": (row, seed) for row in attention_models.rows(sizes) for seed in row.seeds}
    origins: dict[str, dict[str, Any]] = {
        **{name: {"row": row.name, "seed": seed} for name, (row, seed) in trainings.items()},
        **{f"costs-{n}": {"n": n} for n in sizes.lengths},
    }

    def prepare() -> Callable[[str], Work]:
        texts = attention_models.token_texts(train, valid, sizes)

        def work_of(name: str) -> Work:
            if name in trainings:
                return partial(timed, _train, *trainings[name], texts, sizes)
            return partial(_costs, origins[name]["n"], sizes)

        return work_of

    def costs_first(tasks: Sequence[Task], control: Control) -> Endings:
        return in_turn(sorted(tasks, key=lambda task: task.name in trainings), control)

    return run_tasks(origins, prepare, costs_first, results, report)


def _costs(n: int, sizes: AttentionSizes) -> dict[str, Any]:
    with threads(1):
        return {"forms": attention_forms.measure(n, sizes)}


def _train(row: TrainedForm, seed: int, texts: Streams, sizes: AttentionSizes) -> dict[str, Any]:
    def show(step: int, loss: float) -> None:
        print_line(f"{row.title}, seed {seed}: step {step}, loss {loss:.3f}")

    return attention_models.train(row, seed, texts, sizes, show)
