"""The fields `must`, `must_not` and `prefix` of a request -> the constraint of each of its texts."""

from collections.abc import Sequence
from typing import Any

from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.line_constraint import LineConstraint, phrase_automaton
from transduce.decoding.phrases.segment_constraints import FREE, check_search
from transduce.errors import UserError
from transduce.serve.documents import Document
from transduce.serve.languages import Model
from transduce.serve.refusal import invalid
from transduce.serve.requests import Fields

NAMES = ("must", "must_not", "prefix")


def constraints_of(fields: Fields, n_texts: int, is_list: bool) -> list[LineConstraint]:
    """Return the constraint of each text. is_list: the texts are a list, and so is each field, with an entry for each.

    Raises Refusal for values of another form, and for phrases that no translation can have.
    """
    if not any(fields.values.get(name) for name in NAMES):
        return [FREE] * n_texts
    columns = [_column(fields, name, n_texts, is_list) for name in NAMES]
    constraints = list[LineConstraint]()
    for must, must_not, prefix in zip(*columns, strict=True):
        try:
            constraints.append(LineConstraint(must or (), must_not or (), prefix or ""))
        except UserError as error:
            raise invalid(f"Invalid request: $.{error}") from None
    return constraints


def _column(fields: Fields, name: str, n_texts: int, is_list: bool) -> Sequence[Any]:
    """Return the value of a field for each text."""
    value = fields.values.get(name)
    if value is None or value == "" or value == []:
        return [None] * n_texts
    if not is_list:
        if isinstance(value, str) and fields.is_form and name != "prefix":
            value = [value]
        return [_checked(f"$.{name}", name, value)]
    if not isinstance(value, list) or len(value) != n_texts:
        raise invalid(f"Invalid request: $.{name}: expected a list with an entry for each of the {n_texts} texts")
    return [one and _checked(f"$.{name}[{i}]", name, one) for i, one in enumerate(value)]


def _checked(place: str, name: str, value: Any) -> Any:
    """Return the value of a field for one text: a string for the prefix, else a list of strings."""
    if name == "prefix":
        if not isinstance(value, str):
            raise invalid(f"Invalid request: {place}: expected a string")
    elif not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise invalid(f"Invalid request: {place}: expected a list of strings")
    return value


def check_text(constraint: LineConstraint, document: Document, model: Model, options: DecodingOptions) -> None:
    """Raise Refusal if the translation of a text cannot meet its constraint."""
    n_lines = sum(not isinstance(part, str) for part in document)
    if n_lines > 1 and (constraint.must or constraint.prefix):
        raise invalid(f"expected one line with must or prefix, not {n_lines}; send the lines as a list")
    if not hasattr(model, "running"):
        raise invalid("expected no must, must_not or prefix: the engine of this server does not have them")
    try:
        if constraint.has_phrases:
            check_search(options, options.resolve(model.config.search))
            phrase_automaton(constraint, model.tokenizer)
    except UserError as error:
        raise invalid(str(error)) from None
