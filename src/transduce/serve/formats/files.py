"""Files of all formats: their texts, and the file with the translations. What is not text stays, byte for byte."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from transduce.data.compression import ALL_FORMATS
from transduce.errors import LineError, UserError, nearest
from transduce.serve.documents import Document
from transduce.serve.formats.archives import read_archive
from transduce.serve.formats.limits import limited

MOST_BYTES = 4 << 20  # of a text file
MOST_FILE_BYTES = 64 << 20
BOM = "\ufeff"


class File(Protocol):
    """A file whose texts are the parts of a document."""

    @property
    def document(self) -> Document: ...

    def write(self, pieces: Sequence[str]) -> bytes:
        """Return the file. Each piece replaces one member of the document."""
        ...


MODULES = {
    "txt": "plain",
    "srt": "subtitles",
    "vtt": "subtitles",
    "json": "json_values",
    "po": "gettext",
    "html": "web",
    "htm": "web",
    "md": "markdown",
    "docx": "docx",
    "odt": "odt",
}  # the module of each extension: `READERS` yields the texts, and what is between them, of a text file or of XML
ARCHIVES = ("docx", "odt")


def extension_of(name: str, where: str) -> str:
    """Return the extension of a file's name. Raises UserError for one without a format. where: name in the message."""
    extension = PurePath(name).suffix.lower().removeprefix(".")
    if extension not in MODULES:
        hint = nearest(extension, MODULES)
        raise UserError(f"{where}: expected a name that ends with .{', .'.join(MODULES)}{hint}; convert the file")
    return extension


def read_file(content: bytes, extension: str, where: str) -> File:
    """Return a file with its texts. where: its name in messages. Raises UserError for a file that is not sound."""
    if len(content) > MOST_FILE_BYTES:
        raise UserError(f"{where}: expected at most {MOST_FILE_BYTES:,} bytes; split the file")
    try:
        return _read(content, extension)
    except LineError as error:
        raise UserError(f"{where}:{error.number}: {error.problem}") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except RecursionError:
        raise UserError(f"{where}: expected less deep nesting; flatten the file") from None


@dataclass(frozen=True)
class TextFile:
    """A text file in UTF-8."""

    document: Document

    def write(self, pieces: Sequence[str]) -> bytes:
        return "".join(pieces).encode()


def _read(content: bytes, extension: str) -> File:
    module = importlib.import_module(f"transduce.serve.formats.{MODULES[extension]}")
    read = module.READERS[extension]
    if extension in ARCHIVES:
        return read_archive(content, module.MEMBERS, read)
    text = decode(content)
    before = [BOM] if text.startswith(BOM) else []
    return TextFile([*before, *limited(read(text.removeprefix(BOM)))])


def decode(content: bytes) -> str:
    """Return a text. Raises UserError for one that is too long, not UTF-8, or no text."""
    if len(content) > MOST_BYTES:
        raise UserError(f"expected at most {MOST_BYTES:,} bytes of text, not {len(content):,}; split the file")
    if kind := next((kind for magic, kind in ALL_FORMATS.items() if content.startswith(magic)), None):
        raise UserError(f"expected text, not {kind}; decompress it, or correct the extension")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        kind = "UTF-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "ISO-8859-1"
        remedy = f"convert the file: iconv -f {kind} -t UTF-8 OLD > NEW"
        raise LineError(number, f"expected UTF-8, not the byte 0x{content[error.start]:02x}; {remedy}") from None
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + 1
        raise LineError(number, "expected text in UTF-8, not the character NUL; convert the file with iconv")
    return text
