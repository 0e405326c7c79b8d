"""Search: from a model's distribution of the next token to output sentences (section 6.1).

The search knows no model. It takes a `Decoder`, which is a function over a state, and a `Request`, and returns
`Hypothesis` objects. For `greedy`, `sample` and `beam_search` alike:
- The output for a sentence does not depend on the other sentences of the batch.
- A sentence leaves the batch at the step at which its search ends.
- Lengths count every token that has a log-probability: tokens of a prefix, and EOS.

The bookkeeping, a few numbers for each hypothesis, is on the CPU, in float64. The decoder's device computes `step`,
`select` and the best few tokens of each row. The search waits for the device once in a step: for these tokens.

Letters: B sentences still searched, K beam, N = B * K rows (those of a sentence are adjacent, the best first),
V vocabulary, C tokens in the shortlist of a row, R restricted rows, T tokens so far.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.decoding.constraint import Constraint
from transduce.decoding.decoder import Decoder, State
from transduce.decoding.hypothesis import Hypothesis, penalty_table
from transduce.decoding.options import Sampling
from transduce.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Request:
    """The outputs that a search shall return. Raises UserError for a request that no search can meet."""

    search: SearchConfig
    max_lengths: Sequence[int]  # of each sentence: most tokens of its output, EOS counted; a longer one is cut
    bos: int
    eos: int
    banned: Sequence[int] = ()  # ids never produced (PAD, BOS, UNK) unless the constraint allows them
    constraint: Constraint | None = None  # one row for each sentence

    def __post_init__(self) -> None:
        if self.eos in self.banned:
            raise UserError(
                f"banned={self.banned}: expected no EOS (id {self.eos}), or no output could end; use search.min_tokens"
            )
        if min(self.max_lengths, default=1) < 1:
            raise UserError(f"max_lengths={self.max_lengths}: expected at least 1 for each sentence")

    @cached_property
    def penalties(self) -> Sequence[float]:
        """The divisor of the log-probability of a hypothesis, by its length in tokens."""
        longest = max(self.max_lengths, default=1)
        return penalty_table(self.search.length_penalty, self.search.alpha, 1 << longest.bit_length())

    def barred(self, length: int) -> list[int]:
        """Return the ids that may not follow `length` tokens."""
        return [*self.banned, self.eos] if length < self.search.min_tokens else [*self.banned]


def best_attainable(log_prob: float, length: int, max_length: int, request: Request) -> float:
    """Return the highest score that an unfinished hypothesis of `length` tokens and `log_prob` can still reach.

    Its extensions have at least one token more (EOS) and at most `max_length`. Their log-probability is no higher. So
    none scores more than log_prob over the greatest penalty of those lengths. Penalties are monotonic in the length,
    rising or (alpha < 0) falling: the greatest is at one of the ends. A lookahead leaves longer extensions out.
    """
    lookahead = request.search.lookahead
    longest = max_length if lookahead is None else min(max_length, length + lookahead)
    return log_prob / max(request.penalties[length + 1], request.penalties[longest])


# ---- one hypothesis for each sentence ----------------------------------------------------------------------------

Restricted = tuple[Tensor, Tensor]  # rows (R,) and their log-probabilities (R, V), -inf for ids that are not allowed
# (scores (N, V), tokens so far, the number of each row's sentence) -> ids (N,) and their log_probs (N,), on the CPU
Choose = Callable[[Tensor, int, list[int], Restricted | None], tuple[Tensor, Tensor]]


@torch.inference_mode()
def greedy(decoder: Decoder[State], state: State, request: Request) -> list[Hypothesis]:
    """Take the most likely token at every step, of equals the lowest id; return one hypothesis for each sentence.

    Raises FloatingPointError where the model gives NaN, or probability zero to all tokens that may come next.
    """

    def most_likely(
        scores: Tensor, length: int, sentences: list[int], restricted: Restricted | None
    ) -> tuple[Tensor, Tensor]:
        if decoder.best is not None:
            values, shortlist = _shortlist(decoder, scores, 1, length, request)
            values, columns = values.max(dim=1)  # the first of equals, here and below
            ids = shortlist.gather(1, columns[:, None])[:, 0]
        else:
            values, ids = _fetch(*_without_barred(decoder.log_probs(scores), length, request).max(dim=1))  # NaN wins
        if restricted is not None:
            rows, log_probs = restricted
            values[rows], ids[rows] = _fetch(*log_probs.max(dim=1))
        return ids, values

    return _follow(decoder, state, request, most_likely)


@torch.inference_mode()
def sample(
    decoder: Decoder[State], state: State, request: Request, *, sampling: Sampling, seeds: Sequence[int]
) -> list[Hypothesis]:
    """Draw every token from the model's distribution, changed by `sampling`; return one hypothesis for each sentence.

    Each has its own seed (`sentence_seed`), so that it does not depend on the batch. Raises as `greedy` does.
    """
    if len(seeds) != len(request.max_lengths):
        raise UserError(f"{len(seeds)} seeds: expected one for each of {len(request.max_lengths)} sentences")
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]  # on the CPU for every device
    uniforms = [torch.rand(n, generator=g).tolist() for n, g in zip(request.max_lengths, generators, strict=True)]

    def draw(scores: Tensor, length: int, sentences: list[int], restricted: Restricted | None) -> tuple[Tensor, Tensor]:
        log_probs = _without_barred(decoder.log_probs(scores), length, request)
        if restricted is not None:
            rows, restricted_log_probs = restricted
            log_probs[_send(rows, log_probs.device)] = restricted_log_probs
        if not log_probs.amax(dim=1).isfinite().all():
            raise _no_continuation(length)
        uniform = torch.tensor([uniforms[i][length] for i in sentences], device=log_probs.device)
        ids = _draw(log_probs, uniform, sampling)
        return ids.cpu(), log_probs.gather(1, ids[:, None])[:, 0].cpu().double()

    return _follow(decoder, state, request, draw)


def _without_barred(log_probs: Tensor, length: int, request: Request) -> Tensor:
    """Return log_probs (N, V) with -inf for the ids that may not follow `length` tokens."""
    barred = torch.tensor(request.barred(length), dtype=torch.int64)
    return log_probs.index_fill(1, _send(barred, log_probs.device), -math.inf)


def _draw(log_probs: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Return ids (N,) drawn from log_probs (N, V): the inverse of the cumulative distribution at uniform (N,)."""
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
    point = (uniform[:, None] * total).minimum(total.nextafter(torch.zeros_like(total)))  # rounded up, it may be total
    column = (cumulative <= point).sum(dim=1, keepdim=True)  # the first that exceeds it, so its probability is not 0
    return ids.gather(1, column)[:, 0]


