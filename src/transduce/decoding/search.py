"""Search: from a model's distribution of the next token to output sentences (section 6.1).

The search knows no model. It takes a `Decoder`, which is a function over a state, and a `Request`, and returns
`Hypothesis` objects. For `greedy`, `sample` and `beam_search` alike:
- The output for a sentence does not depend on the other sentences of the batch.
- A sentence leaves the batch at the step at which its search ends.
- Lengths count every token that has a log-probability: tokens of a prefix, and EOS.

The bookkeeping is in numpy, in float64: a call takes a third of the time of torch's. The decoder's device computes
`step`, `select` and the best few tokens of each row. The search waits for it once in a step: for these tokens.

Letters: B sentences still searched, K beam, N = B * K rows (those of a sentence are adjacent, the best first),
V vocabulary, C tokens in the shortlist of a row, M candidates of a sentence, R restricted rows, T tokens so far.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.decoding.constraint import Constraint
from transduce.decoding.decoder import Decoder, State, most_likely
from transduce.decoding.hypothesis import Hypothesis, penalty_table
from transduce.decoding.options import Sampling
from transduce.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Request:
    """The outputs that a search must return. Raises UserError for a request that no search can meet."""

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
    def penalties(self) -> np.ndarray:
        """The divisor of the log-probability of a hypothesis, by its length in tokens."""
        longest = max(self.max_lengths, default=1)
        return np.array(penalty_table(self.search.length_penalty, self.search.alpha, 1 << longest.bit_length()))

    def barred(self, length: int) -> list[int]:
        """Return the ids that may not follow `length` tokens."""
        return [*self.banned, self.eos] if length < self.search.min_tokens else [*self.banned]


def best_attainable(log_prob: Any, length: int, max_length: Any, request: Request) -> Any:
    """Return the highest score that an unfinished hypothesis of `length` tokens and `log_prob` can still reach.

    Its extensions have at least one token more (EOS) and at most `max_length`. Their log-probability is no higher. So
    none scores more than log_prob over the greatest penalty of those lengths. Penalties are monotonic in the length,
    rising or (alpha < 0) falling: the greatest is at one of the ends. A lookahead leaves longer extensions out.
    A model may give each of these tokens the probability 1, so no tighter bound holds for all models.
    """
    lookahead = request.search.lookahead
    longest = max_length if lookahead is None else np.minimum(max_length, length + lookahead)
    return log_prob / np.maximum(request.penalties[length + 1], request.penalties[longest])


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
            values, ids = (x[:, 0] for x in _fetch(*decoder.best(scores, 1, request.barred(length))))
        else:  # the first of equals; NaN wins
            values, ids = _fetch(*_without_barred(decoder.log_probs(scores), length, request).max(dim=1))
        if restricted is not None:
            values[restricted[0]], ids[restricted[0]] = _fetch(*restricted[1].max(dim=1))
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
    if sampling.epsilon is not None:
        probs = probs.masked_fill(probs < probs.amax(dim=1, keepdim=True).clamp(max=sampling.epsilon), 0)
    cumulative = probs.cumsum(dim=1)
    total = cumulative[:, -1:]
    point = (uniform[:, None] * total).minimum(total.nextafter(torch.zeros_like(total)))  # rounded up, it may be total
    column = torch.searchsorted(cumulative, point, right=True)  # the first that exceeds it: its probability is not 0
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


class _Extensions(NamedTuple):
    """M extensions by one token for each sentence, the best first; all (B, M)."""

    scores: np.ndarray  # float64, log-probability of the whole hypothesis; -inf: no hypothesis
    rows: np.ndarray  # int64, which row of the last step it extends
    ids: np.ndarray  # int64, by which token
    values: np.ndarray  # at which log-probability

    def take(self, columns: np.ndarray) -> "_Extensions":
        """Return the extensions in `columns` (B, M') of each sentence."""
        places = columns + np.arange(0, self.scores.size, self.scores.shape[1])[:, None]
        return _Extensions(*(x.take(places) for x in self))

    def unfinished(self, eos: int, count: int) -> "_Extensions":
        """Return the best `count` that do not end."""
        ended = self.ids == eos
        others = self._replace(scores=np.where(ended, -math.inf, self.scores))
        return others.take(ended.argsort(axis=1, kind="stable")[:, :count])


class _End(NamedTuple):
    """A finished hypothesis, or one that is cut: an extension of a row after `length` tokens."""

    score: float
    length: int
    row: int
    id: int
    value: float


class _Pools:
    """For every sentence of a request its n_best finished hypotheses so far, best first."""

    def __init__(self, request: Request, n_best: int) -> None:
        self.request = request
        self.n_best = n_best
        self.ends: list[list[_End]] = [[] for _ in request.max_lengths]
        self.max_lengths = np.array(request.max_lengths, dtype=np.int64)
        self.worst = np.full(len(self.ends), -math.inf)  # the score that a hypothesis must exceed to enter each pool

    def collect(self, sentences: np.ndarray, candidates: _Extensions, length: int) -> None:
        """Let the candidates that end after `length` more tokens compete for places; of equals the first stays."""
        scores = candidates.scores / self.request.penalties[length + 1]
        enters = (candidates.ids == self.request.eos) & (scores > self.worst[sentences][:, None])
        for row, column in zip(*(x.tolist() for x in enters.nonzero()), strict=True) if enters.any() else ():
            i, score = sentences[row], float(scores[row, column])
            pool = self.ends[i]
            if score > self.worst[i]:
                pool.insert(sum(old.score >= score for old in pool), _end(score, length, candidates, row, column))
                del pool[self.n_best :]
                self.worst[i] = pool[-1].score if len(pool) == self.n_best else -math.inf

    def settle(self, sentences: np.ndarray, beam: _Extensions, length: int) -> np.ndarray:
        """Fill the pools of the sentences that are cut here, and return the rows whose sentences continue."""
        first, longest = beam.scores[:, 0], self.max_lengths[sentences]
        for row in (first == -math.inf).nonzero()[0].tolist():
            if not self.ends[sentences[row]]:
                raise _no_continuation(length)
        is_cut = longest == length + 1
        for row in is_cut.nonzero()[0].tolist():
            pool, scores = self.ends[sentences[row]], beam.scores[row] / self.request.penalties[length + 1]
            live = (scores > -math.inf).nonzero()[0].tolist()
            pool += [_end(float(scores[k]), length, beam, row, k) for k in live[: self.n_best - len(pool)]]
        attainable = best_attainable(first, length + 1, longest, self.request)
        return ((self.worst[sentences] < attainable) & ~is_cut).nonzero()[0]


def _end(score: float, length: int, extensions: _Extensions, row: int, column: int) -> _End:
    _, rows, ids, values = (x[row, column].item() for x in extensions)
    return _End(score, length, rows, ids, values)


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
    pools, past = _Pools(request, n_best), list[_Extensions]()  # of each step its beam: a hypothesis is a chain of rows
    sentences = np.arange(len(pools.ends))  # the numbers of the B sentences still searched
    scores = np.zeros((len(sentences), 1))  # (B, K) of the beam; a sentence begins with one row
    last_ids = torch.full((len(sentences),), request.bos, device=decoder.device)
    constraint = request.constraint
    while len(sentences):
        output, state = decoder.step(last_ids, state)
        candidates = _candidates(decoder, output, scores, constraint, len(past), request)  # (B, 2K)
        pools.collect(sentences, candidates, len(past))
        beam = candidates.unfinished(request.eos, request.search.beam_size)  # (B, K)
        stay = pools.settle(sentences, beam, len(past))
        if len(stay) < len(sentences):
            sentences, beam = sentences[stay], _Extensions(*(x[stay] for x in beam))
        past.append(beam)
        scores, rows, ids = beam.scores, beam.rows.ravel(), beam.ids.ravel()
        if constraint is not None:
            constraint = constraint.select(rows.tolist()).advance(ids.tolist())
        if len(sentences):
            *selected, last_ids = (_send(torch.from_numpy(x), decoder.device) for x in (rows, stay, ids))
            state = state.select(*selected)
    return [[_hypothesis(*_path(end, past), request) for end in pool] for pool in pools.ends]


def _path(end: _End, past: Sequence[_Extensions]) -> tuple[list[int], list[float]]:
    """Return all tokens of a hypothesis and their log-probabilities, found from its last token backwards."""
    ids, values, row = [end.id], [end.value], end.row
    for step in reversed(past[: end.length]):
        ids.append(int(step.ids.item(row)))
        values.append(float(step.values.item(row)))
        row = int(step.rows.item(row))
    return ids[::-1], values[::-1]


def _candidates(
    decoder: Decoder[Any],
    output: Tensor,
    scores: np.ndarray,
    constraint: Constraint | None,
    length: int,
    request: Request,
) -> _Extensions:
    """Return the 2K most likely extensions of each sentence's hypotheses.

    No row has more than 2K of them, so the rows' shortlists replace a search through all V sums of each.
    Raises FloatingPointError for a NaN anywhere in a row.
    """
    size = 2 * request.search.beam_size
    values, ids = _fetch(*decoder.most_likely(output, size, request.barred(length)))  # (N, C)
    restricted = None
    if constraint is not None:
        restricted = _restricted(decoder, output, constraint, length, request, scores.ravel())
    if restricted is not None:
        rows, log_probs = restricted
        values[rows], ids[rows] = _fetch(*most_likely(log_probs, values.size(1)))
    values, ids = values.numpy(), ids.numpy()
    if math.isnan(values[:, 0].max()):
        raise _no_continuation(length)
    totals = (scores.reshape(-1, 1) + values).reshape(len(scores), -1)  # (B, K * C)
    rows = np.arange(len(values)).repeat(values.shape[1])
    extensions = _Extensions(totals, rows, ids, values)
    return extensions.take((-totals).argsort(axis=1, kind="stable")[:, :size])  # the first of equals first


# ---- parts of every search ---------------------------------------------------------------------------------------


def _send(values: Tensor, device: torch.device | str) -> Tensor:
    """Copy `values` to `device` without blocking."""
    return values.to(device, non_blocking=True)


def _fetch(log_probs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return both on the CPU. float64 holds any id and any float32 exactly, so a GPU copies both in one go."""
    if log_probs.device.type == "cpu":
        return log_probs, ids
    both = torch.stack([log_probs.double(), ids.double()]).cpu()
    return both[0], both[1].long()


def _restricted(
    decoder: Decoder[Any],
    scores: Tensor,
    constraint: Constraint,
    length: int,
    request: Request,
    beam_scores: np.ndarray | None = None,
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
    score = log_prob / float(request.penalties[len(ids)])
    return Hypothesis(ids[:-1] if finished else ids, score, log_prob, token_log_probs, finished)


def _no_continuation(length: int) -> FloatingPointError:
    problem = f"after {length} tokens the model gives NaN, or probability zero to every token that may come next"
    causes = "its weights are too large or not finite, or all tokens with a probability are banned"
    return FloatingPointError(f"{problem}: {causes}")
