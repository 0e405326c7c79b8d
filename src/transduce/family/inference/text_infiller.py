"""Models that fill the middle of a text, by what is before and after it: StarCoder, CodeLlama, or trained here."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from transduce.data.fill_in_middle import Marks, tokenizer_of_part
from transduce.data.vocabulary import CONTROLS, EOS, MIDDLE_MARKS
from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member
from transduce.family.inference.language_model import LanguageModel
from transduce.family.inference.tokenizer import encode_texts, tokenizer_of

PLACE = "<FILL_ME>"  # where the middle comes, in a text
# The tokens before prefix, suffix and middle, and the end of a middle, by the models that have them.
NAMES = {
    "StarCoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|endoftext|>"),
    "SantaCoder": ("<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<|endoftext|>"),
    "CodeLlama": ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"),
    "data.fill_middle": (*MIDDLE_MARKS, CONTROLS[EOS]),
}


class TextInfiller(LanguageModel):
    """A language model that fills the place `<FILL_ME>` of a text. A text without it is continued.

    The attribute `suffix_first` is True for the order SPM, which a model that was trained here does not know. Raises
    UserError for a model whose tokenizer has no tokens for the parts of a text.
    """

    def __init__(self, member: Member, folder: Path | str = "the folder", *, precision: str = "fp32") -> None:
        super().__init__(member, folder, precision=precision)
        vocabulary = self.tokenizer.get_vocab()
        known = [Marks(*map(vocabulary.__getitem__, names)) for names in NAMES.values() if {*names} <= {*vocabulary}]
        if not known:
            expected = " or ".join(f"{names[0]} ({model})" for model, names in NAMES.items())
            raise UserError(f"{folder}/tokenizer.json: expected the token {expected}; use a model that fills places")
        self.marks = known[0]
        self.ends = [*dict.fromkeys([self.marks.end, *self.ends])]
        self.suffix_first = False

    @cached_property
    def _tokenizers_of_parts(self) -> list[Tokenizer]:
        """The tokenizer of prefixes, and the tokenizer of suffixes."""
        content = json.loads(self.member.files["tokenizer.json"])
        files = [json.dumps(tokenizer_of_part(content, is_first=is_first)).encode() for is_first in (True, False)]
        members = [replace(self.member, files={"tokenizer.json": file}) for file in files]
        return [tokenizer_of(member, self.folder) for member in members]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._prompt(*text.partition(PLACE)) for text in texts]

    def _prompt(self, prefix: str, place: str, suffix: str) -> list[int]:
        """Return the ids after which the model writes the middle."""
        if not place:
            return super()._ids([prefix])[0]
        start = super()._ids([""])[0]
        ids = [
            encode_texts(tokenizer, [text], self.member, self.folder, add_special_tokens=False)[0].ids
            for tokenizer, text in zip(self._tokenizers_of_parts, (prefix, suffix), strict=True)
        ]
        return [*start, *self.marks.prompt(*ids, suffix_first=self.suffix_first)]

    def _problem(self, text: str, ids: Sequence[int] | None) -> str | None:
        n_places = text.count(PLACE)
        return f"expected one {PLACE}, not {n_places:,}" if n_places > 1 else super()._problem(text, ids)
