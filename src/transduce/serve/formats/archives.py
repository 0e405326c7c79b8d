"""Documents that are zip archives of XML. All members stay as they are, except the text in those with text.

The archive is never unpacked on the disk, and nothing outside it is read.
"""

import copy
import io
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from xml.parsers import expat

from transduce.errors import UserError
from transduce.serve.documents import Document, Part
from transduce.serve.formats.limits import limited

MOST_XML = 16 << 20  # bytes of the members with text, together
MOST_TAGS = 1_000_000  # in them; a short tag takes 4 us and 100 bytes
MOST_UNPACKED = 256 << 20  # bytes of all members
MOST_MEMBERS = 5_000
BLOCK = 1 << 20  # bytes of a member that are in memory when it is copied
MOST_DEPTH = 500
MOST_STRETCH = 1_000_000  # bytes of a tag, or of a text without tags
_LONG = re.compile(rb"[<>][^<>]{%d}" % MOST_STRETCH)
MANIFEST = "META-INF/manifest.xml"  # of OpenDocument; says which members are encrypted
PASSWORD = "expected a file without a password; save it again without"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # Word 97, and documents of Office with a password


@dataclass(frozen=True)
class Archive:
    """An archive. counts: by the name of a member with text, the number of its members in the document."""

    content: bytes
    document: Document
    counts: dict[str, int]

    def write(self, pieces: Sequence[str]) -> bytes:
        remaining = iter(pieces)
        output = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(self.content)) as source, zipfile.ZipFile(output, "w") as target:
            target.comment = source.comment
            for info in source.infolist():
                count = self.counts.get(info.filename)
                if count is not None:
                    data = "".join(next(remaining) for _ in range(count)).encode()
                    target.writestr(copy.copy(info), data, info.compress_type)
                    continue
                with source.open(info) as reading, target.open(copy.copy(info), "w") as writing:
                    shutil.copyfileobj(reading, writing, BLOCK)
        return output.getvalue()


def read_archive(content: bytes, names: Sequence[str], read: Callable[[str], Iterator[str | Part]]) -> Archive:
    """Return an archive with the texts of its XML. Raises UserError for one that is not sound.

    names: of the members with text, with "*"; the first one must be there. read: yields the texts of
    a member.
    """
    if content.startswith(OLE):
        raise UserError("expected a file without a password, and not of Word 97; save it again without")
    document: list[str | Part] = []
    counts: dict[str, int] = {}
    n_tags = 0
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check(archive.infolist())
            if names[0] not in archive.namelist():
                raise UserError(f"expected an archive with {names[0]}; correct the extension")
            if MANIFEST in archive.namelist() and "encryption-data" in _xml(archive, archive.getinfo(MANIFEST)):
                raise UserError(PASSWORD)
            if name := archive.testzip():
                raise zipfile.BadZipFile(f"{name!r} is damaged")
            for info in _with_text(archive.infolist(), names):
                xml = _xml(archive, info)
                n_tags += xml.count("<")
                if n_tags > MOST_TAGS:
                    raise UserError(f"expected at most {MOST_TAGS:,} tags in the XML with text; split the file")
                n_before = len(document)
                document += limited(read(xml), n_before)
                counts[info.filename] = len(document) - n_before
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise UserError(f"expected a zip archive; the file is damaged, or has another format ({error})") from None
    return Archive(content, document, counts)


def _check(members: Sequence[zipfile.ZipInfo]) -> None:
    """Raise UserError for an archive with too much in it, a password, or names that lead out of it."""
    if len(members) > MOST_MEMBERS:
        raise UserError(f"expected at most {MOST_MEMBERS:,} files in the archive, not {len(members):,}; split it")
    if sum(info.file_size for info in members) > MOST_UNPACKED:
        raise UserError(f"expected at most {MOST_UNPACKED:,} bytes in the archive, unpacked; remove its pictures")
    if len({info.filename for info in members}) < len(members):
        raise UserError("expected each name in the archive once; save the file again")
    for info in members:
        parts = info.filename.replace("\\", "/").split("/")
        if ".." in parts or not parts[0] or ":" in parts[0]:
            raise UserError(f"expected names within the archive, not {info.filename!r}; save the file again")
        if info.flag_bits & 1:
            raise UserError(PASSWORD)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(f"expected deflate in the archive, for {info.filename!r} too; save the file again")


def _with_text(members: Sequence[zipfile.ZipInfo], names: Sequence[str]) -> list[zipfile.ZipInfo]:
    """Return the members with text. Raises UserError if they are too long, as all of them are kept in memory."""
    found = [info for info in members if any(PurePosixPath(info.filename).match(name) for name in names)]
    if sum(info.file_size for info in found) > MOST_XML:
        raise UserError(
            f"expected at most {MOST_XML:,} bytes in {names[0]} and other XML with text, unpacked; split the file"
        )
    return found


def _xml(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    """Return the text of a member. Raises UserError if it is too long, or no plain XML in UTF-8."""
    with archive.open(info) as file:
        data = file.read(MOST_XML + 1)
    if len(data) > MOST_XML:
        raise UserError(f"expected at most {MOST_XML:,} bytes in {info.filename}, unpacked; split the file")
    if _LONG.search(data):
        raise UserError(f"expected tags and texts of at most {MOST_STRETCH:,} bytes in {info.filename}; split the text")
    depth = 0

    def refuse_doctype(*_: object) -> None:
        raise UserError(f"expected {info.filename} without a DOCTYPE; save the file again")

    def refuse_cdata() -> None:  # its text may look like tags
        raise UserError(f"expected {info.filename} without CDATA sections; save the file again")

    def declare(_version: str, encoding: str | None, _standalone: int) -> None:
        if encoding and encoding.lower() != "utf-8":  # the translation may have letters that it lacks
            raise UserError(f"expected {info.filename} in UTF-8, not {encoding}; save the file again")

    def enter(*_: object) -> None:
        nonlocal depth
        depth += 1
        if depth > MOST_DEPTH:
            raise UserError(f"expected at most {MOST_DEPTH} nested elements in {info.filename}; save the file again")

    def leave(*_: object) -> None:
        nonlocal depth
        depth -= 1

    parser = expat.ParserCreate()
    parser.XmlDeclHandler = declare
    parser.StartDoctypeDeclHandler = refuse_doctype
    parser.StartCdataSectionHandler = refuse_cdata
    parser.StartElementHandler = enter
    parser.EndElementHandler = leave
    try:
        parser.Parse(data, True)
        return data.decode()
    except expat.ExpatError as error:
        raise UserError(f"expected XML in {info.filename}; the file is damaged ({error})") from None
    except UnicodeDecodeError:
        raise UserError(f"expected {info.filename} in UTF-8; save the file again") from None