def _follow(decoder: Decoder[State], state: State, request: Request, choose: Choose) -> list[Hypothesis]:
    """Extend one hypothesis for each sentence by the ids that `choose` returns, until it ends or is cut."""
    ids: list[list[int]] = [[] for _ in request.max_lengths]
    token_log_probs: list[list[float]] = [[] for _ in ids]
    sentences = list(range(len(ids)))  # the number of each row's sentence
    last_ids = torch.full((len(ids),), request.bos, device=decoder.device)
    constraint = request.constraint
    for length in range(max(request.max_lengths, default=0)):
        scores, state = decoder.step(last_ids, state)
        restricted = None if constraint is None else _restricted(decoder, scores, constraint, length, request)
        next_ids, values = choose(scores, length, sentences, restricted)
        stay = []
        for row, (i, token, value) in enumerate(zip(sentences, next_ids.tolist(), values.tolist(), strict=True)):
            if not math.isfinite(value):
                raise _no_continuation(length)
            ids[i].append(token)
            token_log_probs[i].append(value)
            if token != request.eos and length + 1 < request.max_lengths[i]:
                stay.append(row)
        if not stay:
            break
        if constraint is not None:
            constraint = constraint.select(stay).advance(next_ids[stay].tolist())
        last_ids = _send(next_ids[stay], decoder.device)
        if len(stay) < len(sentences):
            sentences = [sentences[row] for row in stay]
            rows = _send(torch.tensor(stay), decoder.device)
            state = state.select(rows, rows)
    return [_hypothesis(*path, request) for path in zip(ids, token_log_probs, strict=True)]


# ---- beam search -------------------------------------------------------------------------------------------------

Pools = list[list[Hypothesis]]  # for every sentence of the request, its best finished hypotheses so far, best first


class _Extensions(NamedTuple):
    """M extensions by one token for each sentence; all (B, M)."""

    scores: Tensor  # log-probability of the whole hypothesis; -inf: not possible
    beams: Tensor  # which of the K hypotheses it extends
    ids: Tensor  # by which token
    values: Tensor  # at which log-probability

    def best(self, count: int, scores: Tensor) -> "_Extensions":
        """Return the `count` extensions with the best `scores` (B, M), the first of equals first."""
        columns = scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
        return _Extensions(scores.gather(1, columns), *(x.gather(1, columns) for x in self[1:]))


class _Beam(NamedTuple):
    """K unfinished hypotheses for each sentence, best first."""

    scores: Tensor  # (B, K) float64, log-probabilities; -inf: no hypothesis
    ids: Tensor  # (B, K, T) int64
    token_log_probs: Tensor  # (B, K, T) float64

    def extended(self, by: _Extensions) -> "_Beam":
        """Return the beam of the hypotheses that `by` extends, with their new tokens."""
        history = by.beams[:, :, None].expand(-1, -1, self.ids.size(2))  # (B, K, T)
        ids = torch.cat([self.ids.gather(1, history), by.ids[:, :, None]], dim=2)
        values = torch.cat([self.token_log_probs.gather(1, history), by.values[:, :, None]], dim=2)
        return _Beam(by.scores, ids, values)

    def hypothesis(self, row: int, k: int, request: Request) -> Hypothesis:
        """Return hypothesis k of sentence `row` as a result."""
        return _hypothesis(self.ids[row, k].tolist(), self.token_log_probs[row, k].tolist(), request)


