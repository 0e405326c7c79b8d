"""Constraints in every kind of search: one with a state for each row, against enumeration; and prefixes."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from support.search_tables import (
    BOS,
    EOS,
    PENALTIES,
    Penalty,
    Reader,
    V,
    beam,
    best_of,
    check,
    every_output,
    plain_beam_search,
    random_table,
    replay,
    request_for,
    start,
)

from transduce.decoding.constraint import Constraint, Prefixes, prefix_constraint
from transduce.decoding.decoder import Decoder, most_likely
from transduce.decoding.options import Sampling, sentence_seed
from transduce.decoding.search import Request, greedy, sample

EVEN = (2, 4)
ODD = (3, 5)


@dataclass(frozen=True)
class Alternating(Constraint):
    """Even and odd words take turns, an even word first. An output ends after an odd word. Some rows are free.

    Its state is the turn of each row.
    """

    is_free: Sequence[bool]
    turns: Sequence[int]

    def allowed(self) -> dict[int, Sequence[int]]:
        rows = [row for row, is_free in enumerate(self.is_free) if not is_free]
        return {row: EVEN if self.turns[row] == 0 else ODD if self.turns[row] % 2 else (*EVEN, EOS) for row in rows}

    def select(self, rows: Sequence[int]) -> "Alternating":
        return Alternating([self.is_free[row] for row in rows], [self.turns[row] for row in rows])

    def advance(self, ids: Sequence[int]) -> "Alternating":
        return Alternating(self.is_free, [turn + 1 for turn in self.turns])


def alternating(sentences: Sequence[int]) -> Alternating:
    """Return the constraint of a batch in which every third sentence is free."""
    return Alternating([i % 3 == 2 for i in sentences], [0] * len(sentences))


def allowed_after(sentence: int) -> Callable[[tuple[int, ...]], Collection[int]]:
    """Return the same rule as a function of the tokens so far."""
    if sentence % 3 == 2:
        return lambda ids: range(V)
    return lambda ids: ODD if len(ids) % 2 else (*EVEN, EOS) if ids else EVEN


def with_constraint(request: Request, sentences: Sequence[int]) -> Request:
    return replace(request, constraint=alternating(sentences))


# ---- a constraint with a state -----------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [("gnmt", 0.6), ("none", 0.0), ("power", -0.5)])
@pytest.mark.parametrize("min_length", [0, 3])
def test_a_wide_beam_finds_the_best_allowed_outputs(penalty: Penalty, min_length: int) -> None:
    table, sentences = random_table(17), range(6)
    request = with_constraint(request_for([4] * 6, penalty, min_length), sentences)
    for i, hypotheses in enumerate(beam(table, sentences, request, size=256, n_best=6)):
        check(hypotheses, best_of(every_output(table, i, 4, min_length, (), allowed_after(i)), penalty, 6))
        for hypothesis in hypotheses:
            replay(table, i, hypothesis, penalty)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("size", [2, 3])
def test_a_narrow_beam_searches_among_the_allowed_tokens(penalty: Penalty, size: int) -> None:
    table, sentences, max_lengths = random_table(size), range(6), [9, 3, 6, 1, 7, 8]
    outputs = beam(table, sentences, with_constraint(request_for(max_lengths, penalty), sentences), size, size)
    for i, hypotheses in enumerate(outputs):
        check(hypotheses, plain_beam_search(table, i, max_lengths[i], penalty, size, size, allowed_after(i)))


@pytest.mark.parametrize("has_best", [False, True])
def test_greedy_takes_the_most_likely_allowed_token(has_best: bool) -> None:
    """A decoder with `best` finds the most likely tokens of all rows first; the restricted rows need others."""
    table, sentences = random_table(21), range(9)
    decoder = with_best(Reader(table).decoder) if has_best else Reader(table).decoder
    outputs = greedy(decoder, start(sentences), with_constraint(request_for([7] * 9), sentences))
    for i, hypothesis in enumerate(outputs):
        tokens: tuple[int, ...] = ()
        while len(tokens) < 7 and EOS not in tokens:
            choices = sorted({*allowed_after(i)(tokens)} - {BOS})
            tokens += (max(choices, key=lambda token: table(i, tokens)[token].item()),)
        assert (*hypothesis.ids, *[EOS] * hypothesis.finished) == tokens
        replay(table, i, hypothesis, ("gnmt", 0.6))


def with_best(decoder: Decoder) -> Decoder:
    """Return the decoder with the shortcut that compiled kernels have."""
    return replace(decoder, best=most_likely)


def test_draws_are_allowed_and_cover_all_allowed_outputs() -> None:
    table, count = random_table(4, sharpness=0.7), 600
    request = replace(request_for([2] * count), constraint=Alternating([False] * count, [0] * count))
    seeds = [sentence_seed(3, i) for i in range(count)]
    outputs = sample(Reader(table).decoder, start([0] * count), request, sampling=Sampling(), seeds=seeds)
    expected = {ids for ids, _ in every_output(table, 0, 2, 0, (), allowed_after(0))}
    assert {(*h.ids, *[EOS] * h.finished) for h in outputs} == expected
    for hypothesis in outputs[:20]:
        replay(table, 0, hypothesis, ("gnmt", 0.6))


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam"])
def test_batches_do_not_change_a_constrained_output(kind: str) -> None:
    """Check each sentence alone, and in batches with free and constrained sentences."""
    table, max_lengths = random_table(8), [3 + 5 * i % 7 for i in range(12)]

    def outputs(sentences: Sequence[int], is_constrained: bool = True) -> list[object]:
        request = request_for([max_lengths[i] for i in sentences], min_length=1)
        request = with_constraint(request, sentences) if is_constrained else request
        decoder, state = with_best(Reader(table).decoder), start(sentences)
        if kind == "greedy":
            return [*greedy(decoder, state, request)]
        if kind == "sample":
            seeds = [sentence_seed(1, i) for i in sentences]
            return [*sample(decoder, state, request, sampling=Sampling(), seeds=seeds)]
        return [*beam(table, sentences, request, 4, 3)]

    single = [outputs([i])[0] for i in range(12)]
    assert outputs(range(12)) == single
    assert outputs([7, 2, 11, 0, 5]) == [single[i] for i in (7, 2, 11, 0, 5)]
    assert outputs(range(2, 12, 3), is_constrained=False) == single[2::3]


@dataclass(frozen=True)
class Nothing(Constraint):
    """No token at all may come next."""

    n_rows: int

    def allowed(self) -> dict[int, Sequence[int]]:
        return {row: () for row in range(self.n_rows)}

    def select(self, rows: Sequence[int]) -> "Nothing":
        return Nothing(len(rows))

    def advance(self, ids: Sequence[int]) -> "Nothing":
        return self


@pytest.mark.parametrize("size", [1, 3])
def test_a_constraint_without_a_token_is_an_error(size: int) -> None:
    with pytest.raises(FloatingPointError, match="probability zero to every token"):
        beam(random_table(1), [0, 1], replace(request_for([5, 5]), constraint=Nothing(2)), size)


# ---- prefixes ----------------------------------------------------------------------------------------------------


def test_prefixes_restrict_a_row_until_they_end() -> None:
    first = prefix_constraint([[7, 8], [], [9]], [5, 5, 5], EOS)
    assert isinstance(first, Prefixes)
    assert first.allowed() == {0: [7], 2: [9]}
    second = first.select([2, 0, 0]).advance([9, 7, 7])
    assert second is not None and second.allowed() == {1: [8], 2: [8]}
    assert first.allowed() == {0: [7], 2: [9]}  # a constraint is a value
    assert second.advance([4, 8, 8]) is None
    assert prefix_constraint([[], []], [5, 5], EOS) is None


@pytest.mark.parametrize("size", [1, 4])
def test_a_prefix_may_hold_a_banned_token(size: int) -> None:
    table, request = random_table(2), request_for([6], prefixes=[[3, BOS, 4]])
    for hypothesis in beam(table, [0], request, size, size)[0]:
        assert hypothesis.ids[:3] == [3, BOS, 4] and BOS not in hypothesis.ids[3:]
        replay(table, 0, hypothesis, ("gnmt", 0.6))
    assert torch.isfinite(table(0, (3,))[BOS])
