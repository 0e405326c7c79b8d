"""Language models: members of the family that continue text."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Unpack, cast

from transduce.config.schema import SearchConfig
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.options import DEFAULTS, DecodingKeywords, DecodingOptions, Sampling
from transduce.family.hugging_face.folder import Member
from transduce.family.inference.application import PreparedApplication
from transduce.family.inference.continuation import PreparedModel, continue_ids, has_kernels, prepare
from transduce.family.inference.text_generator import GeneratedText, TextGenerator, ids_of
from transduce.family.text_model import TextModel


class LanguageModel(PreparedApplication, TextGenerator):
    """A member that continues text, with the tokenizer of its folder. Raises UserError for another member.

    precision: of continuations. A member that is neither GPT-2 nor Llama has only fp32.
    """

    def __init__(self, member: Member, folder: Path | str = "the folder", *, precision: str = "fp32") -> None:
        super().__init__(member, folder, precision=precision)
        self.model = self.model_of(TextModel, "a model that continues text, such as GPT-2")
        self.longest = self.model.n_positions - 1
        self.ends = ids_of(member, "eos_token_id")

    @property
    def has_kernels(self) -> bool:
        """True if the kernels of translation can compute the model."""
        return has_kernels(self.member.model)

    @cached_property
    def prepared_model(self) -> PreparedModel:
        """The model, prepared for this machine, which takes some time and memory."""
        return prepare(self.model, cast(Precision, self.precision))

    def continue_(
        self, text: str, *, max_tokens: int | None = None, **keywords: Unpack[DecodingKeywords]
    ) -> GeneratedText:
        """Return the continuation of one text. `continue_texts` describes the arguments."""
        return self.continue_texts([text], max_tokens=max_tokens, **keywords)[0]

    def continue_texts(
        self,
        texts: Sequence[str],
        *,
        max_tokens: int | None = None,
        options: DecodingOptions = DEFAULTS,
        first_number: int = 1,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[GeneratedText]:
        """Return the continuation of each text, without the text itself. On a CPU, other texts change nothing.

        max_tokens: maximum number of tokens of a continuation. options: a search or a draw; keywords replace some of
        them. By default both are the folder's (`generation_settings`), or greedy search for 50 tokens. first_number:
        number of the first text, on which its draw depends. A blank text has a blank continuation. A text that is too
        long for the model has a `problem`. Raises UserError for options that cannot be met.
        """
        return self._outputs(texts, max_tokens, options, first_number, keywords)

    def _search(
        self, ids: list[list[int]], settings: SearchConfig, sampling: Sampling | None, seeds: list[int]
    ) -> list[Hypothesis]:
        return continue_ids(self.prepared_model, ids, self.ends, settings, sampling, seeds)

    def _text(self, ids: list[int], output: Hypothesis) -> str:
        # Decoded together: otherwise the first word would lose its space in some tokenizers.
        return self._decode([*ids, *output.ids])[len(self._decode(ids)) :]
