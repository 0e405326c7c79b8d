"""What a search is asked for and what it gives: hypotheses, their scores, how to sample. Without torch."""

import math
from dataclasses import dataclass

from transduce.errors import UserError


@dataclass(frozen=True)
class Hypothesis:
    """An output sentence."""

    ids: list[int]  # with its prefix; without BOS and EOS
    score: float  # log_prob / penalty(length): what hypotheses are ranked by
    log_prob: float  # of the whole, under the model itself: nothing banned, no temperature
    token_log_probs: list[float]  # of each of `ids` and, if finished, of EOS; their sum is log_prob
    finished: bool  # ended by EOS; False: cut at its maximum length


@dataclass(frozen=True)
class Sampling:
    """How to draw: temperature first, then the top_k likeliest, then the fewest of those that hold the mass top_p."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UserError(f"temperature is {self.temperature}; it must be above 0 (greedy takes the likeliest token)")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k is {self.top_k}; it must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it must be above 0 and at most 1")


# ---- length penalties --------------------------------------------------------------------------------------------


def gnmt_penalty(length: int, alpha: float) -> float:
    """((5 + |Y|) / 6)^alpha, the penalty of Wu et al. 2016 that section 6.1 cites; |Y| counts EOS."""
    return ((5 + length) / 6) ** alpha


def power_penalty(length: int, alpha: float) -> float:
    """|Y|^alpha: with alpha = 1 the score is the mean log-probability of a token."""
    return float(length) ** alpha


def no_penalty(length: int, alpha: float) -> float:
    """1: the score is the log-probability."""
    return 1.0


LENGTH_PENALTIES = {"gnmt": gnmt_penalty, "power": power_penalty, "none": no_penalty}
