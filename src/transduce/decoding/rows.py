"""The rows of the sentences of a search: what greedy and beam search share, and greedy search.

A step makes every row one token longer. In between two steps a search admits new sentences (continuous batching), so
its sentences have different ages: the age of a sentence is its number of tokens so far. Where the decoder cannot `join`
states, a search admits sentences only while it is empty, and all of them have the same age.

The bookkeeping is in numpy, in float64: a call takes a third of the time of torch's. The decoder's device computes
`step`, `select` and the best few tokens of each row. The search waits for it once in a step: for these tokens.

Letters: B sentences, the oldest first, K rows of each, the best first, except one row of each new sentence; N rows of
all; V vocabulary, C best tokens of a row, the most likely ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import partial
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from transduce.decoding.allowed_tokens import BestTokens, RowsOfStep, allowed_tokens
from transduce.decoding.constraint import Constraint, joined
from transduce.decoding.decoder import Decoder, Scores, State, best_of_log_probs
from transduce.decoding.hypothesis import Hypothesis, Request, hypothesis_of, no_continuation

SentenceOutcome = list[Hypothesis] | FloatingPointError  # of one sentence: the n_best outputs, best first


class Rows(ABC, Generic[State]):
    """The sentences of a search, with the state of the decoder. To be used in `torch.inference_mode`.

    request: the settings of all sentences; its `max_lengths` and `constraint` are not used.
    n_candidates: C, the number of best tokens of a row that a step needs.
    """

    candidates: int  # of each hypothesis of a sentence in a step

    def __init__(self, decoder: Decoder[State], request: Request) -> None:
        self.decoder = decoder
        self.best = decoder.best or partial(best_of_log_probs, decoder.log_probs)
        self.request = request
        self.penalties = request.penalties
        self.width = request.search.beam_size  # K
        self.n_candidates = self.candidates * self.width
        self.n_admitted = 0
        self._clear()

    def _clear(self) -> None:
        """Become empty: the memory of the state is free again."""
        self.state: State | None = None
        self.constraint: Constraint | None = None
        self.n_new = 0  # sentences before their first step, the last ones
        self.last_ids = torch.empty(0, dtype=torch.int64, device=self.decoder.device)  # (N,)
        self.numbers, self.ages, self.max_lengths = np.zeros((3, 0), dtype=np.int64)  # (B,) each

    def __len__(self) -> int:
        """Return B, the number of sentences."""
        return len(self.numbers)

    def search(self, state: State, request: Request, *, n_best: int) -> list[list[Hypothesis]]:
        """Search all sentences of `request` in these rows, which are empty; return the n_best outputs of each.

        Raises FloatingPointError as `greedy` does.
        """
        numbers = self.admit(state, request, [n_best] * len(request.max_lengths))
        outcomes = dict[int, list[Hypothesis]]()
        while len(self.numbers):
            for number, outcome in self.step().items():
                if isinstance(outcome, FloatingPointError):
                    raise outcome
                outcomes[number] = outcome
        return [outcomes[number] for number in numbers]

    def admit(self, state: State, request: Request, n_best: Sequence[int]) -> range:
        """Admit sentences, one row of `state` for each, and return their numbers, which continue those before.

        request: with the settings of the search. n_best: of each sentence, at most the size of the beam.
        """
        n = len(n_best)
        n_before = len(self.last_ids)
        numbers = range(self.n_admitted, self.n_admitted + n)
        self.n_admitted += n
        if n == 0:
            return numbers
        assert request.search == self.request.search
        if self.state is None:
            self.state = state
        else:
            assert self.decoder.join is not None
            self.state = self.decoder.join(self.state, state)
        if self.constraint is not None or request.constraint is not None:
            self.constraint = joined(self.constraint, n_before, request.constraint, n)
        self.last_ids = torch.cat([self.last_ids, self.last_ids.new_full((n,), request.bos)])
        self.n_new += n
        self.numbers = np.append(self.numbers, numbers)
        self.ages = np.append(self.ages, np.zeros(n, dtype=np.int64))
        self.max_lengths = np.append(self.max_lengths, np.array(request.max_lengths, dtype=np.int64))
        if len(request.penalties) > len(self.penalties):
            self.penalties = request.penalties
        return numbers

    def drop(self, numbers: Collection[int]) -> None:
        """Remove sentences, ended ones too, in between two steps."""
        stays = ~np.isin(self.numbers, list(numbers))
        if stays.all():
            return
        stay, n_old = stays.nonzero()[0], len(self) - self.n_new
        old, new = stay[stay < n_old], stay[stay >= n_old]
        rows = np.append((old[:, None] * self.width + np.arange(self.width)).ravel(), new - n_old + n_old * self.width)
        self.n_new = len(new)
        if self.constraint is not None:
            self.constraint = self.constraint.select(rows.tolist())
        self._keep(stay, rows, self.last_ids[self._send(rows)], self.ages[stay])

    def step(self) -> dict[int, SentenceOutcome]:
        """Make every row one token longer; return the sentences that end here, by number.

        A sentence ends with FloatingPointError where the model gives NaN, or probability zero to all tokens that may
        come next. An error of the decoder, such as memory that runs out, leaves the search as it was.
        """
        assert self.state is not None
        output, state = self.decoder.step(self.last_ids, self.state)
        if self.constraint is None and self.ages[-1] >= self.request.search.min_tokens:
            values, ids = self.best(output, self.n_candidates, self.request.banned)
            tokens = BestTokens(values.numpy(), ids.numpy())
        elif self.constraint is None:
            tokens = BestTokens(*self._most_likely(output))
        else:
            rows = RowsOfStep(self.decoder, output, self.request, self.n_candidates, self._is_young(), self._is_live())
            tokens = allowed_tokens(rows, self.constraint, partial(self._most_likely, output))
        self.state = state
        return self._extend(tokens)

    @abstractmethod
    def _extend(self, tokens: BestTokens) -> dict[int, SentenceOutcome]:
        """Extend the rows by their best tokens; return the sentences that end here, by number."""
        ...

    def _keep(self, stay: np.ndarray, rows: np.ndarray, last_ids: Tensor, ages: np.ndarray) -> None:
        """Keep `rows` of the last step, which are the rows of the sentences `stay`."""
        if not len(stay):
            self._clear()
            return
        assert self.state is not None
        n_before = len(self.numbers)
        self.last_ids = last_ids
        self.ages = ages
        if len(rows) > n_before or len(stay) < n_before:  # else the rows are the same ones
            self.state = self.state.select(self._send(rows), self._send(stay))
        if len(stay) < n_before:
            self.numbers, self.max_lengths = self.numbers[stay], self.max_lengths[stay]

    def _send(self, values: np.ndarray) -> Tensor:
        """Copy `values` to the device of the decoder without blocking."""
        return torch.from_numpy(values).to(self.decoder.device, non_blocking=True)

    def _most_likely(self, output: Scores) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-probabilities and ids (N, C) of the most likely tokens of each row, without a constraint.

        output: of the decoder's step.
        """
        banned, min_tokens = self.request.banned, self.request.search.min_tokens
        if self.ages[-1] >= min_tokens:  # of the youngest sentence
            values, ids = self.best(output, self.n_candidates, banned)
            return values.numpy(), ids.numpy()
        values, ids = self.best(output, self.n_candidates, [*banned, self.request.eos])
        if self.ages[0] >= min_tokens:
            is_young = self._is_young()[:, None]
            of_old_rows = self.best(output, self.n_candidates, banned)
            values, ids = values.where(is_young, of_old_rows[0]), ids.where(is_young, of_old_rows[1])
        return values.numpy(), ids.numpy()

    def _is_young(self) -> Tensor:
        """Return in which of the N rows EOS must not come next."""
        is_young, n_old = self.ages < self.request.search.min_tokens, len(self) - self.n_new
        return torch.from_numpy(np.append(is_young[:n_old].repeat(self.width), is_young[n_old:]))

    def _is_live(self) -> list[bool]:
        """Return which of the N rows have a hypothesis."""
        return [True] * len(self.last_ids)


