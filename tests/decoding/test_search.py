"""The search against slow, obvious versions of itself, on models that are tables: no network anywhere.

A table gives each (sentence, tokens so far) its own random distribution, so any mistake in what the search keeps,
reorders or forces changes a log-probability. V is 6: BOS 0 (banned), EOS 1, and four words 2 to 5.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.decoding import search
from transduce.decoding.constraint import prefix_constraint
from transduce.decoding.decoder import Decoder, EnsembleState, ensemble
from transduce.decoding.hypothesis import Hypothesis, gnmt_penalty, no_penalty, power_penalty
from transduce.decoding.options import Sampling
from transduce.decoding.search import Request, beam_search, greedy, sample, sentence_seed
from transduce.errors import UserError

BOS, EOS, V = 0, 1, 6
WORDS = range(2, V)
INF = math.inf
Table = Callable[[int, tuple[int, ...]], Tensor]  # (sentence, tokens so far) -> log_probs (V,) float32
Path = tuple[tuple[int, ...], float]  # tokens with EOS if finished, log-probability
Penalty = tuple[str, float]  # (name, alpha)
PENALTIES = [("none", 0.0), ("power", 1.0), ("power", -0.5), *(("gnmt", alpha) for alpha in (0.0, 0.6, 3.0, -1.0))]


# ---- tables, and a decoder that reads them ----


def random_table(seed: int, sharpness: float = 1.5) -> Table:
    @cache
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        rng = random.Random(f"{seed} {sentence} {prefix}")
        return torch.tensor([rng.gauss(0, sharpness) for _ in range(V)]).log_softmax(0)

    return table


def tied_table(seed: int) -> Table:
    """Few distinct probabilities: most comparisons are ties."""

    @cache
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        rng = random.Random(f"{seed} {sentence} {prefix}")
        return torch.tensor([rng.choice([0.0, 1.0]) for _ in range(V)]).log_softmax(0)

    return table


def written_table(probs: dict[tuple[int, ...], dict[int, float]], default: dict[int, float]) -> Table:
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        row = probs.get(prefix, default)
        return torch.tensor([row.get(token, 1e-9) for token in range(V)]).log()

    return table


@dataclass(frozen=True)
class Rows:
    """The state: what each row has been given so far, and what is kept once for each sentence."""

    sentence_of_row: Tensor  # (N,)
    prefixes: Tensor  # (N, t) BOS included
    sentences: Tensor  # (B,)

    def select(self, rows: Tensor, sentences: Tensor) -> "Rows":
        assert len(rows) > 0 and sentences.diff().gt(0).all()
        return Rows(self.sentence_of_row[rows], self.prefixes[rows], self.sentences[sentences])


def start(sentences: Sequence[int], device: str = "cpu") -> Rows:
    numbers = torch.tensor(sentences, dtype=torch.int64, device=device)
    return Rows(numbers, torch.empty(len(sentences), 0, dtype=torch.int64, device=device), numbers)


class Reader:
    """Makes decoders of a table; counts the rows it was asked for."""

    def __init__(self, table: Table, device: str = "cpu") -> None:
        self.table, self.rows_per_step = table, []
        self.decoder = Decoder(self.step, device)

    def step(self, last_ids: Tensor, state: Rows) -> tuple[Tensor, Rows]:
        n_rows = len(state.sentence_of_row)
        assert last_ids.shape == (n_rows,) and last_ids.dtype == torch.int64
        beam_size = n_rows // len(state.sentences)
        assert torch.equal(state.sentence_of_row, state.sentences.repeat_interleave(beam_size))
        self.rows_per_step.append(n_rows)
        prefixes = torch.cat([state.prefixes, last_ids[:, None]], dim=1)
        asked = zip(state.sentence_of_row.tolist(), prefixes.tolist(), strict=True)
        answers = []
        for sentence, prefix in asked:
            assert prefix[0] == BOS
            answers.append(self.table(sentence, tuple(prefix[1:])))
        return torch.stack(answers).to(last_ids.device), replace(state, prefixes=prefixes)


def request(
    max_lengths: Sequence[int],
    penalty: Penalty = ("gnmt", 0.6),
    min_length: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
    **settings: Any,
) -> Request:
    return Request(
        search=SearchConfig(length_penalty=penalty[0], alpha=penalty[1], min_tokens=min_length, **settings),  # pyright: ignore[reportArgumentType]
        max_lengths=max_lengths,
        bos=BOS,
        eos=EOS,
        banned=[BOS],
        constraint=prefix_constraint(prefixes, max_lengths, EOS) if prefixes is not None else None,
    )


def changed(asked: Request, **settings: Any) -> Request:
    """The request with other search settings."""
    return replace(asked, search=replace(asked.search, **settings))


def beam(table: Table, sentences: Sequence[int], asked: Request, size: int, n_best: int = 1) -> list[list[Hypothesis]]:
    return beam_search(Reader(table).decoder, start(sentences), changed(asked, beam_size=size), n_best=n_best)


# ---- the obvious versions ----


def divisor(length: int, penalty: Penalty) -> float:
    name, alpha = penalty
    return {"gnmt": ((5 + length) / 6) ** alpha, "power": length**alpha, "none": 1.0}[name]


def every_output(table: Table, sentence: int, max_length: int, min_length: int, prefix: Sequence[int]) -> list[Path]:
    """All sequences that the request allows, by brute force."""
    outputs = []
    for length in range(max_length + 1):
        for words in itertools.product(WORDS, repeat=length):
            ends = [words] if length == max_length else [(*words, EOS)] if length >= min_length else []
            for ids in ends:
                if ids[: len(prefix)] == tuple(prefix):
                    outputs.append((ids, sum(table(sentence, ids[:t])[ids[t]].item() for t in range(len(ids)))))
    return outputs


def ranked(outputs: list[Path], penalty: Penalty, n_best: int) -> list[tuple[tuple[int, ...], float]]:
    """The n_best by score, those that end in EOS before those that were cut."""
    scored = [(ids, log_prob / divisor(len(ids), penalty)) for ids, log_prob in outputs]
    return sorted(scored, key=lambda x: (x[0][-1] != EOS, -x[1]))[:n_best]


def plain_beam_search(
    table: Table, sentence: int, max_length: int, penalty: Penalty, size: int, n_best: int
) -> list[tuple[tuple[int, ...], float]]:
    """One sentence, lists only, never stops early."""
    live: list[Path] = [((), 0.0)]
    finished: list[Path] = []
    for _ in range(max_length):
        extensions = []
        for k, (ids, log_prob) in enumerate(live):
            for token in [EOS, *WORDS]:
                extensions.append((-(log_prob + table(sentence, ids)[token].item()), k, token))
        candidates = [((*live[k][0], token), -cost) for cost, k, token in sorted(extensions)[: 2 * size]]
        finished += [path for path in candidates if path[0][-1] == EOS]
        live = [path for path in candidates if path[0][-1] != EOS][:size]
    return ranked(finished + live, penalty, n_best)


def check(found: list[Hypothesis], expected: list[tuple[tuple[int, ...], float]]) -> None:
    assert [tuple(h.ids) + (EOS,) * h.finished for h in found] == [ids for ids, _ in expected]
    assert [h.score for h in found] == pytest.approx([score for _, score in expected], abs=1e-6)


def replay(table: Table, sentence: int, found: Hypothesis, penalty: Penalty) -> None:
    """What is reported of a hypothesis is what the table says of it."""
    tokens = (*found.ids, EOS) if found.finished else tuple(found.ids)
    log_probs = [table(sentence, tokens[:t])[token].item() for t, token in enumerate(tokens)]
    assert found.token_log_probs == pytest.approx(log_probs, abs=1e-6)
    assert found.log_prob == pytest.approx(sum(log_probs), abs=1e-6)
    assert found.score == pytest.approx(found.log_prob / divisor(len(tokens), penalty), abs=1e-9)


# ---- length penalties ----


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
    """A certain word and a certain EOS but for one factor of e^-1: |Y| = 2, so gnmt divides by 7/6 at alpha 1."""
    table, asked = written_table({(): {2: math.exp(-1)}}, {EOS: 1.0}), request([5], ("gnmt", 1.0))
    for found in (greedy(Reader(table).decoder, start([0]), asked)[0], beam(table, [0], asked, 2)[0][0]):
        assert found.ids == [2]
        assert found.score == pytest.approx(-6 / 7, abs=1e-6)


# ---- beam search against enumeration ----


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_true_n_best(penalty: Penalty, seed: int) -> None:
    table, max_length, n_best = random_table(seed), 4, 7
    found = beam(table, range(3), request([max_length] * 3, penalty), size=len(WORDS) ** max_length, n_best=n_best)
    for sentence, hypotheses in enumerate(found):
        check(hypotheses, ranked(every_output(table, sentence, max_length, 0, ()), penalty, n_best))
        for hypothesis in hypotheses:
            replay(table, sentence, hypothesis, penalty)


@pytest.mark.parametrize("penalty", [("gnmt", 0.6), ("none", 0.0), ("power", -0.5)])
@pytest.mark.parametrize("min_length", [0, 2, 3, 4])
def test_minimum_length_and_prefixes_of_unequal_length(penalty: Penalty, min_length: int) -> None:
    table, max_lengths = random_table(11), [4, 3, 4, 4, 4]
    prefixes = [[], [2], [5, 3], [4, 4, 4], [3, 2, 5, 2]]
    found = beam(table, range(5), request(max_lengths, penalty, min_length, prefixes), size=256, n_best=6)
    for i, hypotheses in enumerate(found):
        check(hypotheses, ranked(every_output(table, i, max_lengths[i], min_length, prefixes[i]), penalty, 6))


def test_a_cut_hypothesis_only_takes_a_place_that_no_finished_one_wants() -> None:
    """Words are nearly certain and EOS nearly impossible, yet what is finished comes first."""
    table = written_table({}, {2: 0.9, 3: 0.09, EOS: 0.001})
    found = beam(table, [0], request([2], ("none", 0.0)), size=5, n_best=5)[0]
    assert [h.finished for h in found] == [True, True, True, False, False]
    assert [h.ids for h in found] == [[], [2], [3], [2, 2], [2, 3]]
    assert found[3].score > found[0].score
    assert len(found[3].token_log_probs) == 2 and len(found[1].token_log_probs) == 2


def test_fewer_hypotheses_than_asked_for_only_where_no_more_exist() -> None:
    table = random_table(5)
    found = beam(table, [0], request([1]), size=40, n_best=40)[0]
    check(found, ranked(every_output(table, 0, 1, 0, ()), ("gnmt", 0.6), 40))
    assert len(found) == 1 + len(WORDS)


# ---- narrow beams, stopping, ties ----


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_narrow_beam_is_the_plain_beam_search(penalty: Penalty, size: int) -> None:
    table, max_lengths = random_table(size), [9, 3, 6, 1, 7, 8]
    for n_best in (1, size):
        found = beam(table, range(6), request(max_lengths, penalty), size, n_best)
        for i, hypotheses in enumerate(found):
            check(hypotheses, plain_beam_search(table, i, max_lengths[i], penalty, size, n_best))


@pytest.mark.parametrize("seed", range(4))
def test_ties_go_to_the_better_beam_then_the_lower_id(seed: int) -> None:
    table = tied_table(seed)
    found = beam(table, range(8), request([5] * 8), size=3, n_best=3)
    for i, hypotheses in enumerate(found):
        check(hypotheses, plain_beam_search(table, i, 5, ("gnmt", 0.6), 3, 3))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_stopping_early_changes_nothing_but_the_work(penalty: Penalty, monkeypatch: pytest.MonkeyPatch) -> None:
    table, asked = random_table(3), request([12] * 20, penalty, beam_size=3)
    early, late = Reader(table), Reader(table)
    stopped = [beam_search(early.decoder, start(range(20)), asked, n_best=n) for n in (1, 2, 3)]
    monkeypatch.setattr(search, "best_attainable", lambda *_: INF)
    ran_on = [beam_search(late.decoder, start(range(20)), asked, n_best=n) for n in (1, 2, 3)]
    assert stopped == ran_on
    assert late.rows_per_step == ([20] + [60] * 11) * 3  # a sentence begins with one row
    assert sum(early.rows_per_step) < sum(late.rows_per_step)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_bound_holds_for_every_extension_and_is_reached_by_one(penalty: Penalty) -> None:
    asked = request([9], penalty)
    for length, log_prob in itertools.product(range(1, 9), (0.0, -0.1, -7.0)):
        reached = [log_prob / divisor(longer, penalty) for longer in range(length + 1, 10)]
        assert search.best_attainable(log_prob, length, 9, asked) == pytest.approx(max(reached))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_bound_with_a_lookahead_leaves_longer_extensions_out(penalty: Penalty) -> None:
    asked = request([9], penalty, lookahead=2)
    for length in range(1, 9):
        reached = [-7.0 / divisor(longer, penalty) for longer in range(length + 1, min(9, length + 2) + 1)]
        assert search.best_attainable(-7.0, length, 9, asked) == pytest.approx(max(reached))


def test_a_lookahead_misses_only_what_overtakes_by_being_longer() -> None:
    """An output of 2 tokens at log 0.5, or one of 7 at log 0.4, whose score is better for being longer."""
    path = (3, 3, 3, 3, 3, 3)
    written = {path[:n]: {3: 0.998} for n in range(1, 6)}
    table = written_table({(): {2: 0.5, 3: 0.4}, (2,): {EOS: 0.999}, path: {EOS: 0.998}, **written}, {4: 0.9})
    asked, steps = request([9], ("power", 0.3)), []
    for lookahead, ids in ((None, list(path)), (7, list(path)), (3, [2]), (1, [2])):
        reader = Reader(table)
        best = beam_search(reader.decoder, start([0]), changed(asked, lookahead=lookahead, beam_size=2))[0][0]
        assert best.ids == ids and best.finished, lookahead
        steps.append(len(reader.rows_per_step))
    assert steps[0] == steps[1] > steps[2] >= steps[3]


def test_without_a_length_penalty_every_lookahead_is_exact() -> None:
    table, asked = random_table(3), request([12] * 20, ("none", 0.0))
    exact = beam(table, range(20), asked, size=3, n_best=2)
    assert beam(table, range(20), changed(asked, lookahead=1), size=3, n_best=2) == exact


def test_two_k_candidates_keep_eos_from_emptying_the_beam() -> None:
    """K = 2. At step 2 the two likeliest extensions both end in EOS; were only K looked at, nothing would go on.

    (log 0.5 + log 0.4) / 2 = -0.80, but (log 0.5 + log 0.3 + log 0.999) / 3 = -0.63 is better.
    """
    second = {EOS: 0.4, 4: 0.3, 5: 0.3}
    table = written_table({(): {2: 0.5, 3: 0.499}, (2,): second, (3,): second}, {EOS: 0.999})
    best = beam(table, [0], request([6], ("power", 1.0)), size=2)[0][0]
    assert best.ids == [2, 4] and best.finished
    assert best.score == pytest.approx(math.log(0.5 * 0.3 * 0.999) / 3, abs=1e-6)


def test_done_sentences_leave_the_batch_at_once() -> None:
    """Sentence i ends with certainty after i words."""

    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        certain = EOS if len(prefix) == sentence else 2
        return torch.tensor([0.0 if token == certain else -50.0 for token in range(V)])

    for decode, width in ((greedy, 1), (lambda d, s, r: beam_search(d, s, changed(r, beam_size=4)), 4)):
        reader = Reader(table)
        decode(reader.decoder, start(range(5)), request([30] * 5))
        assert reader.rows_per_step == [5, 4 * width, 3 * width, 2 * width, width]


# ---- one answer for each sentence, whatever is beside it ----


def one_by_one_and_together(
    decode: Callable[[Sequence[int], Request], list[object]], penalty: Penalty = ("gnmt", 0.6)
) -> None:
    max_lengths = [3 + 5 * i % 7 for i in range(12)]
    prefixes = [[2 + i % 4] * (i % 3) for i in range(12)]

    def asked(sentences: Sequence[int]) -> Request:
        return request([max_lengths[i] for i in sentences], penalty, 1, [prefixes[i] for i in sentences])

    alone = [decode([i], asked([i]))[0] for i in range(12)]
    rng = random.Random(0)
    for size in (2, 5, 12):
        sentences = rng.sample(range(12), size)
        assert decode(sentences, asked(sentences)) == [alone[i] for i in sentences]


@pytest.mark.parametrize(("size", "n_best"), [(1, 1), (2, 1), (4, 4)])
def test_batches_do_not_change_beam_search(size: int, n_best: int) -> None:
    one_by_one_and_together(lambda sentences, asked: [*beam(random_table(8), sentences, asked, size, n_best)])


def test_batches_do_not_change_greedy() -> None:
    reader = Reader(random_table(8))
    one_by_one_and_together(lambda sentences, asked: [*greedy(reader.decoder, start(sentences), asked)])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=3, top_p=0.9)])
def test_batches_do_not_change_samples(sampling: Sampling) -> None:
    def decode(sentences: Sequence[int], asked: Request) -> list[object]:
        seeds = [sentence_seed(1, i) for i in sentences]
        return [*sample(Reader(random_table(8)).decoder, start(sentences), asked, sampling=sampling, seeds=seeds)]

    one_by_one_and_together(decode)


def test_an_empty_batch() -> None:
    assert beam(random_table(0), [], request([]), 4) == []
    assert greedy(Reader(random_table(0)).decoder, start([]), request([])) == []


# ---- greedy ----


@pytest.mark.parametrize("table", [random_table(2), tied_table(2)])
def test_greedy_takes_the_first_of_the_likeliest_words(table: Table) -> None:
    max_lengths, prefixes, min_length = [1, 4, 8, 8, 8, 8], [[], [3], [], [5, 2], [], [4]], 2
    asked = request(max_lengths, min_length=min_length, prefixes=prefixes)
    found = greedy(Reader(table).decoder, start(range(6)), asked)
    for i, hypothesis in enumerate(found):
        tokens = list(prefixes[i])
        while len(tokens) < max_lengths[i] and EOS not in tokens:
            allowed = [EOS, *WORDS] if len(tokens) >= min_length else [*WORDS]
            tokens.append(max(allowed, key=lambda token: table(i, tuple(tokens))[token].item()))
        assert hypothesis.ids + [EOS] * hypothesis.finished == tokens
        replay(table, i, hypothesis, ("gnmt", 0.6))


def test_a_beam_of_one_is_greedy() -> None:
    table, asked = random_table(21), request([7] * 30)
    expected = greedy(Reader(table).decoder, start(range(30)), asked)
    assert beam(table, range(30), asked, 1) == [[hypothesis] for hypothesis in expected]
    assert {hypothesis.finished for hypothesis in expected} == {True, False}


# ---- sampling ----


def draws(probs: list[float], sampling: Sampling, count: int = 20_000) -> Counter[int]:
    """First tokens drawn from a distribution over the words 2, 3, ... (EOS has almost nothing)."""
    row = torch.tensor([1e-30, 1e-30, *probs]).log()
    decoder = Decoder(lambda ids, state: (row.expand(len(ids), -1), state))
    asked, seeds = request([1] * count), [sentence_seed(7, i) for i in range(count)]
    return Counter(h.ids[0] for h in sample(decoder, start([0] * count), asked, sampling=sampling, seeds=seeds))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(top_k=1), [0, 1, 0, 0]),
        (Sampling(top_k=2), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(top_k=99), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(top_p=0.01), [0, 1, 0, 0]),
        (Sampling(top_p=0.6), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9]),
        (Sampling(top_p=1.0), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(top_k=3, top_p=0.5), [0, 4 / 7, 0, 3 / 7]),  # of the 9/9 left, 4/9 is not 0.5 but 7/9 is
        (Sampling(temperature=0.5), [1 / 30, 16 / 30, 4 / 30, 9 / 30]),  # squares
        (Sampling(temperature=0.5, top_p=0.8), [0, 16 / 25, 0, 9 / 25]),  # cut after the temperature: 25/30 > 0.8
    ],
)
def test_what_is_drawn_is_the_distribution_asked_for(sampling: Sampling, expected: list[float]) -> None:
    """Pearson's statistic with at most 3 degrees of freedom exceeds 16.3 once in a thousand; the seeds are fixed."""
    count = 20_000
    seen = draws([0.1, 0.4, 0.2, 0.3], sampling, count)
    assert {token for token in seen} == {token for token, p in zip(WORDS, expected, strict=True) if p}
    assert sum((seen[t] - count * p) ** 2 / (count * p) for t, p in zip(WORDS, expected, strict=True) if p) < 16.3


