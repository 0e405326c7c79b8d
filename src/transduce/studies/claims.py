"""Three sentences of the paper that have no table, as experiments on a small text.

    §3.2.1  without the factor 1/sqrt(d_k), a large d_k pushes the softmax into regions of small gradients (`scaling`)
    §3.5    sinusoids may let the model extrapolate to sequences longer than those of the training
    §5.4    label smoothing hurts perplexity, but improves accuracy and BLEU

For the second, models are trained on short pairs only, with sinusoids and with learned positions, and are evaluated on
short and on longer pairs of the validation text.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from transduce.data.batches import collate
from transduce.data.text import read_pairs
from transduce.errors import UserError
from transduce.evaluation.study_report import write_report
from transduce.storage.atomic_folder import write_file
from transduce.storage.model_folder import load_model
from transduce.studies import scaling
from transduce.studies.claims_report import POSITIONS, SMOOTHING, report
from transduce.studies.results import Results, open_results
from transduce.studies.schedule import exclusive_folder, outdated_trainings, refuse_outdated, run_trainings
from transduce.studies.texts import FilePair, Texts
from transduce.studies.trainings import Training

STEPS, WARMUP = 1_200, 300
SHORT_SHARE = 0.5  # of the training pairs have at most so many words on their longer side
LONGER = 1.4  # a longer pair has a source of more than this many times the words


def trainings() -> list[Training]:
    """Return the trainings of the second and the third claim: base of the small Table 3, with one change each."""
    schedule = (f"train.max_steps={STEPS}", f"train.warmup_steps={WARMUP}", f"train.evaluate_every_steps={STEPS}")
    learned = ("model.positions=learned", "model.max_positions=256")
    changes = {
        "smoothing0.1": (3, ("train.label_smoothing=0.1",)),
        "smoothing0": (3, ("train.label_smoothing=0",)),
        "sinusoids": (2, ()),
        "learned": (2, learned),
    }
    return [
        Training(row, seed, "small-table3-base", (*settings, *schedule))
        for seed in (1, 2, 3)
        for row, (seeds, settings) in changes.items()
        if seed <= seeds
    ]


def run_claims(texts: Texts, out: Path, *, jobs: int | None = None, rerun: bool = False) -> Results:
    """Run the experiments that are not yet in OUT/results.json, and write the report.

    jobs: of the trainings of the second and the third claim; those of the first run one by one. rerun: as in
    `schedule.run_trainings`.
    """
    texts = Texts(texts.train, texts.valid, language=texts.language)
    results = open_results(out, "claims", {"language": texts.language, **texts.read()})
    if not rerun:
        refuse_outdated(scaling.trainings(), results)
    try:
        short = write_short_texts(texts, out / "runs" / "texts")
        by_row: dict[str, Texts] = {row: short for row in POSITIONS}
        run_trainings(trainings(), texts, results, jobs=jobs, rerun=rerun, other_data=by_row)
        add_accuracy(results, texts.valid)
        run_scaling(texts, results, rerun=rerun)
    finally:
        if results.entries:
            write_report(out, report(results), results.sessions)
    return results


# ---- §3.2.1 ------------------------------------------------------------------------------------------------------


def run_scaling(texts: Texts, results: Results, *, rerun: bool) -> None:
    """Train the models with and without the factor that are not done, one by one in this process."""
    runs = results.path.parent / "runs"
    outdated = outdated_trainings(scaling.trainings(), results) if rerun else {}
    queue = [one for one in scaling.trainings() if not results.is_done(one.name) or one.name in outdated]
    if not queue:
        return
    with exclusive_folder(results):
        results.start_session([training.name for training in queue])
        for training in queue:
            if training.name in outdated:
                scaling.remove_run(runs / training.name)
            started_at, processor_started_at = time.monotonic(), time.process_time()
            origin = {"row": training.row, "seed": training.seed}
            try:
                figures = scaling.train_and_measure(training, texts, runs / training.name)
            except UserError as problem:  # it may have diverged
                results.record(training.name, "failed", **origin, why=str(problem))
                continue
            seconds, cpu_seconds = time.monotonic() - started_at, time.process_time() - processor_started_at
            cost = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)}  # of the last session
            results.record(training.name, "done", **origin, **figures, **cost)
            scaling.remove_run(runs / training.name)


# ---- §3.5 --------------------------------------------------------------------------------------------------------


def write_short_texts(texts: Texts, folder: Path) -> Texts:
    """Write the short pairs of both texts, and the longer ones of the validation text, and return them.

    The test text of the result is the longer pairs. Raises UserError if there is no longer pair.
    """
    train, valid = list(read_pairs(*texts.train)), list(read_pairs(*texts.valid))
    lengths = sorted(map(_words, train))
    limit = lengths[int(SHORT_SHARE * (len(lengths) - 1))]
    parts = {
        "train": [pair for pair in train if _words(pair) <= limit],
        "valid": [pair for pair in valid if _words(pair) <= limit],
        "longer": [pair for pair in valid if len(pair[0].split()) > LONGER * limit],
    }
    empty = [name for name, pairs in parts.items() if not pairs]
    if empty:
        raise UserError(
            f"{texts.valid[0]}: expected pairs of at most {limit} words, half of the training text, and sources of "
            f"more than {LONGER * limit:g} words; give another text"
        )
    paths: dict[str, FilePair] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in parts.items():
        paths[name] = folder / f"{name}.src", folder / f"{name}.tgt"
        for side, path in enumerate(paths[name]):
            write_file(path, "".join(f"{pair[side]}\n" for pair in pairs).encode())
    return Texts(paths["train"], paths["valid"], paths["longer"], texts.language)


def _words(pair: tuple[str, str]) -> int:
    """Return the number of words of the longer side."""
    return max(len(side.split()) for side in pair)


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
