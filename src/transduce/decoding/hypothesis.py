"""Results: hypotheses, translations, scores, attention weights, and the length penalties of scores. Without torch."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class AlignedWord:
    """A word of a translation, and the word of the source line that it comes from.

    start, source_start: the places of the words in the translation and in the line, in characters.
    """

    word: str
    start: int
    source: str
    source_start: int

    @property
    def end(self) -> int:
        """The place after the word in the translation."""
        return self.start + len(self.word)

    @property
    def source_end(self) -> int:
        """The place after the source word in the line."""
        return self.source_start + len(self.source)


Alignment = tuple[AlignedWord, ...]  # in the order of the translation


@dataclass(frozen=True)
class Hypothesis:
    """An output sentence of a search."""

    ids: list[int]  # with its prefix; without BOS and EOS
    score: float  # log_prob / penalty(length), by which the search ranks hypotheses
    log_prob: float  # of the whole, under the model alone: without bans and without a temperature
    token_log_probs: list[float]  # of each of `ids` and, if finished, of EOS; their sum is log_prob
    finished: bool  # ended by EOS; False: cut at its maximum length
    utility: float | None = None  # of minimum Bayes risk (`mbr.rank`)
    n_overruled: int = 0  # tokens at which the constraint of a beam search excluded the most likely one
    alignment: Alignment | None = None  # of the words of its text
    early_cost: float = 0.0  # > 0: it ended where the model would continue, and ranks as if `score` were so much lower


@dataclass(frozen=True)
class Translation:
    """One output line.

    score: log-probability over length penalty, by which the search ranks outputs; the sum over the segments of a line
    that was split. pieces, token_log_probs: the tokens and the log-probability of each, EOS included.
    finished: False if the output was cut at its maximum length. problem: the reason for no translation, or None.
    alternatives: the other outputs of an n-best list, best first.
    utility: of minimum Bayes risk (`mbr`), which ranks outputs by it: the mean score against all candidates, 0 to 100;
    the mean over the segments of a line that was split. None without minimum Bayes risk.
    alignment: the source word of each word of the text; None if it was not asked for, or is unknown (a blank line).
    unmet: phrases of `must` that are not in the text as whole words, as often as they are missing; those of `must_not`
    that are in it. Each alternative has its own.
    """

    text: str
    score: float = 0.0
    pieces: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    finished: bool = True
    problem: str | None = None
    alternatives: tuple["Translation", ...] = ()
    utility: float | None = None
    alignment: Alignment | None = None
    unmet: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scored:
    """The score of a given translation under the model: its log-probability in nats, EOS included, and each token's."""

    log_prob: float
    pieces: tuple[str, ...]
    token_log_probs: tuple[float, ...]


@dataclass(frozen=True)
class Attended:
    """Every attention weight of one sentence pair: L layers, H heads, S source and T target tokens.

    encoder (L,H,S,S), decoder (L,H,T,T), cross (L,H,T,S); row t of the target is the step that writes tgt_pieces[t].
    log_probs (T,): the log-probability of each target token, in nats, EOS included.
    The rivals of Table 2 attend to the source alone: encoder and decoder then have no layers.
    """

    src_pieces: tuple[str, ...]
    tgt_pieces: tuple[str, ...]
    encoder: "np.ndarray"
    decoder: "np.ndarray"
    cross: "np.ndarray"
    log_probs: "np.ndarray"


# ---- length penalties --------------------------------------------------------------------------------------------


def gnmt_penalty(length: int, alpha: float) -> float:
    """Return ((5 + |Y|) / 6)^alpha, the penalty of Wu et al. 2016 that section 6.1 cites; |Y| counts EOS."""
    return ((5 + length) / 6) ** alpha


def power_penalty(length: int, alpha: float) -> float:
    """Return |Y|^alpha. With alpha = 1 the score is the mean log-probability of a token."""
    return float(length) ** alpha


def no_penalty(length: int, alpha: float) -> float:
    """Return 1: the score is the log-probability."""
    return 1.0


LENGTH_PENALTIES = {"gnmt": gnmt_penalty, "power": power_penalty, "none": no_penalty}


@functools.lru_cache(maxsize=32)
def penalty_table(name: str, alpha: float, longest: int) -> Sequence[float]:
    """Return the penalty called `name` of the lengths 1 to `longest`, by length. Length 0 has none: NaN."""
    penalty = LENGTH_PENALTIES[name]
    return [math.nan, *(penalty(length, alpha) for length in range(1, longest + 1))]
