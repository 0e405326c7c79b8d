"""Searches with phrases, over tables instead of models: against enumeration, and in every company."""

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.search_tables import (
    EOS,
    Path,
    Penalty,
    Table,
    V,
    beam,
    best_of,
    check,
    divisor,
    every_output,
    random_table,
    replay,
    request_for,
    table_of,
)

from transduce.decoding.allowed_tokens import LEAST_END, NO_LIMIT, RowsOfStep, tokens_with_phrases
from transduce.decoding.constraint import Both, Constraint, NextTokens, Prefixes, joined
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.phrases.bank_allocation import allocate
from transduce.decoding.phrases.matching import PhraseList
from transduce.decoding.phrases.phrase_constraint import PhraseAutomaton, PhraseConstraint, Pieces, tokens_of

# Words as pieces, pieces within words, punctuation, a bare space, and a character of which a piece has only a part.
VOCABULARIES = [
    (b"", b"", b" a", b"a", b" b", b"b"),
    (b"", b"", b" a", b"b", b".", b" "),
    (b"", b"", b" a", b" b", b"a", b"."),
    (b"", b"", "北".encode(), "京".encode()[:2], "京".encode()[2:], b" a"),
]


def pieces_of(vocabulary: Sequence[bytes]) -> Pieces:
    """Return the pieces of a vocabulary; it is applied by the longest match."""

    def encode(text: str) -> list[int]:
        rest, ids = f" {text}".encode(), list[int]()
        while rest:
            fitting = [i for i, piece in enumerate(vocabulary) if piece and rest.startswith(piece)]
            if not fitting:
                return []
            ids.append(max(fitting, key=lambda i: len(vocabulary[i])))
            rest = rest[len(vocabulary[ids[-1]]) :]
        return ids

    return Pieces(vocabulary, encode, EOS)


def text_of(ids: Sequence[int], vocabulary: Sequence[bytes]) -> str:
    return b"".join(vocabulary[i] for i in ids).decode(errors="replace").removeprefix(" ")


def meeting(every: Sequence[Path], phrases: PhraseList, vocabulary: Sequence[bytes]) -> list[Path]:
    """Return the outputs that end, meet all and, where there are phrases at all, have no broken character."""

    def is_right(text: str) -> bool:
        return not phrases.unmet(text) and not (phrases.texts and "\ufffd" in text)

    return [one for one in every if one[0][-1] == EOS and is_right(text_of(one[0], vocabulary))]


def is_early(table: Table, sentence: int, path: Path) -> bool:
    """Return True for an output that ends where the model hardly ends it."""
    log_probs = table(sentence, path[0][:-1])
    return log_probs[EOS].item() < log_probs[EOS:].max().item() + math.log(LEAST_END)


def ranked(table: Table, sentence: int, right: Sequence[Path], penalty: Penalty, n: int) -> list[Path]:
    """Return the n best outputs that meet all, with their scores: those that end early as if they cost e^-3 more."""
    costs = {path[0]: 1 / LEAST_END if is_early(table, sentence, path) else 1.0 for path in right}
    scores = {ids: log_prob / divisor(len(ids), penalty) for ids, log_prob in right}
    rank = {ids: (log_prob - math.log(costs[ids])) / divisor(len(ids), penalty) for ids, log_prob in right}
    return [(ids, scores[ids]) for ids in sorted(rank, key=rank.__getitem__, reverse=True)[:n]]


def occurrences(text: str, alternatives: Sequence[str]) -> int:
    """Return how often phrases of ASCII or Chinese occur as whole words, without overlap, by a regular expression."""

    def pattern(phrase: str) -> str:
        first, last = (c.isascii() and c.isalnum() for c in (phrase[0], phrase[-1]))
        return "(?<![a-z])" * first + re.escape(phrase) + "(?![a-z])" * last

    return len(re.findall("|".join(map(pattern, sorted(alternatives, key=len, reverse=True))), text))


