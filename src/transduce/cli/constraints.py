"""The constraints on the translations of `transduce translate`: its options, and the forms of input lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from transduce.data.text import is_blank
from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.line_constraint import LineConstraint
from transduce.decoding.phrases.segment_constraints import FREE, check_search
from transduce.decoding.phrases.terms import Terms
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.serve.models import TranslationModel

ConstraintForm = Literal["tabs", "json"]


class SourceLines(NamedTuple):
    """Source lines, and the constraint of each. problem: the mistake in the next line, which ends the input."""

    texts: Sequence[str]
    constraints: Sequence[LineConstraint]
    problem: UserError | None = None


@dataclass(frozen=True)
class ConstraintOptions:
    """The options of the command.

    form: the form of input lines: "tabs" for a source and its phrases with tabs between them, "json" for an object with
    the fields text, must, must_not and prefix, None for source text only. prefix: the prefix of all outputs. terms: a
    file of terms.
    """

    form: ConstraintForm | None = None
    prefix: str | None = None
    terms: Path | None = None

    def __bool__(self) -> bool:
        return self != ConstraintOptions()

    def load_terms(self) -> Terms | None:
        """Return the terms of the file; None without a file."""
        return None if self.terms is None else Terms.load(self.terms)

    def check(self, model: "TranslationModel", options: DecodingOptions) -> None:
        """Raise UserError for options with which no search can meet phrases, and for an engine without constraints."""
        if self.form is not None or self.terms is not None:
            check_search(options, options.resolve(model.config.search))
        for name, value in {"--constraints": self.form, "--prefix": self.prefix, "--terms": self.terms}.items():
            if value is not None and not model.takes_constraints:
                raise UserError(
                    f"{name}={value}: must not be set with CTranslate2; use --engine torch and the model before the "
                    "export"
                )

    def parse(self, lines: Sequence[str], where: str, first_number: int) -> SourceLines:
        """Return the sources and constraints of lines, up to the first line that is wrong.

        where, first_number: the name of the input and the number of lines before these, for messages.
        """
        texts = list[str]()
        constraints = list[LineConstraint]()
        for number, line in enumerate(lines, start=first_number + 1):
            try:
                text, constraint = self._parse(line)
            except UserError as error:
                return SourceLines(texts, constraints, UserError(f"{where}:{number}: {error}"))
            texts.append(text)
            constraints.append(constraint)
        return SourceLines(texts, constraints)

    def _parse(self, line: str) -> tuple[str, LineConstraint]:
        default = LineConstraint(prefix=self.prefix) if self.prefix else FREE
        if self.form is None or is_blank(line):
            return line, default
        if self.form == "tabs":
            text, *phrases = line.split("\t")
            return text, LineConstraint([phrase for phrase in phrases if not is_blank(phrase)], prefix=default.prefix)
        try:
            fields = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise UserError(f"expected a JSON object such as {EXAMPLE}; correct the line ({error})") from None
        text = fields.pop("text", None) if isinstance(fields, dict) else None
        if not isinstance(text, str):
            raise UserError(f"expected a JSON object with a text, such as {EXAMPLE}; correct the line")
        values = {name: value for name, value in fields.items() if value is not None}
        return text, LineConstraint.of({"prefix": default.prefix, **values})


EXAMPLE = '{"text": "A dog.", "must": ["Hund"]}'


def unmet_problem(unmet: Sequence[str]) -> str | None:
    """Return the message for standard error about phrases that a translation lacks; None if it lacks none."""
    return f"expected {', '.join(map(repr, unmet))} in the translation, where it did not fit" if unmet else None


def source_lines(
    chunks: Iterator[list[str]], options: ConstraintOptions, where: str
) -> Iterator[tuple[int, SourceLines]]:
    """Yield the source lines of each chunk, and the number of lines before it. Raises UserError for a wrong line."""
    number = 0
    for chunk in chunks:
        sources = options.parse(chunk, where, number)
        if sources.texts:
            yield number, sources
        if sources.problem is not None:
            raise sources.problem
        number += len(chunk)
