"""Fill in the middle: how a decoder learns to insert (Bavarian et al. 2022, section 3), as a change of only its texts.

    text    prefix middle suffix
    PSM     <PRE> prefix <SUF> suffix <MID> middle <END>
    SPM     <PRE> <SUF> suffix <MID> prefix middle <END>

The cuts are between characters, and each part has its own tokens. All tokens count in the loss, as in any text.
StarCoder and CodeLlama have learned both orders. A training here writes PSM (`data.fill_middle`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from transduce.data.subwords import engine_of
from transduce.data.token_file import TokenRows
from transduce.data.vocabulary import EOS, MIDDLE_MARKS, TokenizerLike
from transduce.errors import UserError

CUT_TOKENS = 7  # by which a line grows if it is cut, measured on captions and rounded up. Plans of batches leave room.
# Settings of a tokenizer.json for the white space where a text is cut: after its first part, and around the others.
AFTER_FIRST = {"strip_right": False}
AROUND_OTHERS = {"strip_left": False, "strip_right": False, "prepend_scheme": "never", "add_prefix_space": False}


@dataclass(frozen=True)
class Marks:
    """The ids of the tokens before the parts of a text, and the id of the end."""

    prefix: int
    suffix: int
    middle: int
    end: int

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int], *, suffix_first: bool = False) -> list[int]:
        """Return the ids after which a model writes the middle: PSM, or SPM with `suffix_first`."""
        if suffix_first:
            return [self.prefix, self.suffix, *suffix, self.middle, *prefix]
        return [self.prefix, *prefix, self.suffix, *suffix, self.middle]


class MiddleLast:
    """Moves the middle of some lines of a language model to the end: each line with `probability`.

    tokenizer: has MIDDLE_MARKS (see `check_marks`).
    """

    def __init__(self, tokenizer: TokenizerLike, probability: float) -> None:
        content = json.loads(tokenizer.to_json())
        self._first = engine_of(tokenizer_of_part(content, is_first=True))
        self._other = engine_of(tokenizer_of_part(content, is_first=False))
        prefix, suffix, middle = map(tokenizer.vocabulary.index, MIDDLE_MARKS)
        self._marks = Marks(prefix, suffix, middle, EOS)
        self._tokenizer = tokenizer
        self._probability = probability

    def rows(self, rows: TokenRows, keys: np.ndarray) -> TokenRows:
        """Return lines of ids, of which some are cut. Each is a function of its ids and its key, uint64."""
        lines = [*rows[1]]
        parts = dict[int, tuple[str, str, str]]()
        for i, key in enumerate(keys.tolist()):
            random = Random(key)
            if random.random() < self._probability:
                parts[i] = cut(self._tokenizer.decode(lines[i].tolist()), random)
        encoded = [
            engine.encode_batch_fast([of_line[number] for of_line in parts.values()], add_special_tokens=False)
            for number, engine in enumerate((self._first, self._other, self._other))
        ]
        for i, prefix, middle, suffix in zip(parts, *encoded, strict=True):
            lines[i] = np.array([*self._marks.prompt(prefix.ids, suffix.ids), *middle.ids], np.int64)
        return lines, lines


def check_marks(tokenizer: TokenizerLike) -> None:
    """Raise UserError for a tokenizer without MIDDLE_MARKS."""
    if not {*MIDDLE_MARKS} <= {*tokenizer.vocabulary}:
        raise UserError(
            f"data.fill_middle: expected a tokenizer with the tokens {' '.join(MIDDLE_MARKS)}; leave it out, or start "
            "from a model that was trained with it"
        )


def cut(text: str, random: Random) -> tuple[str, str, str]:
    """Return prefix, middle and suffix of a text. All pairs of cuts have the same probability: a part may be empty."""
    start, end = sorted(int(random.random() * (len(text) + 1)) for _ in range(2))
    return text[:start], text[start:end], text[end:]


def tokenizer_of_part(content: Mapping[str, Any], *, is_first: bool) -> dict[str, Any]:
    """Return a tokenizer.json for a part of a text: no white space appears or disappears where the text is cut.

    The first part keeps the space that a tokenizer may put before a text.
    """

    def rule(old: dict[str, Any]) -> dict[str, Any]:
        if old.get("type") == "Prepend" and not is_first:
            return {"type": "Sequence", "normalizers": []}
        changes = AFTER_FIRST if is_first else AROUND_OTHERS
        return {key: changes.get(key, value) for key, value in old.items()}

    rules = {name: json.dumps(content.get(name)) for name in ("normalizer", "pre_tokenizer")}
    return {**content, **{name: json.loads(text, object_hook=rule) for name, text in rules.items()}}