def is_right(text: str, required: Sequence[Sequence[str]], forbidden: Sequence[str]) -> bool:
    """Return True for a text that meets all and has no broken character."""
    has_all = all(occurrences(text, one) >= required.count(one) for one in required)
    return has_all and not any(occurrences(text, [one]) for one in forbidden) and "\ufffd" not in text


def random_phrases(chance: random.Random, vocabulary: Sequence[bytes], pieces: Pieces) -> PhraseList:
    """Return up to two required phrases, some twice or with an alternative, and sometimes a forbidden one."""

    def phrase() -> str:
        while True:
            text = text_of([chance.randint(2, 5) for _ in range(chance.randint(1, 3))], vocabulary).strip()
            if text and "\ufffd" not in text and pieces.encode(text):
                return text

    required = [[phrase() for _ in range(chance.choice([1, 1, 2]))] for _ in range(chance.randint(0, 2))]
    required += required[:1] * (chance.random() < 0.2)
    return PhraseList(required, [phrase() for _ in range(chance.choice([0, 0, 1]))])


def automaton_of(phrases: PhraseList, pieces: Pieces) -> PhraseAutomaton:
    tokens = [tokens_of(text, pieces) for text in phrases.texts[: len(phrases.texts) - len(phrases.forbidden)]]
    return PhraseAutomaton(phrases, [one for one in tokens if one is not None], pieces)


def constraint_of(lists: Sequence[PhraseList], pieces: Pieces) -> PhraseConstraint | None:
    states = [automaton_of(phrases, pieces).start if phrases.texts else None for phrases in lists]
    return PhraseConstraint(states) if any(states) else None


def search(
    table: Table,
    sentences: Sequence[int],
    lists: Sequence[PhraseList] | Mapping[int, PhraseList],
    pieces: Pieces,
    size: int,
    longest: int = 4,
) -> list[list[Hypothesis]]:
    constraint = constraint_of([lists[i] for i in sentences], pieces)
    request = replace(request_for([longest] * len(sentences)), constraint=constraint)
    return beam(table, sentences, request, size, 3)


# ---- against enumeration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("penalty", [("gnmt", 0.6), ("none", 0.0), ("power", -0.5)])
def test_a_wide_beam_finds_the_best_outputs_that_meet_all(vocabulary: Sequence[bytes], penalty: Penalty) -> None:
    pieces, table = pieces_of(vocabulary), random_table(11)
    for seed in range(12):
        phrases = random_phrases(random.Random(seed), vocabulary, pieces)
        request = replace(request_for([4], penalty), constraint=constraint_of([phrases], pieces))
        try:
            outputs = beam(table, [seed], request, 512, 3)[0]
        except FloatingPointError:
            outputs = []
        right = meeting(every_output(table, seed, 4, 0, ()), phrases, vocabulary)
        finished = [hypothesis for hypothesis in outputs if hypothesis.finished]
        expected = ranked(table, seed, right, penalty, 3) if phrases.texts else best_of(right, penalty, 3)
        check(finished, expected)
        for hypothesis in finished:
            replay(table, seed, hypothesis, penalty)


CHOSEN = [
    (0, [["a b"], ["b a"]], []),  # overlap
    (0, [["b"], ["b"], ["a b"]], []),  # one twice, and one that contains it
    (0, [["ab", "a"], ["b"]], []),  # alternatives
    (0, [["b b"], ["b"]], ["a"]),
    (1, [["a"], ["."], ["a."]], []),
    (1, [["a"], ["a."]], ["ab"]),
    (2, [["a b"], ["b"]], []),
    (2, [["a"], ["a"], ["b"]], []),
    (3, [["北"], ["北京"]], []),
    (3, [["北"], ["北"], ["京"]], []),
]


