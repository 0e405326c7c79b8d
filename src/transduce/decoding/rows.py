"""The rows of sentences that come and go: what greedy and beam search share. A step makes every row one token longer.

In between two steps the search takes sentences in. So its sentences have different ages: the age of a sentence is its
number of tokens so far. Where the decoder cannot `join` states, a search takes newcomers only while it is empty, and
all its sentences have the same age.

The bookkeeping is in numpy, in float64: a call takes a third of the time of torch's. The decoder's device computes
`step`, `select` and the best few tokens of each row. The search waits for it once in a step: for these tokens.

Letters: B sentences, the oldest first, K rows of each, the best first, but one row of each newcomer; N rows of all;
V vocabulary, C best tokens of a row, the most likely ones.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Generic

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.decoding.constraint import Constraint, joined
from transduce.decoding.decoder import Decoder, State, fetch, most_likely, restricted, send
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.request import Request

Outcome = list[Hypothesis] | FloatingPointError  # of one sentence: the n_best outputs, best first


class Rows(ABC, Generic[State]):
    """The sentences of a search, with the state of the decoder. To be used in `torch.inference_mode`.

    request: the settings of all sentences; its `max_lengths` and `constraint` are not used.
    """

    def __init__(self, decoder: Decoder[State], request: Request) -> None:
        self.decoder, self.request, self.penalties = decoder, request, request.penalties
        self.width = request.search.beam_size  # K
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

    @property
    def takes_newcomers(self) -> bool:
        """True if `admit` is possible now."""
        return self.state is None or self.decoder.join is not None

    def admit(self, state: State, request: Request, n_best: Sequence[int]) -> range:
        """Take sentences in, one row of `state` for each, and return their numbers: as many as came before, and so on.

        request: with the settings of the search. n_best: of each sentence, at most the size of the beam.
        """
        n, n_before = len(n_best), len(self.last_ids)
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
        self._keep(stay, rows, self.last_ids[send(torch.from_numpy(rows), self.decoder.device)], self.ages[stay])

    @abstractmethod
    def step(self) -> dict[int, Outcome]:
        """Make every row one token longer; return the sentences that end here, by number.

        A sentence ends with FloatingPointError where the model gives NaN, or probability zero to all tokens that may
        come next. An error of the decoder, such as memory that runs out, leaves the search as it was.
        """
        ...

    def _keep(self, stay: np.ndarray, rows: np.ndarray, last_ids: Tensor, ages: np.ndarray) -> None:
        """Keep `rows` of the last step, those of the sentences `stay`."""
        if not len(stay):
            self._clear()
            return
        assert self.state is not None
        self.last_ids, self.ages, n_before = last_ids, ages, len(self)
        if len(rows) > n_before or len(stay) < n_before:  # else the rows are the same ones
            self.state = self.state.select(*(send(torch.from_numpy(x), self.decoder.device) for x in (rows, stay)))
        if len(stay) < n_before:
            self.numbers, self.max_lengths = self.numbers[stay], self.max_lengths[stay]

    # ---- the tokens that may come next ---------------------------------------------------------------------------

    def _most_likely(self, output: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and ids (N, size) of the most likely tokens of each row, without a constraint.

        output: of the decoder's step.
        """
        youngest, oldest, min_tokens = int(self.ages[-1]), int(self.ages[0]), self.request.search.min_tokens
        values, ids = self._most_likely_after(output, size, oldest)
        if youngest < min_tokens <= oldest:
            is_young = self._is_young()
            values[is_young], ids[is_young] = (x[is_young] for x in self._most_likely_after(output, size, 0))
        return values, ids

    def _most_likely_after(self, output: Tensor, size: int, length: int) -> tuple[Tensor, Tensor]:
        """Return the best tokens (N, size) that may follow `length` tokens."""
        return wide(*fetch(*self.decoder.most_likely(output, size, self.request.barred(length))), size)

    def _restrict(
        self, output: Tensor, allowed: Mapping[int, Sequence[int]], values: Tensor, ids: Tensor
    ) -> np.ndarray | None:
        """Replace the best tokens (N, C) of some rows with those of the `allowed` ones.

        Return in which rows (N,) the most likely token changes, or None if no row is restricted.
        """
        if not allowed:
            return None
        rows, log_probs = restricted(self.decoder, output, allowed)
        log_probs[self._is_young()[rows], self.request.eos] = -math.inf
        size, first = ids.size(1), ids[:, 0].clone()
        values[rows], ids[rows] = wide(*fetch(*most_likely(log_probs, size)), size)
        return (first != ids[:, 0]).numpy()

    def _is_young(self) -> Tensor:
        """Return in which of the N rows EOS must not come next."""
        is_young, n_old = self.ages < self.request.search.min_tokens, len(self) - self.n_new
        return torch.from_numpy(np.append(is_young[:n_old].repeat(self.width), is_young[n_old:]))


def wide(values: Tensor, ids: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Pad best tokens (N, C) to (N, size) with -inf. C is less only if the vocabulary has fewer than `size` tokens."""
    n_missing = size - values.size(1)
    return (F.pad(values, (0, n_missing), value=-math.inf), F.pad(ids, (0, n_missing))) if n_missing else (values, ids)
