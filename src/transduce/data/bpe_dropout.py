"""BPE-dropout (Provilkov et al. 2020), in Python, because the random generator of the library cannot be seeded."""

import itertools
import math
import random
from collections.abc import Callable

from tokenizers import Tokenizer as Engine

from transduce.data.vocabulary import CONTROLS, SPACE

MEMO_LENGTH = 32  # characters
MEMO_ENTRIES = 200_000  # about 80 MB
NEVER = 1 << 60

Segmentation = tuple[tuple[int, ...], int]  # ids, and the number of random draws for them


class Draws:
    """Independent random draws, each True with probability p. gap: the number of False draws before the next True."""

    def __init__(self, p: float, key: str) -> None:
        self._random = random.Random(key).random
        self._log_false = math.log1p(-p) if p < 1 else -math.inf
        self.gap = self.next_gap()

    def next_gap(self) -> int:
        """Draw the number of False draws before a True."""
        return int(min(math.log(1.0 - self._random()) / self._log_false, NEVER))

    def __call__(self) -> bool:
        if self.gap > 0:
            self.gap -= 1
            return False
        self.gap = self.next_gap()
        return True


class BpeDropout:
    """The byte-pair encoder with dropout of merges.

    A chunk is a space and the characters up to the next space. Its pieces depend only on the draws that drop a merge.
    Most chunks occur again with the same drops, mostly none or one. So a cache keeps their segmentations by (chunk,
    drops).
    """

    def __init__(self, vocabulary: dict[str, int], merges: list[list[str]], engine: Engine) -> None:
        assert engine.normalizer is not None and engine.pre_tokenizer is not None
        self._normalize = engine.normalizer.normalize_str
        self._split = engine.pre_tokenizer.pre_tokenize_str
        self._vocabulary = vocabulary
        self._ranks = {(vocabulary[a], vocabulary[b]): rank for rank, (a, b) in enumerate(merges)}
        self._merged = [vocabulary[a + b] for a, b in merges]
        self._cache: dict[tuple[str, tuple[int, ...]], Segmentation] = {}

    def encode(self, line: str, draws: Draws) -> list[int]:
        """Return the ids of a line."""
        ids: list[int] = []
        for chunk in self._normalize(line).split(SPACE)[1:]:
            chunk = SPACE + chunk
            ids += self._segment_from_memo(chunk, draws) if len(chunk) <= MEMO_LENGTH else self._segment(chunk, draws)
        return ids

    def _segment_from_memo(self, chunk: str, draws: Draws) -> tuple[int, ...]:
        """Return `_segment(chunk, draws)` from the cache, and advance `draws` as `_segment` would."""
        drops: tuple[int, ...] = ()  # the numbers of the draws that are True, of the draws for this chunk so far
        while True:
            ids, count = self._cache.get((chunk, drops)) or self._add(chunk, drops)
            if draws.gap >= count:
                draws.gap -= count
                return ids
            drops += (draws.gap,)
            draws.gap += 1 + draws.next_gap()

    def _add(self, chunk: str, drops: tuple[int, ...]) -> Segmentation:
        """Add a segmentation to the cache. drops: the numbers of the draws that are True."""
        draws = itertools.count()
        ids = tuple(self._segment(chunk, map(drops.__contains__, draws).__next__))
        if len(self._cache) >= MEMO_ENTRIES:
            self._cache.clear()
        self._cache[chunk, drops] = segmentation = ids, next(draws)
        return segmentation

    def _segment(self, chunk: str, is_dropped: Callable[[], bool]) -> list[int]:
        return [token for word, _ in self._split(chunk) for token in self._merge(self._symbols(word), is_dropped)]

    def _symbols(self, word: str) -> list[int]:
        """Return the ids of the characters of a word, or of their bytes."""
        symbols: list[int] = []
        for character in word:
            token = self._vocabulary.get(character)
            symbols += [len(CONTROLS) + byte for byte in character.encode()] if token is None else [token]
        return symbols

    def _merge(self, symbols: list[int], is_dropped: Callable[[], bool]) -> list[int]:
        """Merge at each step the leftmost pair of lowest rank that is not dropped, until no pair is left."""
        rank_of = self._ranks.get
        ranks = [rank_of(pair, NEVER) for pair in itertools.pairwise(symbols)]
        skips: list[tuple[int, int]] = []
        while ranks and (lowest := min(ranks)) < NEVER:
            i = ranks.index(lowest)
            if is_dropped():
                skips.append((i, lowest))
                ranks[i] = NEVER
                continue
            while skips:  # the next step may use the merges that this step dropped
                j, rank = skips.pop()
                ranks[j] = rank
            symbols[i : i + 2] = [self._merged[lowest]]
            del ranks[i]
            if i > 0:
                ranks[i - 1] = rank_of((symbols[i - 1], symbols[i]), NEVER)
            if i < len(ranks):
                ranks[i] = rank_of((symbols[i], symbols[i + 1]), NEVER)
        return symbols
