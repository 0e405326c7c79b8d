"""What people have their text in, as line-aligned plain text: the only module that knows the forms.

    two files, one sentence per line          plain, or packed as gz, xz or zst
    one file of tab-separated columns         source and target in the first two, or FILE:2,4; no quoting; packed, too
    one parquet file, or a folder of them     the first two columns, or FILE:de,en; needs transduce[data]
    a folder that Hugging Face's save_to_disk wrote (arrow files)

A column called `translation` that holds both languages, as in Hugging Face's sets for translation, counts as one column
for each of them. A line feed within a cell becomes a space; a cell without a value is a blank side.
"""

import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from transduce import text
from transduce.errors import UserError, nearest

MOST = 1_000  # a weight is less


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs: two line-aligned files, or one file or folder that holds both sides (then `tgt` is None).

    weight: how often each pair comes in an epoch. After E epochs it has come weight * E times, rounded up or down: 2 is
    twice in every epoch, 0.5 once in two, half of the pairs (drawn by the seed) in the first and the others next.
    """

    src: Path
    tgt: Path | None = None
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The corpus in a message."""
        return f"{self.src}" if self.tgt is None else f"{self.src} and {self.tgt}"


def parse(words: Sequence[str]) -> Corpus:
    """The corpus that "SRC TGT [WEIGHT]" or "FILE [WEIGHT]" means; UserError for anything else."""
    files, weight = list(words), 1.0
    if len(words) > 1 and (number := _number(words[-1])) is not None and not Path(words[-1]).exists():
        files, weight = files[:-1], number
    if not 1 <= len(files) <= 2 or not 0 < weight < MOST:
        given = " ".join(words)
        expected = f"expected SRC TGT or FILE, and perhaps a weight over 0 and under {MOST:,}"
        raise UserError(f"--train {given}: {expected}, as in --train web.en web.de 0.5")
    return Corpus(*map(Path, files), weight=weight)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def as_corpora(train: tuple[Path, Path] | Sequence[Corpus]) -> list[Corpus]:
    """Corpora; two paths are one."""
    given = [one for one in train if isinstance(one, Corpus)]
    paths = [one for one in train if not isinstance(one, Corpus)]
    return [*given, Corpus(paths[0], paths[1])] if paths else given


def problems(corpora: Sequence[Corpus]) -> list[str]:
    """A line for every corpus that cannot be read at all."""
    found = [] if corpora else ["no text to learn from: expected at least one corpus"]
    for corpus in corpora:
        if not 0 < corpus.weight < MOST:
            found.append(
                f"the weight of {corpus.name} is {corpus.weight:g}; expected more than 0 and less than {MOST:,}"
            )
        for path in (corpus.src, corpus.tgt):
            if path is not None and not path.is_file() and (corpus.tgt is not None or not _place(path)[0].exists()):
                found.append(f"{path} is no file; expected a text file, UTF-8, one sentence per line")
        if corpus.tgt is None and corpus.src.is_file() and _form(corpus.src) is None:
            found.append(f"{corpus.src} alone; expected two text files, or one of tab-separated columns or parquet")
    return list(dict.fromkeys(found))


