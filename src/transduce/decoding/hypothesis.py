"""What a search is asked for, and what it returns: requests, hypotheses, translations, scores. Without torch."""

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from transduce.config.schema import SearchConfig
from transduce.decoding.constraint import Constraint
from transduce.errors import UserError

# ---- results -----------------------------------------------------------------------------------------------------


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
    log_prob: float  # of the whole, under the model: without bans and without a temperature
    token_log_probs: list[float]  # of each of `ids` and, if finished, of EOS; their sum is log_prob
    finished: bool  # ended by EOS; False: cut at its maximum length
    utility: float | None = None  # of minimum Bayes risk (`mbr.rank`)
    n_overruled: int = 0  # tokens at which the constraint of a beam search excluded the most likely one
    alignment: Alignment | None = None  # of the words of its text
    early_cost: float = 0.0  # > 0: it ended where the model would continue, and ranks as if `score` were so much lower
    is_loop: bool = False  # the first search repeated the same tokens (see `translations.without_loops`)


Outputs = list[list[Hypothesis]]  # for each source, best first


@dataclass(frozen=True)
class Translation:
    """The translation of a line, or of a text with line breaks, which it keeps.

    score: log-probability over length penalty, by which the search ranks outputs; the sum over the segments of a line
    that was split. pieces, token_log_probs: the tokens and the log-probability of each, EOS included.
    finished: False if the output was cut at its maximum length. problem: the reason for no translation, or None.
    is_unsplit: True if several sentences were translated as one, because of `must` or `prefix`; some may be missing.
    is_short: True if the output of a segment is empty, or that of one of 12 pieces or more has less than three tenths
    as many.
    is_loop: True if the search repeated the same words, so that the text is of a second search without repetition, or
    is a loop (`options.loops`).
    alternatives: the other outputs of an n-best list, best first.
    utility: of minimum Bayes risk (`mbr`), which ranks outputs by it: the mean score against all candidates, 0 to 100;
    the mean over the segments of a line that was split. None without minimum Bayes risk.
    alignment: the source word of each word of the text; None if it was not asked for, or is unknown (a blank line).
    unmet: phrases of `must` that are not in the text as whole words, as often as they are missing; phrases of
    `must_not` that are in it. Each alternative has its own.
    confidence: the probability that the text is good, by the calibration in the model folder (`decoding.confidence`);
    None without one, for several models, and for text that is copied.
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
    is_loop: bool = False
    is_unsplit: bool = False
    is_short: bool = False
    confidence: float | None = None

    @property
    def doubts(self) -> list[str]:
        """The reasons to doubt the text: repeated words, the maximum length, several sentences as one, few words."""
        reasons = {
            "repeated": self.is_loop,
            "cut": not self.finished,
            "unsplit": self.is_unsplit,
            "short": self.is_short,
        }
        return [reason for reason, holds in reasons.items() if holds]

    @property
    def line(self) -> str:
        """The text as one line: a space replaces each line break of the source."""
        return re.sub(r"[\r\n]", " ", self.text)


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
    The rivals of Table 2 attend only to the source: encoder and decoder then have no layers.
    """

    src_pieces: tuple[str, ...]
    tgt_pieces: tuple[str, ...]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    log_probs: np.ndarray


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


# ---- requests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Request:
    """The outputs that a search must return. Raises UserError for a request that no search can meet."""

    search: SearchConfig
    max_lengths: Sequence[int]  # of each sentence: most tokens of its output, EOS counted; a longer one is cut
    bos: int
    eos: int
    banned: Sequence[int] = ()  # ids never produced (PAD, BOS, UNK) unless the constraint allows them
    other_ends: Sequence[int] = ()  # more ids that end an output as `eos` does, each with its own probability
    constraint: Constraint | None = None  # one row for each sentence

    def __post_init__(self) -> None:
        if self.eos in self.banned:
            raise UserError(
                f"banned={self.banned}: expected no EOS (id {self.eos}), or no output could end; use search.min_tokens"
            )
        if min(self.max_lengths, default=1) < 1:
            raise UserError(f"max_lengths={self.max_lengths}: expected at least 1 for each sentence")

    @property
    def avoids_repetition(self) -> bool:
        """True if the search bars repeated tokens or makes them less likely (`repetition`)."""
        return self.search.no_repeat_ngram > 0 or self.search.repetition_penalty != 1

    @property
    def is_plain(self) -> bool:
        """True for a request without a constraint and a repetition penalty, which `Decoder.search` can meet."""
        return self.constraint is None and self.search.repetition_penalty == 1

    @cached_property
    def penalties(self) -> np.ndarray:
        """The divisor of the log-probability of a hypothesis, by its length in tokens."""
        longest = max(self.max_lengths, default=1)
        return np.array(penalty_table(self.search.length_penalty, self.search.alpha, 1 << longest.bit_length()))


def best_attainable(
    log_prob: np.ndarray, length: np.ndarray, max_length: np.ndarray, lookahead: int | None, penalties: np.ndarray
) -> np.ndarray:
    """Return the highest scores that unfinished hypotheses of `length` tokens and `log_prob` can still reach, (B,).

    Its extensions have at least one token more (EOS) and at most `max_length`. Their log-probability is no higher. So
    none scores more than log_prob over the greatest penalty of those lengths. Penalties are monotonic in the length,
    rising or (alpha < 0) falling: the greatest is at one of the ends. A lookahead leaves longer extensions out.
    A model may give each of these tokens the probability 1, so no tighter bound holds for all models.
    """
    longest = max_length if lookahead is None else np.minimum(max_length, length + lookahead)
    return log_prob / np.maximum(penalties[length + 1], penalties[longest])


def hypothesis_of(
    ids: list[int], token_log_probs: list[float], eos: int, penalties: np.ndarray, n_overruled: int = 0
) -> Hypothesis:
    """Return a hypothesis from all its tokens, EOS included if it ended so."""
    finished, log_prob = ids[-1] == eos, sum(token_log_probs)
    score = log_prob / float(penalties[len(ids)])
    return Hypothesis(
        ids[:-1] if finished else ids, score, log_prob, token_log_probs, finished, n_overruled=n_overruled
    )


def no_continuation(length: int) -> FloatingPointError:
    problem = f"after {length} tokens the model gives NaN, or probability zero to every token that may come next"
    causes = "its weights are too large or not finite, or all tokens with a probability are banned"
    return FloatingPointError(f"{problem}: {causes}")


# ---- a step of beam search -------------------------------------------------------------------------------------------


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
        """Return these extensions with `others`, at least as many of each, in the places of `sentences`."""
        n_missing = others.scores.shape[1] - self.scores.shape[1]
        columns = [np.pad(x, ((0, 0), (0, n_missing))) for x in self]
        columns[0][:, self.scores.shape[1] :] = -math.inf
        for column, other in zip(columns, others, strict=True):
            column[sentences] = other
        return Extensions(*columns)