def test_whole_sentences_are_drawn_with_their_probability_under_the_model() -> None:
    """All 21 outputs of at most two tokens; with 20 degrees of freedom the statistic exceeds 45.3 once in a thousand.

    A banned word's share goes to the others at each step.
    """
    table, count = random_table(4, sharpness=0.7), 4000
    seeds = [sentence_seed(3, i) for i in range(count)]
    found = sample(Reader(table).decoder, start([0] * count), request([2] * count), sampling=Sampling(), seeds=seeds)
    seen = Counter((*h.ids, EOS) if h.finished else tuple(h.ids) for h in found)
    outputs = every_output(table, 0, 2, 0, ())
    allowed = {prefix: 1 - math.exp(table(0, prefix)[BOS].item()) for prefix in [(), *((word,) for word in WORDS)]}
    statistic = 0.0
    for ids, log_prob in outputs:
        wanted = count * math.exp(log_prob) / math.prod(allowed[ids[:t]] for t in range(len(ids)))
        statistic += (seen[ids] - wanted) ** 2 / wanted
    assert len(outputs) == 21 and sum(seen.values()) == count
    assert statistic < 45.3


def test_samples_report_the_models_own_log_probabilities() -> None:
    table, seeds = random_table(9), [sentence_seed(0, i) for i in range(20)]
    asked = request([6] * 20, min_length=2, prefixes=[[5] * (i % 3) for i in range(20)])
    sampling = Sampling(temperature=2.0, top_k=3)
    found = sample(Reader(table).decoder, start(range(20)), asked, sampling=sampling, seeds=seeds)
    for i, hypothesis in enumerate(found):
        replay(table, i, hypothesis, ("gnmt", 0.6))
        assert len(hypothesis.ids) >= 2 and hypothesis.ids[: i % 3] == [5] * (i % 3) and BOS not in hypothesis.ids
    assert found == sample(Reader(table).decoder, start(range(20)), asked, sampling=sampling, seeds=seeds)
    other = [sentence_seed(1, i) for i in range(20)]
    assert found != sample(Reader(table).decoder, start(range(20)), asked, sampling=sampling, seeds=other)


