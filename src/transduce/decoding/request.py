"""The settings of a search for its sentences: a `Request`, and the figures that every search computes from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from transduce.config.schema import SearchConfig
from transduce.decoding.constraint import Constraint
from transduce.decoding.hypothesis import Hypothesis, penalty_table
from transduce.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Request:
    """The outputs that a search must return. Raises UserError for a request that no search can meet."""

    search: SearchConfig
    max_lengths: Sequence[int]  # of each sentence: most tokens of its output, EOS counted; a longer one is cut
    bos: int
    eos: int
    banned: Sequence[int] = ()  # ids never produced (PAD, BOS, UNK) unless the constraint allows them
    constraint: Constraint | None = None  # one row for each sentence

    def __post_init__(self) -> None:
        if self.eos in self.banned:
            raise UserError(
                f"banned={self.banned}: expected no EOS (id {self.eos}), or no output could end; use search.min_tokens"
            )
        if min(self.max_lengths, default=1) < 1:
            raise UserError(f"max_lengths={self.max_lengths}: expected at least 1 for each sentence")

    @cached_property
    def penalties(self) -> np.ndarray:
        """The divisor of the log-probability of a hypothesis, by its length in tokens."""
        longest = max(self.max_lengths, default=1)
        return np.array(penalty_table(self.search.length_penalty, self.search.alpha, 1 << longest.bit_length()))

    def barred(self, length: int) -> list[int]:
        """Return the ids that may not follow `length` tokens."""
        return [*self.banned, self.eos] if length < self.search.min_tokens else [*self.banned]


def best_attainable(log_prob: Any, length: Any, max_length: Any, lookahead: int | None, penalties: np.ndarray) -> Any:
    """Return the highest score that an unfinished hypothesis of `length` tokens and `log_prob` can still reach.

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
