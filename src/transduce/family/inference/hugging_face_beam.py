"""Beam search by the rules of `generate` of Hugging Face transformers, for the members of the family that write text.

A public model then gives the ids that its users know from there. Translation keeps the rules of `search.beam_search`.
Letters as in `decoding/rows.py`; M candidates of a sentence.
"""

import numpy as np

from transduce.decoding.beam import Beam
from transduce.decoding.decoder import Decoder, State
from transduce.decoding.extensions import Extensions
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.phrases.bank_allocation import WantedTokens
from transduce.decoding.request import Request
from transduce.decoding.search import greedy, search_rows
from transduce.errors import UserError


class HuggingFaceBeam(Beam[State]):
    """A running beam search without a constraint. `best_outputs` describes its rules."""

    def __init__(self, decoder: Decoder[State], request: Request, n_ends: int) -> None:
        super().__init__(decoder, request)
        self.n_candidates = max(2, 1 + n_ends) * self.width  # a hypothesis can end in n_ends ways: K others remain

    def _extend(
        self, values: np.ndarray, ids: np.ndarray, lengths: np.ndarray, wanted: WantedTokens | None
    ) -> tuple[Extensions, np.ndarray]:
        """Return the extensions (B, K) that stay in the beam, and which sentences end (B,); see `Beam`."""
        candidates, penalties = self._candidates(values, ids), self.penalties[lengths]
        beam = candidates.unfinished(self.request.eos, self.width)
        best = Extensions(*(column[:, : self.width] for column in candidates))
        is_last = self.max_lengths == lengths
        is_over = (best.ids == self.request.eos) | is_last[:, None]
        self._compete(best, best.scores / penalties[:, None], is_over)
        return beam, is_last | ~(beam.scores[:, 0] / penalties > self.worst)


def best_outputs(decoder: Decoder[State], state: State, request: Request, *, n_ends: int = 1) -> list[Hypothesis]:
    """Return the best output for each sentence, as `generate` finds it with its default `early_stopping=False`.

    The rules differ from `search.beam_search` in four points:
    - Only the K most likely extensions of a step may end. The M candidates only serve to fill the beam again.
    - At the maximum length the K most likely extensions compete by their scores with the hypotheses that ended before,
      whether they end or are cut.
    - The pool of a sentence has K places, although one output is returned.
    - The search of a sentence stops when its pool is full and the best live hypothesis, scored at its present length,
      is not better than the worst in the pool. With a length penalty, a longer one could still have won.

    `length_penalty="power"` is the penalty of transformers. A beam of one is greedy search. The request has no
    constraint. n_ends: ids that end an output. `Decoder.best` gives each of them the id request.eos, so a row may have
    it several times among its best tokens: transformers counts each as a separate extension. Raises UserError for
    search.lookahead, which would be another stop rule, and FloatingPointError as `greedy` does.
    """
    if request.search.lookahead is not None:
        expected = "expected None, as the search of the family has its own stop rule; leave it out"
        raise UserError(f"search.lookahead={request.search.lookahead}: {expected}")
    if request.search.beam_size == 1:
        return greedy(decoder, state, request)
    beam = HuggingFaceBeam(decoder, request, n_ends)
    return [best for best, *_ in search_rows(beam, state, request, n_best=request.search.beam_size)]
