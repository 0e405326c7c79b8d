"""Beam search over tables, against enumeration and a plain beam search."""

import itertools
import math

import pytest
import torch
from support.search_tables import (
    EOS,
    PENALTIES,
    WORDS,
    Penalty,
    Reader,
    V,
    beam,
    best_of,
    check,
    divisor,
    every_output,
    plain_beam_search,
    random_table,
    replay,
    request_for,
    start,
    table_of,
    tied_table,
    with_search,
)
from torch import Tensor

from transduce.decoding import beam as running
from transduce.decoding.hypothesis import best_attainable
from transduce.decoding.search import beam_search, greedy

INF = math.inf


# ---- beam search against enumeration -------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_true_n_best(penalty: Penalty, seed: int) -> None:
    table, max_length, n_best = random_table(seed), 4, 7
    request = request_for([max_length] * 3, penalty)
    outputs = beam(table, range(3), request, size=len(WORDS) ** max_length, n_best=n_best)
    for sentence, hypotheses in enumerate(outputs):
        check(hypotheses, best_of(every_output(table, sentence, max_length, 0, ()), penalty, n_best))
        for hypothesis in hypotheses:
            replay(table, sentence, hypothesis, penalty)


@pytest.mark.parametrize("penalty", [("gnmt", 0.6), ("none", 0.0), ("power", -0.5)])
@pytest.mark.parametrize("min_length", [0, 2, 3, 4])
def test_minimum_length_and_prefixes_of_unequal_length(penalty: Penalty, min_length: int) -> None:
    table, max_lengths = random_table(11), [4, 3, 4, 4, 4]
    prefixes = [[], [2], [5, 3], [4, 4, 4], [3, 2, 5, 2]]
    outputs = beam(table, range(5), request_for(max_lengths, penalty, min_length, prefixes), size=256, n_best=6)
    for i, hypotheses in enumerate(outputs):
        check(hypotheses, best_of(every_output(table, i, max_lengths[i], min_length, prefixes[i]), penalty, 6))


def test_finished_hypotheses_come_before_cut_ones() -> None:
    """Words are nearly certain and EOS nearly impossible, but finished outputs come first."""
    table = table_of({}, {2: 0.9, 3: 0.09, EOS: 0.001})
    outputs = beam(table, [0], request_for([2], ("none", 0.0)), size=5, n_best=5)[0]
    assert [h.finished for h in outputs] == [True, True, True, False, False]
    assert [h.ids for h in outputs] == [[], [2], [3], [2, 2], [2, 3]]
    assert outputs[3].score > outputs[0].score
    assert len(outputs[3].token_log_probs) == 2 and len(outputs[1].token_log_probs) == 2


def test_a_short_n_best_list_holds_every_output() -> None:
    table = random_table(5)
    outputs = beam(table, [0], request_for([1]), size=40, n_best=40)[0]
    check(outputs, best_of(every_output(table, 0, 1, 0, ()), ("gnmt", 0.6), 40))
    assert len(outputs) == 1 + len(WORDS)


# ---- narrow beams, stopping, ties ----------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_narrow_beam_is_the_plain_beam_search(penalty: Penalty, size: int) -> None:
    table, max_lengths = random_table(size), [9, 3, 6, 1, 7, 8]
    for n_best in (1, size):
        outputs = beam(table, range(6), request_for(max_lengths, penalty), size, n_best)
        for i, hypotheses in enumerate(outputs):
            check(hypotheses, plain_beam_search(table, i, max_lengths[i], penalty, size, n_best))


