"""BPE-dropout (Provilkov et al. 2020) of all rows of a batch at once: the library's generator cannot be seeded.

    ids -> words -> the words that lose a merge, as characters -> one merge of each word at a time -> ids

A word of n merges keeps all of them with probability (1 - p)^n, and then it keeps its ids. The other words are merged
again from their characters. They are columns of an array, and a step of the array is a step of each word.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer as LibraryTokenizer

from transduce.data.draws import STEP, gaps, token_keys
from transduce.data.word_starts import WordStarts

PLACE_BITS = 9  # of a place in a word, which has at most 65 characters of 4 bytes
PLACES = (1 << PLACE_BITS) - 1
FREE = -1  # no pair
NO_RANK = 1 << 31  # the rank of a pair of symbols without a merge
NO_MERGE = NO_RANK << PLACE_BITS
LATER = 1 << 50  # added to a merge that was dropped, until the next merge of the word


class MergeTable:
    """The ranks of pairs of symbols: a hash table with many free slots, so that most pairs are found at once.

    firsts, seconds: ids of each merge's two symbols, by rank.
    """

    def __init__(self, firsts: np.ndarray, seconds: np.ndarray, vocab_size: int) -> None:
        self._base = vocab_size + 1
        pairs = firsts * self._base + seconds
        bits = (32 * len(pairs)).bit_length()
        self._shift = np.uint64(64 - bits)
        self._pairs = np.full(1 << bits, FREE, np.int64)
        self._ranks = np.full(1 << bits, NO_RANK, np.int64)
        slots, missing = self._slots(pairs), np.arange(len(pairs))
        while len(missing):
            _, first = np.unique(slots, return_index=True)
            first = first[self._pairs[slots[first]] == FREE]
            self._pairs[slots[first]] = pairs[missing[first]]
            self._ranks[slots[first]] = missing[first]
            missing, slots = np.delete(missing, first), self._next(np.delete(slots, first))

    def _slots(self, pairs: np.ndarray) -> np.ndarray:
        return ((pairs.view(np.uint64) * STEP) >> self._shift).view(np.int64)

    def _next(self, slots: np.ndarray) -> np.ndarray:
        return (slots + 1) & (len(self._pairs) - 1)

    def ranks(self, firsts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """Return the rank of each pair; NO_RANK for a pair without a merge."""
        pairs = firsts * self._base + seconds
        slots = self._slots(pairs)
        others = self._pairs[slots]
        ranks = self._ranks[slots]
        ranks[others != pairs] = NO_RANK
        missing = np.flatnonzero((others != pairs) & (others != FREE))
        slots = slots[missing]
        while len(missing):
            slots = self._next(slots)
            others = self._pairs[slots]
            is_found = others == pairs[missing]
            ranks[missing[is_found]] = self._ranks[slots[is_found]]
            is_open = ~is_found & (others != FREE)
            missing, slots = missing[is_open], slots[is_open]
        return ranks


class BpeDropout:
    """The byte-pair encoder with dropout of merges, on ids that the library has made without dropout."""

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[Sequence[str]], engine: LibraryTokenizer) -> None:
        pairs = np.array([(vocabulary[a], vocabulary[b]) for a, b in merges], np.int64).reshape(-1, 2)
        self._word_starts = WordStarts(vocabulary, engine)
        self._table = MergeTable(pairs[:, 0], pairs[:, 1], len(vocabulary))
        self._merged = np.array([vocabulary[a + b] for a, b in merges], np.int64)
        symbols = [[vocabulary[c] for c in text] or [i] for i, text in enumerate(self._word_starts.texts)]
        sizes = np.array([len(of_piece) for of_piece in symbols])
        self._n_merges = sizes - 1
        self._first = sizes.cumsum() - sizes
        self._symbols = np.array([symbol for of_piece in symbols for symbol in of_piece], np.int64)
        self._ranks = np.append(self._table.ranks(self._symbols[:-1], self._symbols[1:]), NO_RANK)
        self._ranks[self._first - 1] = NO_RANK  # of the last symbol of a piece with the first one of the next
        self._none = len(vocabulary)  # stands where a word has no symbol

    def encode(self, rows: Sequence[np.ndarray], p: float, keys: np.ndarray) -> list[np.ndarray]:
        """Return the ids of each row, a function of its ids, `p` and its key. keys: uint64, one for each row."""
        lengths = np.array([len(row) for row in rows])
        if not lengths.sum():
            return [*rows]
        ids = np.concatenate(rows).astype(np.int64)
        starts = self._word_starts.of(ids, (lengths.cumsum() - lengths)[lengths > 0])
        sizes = np.diff(starts, append=len(ids))
        word_keys = token_keys(keys, lengths)[starts]
        n_kept = gaps(word_keys, p)
        is_changed = n_kept < np.add.reduceat(self._n_merges[ids], starts)
        is_old = ~np.repeat(is_changed, sizes)
        changed = ids[~is_old]
        if not len(changed):
            return [*rows]
        new, new_sizes = self._merge_words(changed, sizes[is_changed], n_kept[is_changed], word_keys[is_changed], p)
        sizes[is_changed] = new_sizes
        out = np.empty(sizes.sum(), np.int64)
        is_new = np.repeat(is_changed, sizes)
        out[is_new] = new
        out[~is_new] = ids[is_old]
        row_of_word = np.searchsorted(lengths.cumsum(), starts, side="right")
        ends = np.bincount(row_of_word, sizes, len(rows)).astype(np.int64).cumsum()
        return [out[begin:end] for begin, end in itertools.pairwise([0, *ends.tolist()])]

    def _merge_words(
        self, ids: np.ndarray, sizes: np.ndarray, n_kept: np.ndarray, keys: np.ndarray, p: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return words with dropout, and their new sizes. sizes: in ids. n_kept: merges before the first drop."""
        counts = self._n_merges[ids] + 1
        ends = counts.cumsum()
        index = np.repeat(self._first[ids] - ends + counts, counts) + np.arange(ends[-1])
        symbols, ranks = self._symbols[index], self._ranks[index]
        inner = ends[:-1] - 1  # the last symbols of all ids but the last
        ranks[inner] = self._table.ranks(symbols[inner], symbols[inner + 1])
        lengths = np.add.reduceat(counts, sizes.cumsum() - sizes)
        ranks[lengths.cumsum() - 1] = NO_RANK
        out = _columns(symbols, lengths, self._none)
        queue = _columns(ranks, lengths, NO_RANK)
        queue = queue << PLACE_BITS | np.arange(len(queue))[:, None]
        out = self._merge(out, queue, n_kept, keys, p)
        is_symbol = (out != self._none).T
        return out.T[is_symbol], is_symbol.sum(axis=1)

    def _merge(self, symbols: np.ndarray, queue: np.ndarray, gap: np.ndarray, keys: np.ndarray, p: float) -> np.ndarray:
        """Merge the symbols (L,N) of N words. Where a merge took a symbol away, there is none.

        queue (L,N): the merge of each symbol with the next one. gap: how many merges of each word come before a drop.
        """
        out, words = symbols, np.arange(symbols.shape[1])
        beyond = np.full_like(symbols[:1], self._none)  # at both ends
        symbols, queue = np.vstack([symbols, beyond]), np.vstack([queue, np.full_like(beyond, NO_MERGE)])
        after = np.arange(1, len(symbols) + 1)[:, None].repeat(len(words), axis=1)
        before = after - 2
        before[0] = len(symbols) - 1
        n_drops, has_later = np.zeros_like(words), np.zeros(len(words), bool)
        while True:
            best = queue.min(axis=0)
            is_active = best < NO_MERGE
            if 4 * np.count_nonzero(is_active) <= 3 * len(words):
                out[:, words[~is_active]] = symbols[:-1, ~is_active]
                if not is_active.any():
                    return out
                symbols, queue, after, before = (x.compress(is_active, axis=1) for x in (symbols, queue, after, before))
                of_words = (words, gap, keys, n_drops, has_later, best)
                words, gap, keys, n_drops, has_later, best = (x[is_active] for x in of_words)
                is_active = np.ones(len(words), bool)
            columns = np.flatnonzero(is_active)
            is_drop = gap[columns] == 0
            gap[columns] -= 1
            drops = columns[is_drop]
            if len(drops):
                queue[best[drops] & PLACES, drops] += LATER
                n_drops[drops] += 1
                gap[drops] = gaps(keys[drops], p, n_drops[drops])
                has_later[drops] = True
                columns = columns[~is_drop]
            again = columns[has_later[columns]]
            if len(again):
                queue[:, again] &= LATER - 1
                has_later[again] = False
            self._take(best[columns], columns, symbols, queue, after, before)

    def _take(
        self,
        merges: np.ndarray,
        columns: np.ndarray,
        symbols: np.ndarray,
        queue: np.ndarray,
        after: np.ndarray,
        before: np.ndarray,
    ) -> None:
        """Apply a merge to each of some words."""
        n = symbols.shape[1]
        symbols, queue, after, before = (x.reshape(-1) for x in (symbols, queue, after, before))
        place = merges & PLACES
        at = place * n + columns
        gone = after[at] * n + columns
        next_place = after[gone]
        next_at = next_place * n + columns
        last_place = before[at]
        last_at = last_place * n + columns
        new = self._merged[merges >> PLACE_BITS]
        symbols[at] = new
        symbols[gone] = self._none
        queue[gone] = NO_MERGE
        after[at] = next_place
        before[next_at] = place
        ranks = self._table.ranks(np.concatenate([new, symbols[last_at]]), np.concatenate([symbols[next_at], new]))
        ranks <<= PLACE_BITS
        queue[at] = ranks[: len(at)] | place
        queue[last_at] = ranks[len(at) :] | last_place


def _columns(values: np.ndarray, lengths: np.ndarray, filler: int) -> np.ndarray:
    """Return rows of some lengths, one after the other in `values`, as the columns of an array."""
    is_real = np.arange(lengths.max()) < lengths[:, None]
    columns = np.full(is_real.shape, filler, np.int64)
    columns[is_real] = values
    return np.ascontiguousarray(columns.T)
