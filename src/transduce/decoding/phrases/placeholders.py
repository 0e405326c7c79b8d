"""Placeholders: parts of a line that its translation keeps as they are, such as {name}, %s, a tag, a URL or 5 km.

A model that has learned masks (`data.noise`) reads a mask in the place of each placeholder, and the text comes back
into its output. For another model, and from the eleventh placeholder of a line on, the search requires the text itself,
as it requires the translation of a term.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transduce.config.schema import DataConfig
from transduce.data.noise import MASKS
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.hypothesis import AlignedWord, Alignment, Translation
from transduce.decoding.phrases.line_constraint import MOST_CHARACTERS
from transduce.decoding.phrases.terms import Terms

_NUMBER = r"\d+(?:[.,:]\d+)*"
_UNITS = (
    r"(?:km/h|m/s|mph|[kcmµn]?m[²³23]?|[kmµ]?g|[cm]?l|[kM]?W(?:h)?|[kMG]?Hz|[kMGT]B|[kMG]bit/s|ms|min|px|pt|ft|lbs?|oz|"
    r"kcal|kJ|dB|hPa|USD|EUR|GBP|CHF)\b|%%?(?!\w)|‰|°[CF]?|[€$£¥]"
)
_CONVERSION = r"(?:(?:hh?|ll?|[jtzL])?[diouxX]|[sfFeEgGcrap@])"  # the end of %d, %ld, %s, %r
_EMOJI = r"[\U0001F300-\U0001FAFF\u2600-\u27BF][\ufe0f\U0001F3FB-\U0001F3FF]*"
_PATTERN = re.compile(
    r"(?:https?://|www\.)\S*[^\s.,;:!?)\]}\"'»”]"
    r"|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|</?[A-Za-z][^<>]*>|&#?\w+;"
    r"|[$%#]?\{\{[^{}]*\}\}|[$%#]?\{[^{}]*\}"
    rf"|%(?:\(\w+\)|\d+\$)[-+0#]?\d*(?:\.\d+)?{_CONVERSION}|%[-+0#]?\d*\.\d+{_CONVERSION}"  # %.3fs has the unit s
    rf"|%[-+0#]?\d*{_CONVERSION}(?!\w)|%%(?!\w)"
    rf"|[€$£¥]\s?{_NUMBER}|(?<![\w.,]){_NUMBER}\s?(?:{_UNITS})"
    rf"|[\U0001F1E6-\U0001F1FF]{{2}}|{_EMOJI}(?:\u200d{_EMOJI})*"
    rf"|[{MASKS[0]}-{MASKS[-1]}]"
)


_MASK = re.compile(f" ?([{MASKS[0]}-{MASKS[-1]}])")


def placeholders_in(text: str) -> list[str]:
    """Return the placeholders in a text, in its order."""
    return _PATTERN.findall(text)


def is_placeholder(text: str) -> bool:
    """Return True for a text that is one placeholder."""
    return _PATTERN.fullmatch(text) is not None


def changed_placeholders(source: str, translation: str) -> list[str]:
    """Return the placeholders of a source that its translation does not have as often."""
    actual = Counter(placeholders_in(translation))
    return [name for name, count in Counter(placeholders_in(source)).items() if count != actual[name]]


def damaged_placeholders(source: str, translation: str) -> list[str]:
    """Return the changed placeholders, except numbers with units, which a translation may write in another way."""
    return [name for name in changed_placeholders(source, translation) if not _AMOUNT.match(name)]


_AMOUNT = re.compile(r"[€$£¥]?\s?\d")


class _Edit(NamedTuple):
    """A placeholder that replaces text[start:end]; "" leaves that out."""

    start: int
    end: int
    name: str


def _edited(text: str, edits: Sequence[_Edit]) -> str:
    places = [0, *(place for edit in edits for place in (edit.start, edit.end)), len(text)]
    others = [text[start:end] for start, end in zip(places[::2], places[1::2], strict=True)]
    return others[0] + "".join(edit.name + other for edit, other in zip(edits, others[1:], strict=True))


def _moved(place: int, edits: Sequence[_Edit]) -> int:
    """Return the place of a character of a text after the edits."""
    return place + sum(len(edit.name) - (edit.end - edit.start) for edit in edits if edit.end <= place)


@dataclass(frozen=True)
class KeptLine:
    """A line whose placeholders stay.

    start: the place of the source in the line, after its tag. text: for the model. masks: the placeholder that each
    mask replaces.
    """

    source: str
    start: int
    text: str
    masks: Mapping[str, str]

    def restore(self, translation: Translation) -> Translation:
        """Return a translation with the placeholders. One that is not in it as often as in the source is unmet."""
        edits = self._edits(translation.text)
        text = _edited(translation.text, edits)
        wrong = changed_placeholders(self.source, text)
        known = {*MASKS, *placeholders_in(self.source)}
        problem = f"expected {', '.join(map(repr, wrong))} as often as in the source; correct the translation"
        return dataclasses.replace(
            translation,
            text=text,
            alignment=translation.alignment and self._restored(translation.alignment, text, edits),
            problem=translation.problem or (problem if wrong else None),
            unmet=(*(name for name in translation.unmet if name not in known), *wrong),
            alternatives=tuple(map(self.restore, translation.alternatives)),
        )

    def _edits(self, text: str) -> "list[_Edit]":
        """Return the edits that replace the masks of a translation by placeholders.

        Each mask is in the source once. What the text has beyond that is left out, with the space before it, or at the
        beginning with the space behind it.
        """
        names = {**self.masks}
        edits = list[_Edit]()
        first = 0  # place that is not left out
        for match in _MASK.finditer(text) if names else ():
            if match[1] in names:
                edits.append(_Edit(match.start(1), match.end(), names.pop(match[1])))
                continue
            edits.append(_Edit(match.start(), match.end(), ""))
            first = match.end() if match.start() == first else first
        if first and text[first : first + 1] == " " and not text[0].isspace():
            edits = sorted([*edits, _Edit(first, first + 1, "")])
        return edits

    def _restored(self, alignment: Alignment, text: str, edits: "Sequence[_Edit]") -> Alignment:
        """Return an alignment of the text for the model as one of the source and of `text`, its edited translation."""
        of_source = [_Edit(i, i + 1, self.masks[mask]) for i, mask in enumerate(self.text) if mask in self.masks]
        words = list[AlignedWord]()
        for word in alignment:
            start, end = _moved(word.start, edits), _moved(word.end, edits)
            first, last = (_moved(place - self.start, of_source) for place in (word.source_start, word.source_end))
            if start < end:
                words.append(AlignedWord(text[start:end], start, self.source[first:last], first + self.start))
        return tuple(words)


def kept_lines(lines: Sequence[str], tokenizer: TokenizerLike, data: DataConfig) -> tuple[list[str], list[KeptLine]]:
    """Return the lines for the model, with their tags, and what they keep. data: of the model, says if it knows masks.

    A placeholder that is there twice has two masks.
    """
    texts, kept = list[str](), list[KeptLine]()
    for line in lines:
        _, source = tokenizer.split_tag(line)
        start = len(line) - len(source)
        masks = dict(zip(MASKS, placeholders_in(source) if "masks" in data.noise_probabilities else (), strict=False))
        names = iter(masks)
        text = _PATTERN.sub(lambda match, names=names: next(names, match[0]), source)
        kept.append(KeptLine(source, start, text, masks))
        texts.append(line[:start] + text)
    return texts, kept


def with_placeholders(terms: Terms, lines: Sequence[KeptLine]) -> Terms:
    """Return terms, and what the outputs of lines must have for their placeholders."""
    names = dict.fromkeys(name for line in lines for name in placeholders_in(line.text))
    own = [name for name in names if len(name) <= MOST_CHARACTERS and not re.search("[\r\n]", name)]
    return terms.merged(Terms.of_names(own)) if own else terms
