"""Search: from a model's distribution of the next token to output sentences (section 6.1).

The search knows no model. It takes a `Decoder`, two functions over a state it never looks into, and a `Request`, and
returns `Hypothesis` objects. For `greedy`, `sample` and `beam_search` alike:
- What a sentence gets does not depend on the sentences beside it; when it is done it leaves the batch at once.
- Lengths count every token that has a log-probability: forced ones, and EOS.

The bookkeeping, a few numbers for each hypothesis, lives on the CPU, in float64. The decoder's device is asked only for
`step`, `reorder` and the best few tokens of each row, which are the one thing in a step that is waited for.

Letters: B sentences still searched, K beam, N = B * K rows (those of a sentence are adjacent, the best first),
V vocabulary, C tokens in the shortlist of a row, T tokens so far.
"""

import bisect
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from transduce.decoding.hypothesis import LENGTH_PENALTIES, Hypothesis
from transduce.decoding.options import Sampling
from transduce.errors import UserError

State = TypeVar("State")


@dataclass(frozen=True)
class Decoder(Generic[State]):
    """A model as the search sees it. The first state has one row for each sentence.

    step(last_ids, state) -> (scores, state)
        last_ids (N,) int64, the newest token of each row, at first BOS; scores (N, V) float32, what `log_probs` takes.
        A row whose hypothesis is out of the running is given any id; what is answered for it has no effect.
    reorder(state, rows, sentences) -> state
        rows (N',) int64: row i of the new state continues row rows[i] of the old one (selected, repeated, permuted).
        sentences (B',) int64, ascending: the sentences that stay, by their place in the old state; each has N' / B'
        rows. A state that holds everything by row ignores it. One that holds what belongs to a sentence (the encoded
        source) once for its K rows selects that by `sentences`; as many as before are the same ones: nothing to copy.
    device: where last_ids, rows and sentences are put.
    log_probs(scores) -> (N, V), none above 0; by default scores are that already.
    best(scores, count) -> (log_probs, ids), both (N, count): the likeliest tokens of each row in order, of equals the
        lowest id first. None: they are found among all the `log_probs`, which takes longer.
    """

    step: Callable[[Tensor, State], tuple[Tensor, State]]
    reorder: Callable[[State, Tensor, Tensor], State]
    device: torch.device | str = "cpu"
    log_probs: Callable[[Tensor], Tensor] = lambda scores: scores
    best: Callable[[Tensor, int], tuple[Tensor, Tensor]] | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked, of each sentence and of all. Raises UserError for what cannot be met."""

    max_lengths: Sequence[int]  # of each sentence: at most so many tokens, EOS counted; what gets there is cut
    bos: int
    eos: int
    length_penalty: str  # "gnmt", "power" or "none"
    alpha: float  # the penalty's exponent
    banned: Sequence[int] = ()  # ids never produced (PAD, BOS, UNK) unless a prefix forces them
    min_length: int = 0  # so many tokens come before EOS
    prefixes: Sequence[Sequence[int]] | None = None  # of each sentence: ids to begin with; an empty one forces nothing
    lookahead: int | None = None  # how many tokens longer a hypothesis may get to overtake; None: to its maximum

    def __post_init__(self) -> None:
        _check_request(self)

    def penalty(self, length: int) -> float:
        """What the log-probability of a hypothesis of `length` tokens is divided by."""
        return LENGTH_PENALTIES[self.length_penalty](length, self.alpha)


def best_attainable(log_prob: float, length: int, max_length: int, request: Request) -> float:
    """The highest score that an unfinished hypothesis of `length` tokens and `log_prob` can still reach.

    Its extensions have at least one token more (EOS), at most max_length, and a log-probability that is no higher and
    not positive, so none scores more than log_prob over the greatest penalty of those lengths. Penalties are monotonic
    in the length, rising or (alpha < 0) falling: the greatest is at one of the ends. With a `lookahead` extensions by
    more tokens than that are left out of account.
    """
    longest = max_length if request.lookahead is None else min(max_length, length + request.lookahead)
    return log_prob / max(request.penalty(length + 1), request.penalty(longest))


# ---- one hypothesis for each sentence ----------------------------------------------------------------------------

# (scores (N, V), tokens so far, the number of each row's sentence) -> ids (N,) and their log_probs (N,), on the CPU
Choose = Callable[[Tensor, int, list[int]], tuple[Tensor, Tensor]]


@torch.inference_mode()
def greedy(decoder: Decoder[State], state: State, request: Request) -> list[Hypothesis]:
    """Take the likeliest token at every step, of equally likely ones the lowest id; one hypothesis for each sentence.

    Raises FloatingPointError where the model gives NaN, or probability zero to all that may come next.
    """

    def likeliest(scores: Tensor, length: int, sentences: list[int]) -> tuple[Tensor, Tensor]:
        if decoder.best is not None:
            values, ids = _shortlist(decoder, scores, 1, length, request)
            values, places = values.max(dim=1)  # the first of equals, here and below
            return ids.gather(1, places[:, None])[:, 0], values
        values, ids = _fetched(*_allowed(decoder.log_probs(scores), length, request).max(dim=1))  # NaN wins
        return ids, values

    return _follow(decoder, state, request, likeliest)


@torch.inference_mode()
def sample(
    decoder: Decoder[State], state: State, request: Request, *, sampling: Sampling, seeds: Sequence[int]
) -> list[Hypothesis]:
    """Draw every token from the model's distribution, changed by `sampling`; one hypothesis for each sentence.

    Each has its own seed (see `sentence_seed`), so that it does not depend on the batch. Raises as `greedy` does.
    """
    if len(seeds) != len(request.max_lengths):
        raise UserError(f"{len(seeds)} seeds for {len(request.max_lengths)} sentences; give one for each")
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]  # on the CPU, whatever the device
    uniforms = [torch.rand(n, generator=g).tolist() for n, g in zip(request.max_lengths, generators, strict=True)]

    def drawn(scores: Tensor, length: int, sentences: list[int]) -> tuple[Tensor, Tensor]:
        allowed = _allowed(decoder.log_probs(scores), length, request)
        if not allowed.amax(dim=1).isfinite().all():
            raise _no_way_on(length)
        uniform = torch.tensor([uniforms[i][length] for i in sentences], device=allowed.device)
        ids = _draw(allowed, uniform, sampling)
        return ids.cpu(), allowed.gather(1, ids[:, None])[:, 0].cpu().double()

    return _follow(decoder, state, request, drawn)


def sentence_seed(seed: int, number: int) -> int:
    """The seed of sentence `number` in a run with `seed`."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:8], "big")