class Greedy(Rows[State]):
    """The most likely token at every step, of equals the lowest id, until it is EOS: one row of each sentence.

    A sentence writes its tokens to its own column, at each step one. So nothing moves when others end, and its output
    is one slice.
    """

    candidates = 1

    def _clear(self) -> None:
        super()._clear()
        self.columns = np.zeros(0, dtype=np.int64)  # (B,) of each sentence
        self.ids = np.empty((0, 0), dtype=np.int64)  # (steps, columns)
        self.values = np.empty((0, 0))
        self.n_steps = 0  # that are written
        self.n_overruled = np.zeros(0, dtype=np.int64)  # (columns,) see `Hypothesis`

    def admit(self, state: State, request: Request, n_best: Sequence[int]) -> range:
        """Admit sentences; see `Rows`. The columns get room for all steps until the last sentence is cut."""
        numbers = super().admit(state, request, n_best)
        if numbers:
            n, n_before = len(self), len(self.columns)
            oldest = int(self.ages[0])
            n_steps = oldest + int((self.max_lengths - self.ages).max())
            ids = np.empty((n_steps, n), np.int64)
            values = np.empty((n_steps, n))
            n_overruled = np.zeros(n, np.int64)
            for new, old in (ids, self.ids), (values, self.values):
                new[:oldest, :n_before] = old[self.n_steps - oldest : self.n_steps, self.columns]
            n_overruled[:n_before] = self.n_overruled[self.columns]
            self.ids, self.values = ids, values
            self.n_overruled = n_overruled
            self.columns, self.n_steps = np.arange(n), oldest
        return numbers

    def _extend(self, tokens: BestTokens) -> dict[int, SentenceOutcome]:
        if tokens.overruled is not None:
            self.n_overruled[self.columns] += tokens.overruled
        values, ids = tokens.values[:, 0], tokens.ids[:, 0]
        self.ages, self.n_new = self.ages + 1, 0
        self.values[self.n_steps, self.columns], self.ids[self.n_steps, self.columns] = values, ids
        self.n_steps += 1
        is_broken = ~np.isfinite(values)
        is_done = (ids == self.request.eos) | (self.ages == self.max_lengths) | is_broken
        stay, outcomes = (~is_done).nonzero()[0], dict[int, SentenceOutcome]()
        if len(stay) < len(self):
            outcomes, ids = self._outcomes(is_done.nonzero()[0], is_broken), ids[stay]
        if self.constraint is not None:
            self.constraint = self.constraint.select(stay.tolist()).advance(ids.tolist())
        self._keep(stay, stay, self._send(ids), self.ages[stay])
        return outcomes

    def _keep(self, stay: np.ndarray, rows: np.ndarray, last_ids: Tensor, ages: np.ndarray) -> None:
        columns = self.columns[stay]
        super()._keep(stay, rows, last_ids, ages)
        if len(self):
            self.columns = columns

    def _outcomes(self, done: np.ndarray, is_broken: np.ndarray) -> dict[int, SentenceOutcome]:
        """Return the outputs of the sentences `done`, by number."""
        outcomes, columns = dict[int, SentenceOutcome](), self.columns[done]
        of_done = self.numbers[done], self.ages[done], columns, self.n_overruled[columns], is_broken[done]
        for number, length, column, n_overruled, fails in zip(*(x.tolist() for x in of_done), strict=True):
            steps = slice(self.n_steps - length, self.n_steps)
            if fails:
                outcomes[number] = no_continuation(length - 1)
            else:
                path = self.ids[steps, column].tolist(), self.values[steps, column].tolist()
                outcomes[number] = [hypothesis_of(*path, self.request.eos, self.penalties, n_overruled)]
        return outcomes
