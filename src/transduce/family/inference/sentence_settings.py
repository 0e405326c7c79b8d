"""How a folder of sentence-transformers makes a vector of a sentence: its pooling, and its maximum length.

A folder without these files takes the mean of all states, as sentence-transformers does.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from transduce.errors import UserError
from transduce.family.bert_heads import POOLINGS
from transduce.family.hugging_face.folder import Member

JsonContent = TypeVar("JsonContent")

MODULES = ("Transformer", "Pooling", "Normalize")  # the last one changes no direction, and every vector has length 1


@dataclass(frozen=True)
class SentenceSettings:
    """The settings of `embed`. pooling: a key of `POOLINGS`. max_tokens: of a line, special ones included, or None."""

    pooling: str = "mean"
    max_tokens: int | None = None
    is_lowercase: bool = False

    def text(self, line: str) -> str:
        """Return the line as the encoder reads it."""
        return line.lower() if self.is_lowercase else line


def sentence_settings(member: Member, folder: Path | str) -> SentenceSettings:
    """Return the settings of a folder. Raises UserError for what would change a vector, and is not supported."""
    _check_modules(member, folder)
    name = "sentence_bert_config.json"
    values = _read(member, folder, name, dict[str, Any])
    longest, is_lowercase = values.get("max_seq_length"), values.get("do_lower_case") or False
    if longest is not None and (type(longest) is not int or longest < 3):  # both ends are tokens
        raise UserError(f"{folder}/{name}: max_seq_length={longest!r}: expected 3 or more; use a whole folder")
    return SentenceSettings(_pooling(member, folder), longest, bool(is_lowercase))


def _read(member: Member, folder: Path | str, name: str, kind: type[JsonContent]) -> JsonContent:
    """Return the content of a JSON file, or an empty one if there is none."""
    try:
        return msgspec.json.decode(member.files[name], type=kind) if name in member.files else kind()
    except (ValueError, RecursionError) as problem:
        raise UserError(
            f"{folder}/{name}: expected a file of sentence-transformers ({problem}); use another copy"
        ) from None


def _check_modules(member: Member, folder: Path | str) -> None:
    for module in _read(member, folder, "modules.json", list[dict[str, Any]]):
        kind, path = str(module.get("type")).rpartition(".")[2], module.get("path")
        if kind not in MODULES or (kind == "Pooling" and path != "1_Pooling") or (kind == "Transformer" and path):
            expected = f"expected {', '.join(MODULES)}, with the pooling in 1_Pooling"
            raise UserError(f"{folder}/modules.json: {kind} in {path!r}: {expected}; use another model")
    name = "config_sentence_transformers.json"
    values = _read(member, folder, name, dict[str, Any])
    prompts, prompt = values.get("prompts"), values.get("default_prompt_name")
    if prompt is not None and (not isinstance(prompts, dict) or prompts.get(prompt) != ""):
        expected = "expected null, as no text is put before a line; put it there, and set it to null"
        raise UserError(f"{folder}/{name}: default_prompt_name={prompt!r}: {expected}")


def _pooling(member: Member, folder: Path | str) -> str:
    name, key = "1_Pooling/config.json", "pooling_mode"
    values = _read(member, folder, name, dict[str, Any])
    modes = [k.removeprefix(f"{key}_") for k, value in values.items() if k.startswith(f"{key}_") and value is True]
    modes += [str(values[key])] if key in values else ["mean"] * (not values)
    known = {mode.removesuffix("_tokens").removesuffix("_token") for mode in modes}
    if len(known) != 1 or not known <= POOLINGS.keys():
        expected = f"expected one of {', '.join(POOLINGS)}"
        raise UserError(f"{folder}/{name}: {key}={' and '.join(modes) or 'none'}: {expected}; use another model")
    return known.pop()
