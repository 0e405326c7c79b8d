"""T5 as a user has it: text in, another text out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.data.batches import pad
from transduce.decoding.batched_search import SearchBackend
from transduce.decoding.constraint import Constraint
from transduce.decoding.decoder import Decoder
from transduce.decoding.hypothesis import Hypothesis, Request
from transduce.decoding.options import DEFAULTS, DecodingKeywords, DecodingOptions, Sampling
from transduce.decoding.repetition import Watched, watch
from transduce.decoding.segmentation import MAX_LINE_TOKENS
from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member
from transduce.family.inference.hugging_face_beam import hugging_face_beam, search_or_sample
from transduce.family.inference.text_generator import GeneratedText, TextGenerator, ids_of
from transduce.family.t5 import T5
from transduce.model.transformer import Cache


class TextToText(TextGenerator):
    """A T5 with the tokenizer of its folder, which also adds the end to a text. Raises UserError for another member."""

    longest = MAX_LINE_TOKENS

    def __init__(self, member: Member, folder: Path | str = "the folder") -> None:
        super().__init__(member, folder)
        self.model = self.model_of(T5, "a model from text to text, T5")
        self.start, self.end = self._id("decoder_start_token_id"), self._id("eos_token_id")

    def _id(self, key: str) -> int:
        ids = ids_of(self.member, key)
        if len(ids) != 1:
            raise UserError(f"{self.folder}: {key}: expected one id of the vocabulary; use a whole folder")
        return ids[0]

    def generate(
        self, text: str, *, max_tokens: int | None = None, **keywords: Unpack[DecodingKeywords]
    ) -> GeneratedText:
        """Return the output for one text. `generate_texts` describes the arguments."""
        return self.generate_texts([text], max_tokens=max_tokens, **keywords)[0]

    def generate_texts(
        self,
        texts: Sequence[str],
        *,
        max_tokens: int | None = None,
        options: DecodingOptions = DEFAULTS,
        first_number: int = 1,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[GeneratedText]:
        """Return the output for each text. The other texts change it by rounding at most.

        max_tokens: maximum number of tokens of an output, with its end. options: a search or a draw; keywords replace
        some of them. By default both are the folder's (`generation_settings`), or greedy search for 50 tokens.
        first_number: number of the first text, on which its draw depends. A blank text has a blank output. Raises
        UserError for options that cannot be met.
        """
        return self._outputs(texts, max_tokens, options, first_number, keywords)

    def _search(
        self, ids: list[list[int]], settings: SearchConfig, sampling: Sampling | None, seeds: list[int]
    ) -> list[Hypothesis]:
        return search_or_sample(_TextToText(self.model, self.start, self.end), ids, settings, sampling, seeds)

    def _text(self, ids: list[int], output: Hypothesis) -> str:
        return self._decode(output.ids)


class _TextToText(SearchBackend[Cache]):
    """A T5 as the search takes it. first, end: the ids before the first token of an output, and after the last one."""

    beam_of = staticmethod(hugging_face_beam)

    def __init__(self, model: T5, first: int, end: int) -> None:
        super().__init__(Decoder(model.decode_step, model.output.weight.device, _log_probs))
        self.model = model
        self.first = first
        self.end = end

    def start(self, sources: Sequence[Sequence[int]], constraint: Constraint | None = None) -> Cache:
        """Encode the sources; return the state before the first token of each output."""
        src, mask = (x.to(self.device) for x in pad([np.asarray(source) for source in sources]))
        return self.model.start(self.model.encode(src, mask), mask)

    def watched(
        self, state: Cache, sources: Sequence[Sequence[int]], settings: SearchConfig
    ) -> tuple[Decoder[Watched[Cache]], Watched[Cache]]:
        """Return the decoder and the state of `start` as ones that avoid repeated tokens, as transformers does.

        The id before an output counts. Without a beam, the penalty is on the logits.
        """
        logits = Tensor.float if settings.beam_size == 1 else None
        return watch(self.decoder, state, len(sources), settings, [[self.first]] * len(sources), logits)

    def request(
        self, sources: Sequence[Sequence[int]], settings: SearchConfig, constraint: Constraint | None = None
    ) -> Request:
        """Return the request for outputs of `sources`, each of at most settings.max_extra_tokens tokens."""
        most = [settings.max_extra_tokens] * len(sources)
        return Request(search=settings, max_lengths=most, bos=self.first, eos=self.end, constraint=constraint)


def _log_probs(logits: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1)
