"""Vocabulary shortlists: the target pieces that the output of a sentence may have. Without torch.

A product with all rows of the output matrix takes a third of a search at 32,000 pieces, and a translation has pieces
that its source suggests. A shortlist names them: the commonest of all, and the most likely ones of each source piece.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from transduce.data.vocabulary import CONTROLS, PAD
from transduce.errors import UserError


@dataclass(frozen=True)
class Shortlist:
    """The pieces that outputs may have, learned from a training text (`learning`).

    common: (N,) int32, ascending: the ids that every output may have, with the control ids.
    candidates: (S, C) int32: the ids of outputs whose source has piece s; PAD where there are fewer.
    """

    common: np.ndarray
    candidates: np.ndarray

    def own(self, source: Sequence[int], needed: Collection[int] = ()) -> np.ndarray:
        """Return the ids, ascending, that outputs of `source` may have beyond the common ones, int64.

        source: ids without EOS. needed: other ids that the output must be able to have, such as the ids of its prefix.
        """
        is_own = np.zeros(max(self._n_ids, 1 + max(needed, default=0)), dtype=bool)  # a sort takes 4 times as long
        is_own[self.candidates[np.array(source, dtype=np.int64)]] = True
        is_own[[*needed]] = True
        is_own[self.common] = False
        return is_own.nonzero()[0]

    @cached_property
    def _n_ids(self) -> int:
        return 1 + int(max(self.common[-1], self.candidates.max(initial=PAD)))

    def check(self, n_source: int, n_target: int, where: object) -> None:
        """Raise UserError unless this is a shortlist for vocabularies of these sizes. where: for the message."""
        problem = self._problem(n_source, n_target)
        if problem:
            remedy = "learn it again with transduce shortlist"
            raise UserError(f"{where}: expected a shortlist of this model ({problem}); {remedy}")

    def _problem(self, n_source: int, n_target: int) -> str:
        """Return what is wrong; "" for nothing."""
        common, candidates = self.common, self.candidates
        if common.ndim != 1 or candidates.ndim != 2 or len(candidates) != n_source:
            return f"its shapes are {common.shape} and {candidates.shape}, for {n_source} source pieces"
        if len(common) < len(CONTROLS) or common[: len(CONTROLS)].tolist() != [*range(len(CONTROLS))]:
            return "its common pieces do not begin with the control ids"
        if (np.diff(common) <= 0).any():
            return "its common pieces do not ascend"
        if max(common[-1], candidates.max(initial=PAD)) >= n_target or candidates.min(initial=PAD) < PAD:
            return f"it has ids that are not below {n_target}, the number of target pieces"
        return ""
