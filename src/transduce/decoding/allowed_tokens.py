"""The best tokens of rows that a constraint restricts. A search without a constraint enters no function of this file.

Letters as in `rows`; also R rows that are restricted, W wanted tokens of a row.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from transduce.decoding.constraint import Constraint, NextTokens
from transduce.decoding.decoder import Decoder, Scores, most_likely, send
from transduce.decoding.hypothesis import Request

SLACK, NO_LIMIT = 5, 1 << 40  # see phrases/bank_allocation.py
LEAST_END = 0.05


class WantedTokens(NamedTuple):
    """The wanted tokens of the rows with phrases.

    rows: (R,). values, ids: (R, W), -inf where there are fewer. limits: (R,) the tokens that may follow; a great number
    before the natural end. is_early: (R,) whether EOS would be an early end.
    """

    rows: np.ndarray
    limits: np.ndarray
    is_early: np.ndarray
    values: np.ndarray
    ids: np.ndarray


class BestTokens(NamedTuple):
    """The log-probabilities and ids (N, C) of the best tokens of each row, the most likely first.

    overruled: in which rows (N,) the constraint excluded the most likely token; None: in no row. wanted: of rows with
    phrases.
    """

    values: np.ndarray
    ids: np.ndarray
    overruled: np.ndarray | None = None
    wanted: WantedTokens | None = None


@dataclass(frozen=True)
class RowsOfStep:
    """The rows of one step. output: of the decoder. is_young: the rows (N,) in which EOS must not come next.

    is_live: the rows that have a hypothesis. n_candidates: C.
    """

    decoder: Decoder[Any]
    output: Scores
    request: Request
    n_candidates: int
    is_young: Tensor
    is_live: Sequence[bool]


def allowed_tokens(
    step: RowsOfStep, constraint: Constraint, most_likely_of_all: Callable[[], tuple[np.ndarray, np.ndarray]]
) -> BestTokens:
    """Return the best tokens that `constraint` allows. most_likely_of_all: returns the best tokens without it."""
    n = len(step.is_live)
    next_tokens = constraint.next_tokens()
    if next_tokens is None or len(next_tokens.rows) < n:
        values, ids = most_likely_of_all()
    else:
        values, ids = np.empty((n, step.n_candidates), np.float32), np.zeros((n, step.n_candidates), np.int64)
    allowed = {row: of_row for row, of_row in constraint.allowed().items() if step.is_live[row]}
    with_phrases = set() if next_tokens is None else {*next_tokens.rows.tolist()}
    others = {row: of_row for row, of_row in allowed.items() if row not in with_phrases}
    overruled = _restrict(step, others, values, ids)
    if next_tokens is None:
        return BestTokens(values, ids, overruled)
    of_rows, wanted = tokens_with_phrases(step, next_tokens, allowed)
    values[next_tokens.rows], ids[next_tokens.rows] = of_rows
    return BestTokens(values, ids, overruled, wanted)


def _restrict(
    step: RowsOfStep, allowed: Mapping[int, Sequence[int]], values: np.ndarray, ids: np.ndarray
) -> np.ndarray | None:
    """Replace the best tokens (N, C) of some rows by the best of the `allowed` ones.

    Return in which rows (N,) the most likely token changes, or None if no row is restricted.
    """
    if not allowed:
        return None
    rows, log_probs = restricted(step.decoder, step.output, allowed)
    log_probs[step.is_young[rows], step.request.eos] = -math.inf
    first = ids[:, 0].copy()
    best = most_likely(log_probs, step.n_candidates)
    values[rows.numpy()], ids[rows.numpy()] = (x.numpy() for x in best)
    return first != ids[:, 0]


def restricted(decoder: Decoder[Any], scores: Scores, allowed: Mapping[int, Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the rows (R,) that are restricted, on the CPU, and their log-probabilities (R, V), -inf unless allowed.

    allowed: the ids that may come next, by row; at least one row.
    """
    ids = [torch.as_tensor(of_row, dtype=torch.int64) for of_row in allowed.values()]
    index = torch.arange(len(ids)).repeat_interleave(torch.tensor([len(of_row) for of_row in ids])), torch.cat(ids)
    rows = torch.tensor([*allowed])
    log_probs = decoder.log_probs(scores[send(rows, scores.device)])  # (R, V)
    index = tuple(send(x, scores.device) for x in index)
    only = torch.full_like(log_probs, -math.inf)
    only[index] = log_probs[index]
    return rows, only


