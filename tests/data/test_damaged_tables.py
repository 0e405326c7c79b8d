"""Parquet and arrow files that are damaged, or not what was expected: a UserError with the file, never a crash."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.toy_task import CommandResult

from transduce.data.corpora import Corpus, read_pairs
from transduce.errors import UserError

PAIRS = [(f"A dog number {n} runs.", f"Ein Hund läuft: Nummer {n}.") for n in range(60)]


@pytest.fixture
def pa() -> Any:
    return pytest.importorskip("pyarrow")


def columns(pa: Any, kind: str = "string") -> Any:
    return pa.table(
        {name: pa.array(side).cast(kind) for name, side in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True)}
    )


def write_stream(pa: Any, table: Any, path: Path) -> None:
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)


def write_file(pa: Any, table: Any, path: Path) -> None:
    with pa.ipc.new_file(str(path), table.schema) as stream:
        stream.write_table(table)


def write_parquet(_: Any, table: Any, path: Path) -> None:
    pytest.importorskip("pyarrow.parquet").write_table(table, path, compression="none", use_dictionary=False)


WRITERS = {"stream.arrow": write_stream, "file.arrow": write_file, "table.parquet": write_parquet}

READ = """
import sys
from pathlib import Path
from transduce.data.corpora import Corpus, read_pairs
from transduce.errors import UserError

whole, copy = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
for position in range(3, len(whole), max(1, len(whole) // 250)):
    for bit in (0x04, 0x80):
        copy.write_bytes(whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :])
        try:
            print(position, "read", sum(1 for _ in read_pairs(Corpus(copy))))
        except UserError as mistake:
            print(position, "refused" if str(copy) in str(mistake) else mistake)
"""


@pytest.mark.parametrize("name", WRITERS)
def test_a_flipped_bit_never_ends_the_process(name: str, tmp_path: Path, pa: Any) -> None:
    """Without a check of the offsets, pyarrow reads other memory: SIGSEGV, or text of another place."""
    WRITERS[name](pa, columns(pa), tmp_path / name)
    command = [sys.executable, "-c", READ, tmp_path / name, tmp_path / f"copy{Path(name).suffix}"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    outcomes = [line.split()[1] for line in result.stdout.splitlines()]
    assert set(outcomes) == {"read", "refused"} and len(outcomes) > 490


@pytest.mark.parametrize("name", WRITERS)
def test_text_that_is_not_utf8_is_refused_by_every_command(
    name: str, tmp_path: Path, pa: Any, cli: Callable[..., CommandResult]
) -> None:
    WRITERS[name](pa, columns(pa), tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(
        whole.replace("läuft: Nummer 7.".encode(), "läuft: Nummer 7\xff".encode("latin-1") + b" ")
    )
    result = cli("check", tmp_path / name)
    assert result.code == 2 and f"{tmp_path / name}: expected a table of sentence pairs: " in result.err


def test_the_file_format_of_arrow_is_read(tmp_path: Path, pa: Any) -> None:
    write_file(pa, columns(pa), tmp_path / "feather.arrow")
    assert list(read_pairs(Corpus(tmp_path / "feather.arrow"))) == PAIRS


@pytest.mark.parametrize("kind", ["binary", "dictionary"])
@pytest.mark.parametrize("names", ["", ":en,de"])
def test_columns_of_another_type_are_named_with_it(kind: str, names: str, tmp_path: Path, pa: Any) -> None:
    table = columns(pa, "binary")
    if kind == "dictionary":
        table = pa.table({name: columns(pa)[name].dictionary_encode() for name in ("en", "de")})
    write_stream(pa, table, tmp_path / "p.arrow")
    with pytest.raises(UserError) as caught:
        list(read_pairs(Corpus(Path(f"{tmp_path / 'p.arrow'}{names}"))))
    expected = f"expected two text columns, not en ({kind}), de ({kind}); store the text as columns of type string"
    assert str(caught.value) == f"{tmp_path / 'p.arrow'}: {expected}"
