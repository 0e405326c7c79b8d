"""The fields of a request about phrases.

must, must_not, prefix -> the constraint of each of its texts; terms -> Terms; placeholders -> True or False
"""

import re
from collections.abc import Sequence
from itertools import islice

from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.line_constraint import LineConstraint, phrase_automaton
from transduce.decoding.phrases.segment_constraints import FREE, check_search
from transduce.decoding.phrases.terms import NO_TERMS, Terms
from transduce.errors import UserError, nearest
from transduce.serve.documents import Document, lines_of
from transduce.serve.models import TranslationModel
from transduce.serve.refusal import invalid
from transduce.serve.requests import MAX_FIELDS, Fields

MOST_TERMS = 1_000  # of a request
LONGEST = 20  # characters of a name that may be a misspelt field
EMPTY: dict[str, object] = {"must": (), "must_not": (), "prefix": ""}
PHRASES = (*EMPTY, "terms")
NAMES = (*PHRASES, "placeholders")
NAMES_OF_FILE = ("placeholders", "min_confidence")
NEARNESS = 0.8  # of mustnot, must-not, musts and must[] at least; the fields of known clients have at most 0.5


def constraints_of(fields: Fields, n_texts: int, is_list: bool) -> list[LineConstraint]:
    """Return the constraint of each text. is_list: the texts are a list, and so is each field, with an entry for each.

    Raises Refusal for a misspelt field, values of another form, and phrases that no translation can have.
    """
    for name in islice(fields.values, MAX_FIELDS):
        if name not in NAMES and (hint := _nearest(name, NAMES)):
            raise invalid(f"Invalid request: $.{name}: expected one of {', '.join(NAMES)}{hint}")
    if all(_is_empty(fields.values.get(name)) for name in EMPTY):
        return [FREE] * n_texts
    columns = [_column(fields, name, n_texts, is_list) for name in EMPTY]
    constraints = list[LineConstraint]()
    for i, values in enumerate(zip(*columns, strict=True)):
        try:
            constraints.append(LineConstraint(*values))
        except UserError as error:
            place = rf"$.\1[{i}]" if is_list else r"$.\1"
            message = re.sub(r"^(must_not|must|prefix)", place, str(error))
            raise invalid(f"Invalid request: {message}") from None
    return constraints


def terms_of(fields: Fields) -> Terms:
    """Return the terms of a request: an object from each term to `target` or `target|target|...`.

    Raises Refusal for another value, and for what is no term.
    """
    value = fields.values.get("terms")
    if _is_empty(value) or value == {}:
        return NO_TERMS
    if not isinstance(value, dict):
        raise invalid("Invalid request: $.terms: expected an object from terms to targets, in JSON")
    if len(value) > MOST_TERMS:
        raise invalid(f"Invalid request: $.terms: expected at most {MOST_TERMS:,}, not {len(value):,}")
    try:
        return Terms.of(value)
    except UserError as error:
        raise invalid(f"Invalid request: $.{error}") from None


def keeps_placeholders(fields: Fields) -> bool:
    """Return True if a request keeps placeholders. Raises Refusal for a value that says neither yes nor no."""
    if str(fields.values.get("placeholders") or "false").lower() not in ("true", "false", "1", "0"):
        raise invalid("Invalid request: $.placeholders: expected true or false")
    return fields.is_true("placeholders")


def refuse_phrases(fields: Fields) -> None:
    """Raise Refusal for a request with phrases, also under a misspelt name, to a route that has none."""
    for name, value in islice(fields.values.items(), MAX_FIELDS):
        if _nearest(name, NAMES) and not _is_empty(value):
            raise invalid(f"{name}: expected no {', '.join(NAMES)}; send phrases to /translate")


def refuse_phrases_of_file(fields: Fields) -> None:
    """Raise Refusal for a file with phrases, also under a misspelt name, and for a misspelt field of a file."""
    for name, value in islice(fields.values.items(), MAX_FIELDS):
        if name not in NAMES_OF_FILE and (hint := _nearest(name, NAMES_OF_FILE)):
            raise invalid(f"Invalid request: $.{name}: expected one of {', '.join(NAMES_OF_FILE)}{hint}")
        if _nearest(name, PHRASES) and not _is_empty(value):
            remedy = "send its texts to /translate, or start the server with --terms FILE"
            raise invalid(f"Invalid request: $.{name}: expected no {', '.join(PHRASES)} with a file; {remedy}")


def _nearest(name: str, names: Sequence[str]) -> str:
    """Return the end of a message about a field whose name nearly is one of `names`; "" for other names."""
    return nearest(name[:LONGEST].lower(), names, NEARNESS)


def _is_empty(value: object) -> bool:
    return value is None or value == "" or value == []


def _column(fields: Fields, name: str, n_texts: int, is_list: bool) -> Sequence[object]:
    """Return the value of a field for each text."""
    value = fields.values.get(name)
    if _is_empty(value):
        return [EMPTY[name]] * n_texts
    if not is_list:
        return [[value] if isinstance(value, str) and fields.is_form and name != "prefix" else value]
    if not isinstance(value, list) or len(value) != n_texts:
        raise invalid(f"Invalid request: $.{name}: expected a list with an entry for each of the {n_texts} texts")
    return [EMPTY[name] if _is_empty(entry) else entry for entry in value]


def check_terms(model: TranslationModel, options: DecodingOptions) -> None:
    """Raise Refusal if a model cannot have terms or placeholders in its translations."""
    if not model.takes_constraints:
        expected = "expected no terms, no glossary and no placeholders"
        raise invalid(f"{expected}: the engine of this server does not have them")
    try:
        check_search(options, options.resolve(model.config.search))
    except UserError as error:
        raise invalid(str(error)) from None


def check_text(
    constraint: LineConstraint, document: Document, model: TranslationModel, options: DecodingOptions
) -> None:
    """Raise Refusal if the translation of a text cannot meet its constraint."""
    n_lines = len(lines_of(document))
    if n_lines > 1 and (constraint.must or constraint.prefix):
        raise invalid(f"expected one line with must or prefix, not {n_lines}; send the lines as a list")
    if not model.takes_constraints:
        raise invalid("expected no must, must_not or prefix: the engine of this server does not have them")
    try:
        if constraint.has_phrases:
            check_search(options, options.resolve(model.config.search))
            phrase_automaton(constraint, model.tokenizer)
    except UserError as error:
        raise invalid(str(error)) from None
