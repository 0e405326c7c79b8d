"""Greedy search of sentences that come and go: one row of each, and no choice to remember. Letters as in `rows`."""

from collections.abc import Sequence

import numpy as np
import torch

from transduce.decoding.decoder import State, send
from transduce.decoding.request import Request, hypothesis_of, no_continuation
from transduce.decoding.rows import Outcome, Rows


class Greedy(Rows[State]):
    """The most likely token at every step, of equals the lowest id, until it is EOS.

    A sentence writes its tokens to a column of its own, at each step one. So nothing moves when others end, and its
    output is one slice.
    """

    def _clear(self) -> None:
        super()._clear()
        self.columns = np.zeros(0, dtype=np.int64)  # (B,) of each sentence
        self.ids, self.values = np.empty((0, 0), dtype=np.int64), np.empty((0, 0))  # (steps, columns)
        self.n_steps = 0  # that are written
        self.n_overruled = np.zeros(0, dtype=np.int64)  # (columns,) see `Hypothesis`

    def admit(self, state: State, request: Request, n_best: Sequence[int]) -> range:
        """Take sentences in; see `Rows`. The columns get room for all steps until the last sentence is cut."""
        numbers = super().admit(state, request, n_best)
        if numbers:
            n, n_before, oldest = len(self), len(self.columns), int(self.ages[0])
            n_steps = oldest + int((self.max_lengths - self.ages).max())
            ids, values, n_overruled = np.empty((n_steps, n), np.int64), np.empty((n_steps, n)), np.zeros(n, np.int64)
            for new, old in (ids, self.ids), (values, self.values):
                new[:oldest, :n_before] = old[self.n_steps - oldest : self.n_steps, self.columns]
            n_overruled[:n_before] = self.n_overruled[self.columns]
            self.ids, self.values, self.n_overruled = ids, values, n_overruled
            self.columns, self.n_steps = np.arange(n), oldest
        return numbers

    def step(self) -> dict[int, Outcome]:
        """Make every output one token longer; see `Rows`."""
        assert self.state is not None
        output, state = self.decoder.step(self.last_ids, self.state)
        best_tokens = self._most_likely(output, 1)
        if self.constraint is not None:
            overruled = self._restrict(output, self.constraint.allowed(), *best_tokens)
            if overruled is not None:
                self.n_overruled[self.columns] += overruled
        values, ids = (of_rows.numpy()[:, 0] for of_rows in best_tokens)
        self.state, self.ages, self.n_new = state, self.ages + 1, 0
        self.values[self.n_steps, self.columns], self.ids[self.n_steps, self.columns] = values, ids
        self.n_steps += 1
        is_broken = ~np.isfinite(values)
        is_done = (ids == self.request.eos) | (self.ages == self.max_lengths) | is_broken
        stay, outcomes = (~is_done).nonzero()[0], dict[int, Outcome]()
        if len(stay) < len(self):
            outcomes, ids = self._outcomes(is_done.nonzero()[0], is_broken), ids[stay]
        if self.constraint is not None:
            self.constraint = self.constraint.select(stay.tolist()).advance(ids.tolist())
        self._keep(stay, stay, send(torch.from_numpy(ids), self.decoder.device), self.ages[stay])
        return outcomes

    def _keep(self, stay: np.ndarray, rows: np.ndarray, last_ids: torch.Tensor, ages: np.ndarray) -> None:
        columns = self.columns[stay]
        super()._keep(stay, rows, last_ids, ages)
        if len(self):
            self.columns = columns

    def _outcomes(self, done: np.ndarray, is_broken: np.ndarray) -> dict[int, Outcome]:
        """Return the outputs of the sentences `done`, by number."""
        outcomes, columns = dict[int, Outcome](), self.columns[done]
        of_done = self.numbers[done], self.ages[done], columns, self.n_overruled[columns], is_broken[done]
        for number, length, column, n_overruled, fails in zip(*(x.tolist() for x in of_done), strict=True):
            steps = slice(self.n_steps - length, self.n_steps)
            if fails:
                outcomes[number] = no_continuation(length - 1)
            else:
                path = self.ids[steps, column].tolist(), self.values[steps, column].tolist()
                outcomes[number] = [hypothesis_of(*path, self.request.eos, self.penalties, n_overruled)]
        return outcomes
