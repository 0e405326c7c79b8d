"""TMX, the exchange format of translation memories: read as pairs, a block at a time, whatever the size of the file.

A unit (tu) has a variant (tuv) for each language, with the text in its seg. Native codes within it are left out.
"""

from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat

from transduce.data.compression import open_text
from transduce.data.text import MAX_LINE_BYTES
from transduce.errors import UserError

BLOCK_BYTES = 1 << 16
MOST_CODES = 100  # different codes of languages that are kept for a message
NATIVE_CODES = frozenset(("bpt", "ept", "it", "ph", "ut", "sub"))


def read_tmx(path: Path, source: str, columns: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the texts of each unit in two languages; "" for a language that a unit lacks.

    source: unused. columns: two codes; `en` also means `en-US`. Empty: the file has only two languages, and the first
    unit gives their order. Raises UserError for any other file, at its end if no unit has one of the languages, and for
    a file that declares entities, which can become endless text.
    """
    units = _Units(path)
    languages = [code.lower() for code in columns]
    if columns and len(columns) != 2:
        raise UserError(f"{path}: expected the codes of two languages, not {','.join(columns)}; as in {path}:en,de")
    known = set[str]()
    missing = {*languages}
    for unit in units.read():
        missing = {language for language in missing if not any(_is_variety(code, language) for code in unit)}
        if len(known) < MOST_CODES:
            known.update(unit)
        languages = languages or list(unit)
        if len(languages) != 2 or not (columns or unit.keys() <= {*languages}):
            codes = sorted({*languages, *unit})
            example = ",".join(codes[:2] if len(codes) > 1 else ("en", "de"))
            raise UserError(f"{path}: expected two languages, not {', '.join(codes)}; name two, as in {path}:{example}")
        src, tgt = (_text_in(unit, language) for language in languages)
        yield src, tgt
    if known and missing:
        raise _unknown(path, languages, missing, sorted(known))


def _text_in(unit: dict[str, str], language: str) -> str:
    """Return the text in a language; "" if the unit has none."""
    return next((text for code, text in unit.items() if _is_variety(code, language)), "")


def _is_variety(code: str, language: str) -> bool:
    """Return True for the code of a language, and for the code of a variety of it, such as en-us for en."""
    return code == language or code.startswith((f"{language}-", f"{language}_"))


def _unknown(path: Path, languages: list[str], missing: set[str], known: list[str]) -> UserError:
    """Return the error for two languages of which some have no text in a file. known: the codes in the file."""
    others = [code for code in known if code and not any(_is_variety(code, language) for language in languages)]
    remedy = "get a file with both languages"
    if len(others) >= len(missing):
        names = [others.pop(0) if language in missing else language for language in languages]
        remedy = f"correct the name, as in {path}:{','.join(names)}"
    codes = ", ".join(code or "a text without a language" for code in known)
    return UserError(
        f"{path}: expected languages of the file, which has {codes}, not {', '.join(sorted(missing))}; {remedy}"
    )


class _Units:
    """The units of a file: the text of each by the code of its language, in lower case."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ready: list[dict[str, str]] = []
        self._unit: dict[str, str] = {}
        self._language = ""
        self._parts: list[str] | None = None  # of the text of a seg; None outside
        self._size = 0
        self._codes = 0  # open elements of native codes
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.EntityDeclHandler = self._entity

    def read(self) -> Iterator[dict[str, str]]:
        try:
            with open_text(self._path) as file:
                while block := file.read(BLOCK_BYTES):
                    self._parser.Parse(block, False)
                    yield from self._ready
                    self._ready.clear()
                self._parser.Parse(b"", True)
        except expat.ExpatError as problem:
            raise UserError(f"{self._path}: expected TMX, but {problem}; get the file again") from None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self._unit = {}
        elif name == "tuv":
            self._language = (attributes.get("xml:lang") or attributes.get("lang") or "").lower()
        elif name == "seg":
            self._parts = []
            self._size = 0
        elif name in NATIVE_CODES:
            self._codes += 1

    def _end(self, name: str) -> None:
        if name == "tu":
            self._ready.append(self._unit)
        elif name == "seg" and self._parts is not None:
            self._unit.setdefault(self._language, "".join(self._parts))
            self._parts = None
        elif name in NATIVE_CODES:
            self._codes -= 1

    def _text(self, text: str) -> None:
        if self._parts is None or self._codes:
            return
        self._parts.append(text)
        self._size += len(text)
        if self._size > MAX_LINE_BYTES:
            raise UserError(
                f"{self._path}:{self._parser.CurrentLineNumber}: expected a text of at most {MAX_LINE_BYTES:,} "
                "characters; split it"
            )

    def _entity(self, name: str, *declaration: object) -> None:
        raise UserError(
            f"{self._path}:{self._parser.CurrentLineNumber}: expected no entities of its own, but it declares {name}; "
            "replace them by their text"
        )