def test_a_draw_at_the_very_end_of_the_distribution_has_a_probability() -> None:
    """In vocabulary order the words begin at 0, 0.1 and 0.3; ranked, which top_p needs, 2 1 0 at 0, 0.7, 0.9.

    Rounding may bring the draw up to the total: what has no probability must still not be drawn.
    """
    log_probs = torch.tensor([[0.1, 0.2, 0.7, 0.0]]).log()
    for uniform, word, ranked_word in ((1.0, 2, 0), (0.95, 2, 0), (0.8, 2, 1), (0.2, 1, 2), (0.05, 0, 2), (0.0, 0, 2)):
        assert search._draw(log_probs, torch.tensor([uniform]), Sampling()).item() == word
        assert search._draw(log_probs, torch.tensor([uniform]), Sampling(top_p=1.0)).item() == ranked_word


# ---- ensembles ----


def test_an_ensemble_of_one_model_thrice_is_the_model() -> None:
    table, asked = random_table(6), request([6] * 10)
    together = ensemble([Reader(table).decoder] * 3)
    found = beam_search(together, EnsembleState([start(range(10))] * 3), changed(asked, beam_size=3), n_best=3)
    for mine, theirs in zip(found, beam(table, range(10), asked, 3, 3), strict=True):
        check(mine, [(tuple(h.ids) + (EOS,) * h.finished, h.score) for h in theirs])


