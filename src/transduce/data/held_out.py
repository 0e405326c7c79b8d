"""Validation text for a training that was given none: a small part of its training text, which it then does not see."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from transduce.data.corpora import Corpus, hidden_modes, modification_stamps, read_pairs
from transduce.data.disk import synced_file
from transduce.data.text import encode_names, is_blank
from transduce.data.vocabulary import TokenizerLike, split_tag
from transduce.errors import UserError

MOST_SHARE = 0.02  # of the pairs
MOST_PAIRS = 2_000
MOST_CHARACTERS = 600  # of a side, so that an evaluation does not take long


@dataclass(frozen=True)
class HeldOut:
    """A training text in two parts. No source and no target of `valid` occurs in `training`, on either side.

    training: one corpus for each corpus of the text, with its weight. n_valid: number of pairs of `valid`.
    """

    training: list[Corpus]
    valid: Corpus
    n_valid: int


def hold_out(
    corpora: Sequence[Corpus],
    folder: Path,
    *,
    seed: int,
    tags: Sequence[str] = (),
    tokenizer: TokenizerLike | None = None,
) -> HeldOut:
    """Divide the pairs of `corpora`, and write both parts to `folder` unless it has them.

    `seed` draws the pairs of the validation text among those whose source and whose target occur in no other pair, on
    either side, without regard to white space around them and to a tag before the source. A pair and its reverse are
    drawn together. The tags are those of the tokenizer; None: it is not learned yet, and they are `tags`.
    Raises UserError if there are too few.
    """
    words = tags if tokenizer is None else tokenizer.tags
    split = partial(split_tag, tags=words) if tokenizer is None else tokenizer.split_tag
    valid = Corpus(folder / "valid.src", folder / "valid.tgt")
    training = [
        Corpus(folder / f"train-{number}.src", folder / f"train-{number}.tgt", corpus.weight)
        for number, corpus in enumerate(corpora, start=1)
    ]
    stamp = folder / "made_from.json"
    made_from = encode_names([[corpus.name, modification_stamps(corpus)] for corpus in corpora] + [seed, list(words)])
    if stamp.exists() and stamp.read_bytes() == made_from:
        return HeldOut(training, valid, sum(1 for _ in read_pairs(valid)))
    is_valid = _draw(corpora, seed, split)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(folder.stat().st_mode & ~hidden_modes(corpora))
    stamp.unlink(missing_ok=True)
    _write(corpora, is_valid, training, valid)
    with synced_file(stamp) as file:
        file.write(made_from)
    return HeldOut(training, valid, int(is_valid.sum()))


def _write(corpora: Sequence[Corpus], is_valid: np.ndarray, training: Sequence[Corpus], valid: Corpus) -> None:
    with ExitStack() as files:
        held = [files.enter_context(synced_file(path)) for path in _files(valid)]
        rows = iter(is_valid)
        for corpus, rest in zip(corpora, training, strict=True):
            with ExitStack() as open_files:
                kept = [open_files.enter_context(synced_file(path)) for path in _files(rest)]
                for pair in read_pairs(corpus):
                    for file, side in zip(held if next(rows) else kept, pair, strict=True):
                        file.write(side.encode() + b"\n")


def _files(corpus: Corpus) -> Iterator[Path]:
    assert corpus.tgt is not None
    yield from (corpus.src, corpus.tgt)


def _draw(corpora: Sequence[Corpus], seed: int, split: Callable[[str], tuple[str, str]]) -> np.ndarray:
    """Return True for each pair of the validation text. split: divides a source into its tag and its text."""
    hashes = (array("q"), array("q"))
    fits = bytearray()
    for corpus in corpora:
        for src, tgt in read_pairs(corpus):
            sides = split(src)[1].strip(), tgt.strip()
            for values, side in zip(hashes, sides, strict=True):
                values.append(hash(side))
            fits.append(all(side and not is_blank(side) and len(side) <= MOST_CHARACTERS for side in sides))
    is_single, partner = _partners(*(np.frombuffer(side, np.int64) for side in hashes))
    candidates = np.flatnonzero(np.frombuffer(fits, bool) & is_single)
    size = min(MOST_PAIRS, int(MOST_SHARE * len(fits)), len(candidates))
    if size == 0:
        name = ", ".join(corpus.name for corpus in corpora)
        few = f"of {len(fits):,} pairs, {len(candidates):,} have sides that occur in no other pair"
        raise UserError(
            f"{name}: expected at least {round(1 / MOST_SHARE)} pairs, of which one is held out for validation, "
            f"but {few}; give more text, or --valid SRC TGT"
        )
    units = candidates[candidates <= partner[candidates]]
    order = np.random.default_rng(seed).choice(units, min(size, len(units)), replace=False)
    chosen = order[np.cumsum(1 + (partner[order] != order)) <= max(size, 2)]
    is_valid = np.zeros(len(fits), bool)
    is_valid[chosen] = is_valid[partner[chosen]] = True
    return is_valid


def _partners(src: np.ndarray, tgt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether the sides of each pair are in no other pair but its reverse, and the number of its reverse.

    src, tgt: the hash of each side. A pair without a reverse has its own number. A text of both directions has both
    pairs, and one must not teach the other.
    """
    n = len(src)
    _, inverse, counts = np.unique(np.concatenate([src, tgt]), return_inverse=True, return_counts=True)
    places = np.arange(2 * n)
    others = np.bincount(inverse, places)[inverse].astype(np.int64) - places  # the other place of what occurs twice
    times = counts[inverse].reshape(2, n)
    is_reversed = (times == 2).all(axis=0) & (others[:n] == others[n:] + n)  # a copy is its own reverse
    return (times == 1).all(axis=0) | is_reversed, np.where(is_reversed, others[n:], places[:n])
