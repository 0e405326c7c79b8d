"""The size of a training text, from which `--recipe auto` derives a model and its training."""

from collections.abc import Sequence

from transduce.config.recipes.auto import TextSize
from transduce.data.corpora import Corpus, read_pairs
from transduce.errors import UserError

EVERY = 11  # every eleventh pair is measured; a prime, since a text may repeat its form after 2, 5 or 10 lines
UNSPACED = 12.0  # characters between two spaces: 6 to 8 in most languages, 20 and more in Japanese or Thai


def measure(corpora: Sequence[Corpus]) -> TextSize:
    """Return the size of the text in `corpora`. Reads all of it. Raises UserError if it has no pair."""
    n_pairs = n_tokens = 0.0
    n_sampled = n_equal = n_blank = 0
    characters: set[str] = set()
    for corpus in corpora:
        n = 0
        n_measured = 0
        n_usable = 0
        tokens = 0.0
        for n, (src, tgt) in enumerate(read_pairs(corpus), start=1):
            if n % EVERY == 1:
                n_measured += 1
                characters.update(src, tgt)
                n_equal += src == tgt
                if src.strip() and tgt.strip():
                    n_usable += 1
                    tokens += max(estimated_tokens(src), estimated_tokens(tgt))
        n_sampled += n_measured
        n_blank += n_measured - n_usable
        each = n / max(1, n_measured) * corpus.weight  # pairs of an epoch for a measured one
        n_pairs += n_usable * each
        n_tokens += tokens * each
    if not n_sampled:
        raise UserError(f"{', '.join(corpus.name for corpus in corpora)}: expected at least one pair of sentences")
    return TextSize(
        max(1, round(n_pairs)), max(1, round(n_tokens)), len(characters), n_equal / n_sampled, n_blank / n_sampled
    )


def estimated_tokens(line: str) -> float:
    """Return about how many tokens of a joint vocabulary a line has, with EOS."""
    words = max(1, len(line.split()))
    if len(line) > UNSPACED * words:
        return 1 + 0.6 * len(line)
    return 1 + 1.25 * words
