"""Beam search of sentences that come and go: a file's lines all at once, or the requests of a service.

Each step of a `Beam` makes every hypothesis one token longer. In between two steps the beam takes sentences in. So its
sentences have different ages: the age of a sentence is its number of tokens so far. Where the decoder cannot `join`
states, a beam takes newcomers only while it is empty, and all its sentences have the same age.

The bookkeeping is in numpy, in float64: a call takes a third of the time of torch's. The decoder's device computes
`step`, `select` and the best few tokens of each row. The search waits for it once in a step: for these tokens.

Letters: B sentences in the beam, K rows of each, the best first, but one row of each newcomer; N rows of all, those of
newcomers last; V vocabulary, C tokens in the shortlist of a row, M candidates of a sentence.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.decoding.constraint import Constraint, joined
from transduce.decoding.decoder import Decoder, State, fetch, most_likely, restricted, send
from transduce.decoding.extensions import Extensions
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.phrases.bank_allocation import Banks, WantedTokens, constrained_shortlists
from transduce.decoding.request import Request, best_attainable, hypothesis_of, no_continuation

Outcome = list[Hypothesis] | FloatingPointError  # of one sentence: the n_best outputs, best first


class _End(NamedTuple):
    """A finished hypothesis, or one that is cut: an extension of a row in a step."""

    score: float
    step: int  # the number of the step, counted by the beam
    length: int  # tokens before this extension
    row: int
    id: int
    value: float


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


class Beam(Generic[State]):
    """A running beam search, to be called in `torch.inference_mode`. `search.beam_search` describes its rules.

    request: the settings of all sentences; its `max_lengths` and `constraint` are not used.
    """

    def __init__(self, decoder: Decoder[State], request: Request) -> None:
        self.decoder, self.request, self.penalties = decoder, request, request.penalties
        self.width = request.search.beam_size  # K
        self.n_candidates = 2 * self.width if self.width > 1 else 1  # of a sentence in a step
        self.pools: dict[int, _Pool] = {}  # by the number of the sentence
        self.n_admitted = 0
        self.n_steps = 0
        self._clear()

    def _clear(self) -> None:
        """Become empty: the memory of the state is free again."""
        self.state: State | None = None
        self.constraint: Constraint | None = None
        self.past: list[Extensions] = []  # of the last steps their beams: a hypothesis is a chain of rows
        self.overruled: list[np.ndarray | None] = []  # of these steps, which rows (see `_shortlists`)
        self.scores = np.zeros((0, self.width))  # (B, K) of the sentences that are not new; -inf: no hypothesis
        self.n_new = 0  # sentences before their first step, the last ones
        self.last_ids = torch.empty(0, dtype=torch.int64, device=self.decoder.device)  # (N,)
        self.numbers, self.ages, self.max_lengths = np.zeros((3, 0), dtype=np.int64)  # (B,) each
        self.worst = np.zeros(0)  # (B,) the score that a hypothesis must exceed to enter each pool

    def __len__(self) -> int:
        """Return B, the number of sentences in the beam."""
        return len(self.numbers)

    @property
    def takes_newcomers(self) -> bool:
        """True if `admit` is possible now."""
        return self.state is None or self.decoder.join is not None

    def admit(self, state: State, request: Request, n_best: Sequence[int]) -> range:
        """Take sentences in, one row of `state` for each, and return their numbers: as many as came before, and so on.

        request: with the settings of the beam. n_best: of each sentence, at most the size of the beam.
        """
        n, n_before = len(request.max_lengths), len(self.last_ids)
        numbers = range(self.n_admitted, self.n_admitted + n)
        self.n_admitted += n
        if n == 0:
            return numbers
        assert self.takes_newcomers and request.search == self.request.search
        self.state = state if self.state is None or self.decoder.join is None else self.decoder.join(self.state, state)
        self.constraint = joined(self.constraint, n_before, request.constraint, n)
        self.last_ids = torch.cat([self.last_ids, self.last_ids.new_full((n,), request.bos)])
        self.n_new += n
        self.numbers = np.append(self.numbers, numbers)
        self.ages = np.append(self.ages, np.zeros(n, dtype=np.int64))
        self.max_lengths = np.append(self.max_lengths, np.array(request.max_lengths, dtype=np.int64))
        self.worst = np.append(self.worst, np.full(n, -math.inf))
        self.pools |= {number: _Pool(n) for number, n in zip(numbers, n_best, strict=True)}
        if len(request.penalties) > len(self.penalties):
            self.penalties = request.penalties
        return numbers

    def drop(self, numbers: Collection[int]) -> None:
        """Remove sentences, ended ones too, in between two steps."""
        stays = ~np.isin(self.numbers, list(numbers))
        if stays.all():
            return
        for number in self.numbers[~stays].tolist():
            del self.pools[number]
        stay, n_old = stays.nonzero()[0], len(self.scores)
        old, new = stay[stay < n_old], stay[stay >= n_old]
        rows = np.append((old[:, None] * self.width + np.arange(self.width)).ravel(), new - n_old + n_old * self.width)
        self.scores, self.n_new = self.scores[old], len(new)
        if self.constraint is not None:
            self.constraint = self.constraint.select(rows.tolist())
        if self.past:
            self.past[-1] = self.past[-1].of(old)
        self._keep(stay, rows, self.last_ids[send(torch.from_numpy(rows), self.decoder.device)], self.ages[stay])

    def step(self) -> dict[int, Outcome]:
        """Make every hypothesis one token longer; return the sentences that end here, by number.

        A sentence ends with FloatingPointError where the model gives NaN, or probability zero to all tokens that may
        come next. An error of the decoder, such as memory that runs out, leaves the beam as it was.
        """
        assert self.state is not None
        output, state = self.decoder.step(self.last_ids, self.state)
        values, ids, overruled, wanted = self._shortlists(output)
        is_broken = self._broken(values)
        self.state, lengths = state, self.ages + 1
        self.overruled.append(overruled)
        beam, is_done = self._extend(values, ids, lengths, wanted)
        first = beam.scores[:, 0]
        if first.min() == -math.inf:
            is_broken |= (first == -math.inf) & np.array([not self.pools[i].ends for i in self.numbers.tolist()])
        is_done |= is_broken
        stay, outcomes = (~is_done).nonzero()[0], dict[int, Outcome]()
        if len(stay) < len(is_done):
            outcomes = self._outcomes(is_done, is_broken)
            beam = beam.of(stay)
        self.past.append(beam)
        self.n_steps += 1
        self.scores, self.n_new = beam.scores, 0
        ids = beam.ids.ravel()
        if self.constraint is not None:
            self.constraint = self.constraint.select(beam.rows.ravel().tolist())
            self.constraint = self.constraint.advance(ids.tolist())
        self._keep(stay, beam.rows.ravel(), send(torch.from_numpy(ids), self.decoder.device), lengths[stay])
        return outcomes

    def _keep(self, stay: np.ndarray, rows: np.ndarray, last_ids: Tensor, ages: np.ndarray) -> None:
        """Keep `rows` of the last step, those of the sentences `stay`."""
        if not len(stay):
            self._clear()
            return
        assert self.state is not None
        to_device = (send(torch.from_numpy(x), self.decoder.device) for x in (rows, stay))
        self.last_ids, self.ages = last_ids, ages
        if len(rows) > len(self.numbers) or len(stay) < len(self.numbers):  # else the rows are the same ones
            self.state = self.state.select(*to_device)
        if len(stay) < len(self.numbers):
            self.numbers, self.max_lengths, self.worst = (x[stay] for x in (self.numbers, self.max_lengths, self.worst))
            n_old = len(self.past) - int(ages.max())  # no hypothesis goes back that far
            del self.past[:n_old], self.overruled[:n_old]

    # ---- the candidates of a step --------------------------------------------------------------------------------

    def _extend(
        self, values: np.ndarray, ids: np.ndarray, lengths: np.ndarray, wanted: WantedTokens | None
    ) -> tuple[Extensions, np.ndarray]:
        """Return the extensions (B, K) that stay in the beam, and which sentences end (B,).

        values, ids: the shortlist (N, C) of each row. lengths: (B,) after this step. wanted: of rows with phrases.
        """
        candidates, penalties, banks, n_met = self._candidates(values, ids), self.penalties[lengths], None, None
        if wanted is not None and self.constraint is not None:
            banks = Banks(wanted, (values, ids), self.scores, self.constraint)
            longest = lengths[banks.sentences] + banks.limits
            self.max_lengths[banks.sentences] = np.minimum(self.max_lengths[banks.sentences], longest)
            banks.exclude_risks((self.max_lengths == lengths)[banks.sentences])
            candidates = candidates.replaced(banks.sentences, banks.candidates)
        self._collect(candidates, penalties)
        beam = candidates.unfinished(self.request.eos, self.width)
        if banks is not None:
            shares, n_met = banks.share(self.request.eos, self.width)
            beam, n_met = (
                beam.replaced(banks.sentences, shares),
                dict(zip(banks.sentences.tolist(), n_met, strict=True)),
            )
        return beam, self._cut(beam, lengths, penalties, n_met or {})

    def _candidates(self, values: np.ndarray, ids: np.ndarray) -> Extensions:
        """Return the M most likely extensions of each sentence's hypotheses.

        No row has more than M of them, so the rows' shortlists replace a search through all V sums of each.
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
        """Return the best M extensions of hypotheses with scores (B, K) by the shortlists (B * K, C) of their rows."""
        totals = (scores.reshape(-1, 1) + values).reshape(len(scores), -1)  # (B, K * C)
        rows = np.arange(first_row, first_row + len(values)).repeat(values.shape[1])
        extensions = Extensions(totals, rows, ids, values)
        columns = (-totals).argsort(axis=1, kind="stable")[:, : self.n_candidates]  # the first of equals first
        return extensions.take(columns)

    def _shortlists(self, output: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, WantedTokens | None]:
        """Return the log-probabilities and ids (N, C) of the most likely tokens of each row, C at least M.

        Return too in which rows (N,) the constraint excluded the most likely one, None for no row, and the wanted
        tokens of rows with phrases.
        """
        size, request, overruled, wanted = self.n_candidates, self.request, None, None
        next_tokens = None if self.constraint is None else self.constraint.next_tokens()
        youngest, oldest = int(self.ages[-1]), int(self.ages[0])
        if next_tokens is None or len(next_tokens.rows) < len(self.last_ids):
            values, ids = self._most_likely(output, size, oldest)
            if youngest < request.search.min_tokens <= oldest:
                is_young = self._is_young()
                values[is_young], ids[is_young] = (x[is_young] for x in self._most_likely(output, size, 0))
        else:
            n = len(next_tokens.rows)
            values, ids = torch.empty(n, size), torch.zeros(n, size, dtype=torch.int64)
        if self.constraint is not None:
            live = (np.append(self.scores.ravel(), np.zeros(self.n_new)) > -math.inf).tolist()
            allowed = {row: of_row for row, of_row in self.constraint.allowed().items() if live[row]}
            with_phrases = set() if next_tokens is None else {*next_tokens.rows.tolist()}
            if only_allowed := {row: of_row for row, of_row in allowed.items() if row not in with_phrases}:
                rows, log_probs = restricted(self.decoder, output, only_allowed)
                log_probs[self._is_young()[rows], request.eos] = -math.inf
                first = ids[:, 0].clone()
                values[rows], ids[rows] = _wide(*fetch(*most_likely(log_probs, size)), size)
                overruled = (first != ids[:, 0]).numpy()
            if next_tokens is not None:
                is_young = self._is_young()
                of_rows, wanted = constrained_shortlists(self.decoder, output, next_tokens, allowed, request, is_young)
                values[next_tokens.rows], ids[next_tokens.rows] = _wide(*of_rows, size)
        return values.numpy(), ids.numpy(), overruled, wanted

    def _broken(self, values: np.ndarray) -> np.ndarray:
        """Return which sentences have a NaN in the shortlists (N, C), and let -inf replace it."""
        if not math.isnan(values[:, 0].max()):
            return np.zeros(len(self.numbers), dtype=bool)
        rows, cut = np.isnan(values[:, 0]), self.scores.size
        values[rows] = -math.inf
        return np.append(rows[:cut].reshape(-1, self.width).any(axis=1), rows[cut:])

    def _most_likely(self, output: Tensor, size: int, length: int) -> tuple[Tensor, Tensor]:
        """Return the shortlists (N, size) of tokens that may follow `length` tokens."""
        return _wide(*fetch(*self.decoder.most_likely(output, size, self.request.barred(length))), size)

    def _is_young(self) -> Tensor:
        """Return in which of the N rows EOS must not come next."""
        is_young, n_old = self.ages < self.request.search.min_tokens, len(self.scores)
        return torch.from_numpy(np.append(is_young[:n_old].repeat(self.width), is_young[n_old:]))

    # ---- the end of sentences ------------------------------------------------------------------------------------

    def _collect(self, candidates: Extensions, penalties: np.ndarray) -> None:
        """Let the candidates that end compete for places in the pools. penalties: (B,) of their lengths."""
        scores = candidates.scores / penalties[:, None]
        enters = (candidates.ids == self.request.eos) & (scores > self.worst[:, None])
        if not enters.any():
            return
        for i, column in zip(*(x.tolist() for x in enters.nonzero()), strict=True):
            score = float(scores[i, column])
            if score > self.worst[i]:
                self.worst[i] = self.pools[int(self.numbers[i])].add(self._end(score, candidates, i, column))

    def _cut(
        self, beam: Extensions, lengths: np.ndarray, penalties: np.ndarray, n_met: Mapping[int, np.ndarray]
    ) -> np.ndarray:
        """Fill the pools of the sentences at their maximum length, and return which sentences end (B,).

        n_met: by sentence with phrases, the number that each of its hypotheses has.
        """
        is_cut = self.max_lengths == lengths
        for i in is_cut.nonzero()[0].tolist():
            pool, scores = self.pools[int(self.numbers[i])], beam.scores[i] / penalties[i]
            live = (scores > -math.inf).nonzero()[0].tolist()
            if i in n_met:
                live.sort(key=n_met[i].__getitem__, reverse=True)
            pool.ends += [self._end(float(scores[k]), beam, i, k) for k in live[: pool.n_best - len(pool.ends)]]
        lookahead = self.request.search.lookahead
        attainable = best_attainable(beam.scores[:, 0], lengths, self.max_lengths, lookahead, self.penalties)
        return ~(self.worst < attainable) | is_cut

    def _end(self, score: float, extensions: Extensions, i: int, column: int) -> _End:
        _, rows, ids, values = (x[i, column].item() for x in extensions)
        return _End(score, self.n_steps, int(self.ages[i]), rows, ids, values)

    def _outcomes(self, is_done: np.ndarray, is_broken: np.ndarray) -> dict[int, Outcome]:
        """Remove the pools of the sentences that are done, and return what they hold."""
        outcomes: dict[int, Outcome] = {}
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
        ids, values, rows = [end.id], [end.value], [end.row]
        for step in reversed(self.past[last - end.length : last]):
            ids.append(int(step.ids.item(rows[-1])))
            values.append(float(step.values.item(rows[-1])))
            rows.append(int(step.rows.item(rows[-1])))
        overruled = self.overruled[last - end.length : last + 1]
        count = sum(bool(of[row]) for of, row in zip(overruled, reversed(rows), strict=True) if of is not None)
        return hypothesis_of(ids[::-1], values[::-1], self.request.eos, self.penalties, count)


