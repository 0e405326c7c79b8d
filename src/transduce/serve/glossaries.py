"""Glossaries: terms that clients keep on the server, one file for each in a folder.

    FOLDER/ID.json    name, owner, time and dictionaries, each with its languages and entries

The owner of a glossary, the client with its key, can read, use, change and delete it.
"""

import csv
import functools
import io
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from transduce.data.text import is_blank
from transduce.decoding.phrases.terms import Terms
from transduce.errors import UserError
from transduce.serve.logs import Log
from transduce.serve.models import LanguagePair
from transduce.serve.refusal import Refusal, invalid
from transduce.storage.atomic_folder import write_file

ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MOST = 1_000  # glossaries of a server
MOST_ENTRIES = 20_000  # of a glossary; the terms of a line are found in all of them
DELIMITERS = {"tsv": "\t", "csv": ","}


class Dictionary(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a pair of languages."""

    source: str
    target: str
    entries: dict[str, str]

    @property
    def pair(self) -> LanguagePair:
        return self.source, self.target


class Glossary(msgspec.Struct, frozen=True, kw_only=True):
    """A glossary as its file has it. owner: digest of the key; created: seconds since 1970."""

    id: str
    name: str
    owner: str
    created: float
    dictionaries: tuple[Dictionary, ...]

    def dictionary(self, pair: LanguagePair) -> Dictionary | None:
        """Return the dictionary of a pair of languages; None if there is none."""
        return next((each for each in self.dictionaries if each.pair == pair), None)


class _OlderGlossary(Dictionary, frozen=True, kw_only=True):
    """A glossary as older versions wrote it: its only dictionary is not in a list."""

    id: str
    name: str
    owner: str
    created: float


class Glossaries:
    """The glossaries in a folder. None: this server keeps none, and refuses every use of them.

    A file that is no glossary counts as missing, so that it fails no request for another one. The log names it.
    """

    def __init__(self, folder: Path | None, log: Log) -> None:
        self._folder = folder
        self._log = log

    def create(self, owner: str, name: str, dictionaries: Sequence[Dictionary]) -> Glossary:
        """Keep a new glossary. Raises Refusal for one without a name, and if the server has no room for it."""
        if len([*self._files()]) >= MOST:
            raise Refusal(456, f"expected at most {MOST:,} glossaries on this server; delete one", "glossaries")
        new = {"id": str(uuid.uuid4()), "owner": owner, "created": time.time()}
        return self._keep(Glossary(**new, name=name, dictionaries=tuple(dictionaries)))

    def change(self, glossary: Glossary, name: str, dictionaries: Sequence[Dictionary]) -> Glossary:
        """Keep a glossary with another name, and dictionaries that are new or replace the ones of their languages."""
        by_pair = {each.pair: each for each in (*glossary.dictionaries, *dictionaries)}
        return self._keep(msgspec.structs.replace(glossary, name=name, dictionaries=tuple(by_pair.values())))

    def remove(self, glossary: Glossary, dictionary: Dictionary) -> None:
        """Keep a glossary without one of its dictionaries."""
        others = tuple(each for each in glossary.dictionaries if each is not dictionary)
        self._keep(msgspec.structs.replace(glossary, dictionaries=others))

    def _keep(self, glossary: Glossary) -> Glossary:
        if is_blank(glossary.name):
            raise invalid("name: expected the name of the glossary")
        _check_count(sum(len(each.entries) for each in glossary.dictionaries))
        write_file(self._path(glossary.id), msgspec.json.encode(glossary))
        return glossary

    def of(self, owner: str) -> list[Glossary]:
        """Return the glossaries of an owner, the oldest first."""
        every = (self._read(path) for path in self._files())
        return sorted((each for each in every if each and each.owner == owner), key=lambda each: each.created)

    def find(self, owner: str, key: str) -> Glossary:
        """Return a glossary of an owner. Raises Refusal if there is none."""
        glossary = self._read(self._path(key)) if ID.fullmatch(key) else None
        if glossary is None or glossary.owner != owner:
            self._path("")  # a server without glossaries says so
            raise Refusal(404, "Glossary not found", "glossaries")
        return glossary

    def delete(self, owner: str, key: str) -> None:
        """Delete a glossary of an owner. Raises Refusal if there is none."""
        self._path(self.find(owner, key).id).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        if self._folder is None:
            raise invalid("glossaries: expected a server that keeps them; start it with --glossaries FOLDER")
        return self._folder / f"{key}.json"

    def _files(self) -> Iterator[Path]:
        return (path for path in self._path("").parent.glob("*.json") if ID.fullmatch(path.stem))

    def _read(self, path: Path) -> Glossary | None:
        try:
            return _decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:  # the message may quote the entries
            self._log.write("error", "glossary", file=path.name, kind=type(problem).__name__)
            return None


def _decode(content: bytes) -> Glossary:
    try:
        return msgspec.json.decode(content, type=Glossary)
    except msgspec.ValidationError:
        old = msgspec.json.decode(content, type=_OlderGlossary)
    dictionary = Dictionary(source=old.source, target=old.target, entries=old.entries)
    return Glossary(id=old.id, name=old.name, owner=old.owner, created=old.created, dictionaries=(dictionary,))


def owner_of(key: str) -> str:
    """Return the owner of a client's glossaries. key: empty on a server without keys, where all clients share them."""
    return sha256(key.encode(errors="surrogatepass")).hexdigest()


@functools.lru_cache(maxsize=64)
def terms_of(key: str, entries: frozenset[tuple[str, str]]) -> Terms:
    """Return the terms of a glossary. Raises UserError for what is no term. key: of the glossary."""
    return Terms.of(dict(entries))


def parse_entries(text: str, form: str) -> dict[str, str]:
    """Return the entries of a text in "tsv" or "csv". Raises Refusal with the line of the first wrong one.

    A line has a source term, its target, or `target|target|...`, and in "csv" possibly the codes of both languages.
    """
    if form not in DELIMITERS:
        raise invalid("entries_format: expected tsv or csv")
    entries = dict[str, str]()
    quoting = csv.QUOTE_MINIMAL if form == "csv" else csv.QUOTE_NONE
    lines = csv.reader(io.StringIO(text), delimiter=DELIMITERS[form], quoting=quoting, strict=True)
    try:
        for fields in lines:
            place = f"entries: line {lines.line_num}"
            if not fields or all(map(is_blank, fields)):
                continue
            if len(fields) not in ((2, 4) if form == "csv" else (2,)):
                raise invalid(f"{place}: expected a source term and its target")
            source, target = fields[0].strip(), fields[1].strip()
            if source in entries:
                raise invalid(f"{place}: expected each source term once; write its targets as target|target")
            try:
                Terms.of({source: target})
            except UserError as error:
                raise invalid(f"{place}: {error}") from None
            entries[source] = target
            _check_count(len(entries))
    except csv.Error as error:
        raise invalid(f"entries: line {lines.line_num}: expected {form}: {error}") from None
    if not entries:
        raise invalid("entries: expected at least one line with a source term and its target")
    return entries


def _check_count(n_entries: int) -> None:
    if n_entries > MOST_ENTRIES:
        raise invalid(f"entries: expected at most {MOST_ENTRIES:,}")
