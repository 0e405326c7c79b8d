"""The size of a training text, from which `--recipe auto` derives a model and its training."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from transduce.config.recipes.auto import TextSize
from transduce.config.schema import DataConfig
from transduce.data.corpora import Corpus, read_pairs
from transduce.errors import UserError

EVERY = 11  # every eleventh pair is measured; a prime, since a text may repeat its form after 2, 5 or 10 lines
MOST_DISTINCT = 200_000  # pairs, up to which repetitions are counted: 15 MB
MARKS = r"!-/:-@\[-`{-~«»¡¿‐-⁞、-】"
PART = re.compile(rf"[{MARKS}]+|\d|[^\s\d{MARKS}]+")  # tokenizers separate marks and digits from words
TOKENS_PER_PART = 1.1  # 0.9 to 1.3 of the texts in tests/data, by their tokenizers
UNSPACED = 12.0  # characters between two spaces: 6 to 8 in most languages, 20 and more in Japanese or Thai


def measure(corpora: Sequence[Corpus], max_tokens: int = DataConfig.max_tokens) -> TextSize:
    """Return the size of the text in `corpora`. Reads all of it. Raises UserError if it has no pair.

    max_tokens: tokens of a side, with EOS, above which a training does not use the pair.
    """
    n_pairs = n_tokens = 0.0
    shares: Counter[str] = Counter()
    characters: set[str] = set()
    n_compared = 0
    distinct: set[int] = set()
    for corpus in corpora:
        n = 0
        tokens = []
        for n, pair in enumerate(read_pairs(corpus), start=1):
            if len(distinct) < MOST_DISTINCT and all(map(str.strip, pair)):
                n_compared += 1
                distinct.add(hash(pair))
            characters.update(*pair)  # of all pairs: the vocabulary needs each; 1.3 s for a million
            if n % EVERY != 1:
                continue
            length = max(map(estimated_tokens, pair))
            is_blank = not all(map(str.strip, pair))
            is_long = not is_blank and length > max_tokens
            shares.update(equal=pair[0] == pair[1], blank=is_blank, long=is_long)
            tokens.append(0 if is_blank or is_long else length)
        shares["all"] += len(tokens)
        each = n / max(1, len(tokens)) * corpus.weight  # pairs of an epoch for a measured one
        n_pairs += np.count_nonzero(tokens) * each
        n_tokens += sum(tokens) * each
    if not shares["all"]:
        raise UserError(f"{', '.join(corpus.name for corpus in corpora)}: expected at least one pair of sentences")
    return TextSize(
        max(1, round(n_pairs)),
        max(1, round(n_tokens)),
        len(characters),
        *(shares[name] / shares["all"] for name in ("equal", "blank", "long")),
        repeated=1 - len(distinct) / max(1, n_compared),
    )


def estimated_tokens(line: str) -> float:
    """Return about how many tokens of a joint vocabulary a line has, with EOS."""
    if len(line) > UNSPACED * max(1, len(line.split())):
        return 1 + 0.6 * len(line)
    return 1 + TOKENS_PER_PART * len(PART.findall(line))
