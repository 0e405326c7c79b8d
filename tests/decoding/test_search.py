"""Search over tables: penalties, greedy decoding, batches, ensembles, and broken models."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from support.search_tables import (
    BOS,
    EOS,
    WORDS,
    Penalty,
    Reader,
    Rows,
    Table,
    V,
    beam,
    best_of,
    check,
    every_output,
    random_table,
    replay,
    request_for,
    start,
    table_of,
    tied_table,
    with_search,
)
from torch import Tensor

from transduce.decoding.decoder import Decoder, EnsembleState, ensemble
from transduce.decoding.hypothesis import gnmt_penalty, no_penalty, power_penalty
from transduce.decoding.options import Sampling, sentence_seed
from transduce.decoding.search import Request, beam_search, greedy, sample
from transduce.errors import UserError

INF = math.inf


# ---- length penalties ----------------------------------------------------------------------------------------------


def test_gnmt_penalty_values_worked_by_hand() -> None:
    """((5+1)/6)^a = 1; ((5+7)/6)^0.6 = 2^0.6 = e^(0.6 x 0.693147) = e^0.415888 = 1.515717; ((5+25)/6)^1 = 5."""
    assert gnmt_penalty(1, 0.6) == 1
    assert gnmt_penalty(7, 0.6) == pytest.approx(1.515717, abs=1e-6)
    assert gnmt_penalty(25, 1.0) == 5
    assert gnmt_penalty(13, -1.0) == pytest.approx(1 / 3)


def test_the_other_penalties() -> None:
    assert power_penalty(16, 0.5) == 4
    assert power_penalty(9, 0.0) == 1
    assert no_penalty(9, 0.6) == 1


def test_the_penalty_counts_eos() -> None:
    """One word with probability e^-1 and a certain EOS: |Y| = 2, so gnmt divides by 7/6 at alpha 1."""
    table, request = table_of({(): {2: math.exp(-1)}}, {EOS: 1.0}), request_for([5], ("gnmt", 1.0))
    for output in (greedy(Reader(table).decoder, start([0]), request)[0], beam(table, [0], request, 2)[0][0]):
        assert output.ids == [2]
        assert output.score == pytest.approx(-6 / 7, abs=1e-6)


# ---- greedy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [random_table(2), tied_table(2)])
def test_greedy_takes_the_lowest_id_of_the_most_likely_words(table: Table) -> None:
    max_lengths, prefixes, min_length = [1, 4, 8, 8, 8, 8], [[], [3], [], [5, 2], [], [4]], 2
    request = request_for(max_lengths, min_length=min_length, prefixes=prefixes)
    outputs = greedy(Reader(table).decoder, start(range(6)), request)
    for i, hypothesis in enumerate(outputs):
        tokens = list(prefixes[i])
        while len(tokens) < max_lengths[i] and EOS not in tokens:
            choices = [EOS, *WORDS] if len(tokens) >= min_length else [*WORDS]
            tokens.append(max(choices, key=lambda token: table(i, tuple(tokens))[token].item()))
        assert hypothesis.ids + [EOS] * hypothesis.finished == tokens
        replay(table, i, hypothesis, ("gnmt", 0.6))


def test_a_beam_of_one_is_greedy() -> None:
    table, request = random_table(21), request_for([7] * 30)
    expected = greedy(Reader(table).decoder, start(range(30)), request)
    assert beam(table, range(30), request, 1) == [[hypothesis] for hypothesis in expected]
    assert {hypothesis.finished for hypothesis in expected} == {True, False}


# ---- the batch changes no output -----------------------------------------------------------


def check_batches(decode: Callable[[Sequence[int], Request], list[object]], penalty: Penalty = ("gnmt", 0.6)) -> None:
    """Assert that `decode` returns the same for each of 12 sentences alone and in batches."""
    max_lengths = [3 + 5 * i % 7 for i in range(12)]
    prefixes = [[2 + i % 4] * (i % 3) for i in range(12)]

    def request_of(sentences: Sequence[int]) -> Request:
        return request_for([max_lengths[i] for i in sentences], penalty, 1, [prefixes[i] for i in sentences])

    single = [decode([i], request_of([i]))[0] for i in range(12)]
    rng = random.Random(0)
    for size in (2, 5, 12):
        sentences = rng.sample(range(12), size)
        assert decode(sentences, request_of(sentences)) == [single[i] for i in sentences]


@pytest.mark.parametrize(("size", "n_best"), [(1, 1), (2, 1), (4, 4)])
def test_batches_do_not_change_beam_search(size: int, n_best: int) -> None:
    check_batches(lambda sentences, request: [*beam(random_table(8), sentences, request, size, n_best)])


def test_batches_do_not_change_greedy() -> None:
    reader = Reader(random_table(8))
    check_batches(lambda sentences, request: [*greedy(reader.decoder, start(sentences), request)])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=3, top_p=0.9)])
def test_batches_do_not_change_samples(sampling: Sampling) -> None:
    def decode(sentences: Sequence[int], request: Request) -> list[object]:
        seeds = [sentence_seed(1, i) for i in sentences]
        return [*sample(Reader(random_table(8)).decoder, start(sentences), request, sampling=sampling, seeds=seeds)]

    check_batches(decode)


def test_an_empty_batch() -> None:
    assert beam(random_table(0), [], request_for([]), 4) == []
    assert greedy(Reader(random_table(0)).decoder, start([]), request_for([])) == []


# ---- ensembles -----------------------------------------------------------------------------------------------------


def test_an_ensemble_of_three_equal_models_is_the_model() -> None:
    table, request = random_table(6), request_for([6] * 10)
    together = ensemble([Reader(table).decoder] * 3)
    outputs = beam_search(together, EnsembleState([start(range(10))] * 3), with_search(request, beam_size=3), n_best=3)
    for hypotheses, expected in zip(outputs, beam(table, range(10), request, 3, 3), strict=True):
        check(hypotheses, [(tuple(h.ids) + (EOS,) * h.finished, h.score) for h in expected])


def test_an_ensemble_is_the_mean_of_the_probabilities() -> None:
    first, second = random_table(6), random_table(7)

    def mean(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        return ((first(sentence, prefix).exp() + second(sentence, prefix).exp()) / 2).log()

    together = ensemble([Reader(first).decoder, Reader(second).decoder])
    outputs = beam_search(together, EnsembleState([start([0, 1])] * 2), request_for([4] * 2, beam_size=256), n_best=5)
    for i, hypotheses in enumerate(outputs):
        check(hypotheses, best_of(every_output(mean, i, 4, 0, ()), ("gnmt", 0.6), 5))


def test_an_ensemble_with_probability_zero() -> None:
    def without(words: set[int]) -> Table:
        return lambda sentence, prefix: torch.tensor([-INF if t in words else 0.0 for t in range(V)]).log_softmax(0)

    together = ensemble([Reader(without({0, 2, 3})).decoder, Reader(without({0, 3, 4})).decoder])
    log_probs, _ = together.step(torch.tensor([BOS]), EnsembleState([start([0])] * 2))
    assert log_probs[0].exp().tolist() == pytest.approx([0, 1 / 3, 1 / 6, 0, 1 / 6, 1 / 3])
    assert log_probs.max() <= 0


# ---- broken models, impossible requests ----------------------------------------------------------------------------


def searches() -> list[Callable[[Decoder[Rows], Rows, Request], object]]:
    return [
        greedy,
        lambda decoder, state, request: sample(decoder, state, request, sampling=Sampling(), seeds=[0, 1]),
        lambda decoder, state, request: beam_search(decoder, state, with_search(request, beam_size=3)),
    ]


@pytest.mark.parametrize("decode", searches())
@pytest.mark.parametrize("wrong", [[math.nan] * V, [-1.0, -1.0, math.nan, -1.0, -1.0, -1.0], [-INF] * V])
@pytest.mark.parametrize("banned", [[], [BOS]])
def test_nan_or_no_possible_token_is_an_error(
    decode: Callable[..., object], wrong: list[float], banned: list[int]
) -> None:
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        if sentence == 1 and len(prefix) == 2:
            return torch.tensor(wrong)
        return torch.tensor([-INF if token == EOS else -1.5 for token in range(V)])

    with pytest.raises(FloatingPointError, match="NaN"):
        decode(Reader(table).decoder, start([0, 1]), replace(request_for([10_000] * 2), banned=banned))


@pytest.mark.parametrize("decode", searches())
def test_only_banned_tokens_with_a_probability_is_an_error(decode: Callable[..., object]) -> None:
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        return torch.tensor([0.0 if token in (BOS, EOS) else -INF for token in range(V)]).log_softmax(0)

    with pytest.raises(FloatingPointError, match="banned"):
        decode(Reader(table).decoder, start([0, 1]), request_for([5] * 2, min_length=1))


def test_an_empty_beam_is_no_error_after_a_finished_output() -> None:
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        return torch.tensor([0.0 if token == EOS else -INF for token in range(V)])

    outputs = beam(table, [0], request_for([5]), 3, 3)[0]
    assert [(h.ids, h.score, h.finished) for h in outputs] == [([], 0.0, True)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: request_for([4, 0]), "max_lengths=.*expected at least 1"),
        (lambda: request_for([4], prefixes=[[2], [3]]), "2 prefixes: expected one for each of 1 sentences"),
        (lambda: request_for([4, 4], prefixes=[[2], [3, EOS]]), "prefix of sentence 2: expected no EOS"),
        (
            lambda: request_for([4, 2], prefixes=[[2], [3, 3, 3]]),
            "prefix of sentence 2: expected at most 2 tokens, not 3",
        ),
        (lambda: replace(request_for([4]), banned=[BOS, EOS]), "banned=.*expected no EOS"),
        (lambda: Sampling(temperature=0.0), "temperature=0.0.*a beam size of 1"),
        (lambda: Sampling(temperature=math.nan), "temperature=nan"),
        (lambda: Sampling(top_k=0), "top_k=0"),
        (lambda: Sampling(top_p=0.0), "top_p=0.0"),
        (lambda: Sampling(top_p=1.1), "top_p=1.1"),
    ],
)
def test_impossible_requests_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_each_sentence_needs_a_seed() -> None:
    with pytest.raises(UserError, match="1 seeds: expected one for each of 2 sentences"):
        sample(Reader(random_table(0)).decoder, start([0, 1]), request_for([4, 4]), sampling=Sampling(), seeds=[0])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_device_changes_nothing() -> None:
    table, request = random_table(13), request_for([8] * 10, min_length=1, prefixes=[[3] * (i % 3) for i in range(10)])
    on_cuda, seeds = Reader(table, "cuda").decoder, [sentence_seed(0, i) for i in range(10)]
    on_cpu = Reader(table).decoder
    assert greedy(on_cuda, start(range(10), "cuda"), request) == greedy(on_cpu, start(range(10)), request)
    outputs = beam_search(on_cuda, start(range(10), "cuda"), with_search(request, beam_size=4), n_best=2)
    assert outputs == beam(table, range(10), request, 4, 2)
    samples = sample(on_cuda, start(range(10), "cuda"), request, sampling=Sampling(), seeds=seeds)
    assert samples == sample(on_cpu, start(range(10)), request, sampling=Sampling(), seeds=seeds)
