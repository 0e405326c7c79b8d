"""Word alignment: attention weights -> the source word of each word of a translation. Without torch.

The weight of two words is the mean over the pieces of the target word, and the sum over the pieces of the source word.
Row t of the weights is the step that writes piece t. S source and T target pieces.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.hypothesis import AlignedWord, Alignment, Hypothesis
from transduce.decoding.segmentation import Segment

MOST_PIECES = 1_024  # of a side; the weights of a longer one take much memory

_WORD = re.compile(r"\w+|[^\w\s]")

IdPair = tuple[Sequence[int], Sequence[int]]  # the ids of a source and of its translation, without EOS
WeightsOf = Callable[[Sequence[IdPair]], Sequence[np.ndarray]]  # pairs -> the weights of each, at least (T, S)


@dataclass(frozen=True)
class Word:
    """A word of a text, its place in characters, and the indices of its pieces."""

    text: str
    start: int
    pieces: Sequence[int]


def words_of(text: str, ids: Sequence[int], tokenizer: TokenizerLike) -> list[Word] | None:
    """Return the words and punctuation marks of `text`, whose pieces are `ids`; None if the pieces spell other words.

    A piece that has parts of two words, such as a space, belongs to the word in which it ends. The pieces need not
    spell the text exactly: some tokenizers drop spaces, or replace a character by a similar one.
    """
    decoded = tokenizer.decode(ids)
    places, spelled = _places(text), _places(decoded)
    if len(places) != len(spelled):
        return None
    lengths = [len(tokenizer.decode(ids[: i + 1])) for i in range(len(ids))]
    ends = np.minimum.accumulate(lengths[::-1])[::-1]  # a part of a character may be spelled longer than the whole
    words = []
    for (start, end), (first, last) in zip(places, spelled, strict=True):
        pieces = np.flatnonzero((first < ends) & (ends <= last))
        if len(pieces):
            words.append(Word(text[start:end], start, pieces.tolist()))
    return words


def _places(text: str) -> list[tuple[int, int]]:
    """Return the start and the end of each word and punctuation mark.

    A vowel sign, as in Hindi, divides no word, and an invisible character, such as a soft hyphen, neither.
    """
    places: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        start, end = match.span()
        if places and places[-1][1] == start and _is_one_word(text[start - 1], text[start]):
            start = places.pop()[0]
        places.append((start, end))
    return [(start, end) for start, end in places if not all(map(_is_sign, text[start:end]))]


def _is_one_word(character: str, following: str) -> bool:
    """Return True if a sign next to a letter, or an invisible one, joins two neighbouring characters to one word."""
    return _is_sign(following) or (_is_sign(character) and following.isalnum())


def _is_sign(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "M" or category == "Cf"


def align(weights: np.ndarray, source: Sequence[Word], target: Sequence[Word]) -> Alignment | None:
    """Return the source word of each target word: the one with the largest weight. None without a source word."""
    if not source:
        return None
    columns = np.stack([weights[:, word.pieces].sum(1) for word in source], 1)
    alignment = []
    for word in target:
        origin = source[int(columns[word.pieces].mean(0).argmax())]
        alignment.append(AlignedWord(word.text, word.start, origin.text, origin.start))
    return tuple(alignment)


def align_text(source: str, target: str, tokenizer: TokenizerLike, weights_of: WeightsOf) -> Alignment | None:
    """Return the alignment of a given translation, or None if it is unknown. A tag of the source is no word of it."""
    _, text = tokenizer.split_tag(source)
    segment = Segment(0, source, "", tokenizer.encode(source), len(source) - len(text))
    ids = tokenizer.target.encode(target)
    words = _source_words(segment, tokenizer)
    translation = words_of(target, ids, tokenizer.target)
    if words is None or translation is None or not _is_short(segment.ids, ids):
        return None
    return align(weights_of([(segment.ids, ids)])[0], words, translation)


def align_outputs(
    segments: Sequence[Segment],
    outputs: Sequence[Sequence[Hypothesis]],
    tokenizer: TokenizerLike,
    weights_of: WeightsOf,
) -> list[list[Hypothesis]]:
    """Return the outputs for each segment with their alignments. An alignment that is unknown stays None."""
    sources = [_source_words(segment, tokenizer) for segment in segments]
    aligned = [[*hypotheses] for hypotheses in outputs]
    known = [
        (i, j)
        for i, hypotheses in enumerate(outputs)
        for j, hypothesis in enumerate(hypotheses)
        if sources[i] and _is_short(segments[i].ids, hypothesis.ids)
    ]
    weights = weights_of([(segments[i].ids, outputs[i][j].ids) for i, j in known])
    for (i, j), of_pair in zip(known, weights, strict=True):
        ids = outputs[i][j].ids
        target = words_of(tokenizer.decode(ids), ids, tokenizer) or []
        aligned[i][j] = replace(outputs[i][j], alignment=align(of_pair, sources[i] or [], target))
    return aligned


def _is_short(*sides: Sequence[int]) -> bool:
    return max(map(len, sides)) <= MOST_PIECES


def _source_words(segment: Segment, tokenizer: TokenizerLike) -> list[Word] | None:
    """Return the words of a segment, with their places in its line; None if they are unknown."""
    words = words_of(tokenizer.split_tag(segment.text)[1], segment.ids, tokenizer)
    return words and [replace(word, start=word.start + segment.start) for word in words]
