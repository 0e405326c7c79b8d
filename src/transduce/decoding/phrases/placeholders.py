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

from transduce.config.schema import DataConfig
from transduce.data.noise import MASKS
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.hypothesis import Translation
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
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
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


@dataclass(frozen=True)
class KeptLine:
    """A line whose placeholders stay. text: for the model. masks: the placeholder that each mask replaces."""

    source: str
    text: str
    masks: Mapping[str, str]

    def restore(self, translation: Translation) -> Translation:
        """Return a translation with the placeholders. One that is not in it as often as in the source is unmet."""
        text = self._with_names(translation.text) if self.masks else translation.text
        wrong = changed_placeholders(self.source, text)
        known = {*MASKS, *placeholders_in(self.source)}
        problem = f"expected {', '.join(map(repr, wrong))} as often as in the source; correct the translation"
        return dataclasses.replace(
            translation,
            text=text,
            problem=translation.problem or (problem if wrong else None),
            unmet=(*(name for name in translation.unmet if name not in known), *wrong),
            alternatives=tuple(map(self.restore, translation.alternatives)),
        )

    def _with_names(self, text: str) -> str:
        """Return a text with the placeholder of each mask.

        Each mask is in the source once. What the text has beyond that is left out, with the space before it.
        """
        names = {**self.masks}
        result = _MASK.sub(lambda match: match[0][:-1] + names.pop(match[1]) if match[1] in names else "", text)
        return result if text[:1].isspace() else result.removeprefix(" ")


def kept_lines(lines: Sequence[str], tokenizer: TokenizerLike, data: DataConfig) -> tuple[list[str], list[KeptLine]]:
    """Return the lines for the model, with their tags, and what they keep. data: of the model, says if it knows masks.

    A placeholder that is there twice has two masks.
    """
    texts, kept = list[str](), list[KeptLine]()
    for line in lines:
        tag, source = tokenizer.split_tag(line)
        masks = dict(zip(MASKS, placeholders_in(source) if "masks" in data.noise_probabilities else (), strict=False))
        names = iter(masks)
        kept.append(KeptLine(source, _PATTERN.sub(lambda match, names=names: next(names, match[0]), source), masks))
        texts.append(f"{tag} {kept[-1].text}" if tag else kept[-1].text)
    return texts, kept


def with_placeholders(terms: Terms, lines: Sequence[KeptLine]) -> Terms:
    """Return terms, and what the outputs of lines must have for their placeholders."""
    names = dict.fromkeys(name for line in lines for name in placeholders_in(line.text))
    own = [name for name in names if len(name) <= MOST_CHARACTERS and not re.search("[\r\n]", name)]
    return terms.merged(Terms.of_names(own)) if own else terms
