"""Three sentences of the paper that have no table, as experiments on a small text.

    §3.2.1  without the factor 1/sqrt(d_k), a large d_k pushes the softmax into regions of small gradients
    §3.5    sinusoids may let the model extrapolate to sequences longer than in training
    §5.4    label smoothing hurts perplexity, but improves accuracy and BLEU

For the second, models are trained on short pairs only, and evaluated on short and on longer pairs of the validation
text. A position is one piece of the tokenizer, so pairs are cut by pieces. The rows are sinusoids, learned positions,
and the relative positions of Shaw et al. (2018), which know no position but the distance between two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import torch

from transduce.config.recipes import find_recipe
from transduce.config.recipes.studies.table3 import schedule
from transduce.data.batches import collate
from transduce.data.text import FilePair, LinePair, read_pairs
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError
from transduce.storage.atomic_folder import write_file
from transduce.storage.model_folder import load_model
from transduce.studies import claims_models
from transduce.studies.claims_models import run_in_process
from transduce.studies.claims_report import POSITIONS, RELATIVE, SMOOTHING, report
from transduce.studies.results import Duration, Figures, Percent, PositiveInt, Results, Study, figures_type
from transduce.studies.runner import reported
from transduce.studies.schedule import refuse_outdated, run_trainings
from transduce.studies.trainings import SCORES, TRAINING, TRANSLATION, Texts, Training

BASE = "small-table3-base"
STEPS = 1_200
SHORT = 16  # the maximum number of pieces on both sides of a short pair
LONGER = 22  # both sides of a longer pair have more pieces

SOFTMAX = figures_type(variance=Duration, gradient=Duration, components=Duration)  # means over its rows
SCALING = figures_type("row", "seed", "perplexity", "cpu_seconds", softmax_start=SOFTMAX, softmax_end=SOFTMAX)
SMOOTHED = figures_type(optional={"accuracy": Percent})  # added after the training

# The pairs of section 3.5; results from before they were counted have none.
SETTINGS = TypedDict(
    "SETTINGS",
    {
        "most pieces of short pairs": NotRequired[PositiveInt],
        "least pieces of longer pairs": NotRequired[PositiveInt],
        "short training pairs": NotRequired[PositiveInt],
        "short pairs": NotRequired[PositiveInt],
        "longer pairs": NotRequired[PositiveInt],
        "new positions, %": NotRequired[Percent],
    },
)


def _entry_types(name: str, settings: Figures) -> list[type]:
    kind = name.split("-")[0]
    if kind in ("scaled", "unscaled"):
        return [SCALING]
    on_longer = kind in (*POSITIONS, RELATIVE)
    return [TRAINING, TRANSLATION, figures_type(test=SCORES) if on_longer else SMOOTHED]


STUDY = Study("claims", _entry_types, SETTINGS)


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
    results = STUDY.open(out, {"language": texts.language, **hashes, **split.figures})
    in_process = [*relative_trainings(), *claims_models.scaling_trainings()]
    if not rerun:
        refuse_outdated(in_process, results)

    short = split.write(out / "runs" / "texts", texts.language)

    def measure(training: Training, run: Path) -> Figures:
        if training.row == RELATIVE:
            return claims_models.train_relative(training, short, run)
        return claims_models.train_and_measure(training, texts, run)

    with reported(results, report):
        by_row: dict[str, Texts] = dict.fromkeys(POSITIONS, short)
        run_trainings(trainings(), texts, results, jobs=jobs, rerun=rerun, other_data=by_row)
        add_accuracy(results, texts.valid)
        run_in_process(in_process, results, measure, rerun=rerun)
    return results


# ---- §3.5: the texts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LengthSplit:
    """The short training pairs, the short pairs of the validation text, and its longer ones, with their figures."""

    train: list[LinePair]
    valid: list[LinePair]
    longer: list[LinePair]
    figures: Figures

    def write(self, folder: Path, language: str) -> Texts:
        """Write the texts to `folder`, and return them. The test text is the longer pairs."""
        folder.mkdir(parents=True, exist_ok=True)
        paths: dict[str, FilePair] = {}
        for name, pairs in (("train", self.train), ("valid", self.valid), ("longer", self.longer)):
            paths[name] = folder / f"{name}.src", folder / f"{name}.tgt"
            for side, path in enumerate(paths[name]):
                write_file(path, "".join(f"{pair[side]}\n" for pair in pairs).encode())
        return Texts(paths["train"], paths["valid"], paths["longer"], language)


def split_texts(texts: Texts, vocab_size: int) -> LengthSplit:
    """Return the short and the longer pairs. vocab_size: of the trainings.

    The tokenizer that a training learns from the short pairs gives the pieces. Raises UserError if there is no short
    or no longer pair.
    """
    train, tokenizer = _short_pairs(list(read_pairs(*texts.train)), vocab_size, texts.train)
    pairs = list(read_pairs(*texts.valid))
    pieces = _pieces(pairs, tokenizer)
    valid = [pair for pair, length in zip(pairs, pieces.max(axis=1), strict=True) if length <= SHORT]
    is_longer = pieces.min(axis=1) > LONGER
    longer = [pair for pair, is_long in zip(pairs, is_longer, strict=True) if is_long]
    if not valid or not longer:
        raise UserError(
            f"{texts.valid[0]}: expected pairs of at most {SHORT} pieces, and pairs of more than {LONGER} on both "
            "sides; give another text"
        )
    targets = pieces[is_longer, 1]
    figures = {
        "most pieces of short pairs": SHORT,
        "least pieces of longer pairs": LONGER + 1,
        "short training pairs": len(train),
        "short pairs": len(valid),
        "longer pairs": len(longer),
        "new positions, %": round(100 * float((targets - SHORT).sum() / targets.sum()), 1),
    }
    return LengthSplit(train, valid, longer, figures)


def _short_pairs(pairs: list[LinePair], vocab_size: int, paths: FilePair) -> tuple[list[LinePair], Tokenizer]:
    """Return the short pairs, and the tokenizer that a training learns from them.

    A tokenizer that is learned from fewer pairs can have more pieces in one of them, so pairs are left out until all
    are short by the tokenizer that is learned from them.
    """
    while True:
        if not pairs:
            raise UserError(f"{paths[0]}: expected pairs of at most {SHORT} pieces on both sides; give another text")
        tokenizer = Tokenizer.learn((side for pair in pairs for side in pair), vocab_size=vocab_size)
        is_short = _pieces(pairs, tokenizer).max(axis=1) <= SHORT
        if is_short.all():
            return pairs, tokenizer
        pairs = [pair for pair, short in zip(pairs, is_short, strict=True) if short]


def _pieces(pairs: Sequence[LinePair], tokenizer: Tokenizer) -> np.ndarray:
    """Return the numbers of pieces of source and target: (pairs, 2)."""
    sides = (tokenizer.encode_batch([pair[side] for pair in pairs]) for side in (0, 1))
    return np.stack([np.array([len(ids) for ids in side], dtype=np.int64) for side in sides], axis=1)


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
