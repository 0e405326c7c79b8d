"""Extensions: the candidates of a step of beam search, and the hypotheses that stay in the beam. Without torch."""

import math
from typing import NamedTuple

import numpy as np


class Extensions(NamedTuple):
    """M extensions by one token for each sentence, the best first; all (B, M)."""

    scores: np.ndarray  # float64, log-probability of the whole hypothesis; -inf: no hypothesis
    rows: np.ndarray  # int64, which row of the last step it extends
    ids: np.ndarray  # int64, by which token
    values: np.ndarray  # at which log-probability

    def take(self, columns: np.ndarray) -> "Extensions":
        """Return the extensions in `columns` (B, M') of each sentence."""
        places = columns + np.arange(0, self.scores.size, self.scores.shape[1])[:, None]
        return Extensions(*(x.take(places) for x in self))

    def unfinished(self, eos: int, count: int) -> "Extensions":
        """Return the best `count` that do not end."""
        ended = self.ids == eos
        others = self._replace(scores=np.where(ended, -math.inf, self.scores))
        return others.take(ended.argsort(axis=1, kind="stable")[:, :count])

    def of(self, sentences: np.ndarray) -> "Extensions":
        """Return the extensions of `sentences`."""
        return Extensions(*(x[sentences] for x in self))

    def replaced(self, sentences: np.ndarray, others: "Extensions") -> "Extensions":
        """Return these extensions with `others`, at least as many of each, in place of those of `sentences`."""
        n_missing = others.scores.shape[1] - self.scores.shape[1]
        columns = [np.pad(x, ((0, 0), (0, n_missing))) for x in self]
        columns[0][:, self.scores.shape[1] :] = -math.inf
        for column, other in zip(columns, others, strict=True):
            column[sentences] = other
        return Extensions(*columns)
