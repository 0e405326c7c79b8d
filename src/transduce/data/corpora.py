"""What people have their text in, as line-aligned plain text: the only module that knows the forms.

    two files, one sentence per line          plain, or packed as gz, xz or zst
    one file of tab-separated columns         source and target in the first two, or FILE:2,4; no quoting; packed, too
    one parquet file                          its two columns of text, or FILE:de,en; needs transduce[data]
    several, as 'FOLDER/train-*.parquet'      one after the other, in the order of their names; tab-separated ones, too
    a folder of parquet or arrow files        as Hugging Face's save_to_disk writes it, or a download of a set has it
    hf:OWNER/SET/de-en/train-*.parquet        files of a dataset at Hugging Face, downloaded and kept in its own cache

A column called `translation` that holds both languages, as in Hugging Face's sets for translation, counts as one column
for each of them. A line feed within a cell becomes a space; a cell without a value is a blank side.
"""

import glob
import importlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from transduce.data import text
from transduce.data.compression import compression_format, open_text
from transduce.errors import UserError, nearest

MOST = 1_000  # a weight is less
HUGGING_FACE = "hf:"


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
        found += _missing(corpus)
    return list(dict.fromkeys(found))


def read_pairs(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """The pairs (source, target) of a corpus, one after the other. UserError for what is wrong, with file and line."""
    if corpus.tgt is not None:
        return text.read_pairs(corpus.src, corpus.tgt)
    files, columns = _files(corpus.src)
    if not files:
        raise UserError(*_missing(corpus))
    if any(_is_table(file) for file in files):
        return _read_tables(corpus.src, files, columns)
    return itertools.chain.from_iterable(_read_tsv(file, columns) for file in files)


def _missing(corpus: Corpus) -> list[str]:
    """A line for every file of a corpus that is not there, or cannot be one."""
    if corpus.tgt is not None:
        missing = [path for path in (corpus.src, corpus.tgt) if not path.is_file()]
        return [f"{path} is no file; expected a text file, UTF-8, one sentence per line" for path in missing]
    files, columns = _files(corpus.src)
    if corpus.src.is_dir() and not files:
        return [f"{corpus.src} holds no .parquet or .arrow files; expected a folder of them, or two text files"]
    if not files:
        return [f"{corpus.src} is no file; expected two text files, or one with both sides in columns"]
    if not columns and len(files) == 1 and not _is_table(files[0]) and not _has_columns(files[0]):
        return [f"{corpus.src} alone; expected two text files, or one of tab-separated columns or parquet"]
    return []


def _files(path: Path) -> tuple[list[Path], list[str]]:
    """The files that hold both sides, and which of their columns are asked for: FILE:2,4."""
    given = str(path)
    asked = given.count(":") > given.startswith(HUGGING_FACE) and not path.exists()
    columns = given.rpartition(":")[2].split(",") if asked else []
    place = Path(given.rpartition(":")[0]) if asked else path
    if given.startswith(HUGGING_FACE):
        place = _downloaded(str(place))
    if place.is_file():
        return [place], columns
    if not place.is_dir():
        return [Path(file) for file in sorted(glob.glob(str(place)))], columns
    files = sorted(file for file in place.rglob("*") if file.suffix in (".parquet", ".arrow"))
    for file in files:
        if any(part.startswith(("test", "valid", "dev")) for part in file.relative_to(place).parts):
            raise UserError(f"{file} is not for training, it seems; give what is: '{place}/train-*.parquet', or so")
    return files, columns


def _downloaded(name: str) -> Path:
    """Where the files of a dataset, hf:OWNER/SET/FILES, are on disk, once they have been fetched."""
    owner, _, rest = name.removeprefix(HUGGING_FACE).partition("/")
    dataset, _, files = rest.partition("/")
    if not files:
        raise UserError(f"{name}: expected hf:OWNER/SET/FILES, such as hf:wmt/wmt14/de-en/train-*.parquet")
    try:
        hub = importlib.import_module("huggingface_hub")
        folder = hub.snapshot_download(f"{owner}/{dataset}", repo_type="dataset", allow_patterns=[files])
    except ImportError:
        raise UserError(f"{name} needs one more package to be fetched: pip install 'transduce[data]'") from None
    except (OSError, ValueError) as error:
        reason = f"{error}".splitlines()[0]
        raise UserError(f"{name} cannot be fetched: {reason}; or download it and give its files") from error
    return Path(folder) / files


def _is_table(file: Path) -> bool:
    """Whether a file is a table, not text."""
    if file.suffix == ".arrow":
        return True
    with file.open("rb") as opened:
        return opened.read(4) == b"PAR1"


def _has_columns(file: Path) -> bool:
    with open_text(file) as opened:
        return b"\t" in opened.readline(1 << 20)


# ---- plain files -------------------------------------------------------------------------------------------------


def plain_files(corpus: Corpus, folder: Path) -> tuple[Path, Path]:
    """The text of a corpus as two plain files: its own, or ones that are written into `folder`, once.

    They are written anew if size or time of what they were made from has changed.
    """
    if corpus.tgt is not None and not compression_format(corpus.src) and not compression_format(corpus.tgt):
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
    files = [corpus.src, corpus.tgt] if corpus.tgt is not None else _files(corpus.src)[0]
    return [(str(file), (found := file.stat()).st_size, found.st_mtime_ns) for file in files]


# ---- tab-separated columns ---------------------------------------------------------------------------------------


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


def _read_tables(path: Path, files: Sequence[Path], columns: list[str]) -> Iterator[tuple[str, str]]:
    empty = True
    for batch in itertools.chain.from_iterable(map(_record_batches, files)):
        sides = _sides(path, columns, batch)
        for src, tgt in zip(*sides, strict=True):
            empty = False
            yield _one_line(src), _one_line(tgt)
    if empty:
        raise UserError(f"{path} holds no rows; give a table of sentence pairs.")


def _one_line(cell: str | None) -> str:
    return "" if cell is None else cell.replace("\r\n", " ").replace("\n", " ")


def _record_batches(file: Path) -> Iterator[Any]:
    """The rows of a parquet or arrow file, in pieces."""
    try:
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(f"{file} needs one more package to be read: pip install 'transduce[data]'") from None
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
    unknown = [name for name in asked if name not in texts]
    if len(asked) != 2 or unknown:
        wrong = "".join(f"; {name!r} is none{nearest(name, texts)}" for name in unknown)
        raise UserError(
            f"{path} has the text columns {', '.join(texts) or '(none)'}{wrong}; "
            f"say which are source and target: {path}:{','.join(texts[:2]) or 'de,en'}"
        )
    return [found[name].to_pylist() for name in asked]