@torch.inference_mode()
def beam_search(decoder: Decoder[State], state: State, request: Request, *, n_best: int = 1) -> list[list[Hypothesis]]:
    """Keep the K most likely beginnings of each sentence; return the n_best finished outputs, best first.

    The 2 * beam rule: of all K * V extensions the 2K most likely are candidates. Those that end in EOS compete, by
    score, for the n_best places of the sentence's pool. The K most likely others stay in the beam. A hypothesis can end
    in EOS in only one way, so at least K others remain: EOS cannot empty the beam.

    The stop rule is exact: a sentence is done when its pool is full and no live hypothesis can become better than the
    worst in the pool (`best_attainable`). A lookahead makes it inexact: few hypotheses become better by becoming much
    longer, and to wait for them takes a quarter of all steps. At the maximum length the search of a sentence is cut:
    its live hypotheses, scored at that length, fill the places that are still empty in the pool, after the finished
    ones.

    A beam of one is greedy decoding. Ties: the better beam, then the lower id (but where equals straddle the end of a
    row's shortlist, torch.topk picks). Fewer than n_best come back only when nothing else is left in the beam.
    n_best: at most search.beam_size. Raises FloatingPointError as `greedy` does.
    """
    if request.search.beam_size == 1:
        return [[hypothesis] for hypothesis in greedy(decoder, state, request)]
    pools: Pools = [[] for _ in request.max_lengths]
    sentences = list(range(len(pools)))  # the numbers of the B sentences still searched
    empty = torch.empty(len(pools), 1, 0)
    beam = _Beam(torch.zeros(len(pools), 1, dtype=torch.float64), empty.long(), empty.double())
    last_ids = torch.full((len(pools),), request.bos, device=decoder.device)
    constraint = request.constraint
    while sentences:
        scores, state = decoder.step(last_ids, state)
        candidates = _candidates(decoder, scores, beam, constraint, request)  # (B, 2K)
        ended = candidates.ids == request.eos
        _collect(pools, n_best, sentences, beam.extended(candidates), ended, request)
        others = candidates.best(request.search.beam_size, candidates.scores.masked_fill(ended, -math.inf))  # (B, K)
        width = beam.scores.size(1)
        beam = beam.extended(others)
        stay = torch.tensor(_settle(pools, n_best, sentences, beam, request), dtype=torch.int64)  # (B',)
        rows = (others.beams + width * torch.arange(len(sentences))[:, None])[stay].flatten()  # (B' * K,)
        sentences = [sentences[row] for row in stay.tolist()]
        beam = _Beam(*(x[stay] for x in beam))
        next_ids = beam.ids[:, :, -1].flatten()
        if constraint is not None:
            constraint = constraint.select(rows.tolist()).advance(next_ids.tolist())
        if sentences:
            rows, stay, last_ids = (_send(x, decoder.device) for x in (rows, stay, next_ids))
            state = state.select(rows, stay)
    return pools


def _candidates(
    decoder: Decoder[Any], scores: Tensor, beam: _Beam, constraint: Constraint | None, request: Request
) -> _Extensions:
    """Return the 2K most likely extensions of each sentence's hypotheses.

    No row has more than 2K of them, so the rows' shortlists replace a search through all V sums of each.
    """
    count, width, length = beam.ids.shape
    size = 2 * request.search.beam_size
    values, ids = _shortlist(decoder, scores, size, length, request)  # (N, C)
    restricted = None
    if constraint is not None:
        restricted = _restricted(decoder, scores, constraint, length, request, beam.scores.flatten())
    if restricted is not None:
        rows, log_probs = restricted
        best_values, best_ids = _fetch(*log_probs.topk(values.size(1), dim=1))
        ids[rows], order = best_ids.sort(dim=1)
        values[rows] = best_values.gather(1, order)
    totals = beam.scores[:, :, None] + values.view(count, width, -1)  # (B, K, C)
    beams = torch.arange(width)[:, None].expand_as(totals)
    extensions = _Extensions(*(x.reshape(count, -1) for x in (totals, beams, ids, values)))
    return extensions.best(size, extensions.scores)


