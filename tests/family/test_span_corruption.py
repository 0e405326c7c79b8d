"""Span corruption against its definition and T5's own numbers."""

import numpy as np
import pytest

from transduce.family.span_corruption import corrupted, random_parts, span_counts, text_length


def restored(source: list[int], target: list[int], sentinel: int, eos: int) -> list[int]:
    """Put the spans of the target back into the source."""
    spans: dict[int, list[int]] = {}
    for token in target[:-1]:
        if token > sentinel - 1_000:
            span = spans.setdefault(token, [])
        else:
            span.append(token)
    assert source[-1] == target[-1] == eos
    return [token for one in source[:-1] for token in spans.get(one, [one])]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7, 20, 100, 568])
@pytest.mark.parametrize(("density", "mean_span"), [(0.15, 3.0), (0.5, 3.0), (0.9, 1.0)])
def test_source_and_target_together_are_the_text(n: int, density: float, mean_span: float) -> None:
    ids = list(range(2, n + 2))
    generator = np.random.default_rng(1)
    source, target = corrupted(ids, generator, density=density, mean_span=mean_span)
    assert restored(source, target, 32_099, 1) == ids
    n_noise, n_spans = span_counts(n, density, mean_span)
    assert (len(source), len(target)) == (n - n_noise + n_spans + 1, n_noise + n_spans + 1)


def test_a_text_of_568_tokens_makes_512_and_114() -> None:
    """The lengths of T5's pre-training."""
    assert text_length(512) == 568
    source, target = corrupted(range(2, 570), np.random.default_rng(1))
    assert (len(source), len(target)) == (512, 114)


def test_sentinels_count_down_and_the_source_begins_with_text() -> None:
    source, target = corrupted(range(2, 102), np.random.default_rng(3))
    sentinels = [32_099, 32_098, 32_097, 32_096, 32_095]
    assert [token for token in source if token > 1_000] == sentinels
    assert [token for token in target if token > 1_000] == sentinels
    assert (source[0], target[0]) == (2, 32_099)


@pytest.mark.parametrize(
    ("n_tokens", "counts"), [(0, (0, 0)), (1, (0, 0)), (2, (1, 1)), (10, (2, 1)), (100, (15, 5)), (568, (85, 28))]
)
def test_the_numbers_of_tokens_and_spans(n_tokens: int, counts: tuple[int, int]) -> None:
    assert span_counts(n_tokens) == counts


def test_all_ways_to_cut_a_text_are_equally_likely() -> None:
    generator = np.random.default_rng(1)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(3_000):
        parts = tuple(random_parts(4, 2, generator))
        counts[parts] = counts.get(parts, 0) + 1
    assert counts.keys() == {(1, 3), (2, 2), (3, 1)}
    assert all(900 < count < 1_100 for count in counts.values())


def test_the_spans_depend_on_the_generator_alone() -> None:
    one, same, other = (corrupted(range(2, 102), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one == same != other