def tokens_with_phrases(
    step: RowsOfStep, next_tokens: NextTokens, allowed: Mapping[int, Sequence[int]]
) -> tuple[tuple[np.ndarray, np.ndarray], WantedTokens]:
    """Return the log-probabilities and ids (R, C) of the most likely tokens of rows with phrases, and the wanted ones.

    allowed: of some rows the only ids that may come next.
    """
    eos, device = step.request.eos, step.output.device
    rows = torch.from_numpy(next_tokens.rows)
    log_probs = step.decoder.log_probs(step.output[send(rows, device)])  # (R, V)
    _exclude(log_probs, next_tokens.rows.tolist(), allowed, step.request.banned)
    _forbid(log_probs, np.flatnonzero(step.is_young[rows]), np.array([eos]))
    of_eos, (highest, likeliest) = log_probs[:, eos].clone(), log_probs.max(dim=1)
    for places, ids in next_tokens.barred:
        _forbid(log_probs, places, ids)
    values, best_ids = most_likely(log_probs, step.n_candidates)
    is_end = (likeliest == eos) & log_probs[:, eos].isneginf()  # EOS, the most likely token, is barred
    is_end, is_early = torch.stack([is_end, of_eos < highest + math.log(LEAST_END)]).cpu().numpy()
    limits = np.where(is_end, next_tokens.n_tokens + SLACK, NO_LIMIT)
    wanted = WantedTokens(next_tokens.rows, limits, is_early, *_wanted(log_probs, next_tokens))
    return (values.numpy(), best_ids.numpy()), wanted


def _exclude(
    log_probs: Tensor, rows: Sequence[int], allowed: Mapping[int, Sequence[int]], banned: Sequence[int]
) -> None:
    """Let -inf replace log-probabilities (R, V): of other ids than the `allowed` ones, else of the `banned` ones."""
    device = log_probs.device
    is_free = np.array([row not in allowed for row in rows])
    for place in np.flatnonzero(~is_free).tolist():
        is_other = torch.ones(log_probs.size(1), dtype=torch.bool, device=device)
        is_other[torch.as_tensor(allowed[rows[place]], device=device)] = False
        log_probs[place].masked_fill_(is_other, -math.inf)
    _forbid(log_probs, np.flatnonzero(is_free), np.array(banned, dtype=np.int64))


def _forbid(log_probs: Tensor, places: np.ndarray, ids: np.ndarray) -> None:
    """Let -inf replace the log-probabilities (R, V) of `ids` in the rows `places`.

    Places, because a GPU's index by a mask waits. So does the assignment of a number, which torch sends to the GPU.
    """
    if len(places) and len(ids):
        index = _index(places, log_probs.device)[:, None], _index(ids, log_probs.device)
        log_probs.index_put_(index, log_probs.new_full((), -math.inf))


def _wanted(log_probs: Tensor, next_tokens: NextTokens) -> tuple[np.ndarray, np.ndarray]:
    """Return the wanted tokens, values and ids (R, W). log_probs: (R, V), -inf where a token may not come next."""
    places, ids = next_tokens.wanted
    counts = np.bincount(places, minlength=len(next_tokens.rows))
    columns = np.arange(len(places)) - (counts.cumsum() - counts).repeat(counts)
    best_of = [(of, ids) for of, ids in next_tokens.best_of if len(of)]
    table = np.zeros((len(counts), int(counts.max(initial=0)) + bool(best_of)), dtype=np.int64)
    table[places, columns] = ids
    for of, some in best_of:
        best = log_probs[_index(of, log_probs.device)][:, _index(some, log_probs.device)].argmax(dim=1).cpu().numpy()
        table[of, counts[of]] = some[best]
    values = (
        log_probs.gather(1, _index(table, log_probs.device))
        .nan_to_num(nan=-math.inf, neginf=-math.inf)
        .cpu()
        .double()
        .numpy()
    )
    values[table == 0] = -math.inf
    return values, table


def _index(values: np.ndarray, device: torch.device) -> Tensor:
    return send(torch.from_numpy(values), device)