def test_phrases_that_overlap_nest_or_repeat_get_the_best_outputs() -> None:
    n_narrow = 0
    for seed, (number, required, forbidden) in enumerate(CHOSEN):
        vocabulary = VOCABULARIES[number]
        pieces, table, lists = pieces_of(vocabulary), random_table(50), {seed: PhraseList(required, forbidden)}
        ended = [path for path in every_output(table, seed, 5, 0, ()) if path[0][-1] == EOS]
        right = [path for path in ended if is_right(text_of(path[0], vocabulary), required, forbidden)]
        expected = ranked(table, seed, right, ("gnmt", 0.6), 3)
        assert len(expected) == 3, required
        wide, narrow = (search(table, [seed], lists, pieces, size, longest=5)[0] for size in (1024, 8))
        check(wide, expected)
        n_narrow += tuple(narrow[0].ids) == expected[0][0][:-1]
    assert n_narrow >= 7  # of 10


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1_000_000), st.sampled_from(VOCABULARIES), st.integers(2, 5))
def test_a_narrow_beam_meets_what_fits_and_never_writes_what_is_forbidden(
    seed: int, vocabulary: Sequence[bytes], size: int
) -> None:
    """An output that is finished meets all. One that is cut lacks some, and of all outputs the best lacks fewest."""
    pieces, table = pieces_of(vocabulary), random_table(seed)
    phrases = random_phrases(random.Random(seed), vocabulary, pieces)
    try:
        outputs = search(table, [0], [phrases], pieces, size, longest=9)[0]
    except FloatingPointError:  # every output of this vocabulary has a forbidden phrase
        return
    unmet = [phrases.unmet(text_of(hypothesis.ids, vocabulary)) for hypothesis in outputs]
    for hypothesis, names in zip(outputs, unmet, strict=True):
        assert not {*names} & ({*phrases.forbidden} - {"|".join(one) for one in phrases.required})
        assert not (hypothesis.finished and names)
    assert [len(names) for names in unmet] == sorted(map(len, unmet))
    texts = [(*hypothesis.ids, hypothesis.finished) for hypothesis in outputs]
    assert len({*texts}) == len(texts)


def test_phrases_are_met_in_any_order_with_parts_in_common() -> None:
    vocabulary = (b"", b"", b" New", b" York", b" City", b".")
    pieces, table = pieces_of(vocabulary), random_table(3)
    phrases = PhraseList([["York City"], ["New York"], ["York"], ["York"], ["City New"]])
    (best, *_) = search(table, [0], [phrases], pieces, 12, longest=14)[0]
    assert best.finished and phrases.unmet(text_of(best.ids, vocabulary)) == ()


def test_phrases_with_a_common_beginning_are_all_met() -> None:
    """Also in a narrow beam: a common beginning is progress towards one of them, or the rest would never pay."""
    vocabulary = (b"", b"", b" ", b"x", b"y", b"z")
    pieces = pieces_of(vocabulary)
    for seed in range(20):
        phrases = PhraseList([["x"], ["y"], ["xy"], ["xz"]], ["z"])
        (best, *_) = search(random_table(seed), [0], [phrases], pieces, 2, longest=30)[0]
        assert best.finished and phrases.unmet(text_of(best.ids, vocabulary)) == (), best


def test_a_forbidden_phrase_does_not_cut_an_output_short() -> None:
    """The model would end only after a full stop, but gives the empty output a higher score than "b."."""
    vocabulary = (b"", b"", b" a", b" b", b".", b" c")
    ending = table_of({(): {2: 0.98, EOS: 0.015, 3: 0.005}, (3,): {4: 0.9, 5: 0.1}, (3, 4): {EOS: 1.0}}, {5: 1.0})
    best, second = search(ending, [0], [PhraseList([], ["a"])], pieces_of(vocabulary), 4, longest=6)[0][:2]
    assert (best.ids, best.early_cost) == ([3, 4], 0)
    assert second.ids == [] and second.score > best.score > second.score - second.early_cost
    endless = table_of({(): {2: 0.985, EOS: 0.015}}, {5: 1.0})
    (only,) = search(endless, [0], [PhraseList([], ["a", "c"])], pieces_of(vocabulary), 4, longest=3)[0][:1]
    assert only.finished and only.early_cost > 0  # of early ends the best, where there is no other


