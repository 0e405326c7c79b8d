"""Hypotheses, which a search returns, and the length penalties of their scores. Without torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """An output sentence."""

    ids: list[int]  # with its prefix; without BOS and EOS
    score: float  # log_prob / penalty(length): what hypotheses are ranked by
    log_prob: float  # of the whole, under the model itself: nothing banned, no temperature
    token_log_probs: list[float]  # of each of `ids` and, if finished, of EOS; their sum is log_prob
    finished: bool  # ended by EOS; False: cut at its maximum length


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
