"""Remarks on test sets with blank lines, and on outputs of another form than the references: their scores are too low.

A model that learned from tokenised text writes tokenised text. Scores of it against raw references compare nothing.
"""

import re
from collections.abc import Callable, Sequence

from transduce.data.text import is_blank

_SUBWORDS = re.compile(r"\S@@(?= |$)|\u2581")
_OPENING = re.compile(r'\{\s*"')


def _is_json(lines: Sequence[str]) -> bool:
    return 2 * sum(bool(_OPENING.match(line)) and line.endswith("}") for line in lines) > len(lines)


def _is_table(lines: Sequence[str]) -> bool:
    return 2 * sum("\t" in line for line in lines) > len(lines)


def _has_subwords(lines: Sequence[str]) -> bool:
    return 4 * sum(bool(_SUBWORDS.search(line)) for line in lines) > len(lines)


def _is_tokenised(lines: Sequence[str]) -> bool:
    ends = [line for line in lines if line.endswith((".", "!", "?"))]
    return 2 * sum(line[-2:-1] == " " for line in ends) > len(ends) > 0


def _is_lowercase(lines: Sequence[str]) -> bool:
    return any(map(str.islower, lines)) and 100 * sum(line != line.lower() for line in lines) <= len(lines)


FORMS: dict[Callable[[Sequence[str]], bool], tuple[str, str]] = {
    _is_json: ("are JSON objects", "translate without --json"),
    _is_table: ("have tabs, as a table has", "give a table with the references as --src, without --ref"),
    _has_subwords: ("have marks of subwords, @@ or \u2581", "join the subwords"),
    _is_tokenised: ("are tokenised, as in 'a dog .'", "detokenise them"),
    _is_lowercase: ("have no capitals", "score texts that are both cased or both in lower case"),
}


def remarks(name: str, hyps: Sequence[str], refs: Sequence[str]) -> list[str]:
    """Return a line for each form that only one of outputs and references has. name: name of the outputs."""
    lines = []
    for has_form, (words, remedy) in FORMS.items():
        of_hyps, of_refs = has_form(hyps), has_form(refs)
        if of_hyps != of_refs:
            which = "outputs" if of_hyps else "references"
            lines.append(f"{name}: expected the form of the references, but only the {which} {words}; {remedy}")
    return lines


def blank_lines(name: str, side: str, *texts: Sequence[str]) -> list[str]:
    """Return a line if some lines of a test set are blank in all `texts`. side: "source" or "reference"."""
    numbers = [number for number, lines in enumerate(zip(*texts, strict=True), start=1) if all(map(is_blank, lines))]
    if not numbers:
        return []
    blank = f"{len(numbers):,} of {len(texts[0]):,} are blank, the first on line {numbers[0]:,}"
    return [f"{name}: expected a {side} on each line, but {blank}; add them, or leave these lines out"]
