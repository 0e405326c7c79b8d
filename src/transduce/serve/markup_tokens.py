"""HTML -> its tokens: text, tags, and the elements that stay as they are."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

_TAG = re.compile(r"""<[!?][^<>]*>|</?[A-Za-z][^\s/<>"']*+(?:"[^"]*"|'[^']*'|[^'"<>])*+>""")
_MARKUP = re.compile(r"<!--|<!\[CDATA\[|" + _TAG.pattern)
_ENDS = {"<!--": "-->", "<![CDATA[": "]]>"}
_NAME = re.compile(r"</?([A-Za-z][^\s/<>]*)")
_ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'<>`=]+))?""")
INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark meter q rp rt ruby s samp "
    "small span strike strong sub sup svg math time tt u var wbr".split()
)
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
MAX_DEPTH = 50  # of nested elements; the tags of deeper ones stay where they are
MAX_UNTOUCHED = 8  # of translate="yes" within elements that stay as they are; each is read once more
YES = frozenset(("yes", ""))  # values of `translate`
RAW_TEXT = frozenset(("script", "style", "textarea"))  # in which neither tags nor comments begin
NEVER = frozenset("script style textarea svg math".split())  # have no text to translate, whatever they contain
OPAQUE = frozenset("code pre ruby".split())  # a translation within `ruby` would be read as a reading, or be hidden


@dataclass(slots=True)
class Token:
    """A piece of the source.

    kind: text, open, close, atom (stays whole in its segment), mark (an atom that no reader sees, such as a comment),
    break (a line break or a tab within a segment), or block (ends a segment). text: of text, as it is read; of a line
    break a space, and of a tab, after which another column begins, a line break.
    """

    kind: str
    raw: str
    name: str = ""
    text: str = ""


def text_token(raw: str) -> Token:
    """Return the token of a text with character references."""
    return Token("text", raw, text=html.unescape(raw))


def tokens_of(source: str) -> Iterator[Token]:
    """Yield the tokens of an HTML fragment; together they are the fragment."""
    return _tokens(source, 0, len(source))


def _tokens(source: str, place: int, end: int, depth: int = 0) -> Iterator[Token]:
    """Yield the tokens of source[place:end]. depth: number of elements with translate="yes" around it."""
    absent: set[str] = set()
    while span := _markup(source, place, end, absent):
        start = span[0]
        if start > place:
            yield text_token(source[place:start])
        raw, place = source[slice(*span)], span[1]
        name_match = _NAME.match(raw)
        if name_match is None:
            yield Token("mark", raw)
            continue
        name = name_match[1].lower()
        is_closing, is_void = raw.startswith("</"), name in VOID or raw.endswith("/>")
        if not is_closing and not is_void and not is_translated(raw, name):
            last = end_of_element(source, name, (place, end), absent)
            kind = "atom" if name in INLINE else "block"
            yield from _untouched(source, (start, place, last), kind, depth)
            place = last
        elif name not in INLINE:
            yield Token("block", raw)
        elif is_void:
            yield Token("mark" if name == "wbr" else "atom", raw)
        else:
            yield Token("close" if is_closing else "open", raw, name)
    if place < end:
        yield text_token(source[place:end])


def _markup(source: str, place: int, end: int, absent: set[str]) -> tuple[int, int] | None:
    """Return the range of the next tag or comment; None if there is none.

    absent: the ends that are not in the rest of the source, so that no later call looks for them.
    """
    while match := _MARKUP.search(source, place, end):
        last = _ENDS.get(match.group())
        if last is None:
            return match.span()
        if last not in absent:
            stop = source.find(last, match.end(), end)
            if stop >= 0:
                return match.start(), stop + len(last)
            absent.add(last)
        if match := _TAG.match(source, place := match.start(), end):
            return match.span()
        place += 1
    return None


def is_translated(tag: str, name: str) -> bool:
    """Return True if the content of an element is to be translated, as far as its opening tag says."""
    attributes = _attributes(tag)
    choice = attributes.get("translate")
    if name in NEVER or choice == "no":
        return False
    return choice in YES or name not in OPAQUE and "notranslate" not in attributes.get("class", "").split()


def _attributes(tag: str) -> dict[str, str]:
    """Return `translate` and `class` of an opening tag; the first of two with one name, as in browsers."""
    attributes: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(tag):
        if (name := match[1].lower()) in ("translate", "class"):
            attributes.setdefault(name, (match[2] or "").strip("\"'").lower())
    return attributes


def _untouched(source: str, places: tuple[int, int, int], kind: str, depth: int) -> Iterator[Token]:
    """Yield an element that stays as it is, and the tokens of what has translate="yes" within it.

    places: the start of the element, of its content, and its end. kind: kind of the whole element.
    """
    start, place, end = places
    absent: set[str] = set()
    while depth < MAX_UNTOUCHED and (span := _markup(source, place, end, absent)):
        raw, place = source[slice(*span)], span[1]
        name_match = _NAME.match(raw)
        name = name_match[1].lower() if name_match and raw[1] != "/" else ""
        if name in NEVER:
            place = end_of_element(source, name, (place, end), absent)
        elif name and name not in VOID and _attributes(raw).get("translate") in YES:
            last = end_of_element(source, name, (place, end), absent)
            last = max(place, source.rfind("</", place, last)) if last < end else last
            yield Token("block", source[start:place])
            yield from _tokens(source, place, last, depth + 1)
            start = place = last
            kind = "block"
    yield Token(kind, source[start:end])


def end_of_element(source: str, name: str, places: tuple[int, int], absent: set[str]) -> int:
    """Return the end of the element `name`, or of the range without a closing tag.

    places: the range of its content, and of what follows. absent: as in `_markup`.
    """
    depth = 1
    place, end = places
    is_raw = name in RAW_TEXT
    comment = "" if is_raw else "<!--|"
    markup = re.compile(rf"{comment}<(/?){re.escape(name)}(?=[\s/>])[^<>]*>", re.IGNORECASE)
    while match := markup.search(source, place, end):
        place = match.end()
        if match[1] is None:
            stop = -1 if "-->" in absent else source.find("-->", place, end)
            if stop < 0:
                absent.add("-->")
            place = max(place, stop + len("-->"))
        elif match[1]:
            depth -= 1
        elif not is_raw and not match.group().endswith("/>"):
            depth += 1
        if depth == 0:
            return place
    return end