def _shortlist(
    decoder: Decoder[Any], scores: Tensor, count: int, length: int, request: Request
) -> tuple[Tensor, Tensor]:
    """Return the `count` most likely ids of each row that may come next, and a few more: values, ids (N, C) on the CPU.

    Ids ascend along a row; those that may not come have the value -inf. (To take a few too many and strike some out
    is cheaper than to write into (N, V).) Raises FloatingPointError for a NaN anywhere in a row: topk puts it first.
    """
    barred = request.barred(length)
    count = min(count + len(barred), scores.size(1))
    best = decoder.best(scores, count) if decoder.best else decoder.log_probs(scores).topk(count, dim=1)
    values, ids = _fetch(*best)
    ids, order = ids.sort(dim=1)
    values = values.gather(1, order)
    if values.isnan().any():
        raise _no_continuation(length)
    return values.masked_fill(torch.isin(ids, torch.tensor(barred, dtype=torch.int64)), -math.inf), ids


def _collect(pools: Pools, n_best: int, sentences: list[int], beam: _Beam, ended: Tensor, request: Request) -> None:
    """Let the hypotheses of `beam` that `ended` (B, 2K) compete for places in the pools; of equals the first stays."""
    scores = (beam.scores / request.penalties[beam.ids.size(2)]).tolist()
    for row, k in ended.nonzero().tolist():
        pool = pools[sentences[row]]
        if scores[row][k] > _worst(pool, n_best):
            new = beam.hypothesis(row, k, request)
            pool.insert(sum(old.score >= new.score for old in pool), new)
            del pool[n_best:]


def _settle(pools: Pools, n_best: int, sentences: list[int], beam: _Beam, request: Request) -> list[int]:
    """Fill up the pools of the sentences that are cut here; return the rows of those whose pool can still change."""
    length, stay = beam.ids.size(2), []
    for row, (i, scores) in enumerate(zip(sentences, beam.scores.tolist(), strict=True)):
        max_length, live = request.max_lengths[i], [k for k, score in enumerate(scores) if score > -math.inf]
        if not live and not pools[i]:
            raise _no_continuation(length - 1)
        if length == max_length:
            pools[i] += [beam.hypothesis(row, k, request) for k in live[: n_best - len(pools[i])]]
        elif _worst(pools[i], n_best) < best_attainable(scores[0], length, max_length, request):
            stay.append(row)
    return stay


def _worst(pool: list[Hypothesis], n_best: int) -> float:
    """Return the score that a hypothesis must exceed to enter the pool."""
    return pool[-1].score if len(pool) == n_best else -math.inf


# ---- parts of every search ---------------------------------------------------------------------------------------


def _send(values: Tensor, device: torch.device | str) -> Tensor:
    """Copy `values` to `device` without blocking."""
    return values.to(device, non_blocking=True)


def _fetch(log_probs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return both on the CPU, log_probs as float64. float64 holds any id exactly, so a GPU copies both in one go."""
    if log_probs.device.type == "cpu":
        return log_probs.double(), ids
    both = torch.stack([log_probs.double(), ids.double()]).cpu()
    return both[0], both[1].long()


def _restricted(
    decoder: Decoder[Any],
    scores: Tensor,
    constraint: Constraint,
    length: int,
    request: Request,
    beam_scores: Tensor | None = None,
) -> Restricted | None:
    """Return the rows that `constraint` restricts and their log-probabilities; None if all rows are free.

    beam_scores: (N,), -inf for a row without a hypothesis, which is left out.
    """
    allowed = constraint.allowed()
    if beam_scores is not None:
        live = (beam_scores > -math.inf).tolist()
        allowed = {row: ids for row, ids in allowed.items() if live[row]}
    if not allowed:
        return None
    ids = [torch.as_tensor(one, dtype=torch.int64) for one in allowed.values()]
    index = torch.arange(len(ids)).repeat_interleave(torch.tensor([len(one) for one in ids])), torch.cat(ids)
    rows = torch.tensor([*allowed])
    log_probs = decoder.log_probs(scores[_send(rows, scores.device)])  # (R, V)
    index = tuple(_send(x, scores.device) for x in index)
    only = torch.full_like(log_probs, -math.inf)
    only[index] = log_probs[index]
    if length < request.search.min_tokens:
        only[:, request.eos] = -math.inf
    return rows, only


def _hypothesis(ids: list[int], token_log_probs: list[float], request: Request) -> Hypothesis:
    """Return a hypothesis from all its tokens, EOS included if it ended so."""
    finished, log_prob = ids[-1] == request.eos, sum(token_log_probs)
    score = log_prob / request.penalties[len(ids)]
    return Hypothesis(ids[:-1] if finished else ids, score, log_prob, token_log_probs, finished)


def _no_continuation(length: int) -> FloatingPointError:
    problem = f"after {length} tokens the model gives NaN, or probability zero to every token that may come next"
    return FloatingPointError(
        f"{problem}: its weights are too large or not finite, or all tokens with a probability are banned"
    )
