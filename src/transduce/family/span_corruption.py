"""Span corruption: how T5 makes a source and a target of one text (Raffel et al. 2020, sections 3.1.4 and 3.3.4).

    text      Thank you for inviting me to your party last week .
    source    Thank you <0> me to your party <1> week . </s>
    target    <0> for inviting <1> last </s>

Both sides name the spans by the same sentinels.
"""

from collections.abc import Sequence

import numpy as np

DENSITY, MEAN_SPAN = 0.15, 3.0  # the share of the tokens that are replaced; tokens of a span


def corrupted(
    ids: Sequence[int],
    generator: np.random.Generator,
    *,
    sentinel: int = 32_099,
    eos: int = 1,
    density: float = DENSITY,
    mean_span: float = MEAN_SPAN,
) -> tuple[list[int], list[int]]:
    """Return the source and the target of a text, both with EOS.

    sentinel: id of the first span. The ids of the next spans count down from it. T5 has 100 of them, enough for texts
    of 2,000 tokens. A text of one token stays whole.
    """
    n_noise, n_spans = span_counts(len(ids), density, mean_span)
    n_text = random_parts(len(ids) - n_noise, n_spans, generator)
    source = list[int]()
    target = list[int]()
    end = 0
    for i, n_noise_of_span in enumerate(random_parts(n_noise, n_spans, generator)):
        start = end + n_text[i]
        source += [*ids[end:start], sentinel - i]
        end = start + n_noise_of_span
        target += [sentinel - i, *ids[start:end]]
    return [*source, *ids[end:], eos], [*target, eos]


def span_counts(n_tokens: int, density: float = DENSITY, mean_span: float = MEAN_SPAN) -> tuple[int, int]:
    """Return the number of tokens to replace, and of spans. At least one token of a longer text stays before a span."""
    if n_tokens < 2:
        return 0, 0
    n_noise = min(max(round(n_tokens * density), 1), n_tokens - 1)
    return n_noise, min(max(round(n_noise / mean_span), 1), n_tokens - n_noise)


def random_parts(total: int, n_parts: int, generator: np.random.Generator) -> list[int]:
    """Return `n_parts` positive lengths with this total, all ways with equal probability."""
    if not n_parts:
        return []
    cuts = np.sort(generator.choice(total - 1, n_parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total).tolist()


def text_length(source_length: int, density: float = DENSITY, mean_span: float = MEAN_SPAN) -> int:
    """Return the number of tokens of the longest text whose source has at most `source_length` tokens, EOS counted."""
    n = 0
    while n + 1 - np.subtract(*span_counts(n + 1, density, mean_span)) + 1 <= source_length:
        n += 1
    return n