class Greedy(Beam[State]):
    """A beam of one: the most likely token at every step, until it is EOS."""

    def _extend(
        self, values: np.ndarray, ids: np.ndarray, lengths: np.ndarray, wanted: WantedTokens | None
    ) -> tuple[Extensions, np.ndarray]:
        """Return the most likely extension of each sentence, and which sentences end."""
        before = np.append(self.scores, np.zeros((self.n_new, 1)), axis=0) if self.n_new else self.scores
        beam = Extensions(before + values, np.arange(len(ids))[:, None], ids, values)
        is_done = (ids[:, 0] == self.request.eos) | (self.max_lengths == lengths)
        for i in is_done.nonzero()[0].tolist():
            score = float(beam.scores[i, 0] / self.penalties[lengths[i]])
            if score > -math.inf:
                self.pools[int(self.numbers[i])].add(self._end(score, beam, i, 0))
        return beam, is_done


def beam_of(decoder: Decoder[State], request: Request) -> Beam[State]:
    """Return an empty beam with the settings of the request."""
    return (Beam if request.search.beam_size > 1 else Greedy)(decoder, request)


def _wide(values: Tensor, ids: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return shortlists (N, C) as (N, size). C is less where the vocabulary is smaller: then no hypothesis fills up."""
    n_missing = size - values.size(1)
    return (F.pad(values, (0, n_missing), value=-math.inf), F.pad(ids, (0, n_missing))) if n_missing else (values, ids)
