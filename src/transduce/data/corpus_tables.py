"""Tables: one file that holds both sides of a corpus. Only this module and `data.tmx` know the formats.

    tab-separated columns       the only two, FILE:2,4, or FILE:en,de by the names in the first line
    CSV                         the same columns, in a file named .csv, separated by commas or semicolons
    JSON lines                  the two texts of each object, or FILE:en,de by their keys
    TMX                         the only two languages, or FILE:en,de
    parquet, arrow              the two columns of text, or FILE:en,de by name; needs transduce[data]

A column `translation` that holds both languages, as in Hugging Face's translation sets, counts as one column for each
language. A line feed within a cell becomes a space. A cell without a value is a blank side.
"""

import codecs
import csv
import importlib
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from transduce.data import text
from transduce.data.compression import open_file, open_text
from transduce.data.tmx import read_tmx
from transduce.errors import UserError, nearest

Cells = tuple[str | None, str | None]
NumberedCells = tuple[int, list[str]]  # a row: the number of its first line, from 1, and its cells
HEAD_BYTES = 1 << 20
HEAD_ROWS = 1_000  # rows that show if cells are in quotation marks, and what separates them


def read_table(file: Path, source: str, columns: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a table. source: name of the file, or of several, in messages; without columns.

    columns: names or numbers of two columns; empty: the table has only two. Raises UserError for any other table.
    """
    readers = {"parquet": _read_parquet, "json": _read_json_lines, "tmx": read_tmx, "csv": _read_csv, "tsv": _read_tsv}
    for src, tgt in readers[_format_of(file)](file, source, columns):
        yield _one_line(src), _one_line(tgt)


def has_columns(file: Path) -> bool:
    """Return True unless a file is text whose first line has no tab."""
    return _format_of(file) != "tsv" or b"\t" in _head(file).partition(b"\n")[0]


def _format_of(file: Path) -> str:
    """Return the format of a table by its first bytes; for text, "csv" by its name, or "tsv".

    Raises UserError for text in UTF-16.
    """
    with open_file(file) as stream:
        if file.suffix == ".arrow" or stream.read(4) == b"PAR1":
            return "parquet"
    head = _head(file).removeprefix(codecs.BOM_UTF8)
    is_utf16 = head.startswith(text.UTF16_MARKS)
    start = head.decode("utf-16", "ignore").encode() if is_utf16 else head
    if re.match(rb"\s*<(\?xml|tmx|!DOCTYPE)\b", start):
        return "tmx"
    if is_utf16:
        raise text.in_utf16(f"{file}")
    if not head or b"\t" in head.partition(b"\n")[0]:
        return "tsv"
    if re.match(rb'\s*\{\s*"', head):
        return "json"
    return "csv" if re.search(r"\.csv(\.\w+)?$", file.name, re.IGNORECASE) else "tsv"


def _head(file: Path) -> bytes:
    with open_text(file) as stream:
        return stream.read(HEAD_BYTES)


# ---- separated columns -------------------------------------------------------------------------------------------

SEPARATORS = {"\t": "tab", ",": "comma", ";": "semicolon"}

# Names of columns in the first line of a table, which is no pair.
HEADER = re.compile(
    r"(ar|bg|ca|cs|da|de|el|en|es|et|fa|fi|fr|he|hi|hr|hu|id|it|ja|ko|lt|lv|nb|nl|no|pl|pt|ro|ru|sk|sl|sv|th|tr|uk|vi|zh)"
    r"([-_][a-z]{2})?|(source|target|src|tgt|trg)([ _-]?(text|sentence|lang|language))?|text|sentence"
    r"|translation|english|german|french|spanish|italian|portuguese|dutch|russian|chinese|japanese|korean|arabic|czech"
    r"|polish|turkish",
    re.IGNORECASE,
)


def _read_tsv(path: Path, source: str, columns: list[str]) -> Iterator[Cells]:
    plain = ((number, line.split("\t")) for number, line in enumerate(text.read_lines(path), start=1))
    return _cells(path, _quoted_rows(path, "\t") if _is_quoted(path) else plain, "tab", columns)


def _read_csv(path: Path, source: str, columns: list[str]) -> Iterator[Cells]:
    separator = _separator(path)
    return _cells(path, _quoted_rows(path, separator), SEPARATORS[separator], columns)


class _CsvRules(csv.excel):
    """The rules of CSV: quotation marks around a cell, and two for one within it."""

    skipinitialspace = True
    strict = True


def _ended_lines(path: Path) -> Iterator[str]:
    return (line + "\n" for line in text.read_lines(path))


def _is_quoted(path: Path) -> bool:
    """Return True if the first rows of tab-separated columns have quotation marks around every cell.

    Numbers and empty cells may lack them, except in the first row. If another cell lacks them, a sentence that begins
    with a quotation mark is direct speech.
    """
    rows = csv.reader(_ended_lines(path), _CsvRules, delimiter="\t", quoting=csv.QUOTE_NONNUMERIC)
    try:
        first, *_ = itertools.islice(rows, HEAD_ROWS)
    except (csv.Error, ValueError):  # ValueError: no row, or a cell without the marks that is no number
        return False
    return any(first) and all(isinstance(cell, str) for cell in first)


def _separator(path: Path) -> str:
    """Return what separates the cells of CSV. Raises UserError if its first rows do not show it."""
    possible = [separator for separator in (",", ";") if _has_columns(path, separator, 1)]
    if len(possible) == 2:  # the first row has both
        possible = [separator for separator in possible if _has_columns(path, separator, HEAD_ROWS)]
    if len(possible) != 1:
        raise UserError(
            f"{path}: expected CSV, with columns that either commas or semicolons separate, and quotation marks around "
            "a cell that has one of them; save the table again, or as tab-separated text"
        )
    return possible[0]


def _has_columns(path: Path, separator: str, n: int) -> bool:
    """Return True if the separator gives each of the first n rows of CSV the same number of columns, at least 2."""
    rows = csv.reader(_ended_lines(path), _CsvRules, delimiter=separator)
    try:
        widths = {len(cells) for cells in itertools.islice(rows, n)}
    except csv.Error:
        return False
    return len(widths) == 1 and widths.pop() > 1


def _quoted_rows(path: Path, separator: str) -> Iterator[NumberedCells]:
    """Yield the rows of CSV, except blank lines. Raises UserError for a row of another length than the first."""
    reader = csv.reader(_ended_lines(path), _CsvRules, delimiter=separator)
    name = SEPARATORS[separator]
    number = 1
    width = 0
    try:
        for cells in filter(None, reader):
            width = width or len(cells)
            if len(cells) != width:
                raise UserError(
                    f"{path}:{number}: expected {width} {name}-separated columns, as in the first row, not "
                    f"{len(cells)}; correct the line, or put quotation marks around a cell that has a {name}"
                )
            yield number, cells
            number = reader.line_num + 1
    except csv.Error as problem:
        raise UserError(
            f"{path}:{number}: expected quotation marks around whole cells, but {problem}; correct the line, and "
            "double each quotation mark within a cell"
        ) from None


def _cells(path: Path, rows: Iterator[NumberedCells], separator: str, columns: list[str]) -> Iterator[Cells]:
    """Yield the cells of two columns. separator: its name. columns: see `_column_indices`."""
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path}: expected tab-separated source and target, one pair per line; the file is empty")
    indices = _column_indices(path, columns, first[1], separator)
    is_header = bool(columns) and not columns[0].isdecimal()
    for number, cells in rows if is_header else itertools.chain([first], rows):
        if len(cells) <= max(indices):
            remedy = "correct the line, or name other columns"
            if len(cells) == 1:
                remedy = "correct the line, or give CSV in a file named .csv"
            expected = f"expected at least {max(indices) + 1} {separator}-separated columns, not {len(cells)}"
            raise UserError(f"{path}:{number}: {expected}; {remedy}")
        if not columns and len(cells) > 2:
            raise UserError(
                f"{path}:{number}: expected 2 {separator}-separated columns, not {len(cells)}; remove the {separator}s "
                f"within a sentence, or name two columns: {path}:1,2"
            )
        pair = cells[indices[0]], cells[indices[1]]
        if number == 1 and pair[0] != pair[1] and all(HEADER.fullmatch(cell.strip()) for cell in pair):
            named = shlex.quote(f"{path}:{','.join(pair)}")
            raise UserError(f"{path}:1: expected a pair of sentences, not the names of columns; name them: {named}")
        yield pair


def _column_indices(path: Path, columns: list[str], first: list[str], separator: str) -> tuple[int, int]:
    """Return the indices of the source and the target column. columns: their numbers from 1, their names, or none.

    first: the cells of the first line, which has the names. separator: the name of what separates them.
    """
    if not columns and len(first) <= 2:
        return 0, 1
    if not columns:
        raise UserError(f"{path}: expected 2 {separator}-separated columns, not {len(first)}; name two: {path}:1,2")
    if len(columns) == 2 and all(column.isdecimal() and int(column) > 0 for column in columns):
        return int(columns[0]) - 1, int(columns[1]) - 1
    if len(columns) == 2 and all(column in first for column in columns):
        return first.index(columns[0]), first.index(columns[1])
    raise UserError(
        f"{path}: expected the numbers of two columns, from 1, or two names in its first line, not "
        f"{','.join(columns)}; for example {path}:1,2"
    )


# ---- JSON lines --------------------------------------------------------------------------------------------------


def _read_json_lines(path: Path, source: str, columns: list[str]) -> Iterator[Cells]:
    names = columns
    for number, line in enumerate(text.read_lines(path), start=1):
        if text.is_blank(line):
            continue
        cells = _json_cells(line, f"{path}:{number}")
        if not names:
            names = _text_names(cells)
        if len(names) != 2 or not all(name in cells for name in names):
            raise UserError(
                f"{path}:{number}: expected two texts, not {', '.join(_text_names(cells))}; "
                f"name two of the keys of each object, as in {source}:en,de"
            )
        pair = cells[names[0]], cells[names[1]]
        for name, cell in zip(names, pair, strict=True):
            if cell is not None and not isinstance(cell, str):
                raise UserError(f"{path}:{number}: expected text for {name!r}, not {cell!r}; correct the line")
            text.check_text(cell or "", f"{path}:{number}")
        yield pair


def _text_names(cells: Mapping[str, Any]) -> list[str]:
    return [name for name, cell in cells.items() if isinstance(cell, str)]


def _json_cells(line: str, where: str) -> dict[str, Any]:
    """Return the values of an object by key. The values of an inner object have keys of their own."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{where}: expected a JSON object ({problem}); correct the line") from None
    if not isinstance(content, dict):
        raise UserError(f"{where}: expected a JSON object; correct the line")
    cells = {}
    for name, value in content.items():
        cells |= value if isinstance(value, dict) else {name: value}
    return cells