def test_an_early_end_wins_over_nonsense() -> None:
    """The model would end only after a full stop; without it every word is far less likely than the end."""
    vocabulary = (b"", b"", b" a", b" b", b".", b" c")
    table = table_of({(): {2: 1.0}, (2,): {4: 0.999, EOS: 0.0005, 3: 1e-6, 5: 1e-6}}, {3: 0.5, 5: 0.3, EOS: 0.2})
    (best, *_) = search(table, [0], [PhraseList([], ["."])], pieces_of(vocabulary), 4, longest=9)[0]
    assert best.ids == [2] and best.early_cost > 0


def test_an_output_ends_soon_after_its_natural_end() -> None:
    """Without a limit the best output would be the longest: the penalty makes the phrase cheap there."""
    vocabulary = (b"", b"", b" a", b" x", b" y", b" z")

    def table(sentence: int, prefix: tuple[int, ...]) -> torch.Tensor:
        a, x, end = (0.0999, 1e-4, 0.9) if not prefix else (0.4, 1e-6, 0.6) if 3 in prefix else (0.9998, 1e-4, 1e-6)
        return torch.tensor([{2: a, 3: x, EOS: end}.get(token, 1e-9) for token in range(V)]).log()

    (best, *_) = search(table, [0], [PhraseList([["x"]])], pieces_of(vocabulary), 4, longest=30)[0]
    assert best.finished and 3 in best.ids and 2 <= len(best.ids) <= 1 + 5  # the phrase, and five tokens


# ---- prefixes, batches -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 512])
def test_an_output_has_its_prefix_and_its_phrases(size: int) -> None:
    vocabulary = VOCABULARIES[0]
    pieces, table = pieces_of(vocabulary), random_table(6)
    phrases = PhraseList([["ab"]], ["a a"])
    constraint = Both(Prefixes([[2, 4]]), PhraseConstraint([automaton_of(phrases, pieces).start]))
    outputs = beam(table, [0], replace(request_for([6]), constraint=constraint), size, 2)[0]
    for hypothesis in outputs:
        assert hypothesis.ids[:2] == [2, 4] and phrases.unmet(text_of(hypothesis.ids, vocabulary)) == ()
    if size == 512:
        every = every_output(table, 0, 6, 0, [2, 4])
        check(outputs, best_of(meeting(every, phrases, vocabulary), ("gnmt", 0.6), 2))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_batches_do_not_change_an_output(vocabulary: Sequence[bytes], size: int) -> None:
    """Sentences with phrases, free ones, and ones with a prefix: alone, and in two batches."""
    pieces, table, chance = pieces_of(vocabulary), random_table(8), random.Random(4)
    lists = [replace_forbidden(random_phrases(chance, vocabulary, pieces)) for _ in range(10)]
    prefixes = [[] if i % 3 else [2] for i in range(10)]

    def outputs(sentences: Sequence[int]) -> list[list[Hypothesis]]:
        phrases = constraint_of([lists[i] for i in sentences], pieces)
        prefix = Prefixes([prefixes[i] for i in sentences])
        constraint = prefix if phrases is None else Both(prefix, phrases)
        request = replace(request_for([6 + i % 3 for i in sentences]), constraint=constraint)
        return beam(table, sentences, request, size, 2)

    alone = [outputs([i])[0] for i in range(10)]
    assert outputs(range(10)) == alone
    assert outputs([7, 2, 5]) == [alone[i] for i in (7, 2, 5)]


def replace_forbidden(phrases: PhraseList) -> PhraseList:
    """Return the required phrases alone: with a forbidden phrase some of these tiny vocabularies have no output."""
    return PhraseList([one for one, n in zip(phrases.required, phrases.times, strict=True) for _ in range(n)])


