"""BPE-dropout (Provilkov et al. 2020), in Python, because the random generator of the library cannot be seeded."""

import itertools
import math
import random
from collections.abc import Callable

from tokenizers import Tokenizer as Engine

from transduce.data.subwords import ESCAPE
from transduce.data.vocabulary import CONTROLS, SPACE

MEMO_LENGTH = 32  # characters
MEMO_ENTRIES = 200_000  # about 80 MB
NEVER = 1 << 60

Segmentation = tuple[tuple[int, ...], int]  # ids, and the number of draws that were taken to find them


class Draws:
    """Independent draws, True with probability p; `gap` is how many are False before the next that is True."""

    def __init__(self, p: float, key: str) -> None:
        self._random = random.Random(key).random
        self._log_false = math.log1p(-p) if p < 1 else -math.inf
        self.gap = self.next_gap()

    def next_gap(self) -> int:
        return int(min(math.log(1.0 - self._random()) / self._log_false, NEVER))

    def __call__(self) -> bool:
        if self.gap > 0:
            self.gap -= 1
            return False
        self.gap = self.next_gap()
        return True


class BpeDropout:
    """The byte-pair encoder, with merges that may be dropped.

    The pieces of a chunk (a space and what follows it up to the next) depend only on which of its draws drop a
    merge. Chunks come again and again, mostly with no drop or one, so their segmentations are kept by (chunk, drops).
    """

    def __init__(self, vocabulary: dict[str, int], merges: list[list[str]], engine: Engine) -> None:
        assert engine.pre_tokenizer is not None
        self._split = engine.pre_tokenizer.pre_tokenize_str
        self._vocabulary = vocabulary
        self._ranks = {(vocabulary[a], vocabulary[b]): rank for rank, (a, b) in enumerate(merges)}
        self._merged = [vocabulary[a + b] for a, b in merges]
        self._memo: dict[tuple[str, tuple[int, ...]], Segmentation] = {}

    def encode(self, line: str, draws: Draws) -> list[int]:
        ids: list[int] = []
        for chunk in _chunks(line):
            ids += self._recall(chunk, draws) if len(chunk) <= MEMO_LENGTH else self._segment(chunk, draws)
        return ids

    def _recall(self, chunk: str, draws: Draws) -> tuple[int, ...]:
        """`_segment` by way of the memory. Takes the same draws."""
        drops: tuple[int, ...] = ()  # which of this chunk's draws are True, as far as they have been taken
        while True:
            ids, taken = self._memo.get((chunk, drops)) or self._remember(chunk, drops)
            if draws.gap >= taken:
                draws.gap -= taken
                return ids
            drops += (draws.gap,)
            draws.gap += 1 + draws.next_gap()

    def _remember(self, chunk: str, drops: tuple[int, ...]) -> Segmentation:
        draws = itertools.count()
        ids = tuple(self._segment(chunk, map(drops.__contains__, draws).__next__))
        if len(self._memo) >= MEMO_ENTRIES:
            self._memo.clear()
        self._memo[chunk, drops] = found = ids, next(draws)
        return found

    def _segment(self, chunk: str, dropped: Callable[[], bool]) -> list[int]:
        return [token for word, _ in self._split(chunk) for token in self._merge(self._symbols(word), dropped)]

    def _symbols(self, word: str) -> list[int]:
        symbols: list[int] = []
        for character in word:
            known = self._vocabulary.get(character)
            symbols += [len(CONTROLS) + byte for byte in character.encode()] if known is None else [known]
        return symbols

    def _merge(self, symbols: list[int], dropped: Callable[[], bool]) -> list[int]:
        """At each step merge the pair of lowest rank, leftmost first, that is not dropped; stop when none is left."""
        rank_of = self._ranks.get
        ranks = [rank_of(pair, NEVER) for pair in itertools.pairwise(symbols)]
        passed: list[tuple[int, int]] = []
        while ranks and (lowest := min(ranks)) < NEVER:
            i = ranks.index(lowest)
            if dropped():
                passed.append((i, lowest))
                ranks[i] = NEVER
                continue
            while passed:  # what was dropped at this step may be merged at the next
                j, rank = passed.pop()
                ranks[j] = rank
            symbols[i : i + 2] = [self._merged[lowest]]
            del ranks[i]
            if i > 0:
                ranks[i - 1] = rank_of((symbols[i - 1], symbols[i]), NEVER)
            if i < len(ranks):
                ranks[i] = rank_of((symbols[i], symbols[i + 1]), NEVER)
        return symbols


def _chunks(line: str) -> list[str]:
    """A line as the engine's normaliser writes it, cut before each space."""
    escaped = line.replace(ESCAPE, ESCAPE + "0").replace(SPACE, ESCAPE + "1")
    return [SPACE + chunk for chunk in escaped.split(" ")] if line else []
