"""Dynamic beam allocation (Post and Vilar 2018; for whole batches Hu et al. 2019): a beam for sentences with phrases.

The hypotheses with the most likely tokens would win all places of a beam, and those with required phrases none. So the
candidates of a sentence are the M most likely extensions, the most likely one of each row, and all wanted tokens. Each
candidate is in the bank of those with the same progress, and the banks share the K places:

1. the best candidate of all, and the best one of the highest bank, which makes progress at each step;
2. the best ones of the other banks, then the second ones of all banks, and so on.

With more banks than places the order within 2 decides. Two candidates of different progress are compared by what
progress costs in this sentence: by log-probability on the line from the best of all to the best of the highest bank.

A required phrase costs the same in a longer output, and the length penalty divides the cost. So without a limit the
best output would often be one that repeats itself up to its maximum length. The limit is the natural end: where the
best hypothesis would end next, but must not yet. From there the output may have the tokens of the phrases, and `SLACK`
more.

Where a phrase bars the likely tokens, every continuation costs much, and the score prefers outputs that stop there,
unfinished or even empty. So an end is early where the model gives EOS less than `LEAST_END` of the probability of its
most likely token. An output with an early end ranks as if its log-probability were lower by `EARLY_COST`. More would
let nonsense win: without a full stop, which the model is sure of, the right end is early too.

Letters as in `beam`; also D sentences with phrases, R rows of them, W wanted tokens of a row, P candidates.
"""

import math

import numpy as np

from transduce.decoding.allowed_tokens import LEAST_END, WantedTokens
from transduce.decoding.constraint import Constraint
from transduce.decoding.hypothesis import Extensions

EARLY_COST = -math.log(LEAST_END)  # 3.0
RISK_COST = 3  # in places: most hypotheses at risk lose their likely tokens in the next step


