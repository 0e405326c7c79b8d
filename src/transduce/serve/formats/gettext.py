r"""Gettext's PO: the messages without a translation get one. All other messages and all comments stay.

msgid "A dog runs.\n"      the source
msgstr ""                  gets the translation; of a plural, msgstr[0] that of msgid, the others that of msgid_plural
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from transduce.errors import LineError
from transduce.serve.documents import Part
from transduce.serve.formats.plain import lines_of
from transduce.serve.formats.values import value_parts

_KEYWORD = re.compile(r'\s*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*(".*")\s*$')
_MORE = re.compile(r'\s*(".*")\s*$')
_QUOTED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"')
_LINE = re.compile(r"(?:[^\\]++|\\[^n])*+(?:\\n|$)")
_ESCAPE = re.compile(r"((?:\\(?:[0-7]{1,3}|x[0-9a-fA-F]+))+)|\\(.)")
_ESCAPES = dict(zip("abfnrtv\"\\'?", "\a\b\f\n\r\t\v\"\\'?", strict=True))
_NAMES = {value: name for name, value in _ESCAPES.items()}
_ESCAPED = {c: "\\" + _NAMES.get(chr(c), f"{c:03o}") for c in [*range(32), 127, ord('"'), ord("\\")]}
_CHARSET = re.compile(r"(?:^|\\n)Content-Type:[^\\]*?charset=([^\s;\\]+)", re.IGNORECASE)


@dataclass
class _Message:
    """A message. strings: by keyword, as they are in the file. places: the first and the last line of each msgstr."""

    strings: dict[str, list[str]] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_untranslated(self) -> bool:
        return any(self.strings.get("msgid", ())) and not any(any(self.strings[name]) for name in self.places)

    def source(self, name: str) -> str:
        """Return the source of a msgstr."""
        is_singular = name == "msgstr" or name == "msgstr[0]" and "msgstr[1]" in self.places
        return "".join(self.strings["msgid" if is_singular else "msgid_plural"])


def read(text: str) -> Iterator[str | Part]:
    """Yield the sources of the messages without a translation, where the translation will be."""
    lines = lines_of(text)
    number = 0
    for message in _messages(lines):
        _check_charset(message)
        for name, (first, last) in message.places.items() if message.is_untranslated else ():
            yield "".join(map("".join, lines[number:first]))
            line, end = lines[first]
            yield line[: line.index('"')]
            yield from _texts(message.source(name), end or "\n")
            yield lines[last][1]
            number = last + 1
    yield "".join(map("".join, lines[number:]))


READERS = {"po": read}


def _messages(lines: list[tuple[str, str]]) -> Iterator[_Message]:
    """Yield the messages. Raises LineError for a line that is none of PO."""
    message, name = _Message(), ""
    for i, (line, _) in enumerate(lines):
        if match := _KEYWORD.match(line):
            if match[1] in message.strings or match[1] == "msgctxt" or match[1] == "msgid" and message.places:
                yield message
                message = _Message()
            name = match[1]
            if name.startswith("msgstr[") and len(name) > len("msgstr[9]"):
                raise LineError(i + 1, f"expected msgstr[0] to msgstr[9], not {name[:20]}; remove this form")
            message.strings[name] = [_content(match[2], i)]
        elif (match := _MORE.match(line)) and name:
            message.strings[name].append(_content(match[1], i))
        elif not line.strip() or line.lstrip().startswith("#"):
            name = ""
            continue
        else:
            raise LineError(i + 1, 'expected a line of PO, such as msgid "text"; correct it')
        if (
            name == "msgid_plural"
            and "msgid" not in message.strings
            or name.startswith("msgstr")
            and ("msgid" not in message.strings or name != "msgstr" and "msgid_plural" not in message.strings)
        ):
            raise LineError(i + 1, f"expected msgid, and of a plural msgid_plural, before {name}; correct the message")
        if name.startswith("msgstr"):
            message.places[name] = message.places.get(name, (i, i))[0], i
    yield message


def _check_charset(message: _Message) -> None:
    """Raise LineError for a header with another charset than UTF-8, in which the translations are written."""
    is_header = not any(message.strings.get("msgid", [""])) and "msgctxt" not in message.strings
    match = _CHARSET.search("".join(message.strings.get("msgstr", ()))) if is_header else None
    if match and match[1].lower() not in ("utf-8", "utf8"):
        number = message.places["msgstr"][0] + 1
        raise LineError(number, f"expected charset=UTF-8, not {match[1]}; set charset=UTF-8 in the header")


def _content(quoted: str, number: int) -> str:
    match = _QUOTED.fullmatch(quoted)
    if match is None:
        raise LineError(number + 1, 'expected one string in quotation marks; write those within it as \\"')
    return match[1]


def _texts(source: str, end: str) -> Iterator[str | Part]:
    """Yield the source of a message as a string, with its texts; several lines of text are several lines of PO."""
    first = _LINE.match(source)
    if first and first.end() < len(source):
        yield f'""{end}'
    for i, match in enumerate(_LINE.finditer(source)):
        line = match[0]
        if i and not line:
            return
        yield f'{end if i else ""}"'
        text = line.removesuffix("\\n")
        yield from value_parts(text, _decode, _encode)
        yield line[len(text) :] + '"'


def _decode(raw: str) -> str:
    return _ESCAPE.sub(lambda match: _bytes(match[1]) if match[1] else _ESCAPES.get(match[2], match[0]), raw)


def _bytes(raw: str) -> str:
    """Return the text of bytes in octal or hexadecimal notation."""
    codes = (int(code[1:], 16) if code.startswith("x") else int(code, 8) for code in raw.split("\\")[1:])
    return bytes(code & 0xFF for code in codes).decode(errors="replace")


def _encode(text: str) -> str:
    return text.translate(_ESCAPED)
