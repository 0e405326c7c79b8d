"""Search: from a model's distribution of the next token to output sentences (section 6.1).

The search knows no model. It takes a `Decoder`, which is a function over a state, and a `Request`, and returns
`Hypothesis` objects. For `greedy`, `sample` and `beam_search` alike:
- The output for a sentence depends on the other sentences of the batch only as far as its distributions do: not at all
  on a CPU in fp32 and int8.
- A sentence leaves the batch at the step at which its search ends.
- Lengths count every token that has a log-probability: tokens of a prefix, and EOS.

`rows.Greedy` and `beam.Beam` search; they also admit sentences while others are searched.
Letters: N rows, one of each sentence; V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from transduce.decoding.allowed_tokens import restricted
from transduce.decoding.beam import beam_of
from transduce.decoding.constraint import Constraint
from transduce.decoding.decoder import Decoder, State, send
from transduce.decoding.hypothesis import Hypothesis, Request, hypothesis_of, no_continuation
from transduce.decoding.options import Sampling
from transduce.errors import UserError


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
    row's best tokens, torch.topk picks). Fewer than n_best come back only when nothing else is left in the beam.
    n_best: at most search.beam_size. Raises FloatingPointError as `greedy` does.
    """
    return beam_of(decoder, request).search(state, request, n_best=n_best)


def greedy(decoder: Decoder[State], state: State, request: Request) -> list[Hypothesis]:
    """Take the most likely token at every step, of equals the lowest id; return one hypothesis for each sentence.

    Raises FloatingPointError where the model gives NaN, or probability zero to all tokens that may come next.
    """
    request = replace(request, search=replace(request.search, beam_size=1))
    return [best for (best,) in beam_search(decoder, state, request)]


@torch.inference_mode()
def sample(
    decoder: Decoder[State],
    state: State,
    request: Request,
    *,
    sampling: Sampling,
    seeds: Sequence[int],
) -> list[Hypothesis]:
    """Draw every token from the model's distribution, changed by `sampling`; return one hypothesis for each sentence.

    Each has its own seed (`sentence_seed`), so that it does not depend on the batch. Raises as `greedy` does.
    """
    if len(seeds) != len(request.max_lengths):
        raise UserError(f"{len(seeds)} seeds: expected one for each of {len(request.max_lengths)} sentences")
    outputs = [_Output(_uniforms(seed, n)) for seed, n in zip(seeds, request.max_lengths, strict=True)]
    live, constraint = outputs, request.constraint
    last_ids = torch.full((len(live),), request.bos, device=decoder.device)
    for length in range(max(request.max_lengths, default=0)):
        scores, state = decoder.step(last_ids, state)
        log_probs = _log_probs(decoder, scores, length, request, constraint)
        uniform = torch.tensor([output.uniforms[length] for output in live], device=log_probs.device)
        next_ids, values = _draw(log_probs, uniform, sampling)
        for output, token, value in zip(live, next_ids.tolist(), values.tolist(), strict=True):
            output.ids.append(request.eos if token in request.other_ends else token)
            output.token_log_probs.append(value)
        stay = [row for row, output in enumerate(live) if not output.is_done(request.eos)]
        if not stay:
            break
        if constraint is not None:
            constraint = constraint.select(stay).advance(next_ids[stay].tolist())
        last_ids = send(next_ids[stay], decoder.device)
        if len(stay) < len(live):
            live, rows = [live[row] for row in stay], send(torch.tensor(stay), decoder.device)
            state = state.select(rows, rows)
    return [hypothesis_of(o.ids, o.token_log_probs, request.eos, request.penalties) for o in outputs]


@dataclass(frozen=True)
class _Output:
    """A sentence's drawn tokens so far. uniforms: a number in [0, 1) for each token up to its maximum length."""

    uniforms: list[float]
    ids: list[int] = field(default_factory=list[int])
    token_log_probs: list[float] = field(default_factory=list[float])

    def is_done(self, eos: int) -> bool:
        return self.ids[-1] == eos or len(self.ids) == len(self.uniforms)


def _uniforms(seed: int, count: int) -> list[float]:
    """Return the numbers that a seed gives: on the CPU for every device, so that they are the same on each."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)).tolist()


def _log_probs(
    decoder: Decoder[State],
    scores: Tensor,
    length: int,
    request: Request,
    constraint: Constraint | None,
) -> Tensor:
    """Return the log-probabilities (N, V) after `length` tokens, with -inf for the ids that may not come next."""
    ends = [request.eos, *request.other_ends]
    allowed = {} if constraint is None else constraint.allowed()
    too_early = ends if length < request.search.min_tokens else []
    barred = torch.tensor([*request.banned, *too_early], dtype=torch.int64)
    log_probs = decoder.log_probs(scores)
    log_probs = log_probs.index_fill(1, send(barred, log_probs.device), -math.inf)
    if allowed:
        rows, only = restricted(decoder, scores, allowed)
        only[:, too_early] = -math.inf
        log_probs[send(rows, log_probs.device)] = only
    if not log_probs.amax(dim=1).isfinite().all():
        raise no_continuation(length)
    return log_probs


def _draw(log_probs: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return ids (N,) drawn from log_probs (N, V), and the log-probability of each in float64, both on the CPU.

    An id is the inverse of the cumulative distribution at uniform (N,).
    """
    tempered = log_probs / sampling.temperature
    ids = torch.arange(log_probs.size(1), device=log_probs.device).expand_as(log_probs)
    if sampling.top_k is not None or sampling.top_p is not None:
        tempered, ids = tempered.sort(dim=1, descending=True, stable=True)
    probs = tempered[:, : sampling.top_k].softmax(dim=1)  # (N, C)
    if sampling.top_p is not None:
        mass_before = probs.cumsum(dim=1) - probs
        probs = probs.masked_fill(mass_before >= sampling.top_p, 0)
        probs = probs / probs.sum(dim=1, keepdim=True)  # what is left, which epsilon cuts
    if sampling.epsilon is not None:
        probs = probs.masked_fill(probs < probs.amax(dim=1, keepdim=True).clamp(max=sampling.epsilon), 0)
    cumulative = probs.cumsum(dim=1)
    total = cumulative[:, -1:]
    point = (uniform[:, None] * total).minimum(total.nextafter(torch.zeros_like(total)))  # rounded up, it may be total
    column = torch.searchsorted(cumulative, point, right=True)  # the first that exceeds it: its probability is not 0
    ids = ids.gather(1, column)
    return ids[:, 0].cpu(), log_probs.gather(1, ids)[:, 0].cpu().double()