class Banks:
    """The candidates of the sentences with phrases in a step.

    sentences: (D,) by their place in the beam. limits: (D,) of the tokens that may follow the best hypothesis.
    early_rows: in which an end is early.
    candidates: (D, P), the best first; -inf where a phrase excludes one.
    """

    def __init__(
        self,
        wanted: WantedTokens,
        best_tokens: tuple[np.ndarray, np.ndarray],
        scores: np.ndarray,
        constraint: Constraint,
    ) -> None:
        """Find the candidates. best_tokens: values, ids (N, M). scores: (B', K) of the sentences that are not new."""
        width, cut = scores.shape[1], scores.size
        places = np.where(wanted.rows < cut, wanted.rows // width, wanted.rows - cut + len(scores))
        self.sentences, first_places = np.unique(places, return_index=True)
        self.limits = wanted.limits[first_places]
        self.early_rows = {*wanted.rows[wanted.is_early].tolist()}
        is_new = self.sentences >= len(scores)
        steps = np.where(is_new[:, None], 0, np.arange(width))  # a new sentence has one row
        rows = wanted.rows[first_places][:, None] + steps  # (D, K)
        before = np.where(np.arange(width) == 0, 0.0, np.full((len(rows), width), -math.inf))
        before[~is_new] = scores[self.sentences[~is_new]]
        self.candidates = _candidates(before, rows, best_tokens, wanted, first_places[:, None] + steps)
        self.is_live = self.candidates.scores > -math.inf
        live = (x[self.is_live].tolist() for x in (self.candidates.rows, self.candidates.ids))
        self.progress = np.zeros(self.is_live.shape, dtype=np.int64)
        self.n_met = np.zeros(self.is_live.shape, dtype=np.int64)
        self.is_at_risk = np.zeros(self.is_live.shape, dtype=bool)
        self.progress[self.is_live], self.n_met[self.is_live], self.is_at_risk[self.is_live], is_dead = (
            constraint.progress(*live)
        )
        self.is_live[self.is_live] = ~is_dead

    def exclude_risks(self, is_last: np.ndarray) -> None:
        """Exclude candidates with which the output must not end. is_last: of each sentence, (D,)."""
        self.is_live &= ~(self.is_at_risk & is_last[:, None])
        self.candidates.scores[~self.is_live] = -math.inf

    def share(self, eos: int, width: int) -> tuple[Extensions, np.ndarray]:
        """Return the extensions (D, K) that stay in the beam, the best first, and how many phrases each has."""
        scores = np.where(self.candidates.ids == eos, -math.inf, self.candidates.scores)
        columns = allocate(scores, self.progress, self.is_at_risk, width)
        order = np.take_along_axis(-scores, columns, 1).argsort(axis=1, kind="stable")
        columns = np.take_along_axis(columns, order, 1)
        return self.candidates._replace(scores=scores).take(columns), np.take_along_axis(self.n_met, columns, 1)


def _candidates(
    before: np.ndarray,
    rows: np.ndarray,
    best_tokens: tuple[np.ndarray, np.ndarray],
    wanted: WantedTokens,
    places: np.ndarray,
) -> Extensions:
    """Return the candidates (D, P) of sentences, the best first.

    before, rows, places: (D, K) of the hypotheses: their scores, their rows, and the places of these in `wanted`.
    """
    values = np.concatenate([best_tokens[0][rows], wanted.values[places]], axis=2)  # (D, K, M + W)
    ids = np.concatenate([best_tokens[1][rows], wanted.ids[places]], axis=2)
    count = best_tokens[0].shape[1]
    is_candidate = np.zeros(values.shape, dtype=bool)
    is_candidate[:, :, 0] = True
    for column in range(count, values.shape[2]):  # a token that is there already is not another candidate
        is_same = ids[:, :, :column] == ids[:, :, column, None]
        is_candidate[:, :, :count] |= is_same[:, :, :count]
        is_candidate[:, :, column] = ~is_same.any(axis=2)
    totals = before[:, :, None] + values
    best = (-totals[:, :, :count].reshape(len(before), -1)).argsort(axis=1, kind="stable")[:, :count]
    sentence = np.arange(len(before))[:, None]
    row, column = best // count, best % count
    is_candidate[sentence, row, column] = True
    scores = np.where(is_candidate, totals, -math.inf).reshape(len(before), -1)
    most = max(count, int((scores > -math.inf).sum(axis=1).max()))
    of_rows = np.broadcast_to(rows[:, :, None], values.shape).reshape(scores.shape)
    extensions = Extensions(scores, of_rows, ids.reshape(scores.shape), values.reshape(scores.shape))
    return extensions.take((-scores).argsort(axis=1, kind="stable")[:, :most])


def allocate(scores: np.ndarray, progress: np.ndarray, is_at_risk: np.ndarray, width: int) -> np.ndarray:
    """Return the columns (D, K) of the candidates that get the places of a beam.

    scores: (D, P) descending, but -inf for a candidate that gets no place if there are others. Those at risk are in
    banks of their own, which get one place where another bank gets `RISK_COST`.
    """
    sentence = np.arange(len(scores))
    is_open = scores > -math.inf
    banks = np.where(is_open, 2 * progress + ~is_at_risk, -1)
    order = banks.argsort(axis=1, kind="stable")
    sorted_banks, columns = np.take_along_axis(banks, order, 1), np.arange(scores.shape[1])
    is_first = np.diff(sorted_banks, axis=1, prepend=-2) != 0
    ranks = np.empty_like(order)  # the rank of each candidate in its bank
    np.put_along_axis(ranks, order, columns - np.maximum.accumulate(np.where(is_first, columns, 0), axis=1), 1)
    ranks[is_at_risk] *= RISK_COST
    ranks[~is_open] = RISK_COST * scores.shape[1]
    best, highest = is_open.argmax(axis=1), (banks == banks.max(axis=1, keepdims=True)).argmax(axis=1)
    rise = progress[sentence, highest] - progress[sentence, best]
    fall = np.where(rise > 0, scores[sentence, best], 0) - np.where(rise > 0, scores[sentence, highest], 0)
    cost = fall / np.maximum(rise, 1)  # of a token of progress
    ranks[sentence, best] = ranks[sentence, highest] = -1
    return np.lexsort((-(scores + cost[:, None] * progress), ranks), axis=1)[:, :width]