def test_an_ensemble_is_the_mean_of_the_probabilities() -> None:
    first, second = random_table(6), random_table(7)

    def mean(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        return ((first(sentence, prefix).exp() + second(sentence, prefix).exp()) / 2).log()

    together = ensemble([Reader(first).decoder, Reader(second).decoder])
    found = beam_search(together, EnsembleState([start([0, 1])] * 2), request([4] * 2, beam_size=256), n_best=5)
    for i, hypotheses in enumerate(found):
        check(hypotheses, ranked(every_output(mean, i, 4, 0, ()), ("gnmt", 0.6), 5))


def test_an_ensemble_bears_probability_zero() -> None:
    def without(struck: set[int]) -> Table:
        return lambda sentence, prefix: torch.tensor([-INF if t in struck else 0.0 for t in range(V)]).log_softmax(0)

    together = ensemble([Reader(without({0, 2, 3})).decoder, Reader(without({0, 3, 4})).decoder])
    log_probs, _ = together.step(torch.tensor([BOS]), EnsembleState([start([0])] * 2))
    assert log_probs[0].exp().tolist() == pytest.approx([0, 1 / 3, 1 / 6, 0, 1 / 6, 1 / 3])
    assert log_probs.max() <= 0


# ---- broken models, impossible requests ----


def searches() -> list[Callable[[Decoder[Rows], Rows, Request], object]]:
    return [
        greedy,
        lambda decoder, state, asked: sample(decoder, state, asked, sampling=Sampling(), seeds=[0, 1]),
        lambda decoder, state, asked: beam_search(decoder, state, changed(asked, beam_size=3)),
    ]


@pytest.mark.parametrize("decode", searches())
@pytest.mark.parametrize("wrong", [[math.nan] * V, [-1.0, -1.0, math.nan, -1.0, -1.0, -1.0], [-INF] * V])
@pytest.mark.parametrize("banned", [[], [BOS]])
def test_nan_or_nothing_to_say_is_an_error(
    decode: Callable[..., object], wrong: list[float], banned: list[int]
) -> None:
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        if sentence == 1 and len(prefix) == 2:
            return torch.tensor(wrong)
        return torch.tensor([-INF if token == EOS else -1.5 for token in range(V)])

    with pytest.raises(FloatingPointError, match="NaN"):
        decode(Reader(table).decoder, start([0, 1]), replace(request([10_000] * 2), banned=banned))


@pytest.mark.parametrize("decode", searches())
def test_only_banned_words_to_say_is_an_error(decode: Callable[..., object]) -> None:
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        return torch.tensor([0.0 if token in (BOS, EOS) else -INF for token in range(V)]).log_softmax(0)

    with pytest.raises(FloatingPointError, match="banned"):
        decode(Reader(table).decoder, start([0, 1]), request([5] * 2, min_length=1))


def test_a_beam_with_no_way_on_is_no_error_once_something_is_finished() -> None:
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        return torch.tensor([0.0 if token == EOS else -INF for token in range(V)])

    found = beam(table, [0], request([5]), 3, 3)[0]
    assert [(h.ids, h.score, h.finished) for h in found] == [([], 0.0, True)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: request([4, 0]), "maximum length of 0"),
        (lambda: request([4], prefixes=[[2], [3]]), "2 prefixes: expected one for each of 1 sentences"),
        (lambda: request([4, 4], prefixes=[[2], [3, EOS]]), "prefix of sentence 2: expected no EOS"),
        (lambda: request([4, 2], prefixes=[[2], [3, 3, 3]]), "prefix of sentence 2: expected at most 2 tokens, not 3"),
        (lambda: replace(request([4]), banned=[BOS, EOS]), "EOS.*banned"),
        (lambda: Sampling(temperature=0.0), "temperature=0.0.*beam_size=1"),
        (lambda: Sampling(temperature=math.nan), "temperature=nan"),
        (lambda: Sampling(top_k=0), "top_k=0"),
        (lambda: Sampling(top_p=0.0), "top_p=0.0"),
        (lambda: Sampling(top_p=1.1), "top_p=1.1"),
    ],
)
def test_what_cannot_be_met_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_each_sentence_needs_a_seed() -> None:
    with pytest.raises(UserError, match="1 seeds: expected one for each of 2 sentences"):
        sample(Reader(random_table(0)).decoder, start([0, 1]), request([4, 4]), sampling=Sampling(), seeds=[0])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_device_changes_nothing() -> None:
    table, asked = random_table(13), request([8] * 10, min_length=1, prefixes=[[3] * (i % 3) for i in range(10)])
    there, seeds = Reader(table, "cuda").decoder, [sentence_seed(0, i) for i in range(10)]
    here = Reader(table).decoder
    assert greedy(there, start(range(10), "cuda"), asked) == greedy(here, start(range(10)), asked)
    found = beam_search(there, start(range(10), "cuda"), changed(asked, beam_size=4), n_best=2)
    assert found == beam(table, range(10), asked, 4, 2)
    drawn = sample(there, start(range(10), "cuda"), asked, sampling=Sampling(), seeds=seeds)
    assert drawn == sample(here, start(range(10)), asked, sampling=Sampling(), seeds=seeds)
