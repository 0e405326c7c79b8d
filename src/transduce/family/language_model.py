"""Language models: members of the family that continue text."""

from pathlib import Path

from transduce.config.validation import as_path
from transduce.errors import UserError
from transduce.family.gpt2 import GPT2
from transduce.family.llama import Llama
from transduce.family.weights import Member, write_member


class LanguageModel:
    """A member that continues text: the model, and the files of the folder that it comes from.

    Raises UserError for a member that does not, such as an encoder.
    """

    def __init__(self, member: Member) -> None:
        if not isinstance(member.model, GPT2 | Llama):
            kind = member.settings.get("model_type")
            raise UserError(f"model_type={kind!r}: expected a model that continues text; use another, such as gpt2")
        self.member = member
        self.model = member.model

    def save(self, folder: str | Path) -> None:
        """Write a new folder in Hugging Face's form. Raises UserError if `folder` exists."""
        write_member(as_path("folder", folder), self.member)
