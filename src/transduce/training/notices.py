"""The lines that a run prints at its start and at its end."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from transduce.config.schema import Config
from transduce.data.batches import Batches
from transduce.data.overlap import EXCHANGED, Overlap
from transduce.data.piece_bytes import parts_of_characters
from transduce.data.tags import TagCount, no_tag
from transduce.data.vocabulary import PAD, TokenizerLike
from transduce.model import devices
from transduce.model.cpu_backend import has_fast_bf16
from transduce.model.transformer import parameter_count
from transduce.training import distributed, halves
from transduce.training.progress import format_scores, scores_on_old
from transduce.training.state import TrainingState


def small_vocabulary(requested: int, tokenizer: TokenizerLike) -> list[str]:
    """Return a line if a new tokenizer has fewer pieces than requested."""
    if tokenizer.vocab_size >= requested:
        return []
    return [f"the tokenizer has {tokenizer.vocab_size:,} pieces, not {requested:,}: the text is too short for more"]


def start(config: Config, batches: Batches, model: nn.Module, step: int) -> list[str]:
    """Return lines on the size of the run and on its devices. step: the step to resume at, 0 for a new run."""
    unit = "lines" if batches.store.is_one_text else "pairs"
    lines = [f"resuming at step {step:,}"] if step else []
    if batches.left_out:
        lines.append(f"of {len(batches.store):,} {unit}, training leaves out {batches.left_out}")
    ranks = f", {distributed.world_size()} ranks" if distributed.world_size() > 1 else ""
    lines.append(
        f"{batches.usable:,} {unit}, {len(batches.plan(0)):,} steps an epoch; "
        f"{parameter_count(model) / 1e6:.1f} M parameters; "
        f"{config.train.precision} on {devices.device()}, {_threads(model)}{ranks}"
    )
    return lines + slow_precision(config.train.precision)


def frozen(state: TrainingState) -> list[str]:
    """Return a line if only a part of the parameters is trained, or factors of changes."""
    moments = [of[name] for of in state.optimizer.state.values() for name in ("exp_avg", "momentum") if name in of]
    trained, total = sum(moment.numel() for moment in moments), parameter_count(state.model)
    if trained == total:
        return []
    what = "parameters, the others stay as they are" if state.config.lora_rank is None else "values in low-rank factors"
    return [f"training {trained / 1e6:.2f} M {what}"]


def slow_precision(precision: str) -> list[str]:
    """Return a line if the processor or the GPU has no instructions for products in `precision`."""
    device = devices.device()
    if precision == "fp32" or has_fast_bf16(device):
        return []
    processor, time = ("a processor", "25 times as long") if device.type == "cpu" else ("a GPU", "longer")
    return [
        f"train.precision={precision!r}: expected {processor} with instructions for bf16; without them a product takes "
        f"{time}, so start again with --set train.precision=fp32"
    ]


def _threads(model: nn.Module) -> str:
    """Return the number of threads, and their division if each computes a part of a batch."""
    threads = torch.get_num_threads()
    n = halves.count(model, devices.device())
    return f"{threads} threads" + (f", {threads // n} for each half of a batch" if n > 1 else "")


def texts(
    batches: Batches, valid_pairs: Sequence[tuple[str, str]], valid_name: str, *, is_from_model: bool
) -> list[str]:
    """Return lines on characters and tags of the texts that do not fit the tokenizer."""
    valid = TagCount(batches.tokenizer)
    valid.see(src for src, _ in valid_pairs)
    of_tags = tags(batches, valid, valid_name, is_from_model=is_from_model)
    return [*split_characters(batches, is_from_model=is_from_model), *of_tags]


MOST_BYTES = 0.1  # share of the tokens: 0.02 of French by a tokenizer of English and German, 0.8 of Japanese
SAMPLE = 1_000  # pairs


def split_characters(batches: Batches, *, is_from_model: bool) -> list[str]:
    """Return a line for each side whose characters, such as another script, the tokenizer splits into bytes."""
    store, tokenizer = batches.store, batches.tokenizer
    sides = store.read(np.linspace(0, len(store) - 1, min(SAMPLE, len(store)), dtype=np.int64))
    remedy = "train without --from" if is_from_model else "give a larger data.vocab_size"
    lines = []
    for side, name in enumerate(("training text",) if store.is_one_text else ("source text", "target text")):
        parts = parts_of_characters(tokenizer.target if side else tokenizer)
        ids = np.concatenate(sides[side])
        share = float(np.isin(ids, parts).mean()) if len(ids) else 0.0
        if share > MOST_BYTES:
            lines.append(
                f"{name}: expected characters that the tokenizer has pieces for, but {share:.0%} of the tokens are "
                f"bytes of others; {remedy}"
            )
    return lines


MOST_TAGGED = 100_000  # pairs whose tags are counted; the ids are read in a second


def tags(batches: Batches, valid: TagCount, valid_name: str, *, is_from_model: bool) -> list[str]:
    """Return a line for each text in which sources have no tag, and one for tags that no source of the training has.

    valid: the count of the validation text.
    """
    store, tokenizer = batches.store, batches.tokenizer
    if not tokenizer.tags:
        return []
    remedy = "put one before each line, or leave data.tags out"
    pairs = np.linspace(0, len(store) - 1, min(MOST_TAGGED, len(store)), dtype=np.int64)
    sources, _ = store.read(pairs)
    first_ids = np.array([ids[0] if len(ids) else PAD for ids in sources])
    ids = {tag: tokenizer.vocabulary.index(tag) for tag in tokenizer.tags}
    untagged = pairs[~np.isin(first_ids, [PAD, *ids.values()])]
    lines = []
    if len(untagged):
        sample = f" in a sample of {len(pairs):,}" if len(pairs) < len(store) else ""
        count = f"{len(untagged):,} of {np.count_nonzero(first_ids != PAD):,} lines{sample} have none"
        names = batches.where(untagged, limit=3)
        lines.append(no_tag("training text", tokenizer, f"{names}: {remedy}", count))
    lines += [warning for warning in [valid.warning(valid_name, remedy)] if warning]
    unused = [tag for tag, number in ids.items() if number not in first_ids]
    if unused and not is_from_model:
        names = ",".join(unused)
        lines.append(f"data.tags={names}: expected source lines that begin with each; add them, or leave the tag out")
    return lines


def overlap(lines: Overlap, names: Sequence[str], size: int, *, is_one_text: bool = False) -> list[str]:
    """Return lines on the validation text that is also in the training text, and on sides that look exchanged.

    The first makes the scores too good, and the second useless. lines: the overlap of the two texts. names: the names
    of the files of the validation text. size: its number of lines.
    """
    if is_one_text:
        return [f"of the {size:,} lines of {names[0]}, {len(lines.pairs):,} are also in the training text"]
    counts = f"{len(lines.pairs):,} pairs and {len(lines.sources):,} sources"
    notices = [f"of the {size:,} of {names[0]}, {counts} are also in the training text"]
    if lines.is_exchanged:
        notices.append(f"--valid={' '.join(names)}: {EXCHANGED}; start again with the two sides the other way round")
    return notices


def end(state: TrainingState, model_folder: Path, origin: str, validation: str | None) -> list[str]:
    """Return lines on the end of the run, the origin of its model, and its scores.

    origin: the checkpoints whose weights the model has, in words. validation: the scores in words; None if the run was
    interrupted.
    """
    return [
        f"{outcome(state)} after {state.counters.seconds:,.0f} s of training",
        *patience(state),
        f"{model_folder} is {origin}",
        f"validation: {validation}" if validation else "continue with the same command and --resume",
    ]


def outcome(state: TrainingState) -> str:
    """Return how a run ended, and at which step."""
    words = "finished" if state.is_finished else "interrupted"
    if state.is_out_of_patience:
        words = "stopped early"
    return f"{words} at step {state.counters.step:,} of {state.config.max_steps:,}"


def patience(state: TrainingState) -> list[str]:
    """Return a line on the cause and the remedy of a run that stopped early; none for other runs."""
    counters = state.counters
    if not state.is_out_of_patience or counters.step >= state.config.max_steps:
        return []
    count = counters.evaluations_since_best
    command = f"--resume --set train.patience={2 * count} --allow-change train.patience"
    return [
        f"the last {count} evaluations were not better than the one of step {counters.best_step:,}, and "
        f"train.patience is {state.config.patience}; the same training with {command} continues"
    ]


def fall(state: TrainingState, start: Mapping[str, float], scores: Mapping[str, float]) -> list[str]:
    """Return a line if a fine-tuned model has become worse on the old validation text.

    start: the scores of step 0; empty if it was not evaluated. scores: the scores of this step.
    """
    before, after = scores_on_old(start), scores_on_old(scores)
    if not (before and after and state.score(after) > state.score(before)):
        return []
    return [f"the model is worse on the old text than at step 0: {format_scores(before)} then"]


def worse(state: TrainingState, scores: Mapping[str, float], best: Mapping[str, float]) -> list[str]:
    """Return a line if the final model is worse than the best checkpoint of its run.

    scores: the scores of the final model. best: the scores of that checkpoint. A loss may turn while the translations
    become better, so a checkpoint of the best loss is no remedy for a model with a higher BLEU or chrF.
    """
    if not state.is_worse_than_best(scores):
        return []
    name = state.config.best_by
    line = f"the model is worse by validation {name} than the best checkpoint, of step {state.counters.best_step:,}"
    command = "--resume --set train.use=best --allow-change train.use"
    remedy = "" if state.config.use == "best" else f"; the same training with {command} takes that one"
    better = [other for other in ("bleu", "chrf") if scores.get(other, 0.0) > best.get(other, math.inf)]
    if name == "loss" and better:
        figures = (f"{format_scores({other: scores[other]})}, not {best[other]:.1f}" for other in better)
        remedy = f", and better by {' and '.join(figures)}"
    return [f"{line}{remedy}"]