def _allowed(log_probs: Tensor, length: int, request: Request) -> Tensor:
    """log_probs (N, V) with -inf for what may not follow `length` tokens."""
    barred = torch.tensor(_barred(length, request), dtype=torch.int64)
    return log_probs.index_fill(1, _sent(barred, log_probs.device), -math.inf)


def _draw(log_probs: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Ids (N,) drawn from log_probs (N, V): the inverse of the cumulative distribution at uniform (N,)."""
    tempered = log_probs / sampling.temperature
    ids = torch.arange(log_probs.size(1), device=log_probs.device).expand_as(log_probs)
    if sampling.top_k is not None or sampling.top_p is not None:
        tempered, ids = tempered.sort(dim=1, descending=True, stable=True)
    probs = tempered[:, : sampling.top_k].softmax(dim=1)  # (N, C)
    if sampling.top_p is not None:
        mass_before = probs.cumsum(dim=1) - probs
        probs = probs.masked_fill(mass_before >= sampling.top_p, 0)
    cumulative = probs.cumsum(dim=1)
    total = cumulative[:, -1:]
    drawn = (uniform[:, None] * total).minimum(total.nextafter(torch.zeros_like(total)))  # rounded up, it may be total
    place = (cumulative <= drawn).sum(dim=1, keepdim=True)  # the first that exceeds it, so its probability is not 0
    return ids.gather(1, place)[:, 0]


def _follow(decoder: Decoder[State], state: State, request: Request, choose: Choose) -> list[Hypothesis]:
    """Extend one hypothesis for each sentence by what `choose` says until it ends or is cut."""
    ids: list[list[int]] = [[] for _ in request.max_lengths]
    token_log_probs: list[list[float]] = [[] for _ in ids]
    sentences = list(range(len(ids)))  # the number of each row's sentence
    last_ids = torch.full((len(ids),), request.bos)
    for length in range(max(request.max_lengths, default=0)):
        scores, state = decoder.step(_sent(last_ids, decoder.device), state)
        chosen, values = choose(scores, length, sentences)
        rows, prefix_ids, prefix_values = _forced(decoder, scores, length, sentences, request)
        chosen[rows], values[rows] = prefix_ids, prefix_values
        stay = []
        for row, (i, token, value) in enumerate(zip(sentences, chosen.tolist(), values.tolist(), strict=True)):
            if not math.isfinite(value):
                raise _no_way_on(length)
            ids[i].append(token)
            token_log_probs[i].append(value)
            if token != request.eos and length + 1 < request.max_lengths[i]:
                stay.append(row)
        if not stay:
            break
        last_ids = chosen[stay]
        if len(stay) < len(sentences):
            sentences = [sentences[row] for row in stay]
            kept = _sent(torch.tensor(stay), decoder.device)
            state = decoder.reorder(state, kept, kept)
    return [_hypothesis(*path, request) for path in zip(ids, token_log_probs, strict=True)]


# ---- beam search -------------------------------------------------------------------------------------------------

Pools = list[list[Hypothesis]]  # for every sentence of the request, its best finished hypotheses so far, best first


class _Extensions(NamedTuple):
    """M ways to go on by one token for each sentence; all (B, M)."""

    scores: Tensor  # log-probability of the whole; -inf: no way
    beams: Tensor  # which of the K hypotheses it extends
    ids: Tensor  # by which token
    values: Tensor  # at which log-probability

    def without(self, struck: Tensor) -> "_Extensions":
        return self._replace(scores=self.scores.masked_fill(struck, -math.inf))

    def best(self, count: int) -> "_Extensions":
        """The `count` best, the first of equals first."""
        places = self.scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
        return _Extensions(*(x.gather(1, places) for x in self))


class _Beam(NamedTuple):
    """K unfinished hypotheses for each sentence, best first."""

    scores: Tensor  # (B, K) float64, log-probabilities; -inf: an empty place
    ids: Tensor  # (B, K, T) int64
    token_log_probs: Tensor  # (B, K, T) float64

    def extended(self, by: _Extensions) -> "_Beam":
        history = by.beams[:, :, None].expand(-1, -1, self.ids.size(2))  # (B, K, T)
        ids = torch.cat([self.ids.gather(1, history), by.ids[:, :, None]], dim=2)
        values = torch.cat([self.token_log_probs.gather(1, history), by.values[:, :, None]], dim=2)
        return _Beam(by.scores, ids, values)

    def hypothesis(self, row: int, k: int, request: Request) -> Hypothesis:
        return _hypothesis(self.ids[row, k].tolist(), self.token_log_probs[row, k].tolist(), request)


@torch.inference_mode()
def beam_search(
    decoder: Decoder[State], state: State, request: Request, *, beam_size: int, n_best: int = 1
) -> list[list[Hypothesis]]:
    """Keep the beam_size likeliest beginnings of each sentence; return the n_best outputs met, best first.

    The 2 * beam rule: of all K * V extensions the 2K likeliest are candidates. Those that end in EOS compete, by
    score, for the n_best places of the sentence's pool; the K likeliest others go on. A hypothesis can end in EOS in
    only one way, so at least K others remain: EOS cannot empty the beam.

    The stop rule is exact: a sentence is done when its pool is full and no live hypothesis can end up better than the
    worst there (`best_attainable`), so that searching on would change nothing. With a `lookahead` it is not: few
    hypotheses get better by becoming much longer, and to wait for them takes a quarter of all steps. At the maximum
    length a sentence is cut: live hypotheses, scored at that length, come after the finished ones, in the places of the
    pool that are still empty.

    A beam of one is greedy decoding. Ties: the better beam, then the lower id (but where equals straddle the end of a
    row's shortlist, torch.topk picks). Fewer than n_best come back only when nothing else is left in the beam.
    Raises UserError unless 1 <= n_best <= beam_size, and FloatingPointError as `greedy` does.
    """
    if not 1 <= n_best <= beam_size:
        raise UserError(f"n_best is {n_best} and beam_size is {beam_size}; n_best must be from 1 to beam_size")
    if beam_size == 1:
        return [[hypothesis] for hypothesis in greedy(decoder, state, request)]
    pools: Pools = [[] for _ in request.max_lengths]
    sentences = list(range(len(pools)))  # the numbers of the B sentences still searched
    beam = _first_beam(len(pools))
    last_ids = torch.full((len(pools),), request.bos)
    while sentences:
        scores, state = decoder.step(_sent(last_ids, decoder.device), state)
        candidates = _candidates(decoder, beam, scores, beam_size, sentences, request)  # (B, 2K)
        ended = candidates.ids == request.eos
        _collect(pools, n_best, sentences, beam.extended(candidates), ended, request)
        others = candidates.without(ended).best(beam_size)  # (B, K)
        width = beam.scores.size(1)
        beam = beam.extended(others)
        stay = torch.tensor(_settle(pools, n_best, sentences, beam, request), dtype=torch.int64)  # (B',)
        rows = (others.beams + width * torch.arange(len(sentences))[:, None])[stay].flatten()  # (B' * K,)
        sentences = [sentences[row] for row in stay.tolist()]
        beam = _Beam(*(x[stay] for x in beam))
        last_ids = beam.ids[:, :, -1].flatten()
        if sentences:
            state = decoder.reorder(state, _sent(rows, decoder.device), _sent(stay, decoder.device))
    return pools


def _first_beam(count: int) -> _Beam:
    """One live hypothesis for each sentence, without tokens."""
    nothing = torch.empty(count, 1, 0)
    return _Beam(torch.zeros(count, 1, dtype=torch.float64), nothing.long(), nothing.double())


def _candidates(
    decoder: Decoder[Any], beam: _Beam, scores: Tensor, beam_size: int, sentences: list[int], request: Request
) -> _Extensions:
    """The 2K likeliest extensions of each sentence's hypotheses.

    No row has more than 2K of them, so the rows' shortlists replace a search through all V sums of each.
    """
    count, width, length = beam.ids.shape
    values, ids = _shortlist(decoder, scores, 2 * beam_size, length, request)  # (N, C)
    rows, prefix_ids, prefix_values = _forced(decoder, scores, length, sentences, request)
    values[rows], ids[rows] = -math.inf, prefix_ids[:, None]
    values[rows, 0] = prefix_values
    totals = beam.scores[:, :, None] + values.view(count, width, -1)  # (B, K, C)
    beams = torch.arange(width)[:, None].expand_as(totals)
    return _Extensions(*(x.reshape(count, -1) for x in (totals, beams, ids, values))).best(2 * beam_size)


def _shortlist(
    decoder: Decoder[Any], scores: Tensor, count: int, length: int, request: Request
) -> tuple[Tensor, Tensor]:
    """The `count` likeliest ids of each row that may come next, and a few more: values, ids (N, C) on the CPU.

    Ids ascend along a row; those that may not come have the value -inf. (To take a few too many and strike some out
    is cheaper than to write into (N, V).) Raises FloatingPointError for a NaN anywhere in a row: topk puts it first.
    """
    barred = _barred(length, request)
    count = min(count + len(barred), scores.size(1))
    best = decoder.best(scores, count) if decoder.best else decoder.log_probs(scores).topk(count, dim=1)
    values, ids = _fetched(*best)
    ids, order = ids.sort(dim=1)
    values = values.gather(1, order)
    if values.isnan().any():
        raise _no_way_on(length)
    return values.masked_fill(torch.isin(ids, torch.tensor(barred, dtype=torch.int64)), -math.inf), ids


def _collect(pools: Pools, n_best: int, sentences: list[int], beam: _Beam, ended: Tensor, request: Request) -> None:
    """Let the hypotheses of `beam` that `ended` (B, 2K) compete for places in the pools; of equals the first stays."""
    scores = (beam.scores / request.penalty(beam.ids.size(2))).tolist()
    for row, k in ended.nonzero().tolist():
        pool = pools[sentences[row]]
        if scores[row][k] > _worst(pool, n_best):
            bisect.insort(pool, beam.hypothesis(row, k, request), key=lambda hypothesis: -hypothesis.score)
            del pool[n_best:]


def _settle(pools: Pools, n_best: int, sentences: list[int], beam: _Beam, request: Request) -> list[int]:
    """Fill up the pools of the sentences that are cut here; return the places of those whose pool can still change."""
    length, stay = beam.ids.size(2), []
    for row, (i, scores) in enumerate(zip(sentences, beam.scores.tolist(), strict=True)):
        max_length, live = request.max_lengths[i], [k for k, score in enumerate(scores) if score > -math.inf]
        if not live and not pools[i]:
            raise _no_way_on(length - 1)
        if length == max_length:
            pools[i] += [beam.hypothesis(row, k, request) for k in live[: n_best - len(pools[i])]]
        elif _worst(pools[i], n_best) < best_attainable(scores[0], length, max_length, request):
            stay.append(row)
    return stay


def _worst(pool: list[Hypothesis], n_best: int) -> float:
    """The score that a hypothesis must exceed to come into the pool."""
    return pool[-1].score if len(pool) == n_best else -math.inf


# ---- several models as one ---------------------------------------------------------------------------------------


def ensemble(decoders: Sequence[Decoder[Any]]) -> Decoder[tuple[Any, ...]]:
    """The mean of the probabilities of `decoders` (of one vocabulary and device); the state is a tuple of theirs."""

    def step(last_ids: Tensor, states: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        answers = [decoder.step(last_ids, state) for decoder, state in zip(decoders, states, strict=True)]
        all_log_probs = [one.log_probs(scores) for one, (scores, _) in zip(decoders, answers, strict=True)]
        total = reduce(torch.logaddexp, all_log_probs)
        return (total - math.log(len(answers))).clamp(max=0), tuple(state for _, state in answers)

    def reorder(states: tuple[Any, ...], rows: Tensor, sentences: Tensor) -> tuple[Any, ...]:
        return tuple(decoder.reorder(state, rows, sentences) for decoder, state in zip(decoders, states, strict=True))

    return Decoder(step, reorder, decoders[0].device)


# ---- what every search needs -------------------------------------------------------------------------------------


def _sent(values: Tensor, device: torch.device | str) -> Tensor:
    """`values` on `device`, where they will be before they are needed: nobody waits."""
    return values.to(device, non_blocking=True)


def _fetched(log_probs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Both on the CPU, log_probs as float64, which holds any id exactly: a GPU is waited for once, not twice."""
    if log_probs.device.type == "cpu":
        return log_probs.double(), ids
    both = torch.stack([log_probs.double(), ids.double()]).cpu()
    return both[0], both[1].long()


def _barred(length: int, request: Request) -> list[int]:
    """The ids that may not follow `length` tokens."""
    return [*request.banned, request.eos] if length < request.min_length else [*request.banned]


def _forced(
    decoder: Decoder[Any], scores: Tensor, length: int, sentences: list[int], request: Request
) -> tuple[list[int], Tensor, Tensor]:
    """The rows whose prefix goes on after `length` tokens, the ids that it forces, and their log-probabilities.

    Only the first row of a sentence: until its prefix ends it has one live hypothesis, its best.
    """
    prefixes = [request.prefixes[i] if request.prefixes else () for i in sentences]
    forced = [place for place, prefix in enumerate(prefixes) if length < len(prefix)]
    rows = [place * (len(scores) // len(sentences)) for place in forced]
    ids = torch.tensor([prefixes[place][length] for place in forced], dtype=torch.int64)
    if not rows:
        return rows, ids, torch.empty(0, dtype=torch.float64)
    return rows, ids, decoder.log_probs(scores[rows]).cpu().double().gather(1, ids[:, None])[:, 0]


def _hypothesis(ids: list[int], token_log_probs: list[float], request: Request) -> Hypothesis:
    """A hypothesis from all its tokens, EOS included if it ended so."""
    finished, log_prob = ids[-1] == request.eos, sum(token_log_probs)
    score = log_prob / request.penalty(len(ids))
    return Hypothesis(ids[:-1] if finished else ids, score, log_prob, token_log_probs, finished)


def _no_way_on(length: int) -> FloatingPointError:
    return FloatingPointError(
        f"after {length} tokens the model gives NaN, or probability zero to every token that may come next: "
        "its weights are not finite, or all that it could say is banned"
    )


def _check_request(request: Request) -> None:
    if request.length_penalty not in LENGTH_PENALTIES:
        raise UserError(f"length_penalty is {request.length_penalty!r}; it must be one of {[*LENGTH_PENALTIES]}")
    if not -10 <= request.alpha <= 10:
        raise UserError(f"alpha is {request.alpha}; it must be from -10 to 10 (the paper's is 0.6)")
    if request.eos in request.banned:
        raise UserError(f"EOS (id {request.eos}) is banned, so no output could end; min_length can put the end off")
    if request.min_length < 0:
        raise UserError(f"min_length is {request.min_length}; it must be 0 or more")
    if min(request.max_lengths, default=1) < 1:
        raise UserError(f"a maximum length is {min(request.max_lengths)}; each must be at least 1")
    if request.lookahead is not None and request.lookahead < 1:
        raise UserError(f"lookahead is {request.lookahead}; it must be at least 1, for EOS counts")
    prefixes = [()] * len(request.max_lengths) if request.prefixes is None else request.prefixes
    if len(prefixes) != len(request.max_lengths):
        raise UserError(f"{len(prefixes)} prefixes for {len(request.max_lengths)} sentences; give one for each")
    for number, (prefix, longest) in enumerate(zip(prefixes, request.max_lengths, strict=True), start=1):
        if request.eos in prefix:
            raise UserError(f"the prefix of sentence {number} contains EOS (id {request.eos}), which would end it")
        if len(prefix) > longest:
            raise UserError(f"the prefix of sentence {number} has {len(prefix)} tokens; its maximum is {longest}")
