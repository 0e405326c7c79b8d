"""Requests: the four forms of a request -> fields by name, and checks of single fields.

The forms are JSON, urlencoded, multipart, and the query of the URL. A field of a form comes before the same field of
the query. With JSON the query is ignored.
"""

import asyncio
import math
import re
import reprlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

import msgspec
from starlette.formparsers import MultiPartParser
from starlette.requests import Request

from transduce.serve.refusal import Refusal, invalid
from transduce.serve.settings import Limits

MAX_FIELDS = 1_000  # of a form or a query
NAMES_OF_TYPES = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}


@dataclass(frozen=True)
class Fields:
    """The fields of a request.

    remedy: end of the message about a missing field. is_form: they come from a form or a query, in which a repeated
    field is a list. files: name and content of each file of a form.
    """

    values: Mapping[str, object]
    remedy: str = ""
    is_form: bool = False
    files: Mapping[str, tuple[str, bytes]] = field(default_factory=dict[str, tuple[str, bytes]])

    def file(self, name: str) -> tuple[str, bytes]:
        """Return name and content of a file. Raises Refusal if it is missing."""
        if name not in self.files:
            raise self.missing(name)
        return self.files[name]

    def text(self, name: str) -> str:
        """Return a field that must be a string. Raises Refusal if it is missing, empty, or another value."""
        value = self.values.get(name)
        if value is None or value == "" or value == []:
            raise self.missing(name)
        return self.optional_text(name) or ""

    def optional_text(self, name: str, default: str = "") -> str:
        """Return a field that is a string, or `default` if it is missing or null. Raises Refusal for other values."""
        value = self._first(name)
        return default if value is None else _string(name, value)

    def texts(self, name: str) -> tuple[list[str], bool]:
        """Return a field that is a string or a list of strings, as a list, and True if it was a list."""
        value = self.values.get(name)
        if value is None or value == "" or value == []:
            raise self.missing(name)
        if isinstance(value, str):
            return [value], False
        if not isinstance(value, list):
            raise invalid(f"Invalid request: $.{name}: expected a string or a list of strings, not {_type_of(value)}")
        return [_string(f"{name}[{i}]", text) for i, text in enumerate(value)], True

    def number(self, name: str, most: int) -> int:
        """Return a field that is a number from 0 to `most`, rounded down; negative ones and null are 0."""
        value = self._first(name)
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", value):
            value = int(value)
        if value is None or value == "":
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(f"Invalid request: $.{name}: expected a number")
        if value >= most + 1:
            raise invalid(f"Invalid request: {name} ({reprlib.repr(int(value))}) exceeds limit ({most})")
        return max(0, int(value))

    def fraction(self, name: str) -> float | None:
        """Return a field that is a number from 0 to 1; None if it is missing. Raises Refusal for other values."""
        value = self._first(name)
        if value is None or value == "":
            return None
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if not 0 <= number <= 1:
            raise invalid(f"Invalid request: $.{name}: expected a number from 0 to 1")
        return number

    def is_true(self, name: str) -> bool:
        """Return True for a field that is true, "true" or 1."""
        return str(self.values.get(name)).lower() in ("1", "true")

    def _first(self, name: str) -> object:
        """Return a field, or the first value of a field that a form repeats."""
        value = self.values.get(name)
        return value[0] if self.is_form and isinstance(value, list) and value else value

    def missing(self, name: str) -> Refusal:
        return invalid(f"Invalid request: missing {name} parameter{self.remedy}")


def _string(name: str, value: object) -> str:
    """Return a value that must be a string. Raises Refusal for another one."""
    if not isinstance(value, str):
        raise invalid(f"Invalid request: $.{name}: expected a string, not {_type_of(value)}")
    return value


def _type_of(value: object) -> str:
    return "null" if value is None else NAMES_OF_TYPES.get(type(value), "another value")


async def read_fields(request: Request, limits: Limits) -> Fields:
    """Return the fields of a request in any of the four forms. Raises Refusal if they cannot be read."""
    body = await read_body(request, limits)
    header = request.headers.get("content-type", "")
    media = header.partition(";")[0].strip().lower()
    if media == "application/json" or re.fullmatch(r"application/[\w.-]+\+json", media):
        return Fields(json_object(body))
    values: dict[str, str | list[str]] = {}
    files: dict[str, tuple[str, bytes]] = {}
    remedy = ""
    if media == "application/x-www-form-urlencoded" and not body.lstrip().startswith(b"{"):
        values = _form(_pairs(body, "body"))
    elif media == "multipart/form-data":
        pairs, files = await _multipart(request, body)
        values = _form(pairs)
    elif body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        remedy = "; a body in JSON needs the header Content-Type: application/json"
    for name, value in _form(_pairs(request.scope["query_string"], "query")).items():
        values.setdefault(name, value)
    return Fields(values, remedy, is_form=True, files=files)


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body. Raises Refusal for one that is too long or arrives too slowly."""
    too_long = Refusal(413, f"expected a body of at most {limits.body_bytes:,} bytes", "body", closes=True)
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limits.body_bytes:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body_bytes:
                    raise too_long
    except TimeoutError:
        seconds = f"{limits.body_seconds:g} s"
        raise Refusal(408, f"expected the whole body within {seconds}", "slow", closes=True) from None
    return bytes(body)


def json_object(body: bytes) -> dict[str, object]:
    """Return the object that a body in JSON has. Raises Refusal for anything else."""
    try:
        values = msgspec.json.decode(body.removeprefix(b"\xef\xbb\xbf"))
    except RecursionError:
        raise invalid("Invalid request: expected JSON that is not nested so deeply") from None
    except UnicodeDecodeError:
        raise invalid("Invalid request: expected JSON in UTF-8") from None
    except msgspec.DecodeError:  # its message may quote the text
        raise invalid("Invalid request: expected JSON") from None
    if not isinstance(values, dict):
        raise invalid(f"Invalid request: expected a JSON object, not {_type_of(values)}")
    return values


def _pairs(encoded: bytes, place: str) -> list[tuple[str, str]]:
    try:
        text = encoded.decode("utf-8")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise invalid(f"Invalid request: expected a {place} in UTF-8") from None
    except ValueError:
        raise invalid(f"Invalid request: expected at most {MAX_FIELDS:,} fields in the {place}") from None


def _form(pairs: list[tuple[str, str]]) -> dict[str, str | list[str]]:
    """Return the fields of a form; a repeated field is a list."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in values.items()}


async def _multipart(request: Request, body: bytes) -> tuple[list[tuple[str, str]], dict[str, tuple[str, bytes]]]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_files=4, max_fields=MAX_FIELDS)
    try:
        form = await parser.parse()
    except Exception:  # whatever the parser finds, the bytes of the client are the cause
        raise invalid("Invalid request: expected a body in multipart/form-data") from None
    pairs, files = list[tuple[str, str]](), dict[str, tuple[str, bytes]]()
    for name, value in form.multi_items():
        if isinstance(value, str):
            pairs.append((name, value))
        else:
            files[name] = (value.filename or "", await value.read())
    await form.close()
    return pairs, files