@pytest.mark.parametrize("seed", range(4))
def test_ties_go_to_the_better_beam_then_the_lower_id(seed: int) -> None:
    table = tied_table(seed)
    outputs = beam(table, range(8), request_for([5] * 8), size=3, n_best=3)
    for i, hypotheses in enumerate(outputs):
        check(hypotheses, plain_beam_search(table, i, 5, ("gnmt", 0.6), 3, 3))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_stopping_early_changes_nothing_but_the_work(penalty: Penalty, monkeypatch: pytest.MonkeyPatch) -> None:
    table, request = random_table(3), request_for([12] * 20, penalty, beam_size=3)
    early, late = Reader(table), Reader(table)
    early_outputs = [beam_search(early.decoder, start(range(20)), request, n_best=n) for n in (1, 2, 3)]
    monkeypatch.setattr(running, "best_attainable", lambda *_: INF)
    complete = [beam_search(late.decoder, start(range(20)), request, n_best=n) for n in (1, 2, 3)]
    assert early_outputs == complete
    assert late.rows_per_step == ([20] + [60] * 11) * 3  # a sentence begins with one row
    assert sum(early.rows_per_step) < sum(late.rows_per_step)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_bound_holds_for_every_extension_and_is_reached_by_one(penalty: Penalty) -> None:
    request = request_for([9], penalty)
    for length, log_prob in itertools.product(range(1, 9), (0.0, -0.1, -7.0)):
        attainable = [log_prob / divisor(longer, penalty) for longer in range(length + 1, 10)]
        assert best_attainable(log_prob, length, 9, None, request.penalties) == pytest.approx(max(attainable))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_bound_with_a_lookahead_leaves_longer_extensions_out(penalty: Penalty) -> None:
    request = request_for([9], penalty, lookahead=2)
    for length in range(1, 9):
        attainable = [-7.0 / divisor(longer, penalty) for longer in range(length + 1, min(9, length + 2) + 1)]
        assert best_attainable(-7.0, length, 9, 2, request.penalties) == pytest.approx(max(attainable))


def test_a_lookahead_misses_outputs_that_win_by_their_length() -> None:
    """An output of 2 tokens at log 0.5, or one of 7 at log 0.4, whose score is better for being longer."""
    path = (3, 3, 3, 3, 3, 3)
    steps_of_path = {path[:n]: {3: 0.998} for n in range(1, 6)}
    table = table_of({(): {2: 0.5, 3: 0.4}, (2,): {EOS: 0.999}, path: {EOS: 0.998}, **steps_of_path}, {4: 0.9})
    request, steps = request_for([9], ("power", 0.3)), []
    for lookahead, ids in ((None, list(path)), (7, list(path)), (3, [2]), (1, [2])):
        reader = Reader(table)
        best = beam_search(reader.decoder, start([0]), with_search(request, lookahead=lookahead, beam_size=2))[0][0]
        assert best.ids == ids and best.finished, lookahead
        steps.append(len(reader.rows_per_step))
    assert steps[0] == steps[1] > steps[2] >= steps[3]


def test_without_a_length_penalty_every_lookahead_is_exact() -> None:
    table, request = random_table(3), request_for([12] * 20, ("none", 0.0))
    exact = beam(table, range(20), request, size=3, n_best=2)
    assert beam(table, range(20), with_search(request, lookahead=1), size=3, n_best=2) == exact


def test_two_k_candidates_keep_eos_from_emptying_the_beam() -> None:
    """K = 2. At step 2 the two most likely extensions both end in EOS: K candidates would leave an empty beam.

    (log 0.5 + log 0.4) / 2 = -0.80, but (log 0.5 + log 0.3 + log 0.999) / 3 = -0.63 is better.
    """
    second = {EOS: 0.4, 4: 0.3, 5: 0.3}
    table = table_of({(): {2: 0.5, 3: 0.499}, (2,): second, (3,): second}, {EOS: 0.999})
    best = beam(table, [0], request_for([6], ("power", 1.0)), size=2)[0][0]
    assert best.ids == [2, 4] and best.finished
    assert best.score == pytest.approx(math.log(0.5 * 0.3 * 0.999) / 3, abs=1e-6)


def test_finished_sentences_leave_the_batch_at_once() -> None:
    """Sentence i ends with certainty after i words."""

    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        certain = EOS if len(prefix) == sentence else 2
        return torch.tensor([0.0 if token == certain else -50.0 for token in range(V)])

    for decode, width in ((greedy, 1), (lambda d, s, r: beam_search(d, s, with_search(r, beam_size=4)), 4)):
        reader = Reader(table)
        decode(reader.decoder, start(range(5)), request_for([30] * 5))
        assert reader.rows_per_step == [5, 4 * width, 3 * width, 2 * width, width]
