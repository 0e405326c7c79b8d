"""Members as a user has them: each comes from a folder, and goes into one in Hugging Face's form."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from tokenizers import Encoding, Tokenizer
from torch import nn

from transduce.config.kinds import kinds_of
from transduce.config.validation import as_path
from transduce.decoding.backends import PRECISIONS, fastest_precision
from transduce.errors import UserError
from transduce.family.hugging_face.folder import ENCODERS_ONLY_HERE, Member, write_member
from transduce.family.inference.model_folder import open_member
from transduce.family.inference.tokenizer import decode_ids, encode_texts, tokenizer_of
from transduce.model import devices

# What takes a member, by its model_type.
USES = {
    **dict.fromkeys(("openai-gpt", "gpt_bigcode", *kinds_of("language_model")), "`transduce continue`"),
    "llada": "`transduce fill`",
    "bert": "`transduce fill`, `embed` or `classify`",
    **dict.fromkeys(("whisper", "wav2vec2"), "`transduce transcribe`"),
    **dict.fromkeys(ENCODERS_ONLY_HERE, "`transduce fill` or `embed`"),
}

Module = TypeVar("Module", bound=nn.Module)


class Application:
    """A member in use, and the folder that it comes from, for messages. device: of the model; None: a GPU, if any."""

    def __init__(self, member: Member, folder: Path | str = "the folder", device: torch.device | None = None) -> None:
        self.member, self.folder = member, folder
        member.model.to(device or devices.device())

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto") -> Self:
        """Load a folder in Hugging Face's form, or RUN/model of a training of such a member.

        device: of the model, as for `transduce.load`.
        Raises UserError for one that is damaged, or has another member.
        """
        path = as_path("folder", folder)
        with devices.on_device(device):
            return cls(open_member(path), path)

    def save(self, folder: str | Path) -> None:
        """Write a new folder in Hugging Face's form. Raises UserError if `folder` exists."""
        write_member(as_path("folder", folder), self.member)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder. Raises UserError if it has none."""
        return tokenizer_of(self.member, self.folder)

    def _encode_texts(self, texts: Sequence[str]) -> list[Encoding]:
        return encode_texts(self.tokenizer, texts, self.member, self.folder)

    def _decode(self, ids: Sequence[int]) -> str:
        return decode_ids(self.tokenizer, ids, self.folder)

    def model_of(self, kind: type[Module], expected: str) -> Module:
        """Return the model of the member. Raises UserError if it is not of the `kind`, which `expected` describes."""
        if isinstance(self.member.model, kind):
            return self.member.model
        raise self.another(expected)

    def another(self, expected: str) -> UserError:
        """Return the error for a member that is not the `expected` one."""
        name = self.member.settings.get("model_type")
        remedy = f"use {USES.get(str(name), '`transduce.family.load` in Python')}"
        return UserError(f"{self.folder}: model_type={name!r}: expected {expected}; {remedy}")


class PreparedApplication(Application):
    """A member in use whose model is prepared for a precision.

    precision: as for translations: "fp32", "bf16", "int8" with weights and activations rounded to 8 bits, or "auto",
    the fastest on this machine. The attribute is the choice. "bf16" and "int8" compute on the CPU, also beside a GPU.
    """

    def __init__(self, member: Member, folder: Path | str = "the folder", *, precision: str = "fp32") -> None:
        if precision not in PRECISIONS:
            raise UserError(f"precision={precision!r}: expected one of {', '.join(PRECISIONS)}")
        on_cpu = precision in ("bf16", "int8")
        super().__init__(member, folder, devices.device(only_cpu=f"precision={precision!r}" if on_cpu else ""))
        if precision == "auto":
            device = next(member.model.parameters()).device
            precision = fastest_precision(device, []) if self.has_kernels and device.type == "cpu" else "fp32"
        self.precision = precision

    @classmethod
    def load(cls, folder: str | Path, *, precision: str = "fp32", device: str = "auto") -> Self:
        """Load a folder; see `Application.load`."""
        path = as_path("folder", folder)
        with devices.on_device(device):
            return cls(open_member(path), path, precision=precision)

    @property
    def has_kernels(self) -> bool:
        """True if the kernels of translation can compute the model."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Return all except the prepared model, which holds addresses in memory: a copy prepares its own."""
        return {name: value for name, value in self.__dict__.items() if name != "prepared_model"}
