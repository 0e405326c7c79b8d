"""Beam search by the rules of `generate` of Hugging Face transformers, for the members of the family that write text.

A public model then gives the ids that its users know from there. Translation keeps the rules of `search.beam_search`.
Letters as in `decoding/rows.py`; M candidates of a sentence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from transduce.config.schema import SearchConfig
from transduce.decoding.allowed_tokens import BestTokens
from transduce.decoding.batched_search import SearchBackend, sample_all, search_all
from transduce.decoding.beam import Beam
from transduce.decoding.decoder import Decoder, State
from transduce.decoding.hypothesis import Extensions, Hypothesis, Request
from transduce.decoding.options import Sampling
from transduce.decoding.rows import Greedy, Rows
from transduce.errors import UserError


class HuggingFaceBeam(Beam[State]):
    """A running beam search without a constraint. `hugging_face_beam` describes its rules."""

    def __init__(self, decoder: Decoder[State], request: Request) -> None:
        super().__init__(decoder, request)
        n_ends = 1 + len(request.other_ends)
        self.n_candidates = (n_ends + 1) * self.width  # a hypothesis can end in n_ends ways, so K others remain

    def admit(self, state: State, request: Request, n_best: Sequence[int]) -> range:
        """Admit sentences; see `Rows`. Each returns K outputs, best first, whatever its `n_best` is."""
        return super().admit(state, request, [self.width] * len(n_best))

    def _choose(self, tokens: BestTokens, lengths: np.ndarray) -> tuple[Extensions, np.ndarray]:
        candidates, penalties = self._candidates(tokens.values, tokens.ids), self.penalties[lengths]
        beam = candidates.unfinished(self.request.eos, self.width)
        best = Extensions(*(field[:, : self.width] for field in candidates))
        is_last = self.max_lengths == lengths
        is_over = (best.ids == self.request.eos) | is_last[:, None]
        self._compete(best, best.scores / penalties[:, None], is_over)
        return beam, is_last | ~(beam.scores[:, 0] / penalties > self.worst)


def hugging_face_beam(decoder: Decoder[State], request: Request) -> Rows[State]:
    """Return the empty rows of a search whose best output is what `generate` finds with `early_stopping=False`.

    The rules differ from `search.beam_search` in four points:
    - Only the K most likely extensions of a step may end. The M candidates only serve to fill the beam again.
    - At the maximum length the K most likely extensions compete by their scores with the hypotheses that ended before,
      whether they end or are cut.
    - The pool of a sentence has K places, although one output is returned.
    - The search of a sentence stops when its pool is full and the best live hypothesis, scored at its present length,
      is not better than the worst in the pool. With a length penalty, a longer one could still have won.

    `length_penalty="power"` is the penalty of transformers. A beam of one is greedy search. The request has no
    constraint. `Decoder.best` gives each of request.other_ends the id request.eos, so a row may have it several times
    among its best tokens: transformers counts each as a separate extension.
    Raises UserError for search.lookahead, which would be another stop rule.
    """
    if request.search.lookahead is not None:
        expected = "expected None, as the search of the family has its own stop rule; leave it out"
        raise UserError(f"search.lookahead={request.search.lookahead}: {expected}")
    return Greedy(decoder, request) if request.search.beam_size == 1 else HuggingFaceBeam(decoder, request)


def search_or_sample(
    backend: SearchBackend[Any],
    sources: Sequence[Sequence[int]],
    settings: SearchConfig,
    sampling: Sampling | None,
    seeds: Sequence[int],
) -> list[Hypothesis]:
    """Return the best output for each source, or a sample with a seed for each. sampling: None searches."""
    if sampling is None:
        outputs = search_all(backend, sources, settings)
    else:
        outputs = sample_all(backend, sources, settings, sampling=sampling, seeds=[[seed] for seed in seeds])
    return [best for best, *_ in outputs]