# ---- parquet and arrow -------------------------------------------------------------------------------------------


def _one_line(cell: str | None) -> str:
    """Return a cell as one line. A missing value gives an empty line."""
    return "" if cell is None else cell.replace("\r\n", " ").replace("\n", " ")


def _read_parquet(file: Path, source: str, columns: list[str]) -> Iterator[tuple[str | None, str | None]]:
    """Yield the cells of the two columns of a parquet or arrow file. source and columns: see `_sides`."""
    try:
        pyarrow = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(f"{file}: expected the package pyarrow; pip install 'transduce[data]'") from None
    try:
        with file.open("rb") as stream:
            for batch in _record_batches(pyarrow, stream):
                batch.validate(full=True)  # wrong offsets would let pyarrow read other memory, and end the process
                yield from zip(*_sides(batch, source, columns), strict=True)
    except (pyarrow.ArrowException, OSError, ValueError, SystemError, MemoryError) as error:
        reason = next(iter(f"{error}".splitlines()), "not enough memory for a part of it")
        raise UserError(f"{file}: expected a table of sentence pairs: {reason}; get the file again") from error


def _record_batches(pyarrow: Any, stream: IO[bytes]) -> Iterator[Any]:
    """Yield the rows of a parquet or arrow file, a record batch at a time."""
    first = stream.read(8)
    stream.seek(0)
    if first.startswith(b"PAR1"):
        yield from pyarrow.parquet.ParquetFile(stream).iter_batches(batch_size=10_000)
    elif first.startswith(b"ARROW1"):  # the format of arrow files, which Feather also uses
        table = pyarrow.ipc.open_file(stream)
        yield from map(table.get_batch, range(table.num_record_batches))
    else:
        yield from pyarrow.ipc.open_stream(stream)


TEXT_TYPES = ("string", "large_string", "string_view")


def _sides(batch: Any, source: str, columns: list[str]) -> list[list[str | None]]:
    """Return the source and the target cells of a record batch.

    source: the files, without columns. columns: names of two columns; without any, the batch has two of text.
    """
    cells = {}
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        if str(values.type).startswith("struct"):
            cells |= {field.name: values.field(field.name) for field in values.type}
        else:
            cells[name] = values
    texts = [name for name, values in cells.items() if str(values.type) in TEXT_TYPES]
    if len(texts) < 2:
        types = ", ".join(f"{name} ({str(values.type).partition('<')[0]})" for name, values in cells.items())
        raise UserError(f"{source}: expected two text columns, not {types}; store the text as columns of type string")
    names = columns or texts
    unknown = [name for name in names if name not in texts]
    if len(names) != 2 or unknown:
        wrong = "".join(f"; {name!r} is not one of them{nearest(name, texts)}" for name in unknown)
        example = f"{source}:{','.join(texts[:2])}"
        raise UserError(f"{source}: expected two of the text columns {', '.join(texts)}{wrong}; name them: {example}")
    return [cells[name].to_pylist() for name in names]
