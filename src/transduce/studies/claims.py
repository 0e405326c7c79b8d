"""Three sentences of the paper that have no table, as experiments on a small text.

    §3.2.1  without the factor 1/sqrt(d_k), a large d_k pushes the softmax into regions of small gradients (`scaling`)
    §3.5    sinusoids may let the model extrapolate to sequences longer than in training
    §5.4    label smoothing hurts perplexity, but improves accuracy and BLEU

For the second, models are trained on short pairs only, with sinusoids, with learned and with relative positions, and
are evaluated on short and on longer pairs of the validation text (`longer`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch

from transduce.config.recipes import find_recipe
from transduce.config.recipes.table3 import schedule
from transduce.data.batches import collate
from transduce.data.text import read_pairs
from transduce.storage.model_folder import load_model
from transduce.studies import scaling
from transduce.studies.claims_report import POSITIONS, RELATIVE, SMOOTHING, report
from transduce.studies.in_process import run_in_process
from transduce.studies.longer import split_texts, train_relative
from transduce.studies.results import Count, Duration, Percent, Perplexity, Results, Study, open_results
from transduce.studies.runner import reported
from transduce.studies.schedule import refuse_outdated, run_trainings
from transduce.studies.texts import FilePair, Texts
from transduce.studies.trainings import Training, TrainingCell, WholeScores

BASE = "small-table3-base"
STEPS = 1_200


class Softmax(TypedDict):
    """The softmax of attention: means over its rows."""

    variance: Duration
    gradient: Duration
    components: Duration


class ScalingCell(TypedDict):
    """A training with or without the factor 1/sqrt(d_k)."""

    row: str
    seed: int
    perplexity: Perplexity
    cpu_seconds: Duration
    softmax_start: Softmax
    softmax_end: Softmax


class SmoothingCell(TrainingCell):
    """A training with or without label smoothing. accuracy: added after the training."""

    accuracy: NotRequired[Percent]


class PositionsCell(TrainingCell):
    """A training on short pairs. test: the scores on longer pairs."""

    test: WholeScores


# The pairs of section 3.5; results from before they were counted have none.
ClaimsSettings = TypedDict(
    "ClaimsSettings",
    {
        "most pieces of short pairs": NotRequired[Count],
        "least pieces of longer pairs": NotRequired[Count],
        "short training pairs": NotRequired[Count],
        "short pairs": NotRequired[Count],
        "longer pairs": NotRequired[Count],
        "new positions, %": NotRequired[Percent],
    },
)


def _entry_types(name: str, settings: Mapping[str, Any]) -> list[Any]:
    kind = name.split("-")[0]
    if kind in ("scaled", "unscaled"):
        return [ScalingCell]
    return [PositionsCell if kind in (*POSITIONS, RELATIVE) else SmoothingCell]


STUDY = Study("claims", _entry_types, ClaimsSettings)


def trainings() -> list[Training]:
    """Return the trainings of the second and the third claim: base of the small Table 3, with one change each."""
    learned = ("model.positions=learned", "model.max_positions=256")
    changes = {
        "smoothing0.1": (3, ("train.label_smoothing=0.1",)),
        "smoothing0": (3, ("train.label_smoothing=0",)),
        "sinusoids": (2, ()),
        "learned": (2, learned),
    }
    return [
        Training(row, seed, BASE, (*settings, *schedule(STEPS)))
        for seed in (1, 2, 3)
        for row, (seeds, settings) in changes.items()
        if seed <= seeds
    ]


def relative_trainings() -> list[Training]:
    """Return the trainings with relative positions. Their task replaces the positions of the recipe."""
    return [Training(RELATIVE, seed, BASE, tuple(schedule(STEPS))) for seed in (1, 2)]


def run_claims(texts: Texts, out: Path, *, jobs: int | None = None, rerun: bool = False) -> Results:
    """Run the experiments that are not yet in OUT/results.json, and write the report.

    jobs: number of trainings of the second and the third claim at a time. The trainings of the first claim and the
    trainings with relative positions run one by one. rerun: as in `schedule.run_trainings`.
    """
    texts = Texts(texts.train, texts.valid, language=texts.language)
    hashes = texts.read()
    split = split_texts(texts, find_recipe(BASE)().data.vocab_size)
    results = open_results(out, STUDY, {"language": texts.language, **hashes, **split.figures})
    in_process = [*relative_trainings(), *scaling.trainings()]
    if not rerun:
        refuse_outdated(in_process, results)

    short = split.write(out / "runs" / "texts", texts.language)

    def measure(training: Training, run: Path) -> dict[str, Any]:
        if training.row == RELATIVE:
            return train_relative(training, short, run)
        return scaling.train_and_measure(training, texts, run)

    with reported(results, report):
        by_row: dict[str, Texts] = dict.fromkeys(POSITIONS, short)
        run_trainings(trainings(), texts, results, jobs=jobs, rerun=rerun, other_data=by_row)
        add_accuracy(results, texts.valid)
        run_in_process(in_process, results, measure, rerun=rerun)
    return results


# ---- §5.4 --------------------------------------------------------------------------------------------------------


def add_accuracy(results: Results, valid: FilePair) -> None:
    """Add the accuracy on the validation text to the trainings of the third claim that do not have it."""
    for name, entry in results.entries.items():
        if entry["status"] == "done" and entry.get("row") in SMOOTHING and "accuracy" not in entry:
            entry["accuracy"] = accuracy(results.path.parent / "runs" / name / "model", list(read_pairs(*valid)))
            results.save()


@torch.inference_mode()
def accuracy(folder: Path, pairs: Sequence[tuple[str, str]]) -> float:
    """Return the percentage of target tokens that are the most likely ones, given the source and the tokens before.

    folder: of the model. EOS is a token, too.
    """
    loaded = load_model(folder)
    model, tokenizer = loaded.model, loaded.tokenizer
    src = tokenizer.encode_batch([pair[0] for pair in pairs])
    tgt = tokenizer.target.encode_batch([pair[1] for pair in pairs])
    order = sorted(range(len(pairs)), key=lambda i: len(tgt[i]))
    right = total = 0
    for begin in range(0, len(order), 32):
        members = order[begin : begin + 32]
        batch = collate([np.asarray(src[i]) for i in members], [np.asarray(tgt[i]) for i in members])
        decoded = model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask)
        hidden, targets = batch.real(decoded)
        right += int((model.logits(hidden).argmax(-1) == targets).sum())
        total += len(targets)
    return round(100 * right / total, 4)
