"""JSON: the strings that are values. Keys, numbers and white space stay."""

import json
import re
from collections.abc import Iterator

import msgspec

from transduce.errors import UserError
from transduce.serve.documents import Part
from transduce.serve.formats.values import value_parts

_STRING = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(\s*:)?', re.DOTALL)
_LINE = re.compile(r"(?:\\[nr])++|(?:[^\\]++|\\[^nr])++", re.DOTALL)


def read(text: str) -> Iterator[str | Part]:
    """Yield the texts of the values, and what is between them."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise UserError(f"expected JSON; correct it: {error}") from None
    is_ascii = text.isascii()
    place = 0
    for string in _STRING.finditer(text):
        if string[2]:  # a key
            continue
        yield text[place : string.start(1)]
        for line in _LINE.finditer(string[1]):
            if line[0].startswith(("\\n", "\\r")):
                yield line[0]
            else:
                yield from value_parts(line[0], _decode, lambda value: json.dumps(value, ensure_ascii=is_ascii)[1:-1])
        place = string.end(1)
    yield text[place:]


READERS = {"json": read}


def _decode(raw: str) -> str:
    return json.loads(f'"{raw}"', strict=False)
