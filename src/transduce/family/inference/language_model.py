"""Language models: members of the family that continue text."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, Unpack, cast

from transduce.config.schema import SearchConfig
from transduce.config.validation import as_path
from transduce.decoding.backends import PRECISIONS, fastest_precision
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.options import DEFAULTS, DecodingKeywords, DecodingOptions, Sampling
from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member
from transduce.family.inference.continuation import Searchable, continue_ids, has_kernels, prepare
from transduce.family.inference.model_folder import open_member
from transduce.family.inference.text_generator import Output, TextGenerator, ids_of
from transduce.family.text_model import TextModel
from transduce.model import devices


class LanguageModel(TextGenerator):
    """A member that continues text, with the tokenizer of its folder. Raises UserError for another member.

    precision: precision of continuations, as for translations: "fp32", "bf16", "int8" with weights and activations
    rounded to 8 bits, or "auto", the fastest on this machine. The attribute is the choice. "bf16" and "int8" compute on
    the CPU, also beside a GPU. A member that is neither GPT-2 nor Llama has only fp32.
    """

    def __init__(self, member: Member, folder: Path | str = "the folder", *, precision: str = "fp32") -> None:
        if precision not in PRECISIONS:
            raise UserError(f"precision={precision!r}: expected one of {', '.join(PRECISIONS)}")
        on_cpu = precision in ("bf16", "int8")
        super().__init__(member, folder, devices.device(only_cpu=f"precision={precision!r}" if on_cpu else ""))
        if not isinstance(member.model, TextModel):
            raise self.another("a model that continues text, such as GPT-2")
        self.model = member.model
        self.longest = self.model.n_positions - 1
        self.ends = ids_of(member, "eos_token_id")
        if precision == "auto":
            device = self.model.embedding.weight.device
            precision = fastest_precision(device, []) if has_kernels(self.model) and device.type == "cpu" else "fp32"
        self.precision = precision

    @classmethod
    def load(cls, folder: str | Path, *, precision: str = "fp32", device: str = "auto") -> Self:
        """Load a folder; see `Application.load`."""
        path = as_path("folder", folder)
        with devices.on_device(device):
            return cls(open_member(path), path, precision=precision)

    @cached_property
    def prepared_model(self) -> Searchable:
        """The model, prepared for this machine, which takes some time and memory."""
        return prepare(self.model, cast(Precision, self.precision))

    def __getstate__(self) -> dict[str, Any]:
        """Return all except the prepared model, which holds addresses in memory: a copy prepares its own."""
        return {name: value for name, value in self.__dict__.items() if name != "prepared_model"}

    def continue_(self, text: str, *, max_tokens: int | None = None, **keywords: Unpack[DecodingKeywords]) -> Output:
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
    ) -> list[Output]:
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
