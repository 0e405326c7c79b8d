"""Constraints of `translators.LINES`, and the check that their phrases are in translations."""

import re
from typing import Any

from transduce import Translation

CONSTRAINTS: list[Any] = [
    {"must": ["c a"]},
    None,
    {"must": ["x"]},
    {"must": ["a", "a", "f e"], "must_not": ["b"]},
    {"prefix": "i", "must": ["k"]},
    {"must_not": ["a"]},
    {"must": ["Zürich", "e"]},
    {"prefix": "j"},
    {"must": [["x", "y"], "schön"]},
    {"must_not": ["c", "d"], "must": ["cd"]},
]


def has(text: str, phrase: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) is not None


def check(translation: Translation, constraint: Any) -> None:
    """Assert that each phrase is in the text, or named."""
    for output in (translation, *translation.alternatives):
        for entry in (constraint or {}).get("must", []):
            alternatives = [entry] if isinstance(entry, str) else entry
            is_in = any(has(output.text, phrase) for phrase in alternatives)
            assert is_in or "|".join(alternatives) in output.unmet, (output.text, entry, output.unmet)
        for phrase in (constraint or {}).get("must_not", []):
            assert not has(output.text, phrase), (output.text, phrase)
        assert output.text.startswith((constraint or {}).get("prefix", ""))
