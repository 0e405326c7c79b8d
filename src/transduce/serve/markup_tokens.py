"""HTML -> its tokens: text, tags, and the elements that stay as they are."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<[!?][^<>]*>|</?[A-Za-z][^\s/<>"']*(?:"[^"]*"|'[^']*'|[^'"<>])*+>""", re.DOTALL
)
_NAME = re.compile(r"</?([A-Za-z][^\s/<>]*)")
_ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'<>`=]+))?""")
INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark meter q rp rt ruby s samp "
    "small span strike strong sub sup svg math time tt u var wbr".split()
)
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
MAX_DEPTH = 50  # of nested elements; the tags of deeper ones stay where they are
YES = frozenset(("yes", ""))  # values of `translate`
RAW_TEXT = frozenset(("script", "style", "textarea"))  # in which neither tags nor comments begin
NEVER = frozenset("script style textarea svg math".split())  # have no text to translate, whatever they contain
OPAQUE = frozenset("code pre".split())


@dataclass
class Token:
    """A piece of the source.

    kind: text, open, close, atom (stays whole in its segment), mark (an atom that no reader sees, such as a comment),
    or block (ends a segment).
    """

    kind: str
    raw: str
    name: str = ""


def tokens_of(source: str) -> Iterator[Token]:
    """Yield the tokens of an HTML fragment; together they are the fragment."""
    return _tokens(source, 0, len(source))


def _tokens(source: str, place: int, end: int, depth: int = 0) -> Iterator[Token]:
    """Yield the tokens of source[place:end]. depth: number of elements with translate="yes" around it."""
    while match := _TOKEN.search(source, place, end):
        if match.start() > place:
            yield Token("text", source[place : match.start()])
        raw, place = match.group(), match.end()
        name_match = _NAME.match(raw)
        if name_match is None:
            yield Token("mark", raw)
            continue
        name = name_match[1].lower()
        is_closing, is_void = raw.startswith("</"), name in VOID or raw.endswith("/>")
        if not is_closing and not is_void and not _is_translated(raw, name):
            last = _end_of_element(source, name, place, end)
            kind = "atom" if name in INLINE else "block"
            yield from _untouched(source, (match.start(), place, last), kind, depth)
            place = last
        elif name not in INLINE:
            yield Token("block", raw)
        elif is_void:
            yield Token("mark" if name == "wbr" else "atom", raw)
        else:
            yield Token("close" if is_closing else "open", raw, name)
    if place < end:
        yield Token("text", source[place:end])


def _is_translated(tag: str, name: str) -> bool:
    """Return True if the content of an element is to be translated, as far as its opening tag says."""
    attributes = _attributes(tag)
    choice = attributes.get("translate")
    if name in NEVER or choice == "no":
        return False
    return choice in YES or name not in OPAQUE and "notranslate" not in attributes.get("class", "").split()


def _attributes(tag: str) -> dict[str, str]:
    """Return the attributes of an opening tag; the first of two with one name, as in browsers."""
    pairs = [(m[1].lower(), (m[2] or "").strip("\"'").lower()) for m in _ATTRIBUTE.finditer(tag)]
    return dict(reversed(pairs))


def _untouched(source: str, places: tuple[int, int, int], kind: str, depth: int) -> Iterator[Token]:
    """Yield an element that stays as it is, and the tokens of what has translate="yes" within it.

    places: the start of the element, of its content, and its end. kind: kind of the whole element.
    """
    start, place, end = places
    while depth < MAX_DEPTH and (match := _TOKEN.search(source, place, end)):
        raw, place = match.group(), match.end()
        name_match = _NAME.match(raw)
        name = name_match[1].lower() if name_match and raw[1] != "/" else ""
        if name in NEVER:
            place = _end_of_element(source, name, place, end)
        elif name and name not in VOID and _attributes(raw).get("translate") in YES:
            last = _end_of_element(source, name, place, end)
            last = max(place, source.rfind("</", place, last)) if last < end else last
            yield Token("block", source[start:place])
            yield from _tokens(source, place, last, depth + 1)
            start = place = last
            kind = "block"
    yield Token(kind, source[start:end])


def _end_of_element(source: str, name: str, place: int, end: int) -> int:
    """Return the end of the element `name` whose content begins at `place`, or `end` without a closing tag."""
    depth = 1
    is_raw = name in RAW_TEXT
    comment = "" if is_raw else "<!--.*?-->|"
    tag = rf"<(/?){re.escape(name)}(?=[\s/>])[^<>]*>"
    for match in re.compile(comment + tag, re.IGNORECASE | re.DOTALL).finditer(source, place, end):
        if match[1]:
            depth -= 1
        elif match[1] == "" and not is_raw and not match.group().endswith("/>"):
            depth += 1
        if depth == 0:
            return match.end()
    return end
