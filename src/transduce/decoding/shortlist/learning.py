"""Learn a vocabulary shortlist from pairs of ids: the likely translations of each source piece. Without torch."""

from pathlib import Path

import numpy as np

from transduce.data.lexicon import LineIds, lexical_probabilities
from transduce.data.text import is_blank, read_pairs
from transduce.data.vocabulary import CONTROLS, EOS, PAD, TokenizerLike
from transduce.decoding.shortlist.table import Shortlist
from transduce.errors import UserError


def read_ids(
    src: Path, tgt: Path, tokenizer: TokenizerLike, n_pairs: int, max_tokens: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of `n_pairs` pairs of two texts, or of all if there are fewer, spread evenly over the texts.

    Pairs with a blank side, or one of more than `max_tokens` tokens, are left out. Raises UserError if none is left.
    """
    pairs, step = list[tuple[str, str]](), 1
    for number, pair in enumerate(pair for pair in read_pairs(src, tgt) if not any(map(is_blank, pair))):
        if number % step == 0:
            pairs.append(pair)
        if len(pairs) == 2 * n_pairs:
            pairs, step = pairs[::2], 2 * step
    count = min(n_pairs, len(pairs))
    pairs = [pairs[i * len(pairs) // count] for i in range(count)]
    sides = tokenizer.encode_batch([one for one, _ in pairs]), tokenizer.target.encode_batch([one for _, one in pairs])
    ids = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= max_tokens]
    if not ids:
        raise UserError(
            f"{src}: expected a pair of lines of up to {max_tokens} tokens, neither blank; give other texts"
        )
    return [one for one, _ in ids], [one for _, one in ids]


def learn_shortlist(
    src: LineIds,
    tgt: LineIds,
    n_source: int,
    n_target: int,
    *,
    n_candidates: int,
    n_common: int,
) -> Shortlist:
    """Return the shortlist of a text: `n_candidates` for each source piece, and the `n_common` commonest of all.

    src, tgt: ids of its lines, without BOS and EOS. n_source, n_target: the sizes of the vocabularies.
    """
    counts = np.bincount(np.fromiter((i for line in tgt for i in line), np.int64), minlength=n_target)
    counts[: len(CONTROLS)] = counts.max() + 1  # always among them
    common = np.sort(np.argsort(-counts, kind="stable")[: n_common + len(CONTROLS)])
    keys, probabilities = lexical_probabilities(src, tgt, n_target, empty=EOS)
    candidates = np.full((n_source, n_candidates), PAD, dtype=np.int32)
    source, target = np.divmod(keys, n_target)
    order = np.lexsort((-probabilities, source))  # stable: of equals the lowest target id first
    source = source[order]
    ranks = np.arange(len(order)) - np.searchsorted(source, source)
    is_best = ranks < n_candidates
    candidates[source[is_best], ranks[is_best]] = target[order[is_best]]
    return Shortlist(common.astype(np.int32), candidates)