def read_pairs(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """The pairs (source, target) of a corpus, one after the other. UserError for what is wrong, with file and line."""
    if corpus.tgt is not None:
        return text.read_pairs(corpus.src, corpus.tgt)
    place, columns = _place(corpus.src)
    if not place.exists():
        raise UserError(f"{corpus.src} does not exist; give two text files, or one of columns.")
    return _read_table(place, columns) if _form(place) == "table" else _read_tsv(place, columns)


# ---- plain files -------------------------------------------------------------------------------------------------


def plain_files(corpus: Corpus, folder: Path) -> tuple[Path, Path]:
    """The text of a corpus as two plain files: its own, or ones that are written into `folder`, once.

    They are written anew if size or time of what they were made from has changed.
    """
    if corpus.tgt is not None and not text.packing(corpus.src) and not text.packing(corpus.tgt):
        return corpus.src, corpus.tgt
    plain, stamp = (folder / "src.txt", folder / "tgt.txt"), folder / "made_from.json"
    origin = msgspec.json.encode([str(corpus.src), str(corpus.tgt), _stamps(corpus)])
    if not stamp.exists() or stamp.read_bytes() != origin:
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        with plain[0].open("wb") as src_file, plain[1].open("wb") as tgt_file:
            for src, tgt in read_pairs(corpus):
                src_file.write(src.encode() + b"\n")
                tgt_file.write(tgt.encode() + b"\n")
            for file in (src_file, tgt_file):
                file.flush()
                os.fsync(file.fileno())
        stamp.write_bytes(origin)
    return plain


def _stamps(corpus: Corpus) -> list[tuple[str, int, int]]:
    """Name, size and time of every file of a corpus."""
    places = [corpus.src, corpus.tgt] if corpus.tgt is not None else [_place(corpus.src)[0]]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*")))]
    return [(str(file), (found := file.stat()).st_size, found.st_mtime_ns) for file in files]


# ---- tab-separated columns ---------------------------------------------------------------------------------------


def _place(path: Path) -> tuple[Path, list[str]]:
    """A path, and the columns that are asked for after it: FILE:2,4."""
    name, colon, asked = str(path).rpartition(":")
    return (Path(name), asked.split(",")) if colon and not path.exists() else (path, [])


def _form(path: Path) -> str | None:
    """What one file or folder is: "table" (parquet or arrow) or "tsv"; None for a text file without a tab."""
    if path.is_dir():
        return "table"
    with text.open_text(path) as file:
        first = file.readline(1 << 20)
    if first.startswith(b"PAR1"):
        return "table"
    return "tsv" if b"\t" in first else None


def _read_tsv(path: Path, columns: list[str]) -> Iterator[tuple[str, str]]:
    asked = None
    for number, line in enumerate(text.read_lines(path), start=1):
        cells = line.split("\t")
        if asked is None:
            asked = _numbers(path, columns, len(cells))
        if len(cells) <= max(asked):
            expected = f"expected at least {max(asked) + 1}, on each line"
            raise UserError(f"{path}:{number} has {len(cells)} tab-separated columns; {expected}")
        yield cells[asked[0]], cells[asked[1]]
    if asked is None:
        raise UserError(f"{path} is empty; give tab-separated source and target, one pair per line.")


def _numbers(path: Path, columns: list[str], count: int) -> tuple[int, int]:
    """Which columns are source and target, counted from 0."""
    if not columns and count == 2:
        return 0, 1
    if len(columns) == 2 and all(column.isdecimal() and 1 <= int(column) <= count for column in columns):
        return int(columns[0]) - 1, int(columns[1]) - 1
    given = f", not {','.join(columns)}" if columns else ""
    raise UserError(f"{path} has {count} tab-separated columns; say which are source and target{given}: {path}:1,2")


# ---- parquet and arrow -------------------------------------------------------------------------------------------


def _read_table(path: Path, columns: list[str]) -> Iterator[tuple[str, str]]:
    empty = True
    for batch in _record_batches(path):
        sides = _sides(path, columns, batch)
        for src, tgt in zip(*sides, strict=True):
            empty = False
            yield _one_line(src), _one_line(tgt)
    if empty:
        raise UserError(f"{path} holds no rows; give a table of sentence pairs.")


def _one_line(cell: str | None) -> str:
    return "" if cell is None else cell.replace("\r\n", " ").replace("\n", " ")


def _record_batches(path: Path) -> Iterator[Any]:
    """The rows of parquet and arrow files in pieces; those of a folder in the order of their names."""
    try:
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(f"{path} needs one more package to be read: pip install 'transduce[data]'") from None
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".parquet", ".arrow"))
        if not files:
            raise UserError(f"{path} holds no .parquet or .arrow files; expected a folder of them, or two text files")
    for file in files:
        try:
            if file.suffix == ".arrow":
                with pyarrow.memory_map(str(file)) as source, pyarrow.ipc.open_stream(source) as stream:
                    yield from stream
            else:
                with parquet.ParquetFile(file) as table:
                    yield from table.iter_batches(batch_size=10_000)
        except (pyarrow.ArrowException, OSError) as error:
            reason = f"{error}".splitlines()[0]
            raise UserError(f"{file} cannot be read as a table of sentence pairs: {reason}") from error


def _sides(path: Path, columns: list[str], batch: Any) -> list[list[str | None]]:
    """The source and the target cells of some rows."""
    found = {}
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        if str(values.type).startswith("struct"):
            found |= {field.name: values.field(field.name) for field in values.type}
        else:
            found[name] = values
    texts = [name for name, values in found.items() if str(values.type) in ("string", "large_string", "string_view")]
    asked = columns or texts
    if len(asked) != 2 or unknown(asked, texts):
        wrong = "".join(f"; {name!r} is none{nearest(name, texts)}" for name in unknown(asked, texts))
        raise UserError(
            f"{path} has the text columns {', '.join(texts) or '(none)'}{wrong}; "
            f"say which are source and target: {path}:{','.join(texts[:2]) or 'de,en'}"
        )
    return [found[name].to_pylist() for name in asked]


def unknown(asked: Sequence[str], known: Sequence[str]) -> list[str]:
    """Those of `asked` that are not known."""
    return [name for name in asked if name not in known]