def test_constraints_of_groups_of_rows_are_one_constraint() -> None:
    pieces = pieces_of(VOCABULARIES[0])
    one, two = (automaton_of(PhraseList([[text]]), pieces).start for text in ("ab", "b"))
    together: Constraint | None = None
    for i, part in enumerate([PhraseConstraint([one]), None, Prefixes([[3]]), PhraseConstraint([two])]):
        together = joined(together, i, part, 1)
    assert together is not None and [*together.extra_lengths] == [2, 0, 0, 1]
    next_tokens, expected = together.next_tokens(), PhraseConstraint([one, None, None, two]).next_tokens()
    assert next_tokens is not None and expected is not None
    assert next_tokens.rows.tolist() == [0, 3] and next_tokens.n_tokens.tolist() == [2, 1]
    assert [x.tolist() for x in next_tokens.wanted] == [x.tolist() for x in expected.wanted]
    progress = together.progress([0, 3, 0], [2, 4, 5])
    assert progress.n_tokens.tolist() == PhraseConstraint([one, two]).progress([0, 1, 0], [2, 4, 5]).n_tokens.tolist()
    selected = together.select([0, 0, 3]).advance([2, 4, 4])
    assert selected is not None and selected.progress([0, 1, 2], [5, 5, 3]).n_met.tolist() == [1, 0, 0]


# ---- the places of a beam ----------------------------------------------------------------------------------------


def places(scores: list[float], progress: list[int], width: int, at_risk: Sequence[int] = ()) -> list[int]:
    is_at_risk = np.isin(np.arange(len(scores)), at_risk)
    return sorted(allocate(np.array([scores]), np.array([progress]), is_at_risk[None], width)[0].tolist())


def test_the_natural_end_is_where_eos_is_the_most_likely_token_of_all_and_barred() -> None:
    """Row 0: another barred token is more likely than EOS. Row 1: none is. Row 2: EOS is the best, and not barred."""

    class Given:
        device = torch.device("cpu")

        def log_probs(self, output: torch.Tensor) -> torch.Tensor:
            return output.log_softmax(dim=1)

    output = torch.zeros(3, 6)
    output[:, EOS] = 3
    output[0, 4] = 7
    barred = [(np.array([0, 1]), np.array([EOS, 4]))]
    none = np.zeros(0, dtype=np.int64)
    next_tokens = NextTokens(np.arange(3), barred, (none, none), [], np.array([2, 3, 0]))
    is_young = torch.zeros(3, dtype=torch.bool)
    decoder: Any = Given()
    step = RowsOfStep(decoder, output, request_for([9]), 2, is_young, [True] * len(is_young))
    (_, ids), wanted = tokens_with_phrases(step, next_tokens, {})
    assert wanted.limits.tolist() == [NO_LIMIT, 3 + 5, NO_LIMIT]
    assert wanted.is_early.tolist() == [True, False, False]
    assert ids[2, 0] == EOS and EOS not in ids[:2, 0]


def test_banks_share_the_places() -> None:
    assert places([-1, -2, -3, -4, -9], [0, 0, 0, 1, 2], 3) == [0, 3, 4]
    assert places([-1, -2, -3, -4, -9], [0, 0, 0, 0, 1], 4) == [0, 1, 2, 4]  # the rest of a small bank is for others
    assert places([-1, -2, -3, -4], [0, 0, 0, 0], 2) == [0, 1]


def test_more_banks_than_places_leave_the_worst_out() -> None:
    """Of the banks in between, the one whose best is highest above the line from the first to the last."""
    assert places([-1, -3, -8, -9], [0, 1, 2, 4], 3) == [0, 1, 3]
    assert places([-1, -6, -6.5, -9], [0, 1, 3, 4], 3) == [0, 2, 3]


def test_hypotheses_at_risk_never_take_all_places() -> None:
    assert places([-1, -2, -3, -4, -5], [0] * 5, 2, at_risk=[0, 1, 2]) == [0, 3]
    assert places([-1, -2, -3, -4, -5, -6], [0] * 6, 4, at_risk=[0, 1, 2]) == [0, 3, 4, 5]
    assert places([-1, -2, -3, -np.inf], [0] * 4, 3, at_risk=[0, 1, 2]) == [0, 1, 2]


def test_no_place_is_for_what_is_excluded() -> None:
    assert places([-1, -np.inf, -np.inf, -5], [0, 9, 9, 1], 2) == [0, 3]
