"""Beam search with continuous batching: a file's lines all at once, or the requests of a service.

Each step of a `Beam` makes every hypothesis one token longer. Letters as in `rows`; M candidates of a sentence.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from transduce.decoding.allowed_tokens import BestTokens
from transduce.decoding.decoder import Decoder, State
from transduce.decoding.hypothesis import (
    Extensions,
    Hypothesis,
    Request,
    best_attainable,
    hypothesis_of,
    no_continuation,
)
from transduce.decoding.phrases.bank_allocation import EARLY_COST, Banks
from transduce.decoding.rows import Greedy, Rows, SentenceOutcome


class _End(NamedTuple):
    """A finished hypothesis, or one that is cut: an extension of a row in a step."""

    score: float  # by which it ranks
    step: int  # the number of the step, counted by the beam
    length: int  # tokens before this extension
    row: int
    id: int
    value: float
    is_early: bool = False  # see `bank_allocation`


@dataclass
class _Pool:
    """The n_best finished hypotheses of a sentence so far, best first."""

    n_best: int
    ends: list[_End] = field(default_factory=list)

    def add(self, end: _End) -> float:
        """Let `end` compete for a place, of equals the first stays; return the score to exceed from now on."""
        self.ends.insert(sum(old.score >= end.score for old in self.ends), end)
        del self.ends[self.n_best :]
        return self.ends[-1].score if len(self.ends) == self.n_best else -math.inf


class Beam(Rows[State]):
    """A running beam search. `search.beam_search` describes its rules."""

    candidates = 2  # with M = 2K of a sentence: a hypothesis can end in one way, so K others remain

    def _clear(self) -> None:
        super()._clear()
        self.pools: dict[int, _Pool] = {}  # by the number of the sentence
        self.n_steps = 0
        self.past: list[Extensions] = []  # of the last steps their beams: a hypothesis is a chain of rows
        self.overruled: list[np.ndarray | None] = []  # of these steps, which rows (see `BestTokens`)
        self.scores = np.zeros((0, self.width))  # (B, K) of the sentences that are not new; -inf: no hypothesis
        self.worst = np.zeros(0)  # (B,) the score that a hypothesis must exceed to enter each pool

    def admit(self, state: State, request: Request, n_best: Sequence[int]) -> range:
        """Admit sentences; see `Rows`."""
        numbers = super().admit(state, request, n_best)
        self.worst = np.append(self.worst, np.full(len(numbers), -math.inf))
        self.pools |= {number: _Pool(n) for number, n in zip(numbers, n_best, strict=True)}
        return numbers

    def drop(self, numbers: Collection[int]) -> None:
        """Remove sentences, ended ones too, in between two steps."""
        for number in numbers:
            self.pools.pop(number, None)
        if self.past:
            stay = (~np.isin(self.numbers[: len(self.scores)], list(numbers))).nonzero()[0]
            self.scores, self.past[-1] = self.scores[stay], self.past[-1].of(stay)
        super().drop(numbers)

    def _extend(self, tokens: BestTokens) -> dict[int, SentenceOutcome]:
        is_broken = np.zeros(len(self.numbers), dtype=bool)
        if math.isnan(tokens.values[:, 0].max()):
            is_broken = self._broken(tokens.values)
        lengths = self.ages + 1
        self.overruled.append(tokens.overruled)
        beam, is_done = self._choose(tokens, lengths)
        first = beam.scores[:, 0]
        if first.min() == -math.inf:
            is_broken |= (first == -math.inf) & np.array([not self.pools[i].ends for i in self.numbers.tolist()])
        is_done |= is_broken
        stay, outcomes = (~is_done).nonzero()[0], dict[int, SentenceOutcome]()
        if len(stay) < len(is_done):
            outcomes = self._outcomes(is_done, is_broken)
            if not len(stay):
                self._clear()
                return outcomes
            beam = beam.of(stay)
        self.past.append(beam)
        self.n_steps += 1
        self.scores, self.n_new = beam.scores, 0
        ids, rows = beam.ids.ravel(), beam.rows.ravel()
        if self.constraint is not None:
            self.constraint = self.constraint.select(rows.tolist())
            self.constraint = self.constraint.advance(ids.tolist())
        self._keep(stay, rows, self._send(ids), lengths[stay])
        return outcomes

    def _keep(self, stay: np.ndarray, rows: np.ndarray, last_ids: Tensor, ages: np.ndarray) -> None:
        n_before = len(self.numbers)
        super()._keep(stay, rows, last_ids, ages)
        if 0 < len(stay) < n_before:
            self.worst = self.worst[stay]
            n_old = len(self.past) - int(ages[0])  # no hypothesis goes back that far
            del self.past[:n_old], self.overruled[:n_old]

    # ---- the candidates of a step --------------------------------------------------------------------------------

    def _choose(self, tokens: BestTokens, lengths: np.ndarray) -> tuple[Extensions, np.ndarray]:
        """Return the extensions (B, K) that stay in the beam, and which sentences end (B,).

        lengths: (B,) after this step.
        """
        candidates, penalties = self._candidates(tokens.values, tokens.ids), self.penalties[lengths]
        if tokens.wanted is not None and self.constraint is not None:
            banks = Banks(tokens.wanted, (tokens.values, tokens.ids), self.scores, self.constraint)
            return self._choose_with_phrases(candidates, lengths, penalties, banks)
        scores, is_over = candidates.scores / penalties[:, None], candidates.ids == self.request.eos
        self._compete(candidates, scores, is_over)
        beam = candidates.unfinished(self.request.eos, self.width)
        return beam, self._cut(beam, lengths, penalties, None)

    def _choose_with_phrases(
        self, candidates: Extensions, lengths: np.ndarray, penalties: np.ndarray, banks: Banks
    ) -> tuple[Extensions, np.ndarray]:
        """Return what `_choose` returns. banks: of the sentences with phrases, which share the beam."""
        longest = lengths[banks.sentences] + banks.limits
        self.max_lengths[banks.sentences] = np.minimum(self.max_lengths[banks.sentences], longest)
        banks.exclude_risks((self.max_lengths == lengths)[banks.sentences])
        candidates = candidates.replaced(banks.sentences, banks.candidates)
        is_early = np.isin(candidates.rows, [*banks.early_rows])  # an early end ranks lower
        totals = candidates.scores - EARLY_COST * is_early
        is_over = candidates.ids == self.request.eos
        self._compete(candidates, totals / penalties[:, None], is_over, banks.early_rows)
        shares, n_met = banks.share(self.request.eos, self.width)
        beam = candidates.unfinished(self.request.eos, self.width).replaced(banks.sentences, shares)
        return beam, self._cut(beam, lengths, penalties, dict(zip(banks.sentences.tolist(), n_met, strict=True)))

    def _candidates(self, values: np.ndarray, ids: np.ndarray) -> Extensions:
        """Return the M most likely extensions of each sentence's hypotheses.

        No row has more than M of them, so the best tokens of the rows replace a search through all V sums of each.
        """
        if not self.n_new:
            return self._best(self.scores, values, ids, 0)
        cut = self.scores.size
        new = self._best(np.zeros((self.n_new, 1)), values[cut:], ids[cut:], cut)
        if not cut:
            return new
        old = self._best(self.scores, values[:cut], ids[:cut], 0)
        return Extensions(*(np.concatenate(both) for both in zip(old, new, strict=True)))

    def _best(self, scores: np.ndarray, values: np.ndarray, ids: np.ndarray, first_row: int) -> Extensions:
        """Return the best M extensions of hypotheses with scores (B, K) by the best tokens (B * K, C) of their rows."""
        totals = (scores.reshape(-1, 1) + values).reshape(len(scores), -1)  # (B, K * C)
        columns = (-totals).argsort(axis=1, kind="stable")[:, : self.n_candidates]  # the first of equals first
        places = columns + np.arange(0, totals.size, totals.shape[1])[:, None]
        rows = first_row + places // values.shape[1]
        return Extensions(totals.take(places), rows, ids.take(places), values.take(places))

    def _is_live(self) -> list[bool]:
        return (np.append(self.scores.ravel(), np.zeros(self.n_new)) > -math.inf).tolist()

    def _broken(self, values: np.ndarray) -> np.ndarray:
        """Return which sentences have a NaN in the best tokens (N, C), and let -inf replace it."""
        rows, cut = np.isnan(values[:, 0]), self.scores.size
        values[rows] = -math.inf
        return np.append(rows[:cut].reshape(-1, self.width).any(axis=1), rows[cut:])

    # ---- the end of sentences ------------------------------------------------------------------------------------

    def _compete(
        self, extensions: Extensions, scores: np.ndarray, is_over: np.ndarray, early_rows: Collection[int] = ()
    ) -> None:
        """Let the extensions that are over (B, M) compete by their scores (B, M) for places in the pools."""
        enters = is_over & (scores > self.worst[:, None])
        if not enters.any():
            return
        for i, column in zip(*(x.tolist() for x in enters.nonzero()), strict=True):
            score = float(scores[i, column])
            if score > self.worst[i]:
                end = self._end(score, extensions, i, column)
                end = end._replace(is_early=end.row in early_rows)
                self.worst[i] = self.pools[int(self.numbers[i])].add(end)

    def _cut(
        self, beam: Extensions, lengths: np.ndarray, penalties: np.ndarray, n_met: Mapping[int, np.ndarray] | None
    ) -> np.ndarray:
        """Fill the pools of the sentences at their maximum length, and return which sentences end (B,).

        n_met: by sentence with phrases, the number that each of its hypotheses has; None where none has phrases.
        """
        is_cut = self.max_lengths == lengths
        for i in is_cut.nonzero()[0].tolist():
            pool, scores = self.pools[int(self.numbers[i])], beam.scores[i] / penalties[i]
            live = (scores > -math.inf).nonzero()[0].tolist()
            if n_met is not None and i in n_met:
                live.sort(key=n_met[i].__getitem__, reverse=True)
            pool.ends += [self._end(float(scores[k]), beam, i, k) for k in live[: pool.n_best - len(pool.ends)]]
        lookahead = self.request.search.lookahead
        attainable = best_attainable(beam.scores[:, 0], lengths, self.max_lengths, lookahead, self.penalties)
        return ~(self.worst < attainable) | is_cut

    def _end(self, score: float, extensions: Extensions, i: int, column: int) -> _End:
        _, rows, ids, values = (x[i, column].item() for x in extensions)
        return _End(score, self.n_steps, int(self.ages[i]), rows, ids, values)

    def _outcomes(self, is_done: np.ndarray, is_broken: np.ndarray) -> dict[int, SentenceOutcome]:
        """Remove the pools of the sentences that are done, and return what they hold."""
        outcomes: dict[int, SentenceOutcome] = {}
        for i in is_done.nonzero()[0].tolist():
            number = int(self.numbers[i])
            ends = self.pools.pop(number).ends
            if is_broken[i]:
                outcomes[number] = no_continuation(int(self.ages[i]))
            else:
                outcomes[number] = [self._hypothesis(end) for end in ends]
        return outcomes

    def _hypothesis(self, end: _End) -> Hypothesis:
        """Return the hypothesis with this end. All its tokens are found from the last one backwards."""
        last = len(self.past) - (self.n_steps - end.step)  # steps before the one in which it ended
        ids = [end.id]
        values = [end.value]
        rows = [end.row]
        for step in reversed(self.past[last - end.length : last]):
            ids.append(int(step.ids.item(rows[-1])))
            values.append(float(step.values.item(rows[-1])))
            rows.append(int(step.rows.item(rows[-1])))
        overruled = self.overruled[last - end.length : last + 1]
        count = sum(bool(of[row]) for of, row in zip(overruled, reversed(rows), strict=True) if of is not None)
        hypothesis = hypothesis_of(ids[::-1], values[::-1], self.request.eos, self.penalties, count)
        return (
            replace(hypothesis, early_cost=EARLY_COST / float(self.penalties[len(ids)])) if end.is_early else hypothesis
        )


def beam_of(decoder: Decoder[State], request: Request) -> Rows[State]:
    """Return an empty beam with the settings of the request."""
    return (Beam if request.search.beam_size > 1 else Greedy)(decoder, request)
