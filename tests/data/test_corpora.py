"""Corpora in each format give the same pairs as plain text; the error for a damaged file names it."""

import gzip
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.toy_task import CommandResult, Toy, write_lines

from transduce.data import corpora, text
from transduce.data.compression import compression_format
from transduce.data.corpora import Corpus, parse, plain_files, read_pairs
from transduce.errors import UserError

PAIRS = [("a dog", "ein Hund"), ("", "leer"), ("two\u2028lines", "zwei\x0bZeilen"), ("x" * 50_000, "Ende"), ("z", "")]


def as_bytes(side: int, end: str = "\n") -> bytes:
    return "".join(pair[side] + end for pair in PAIRS).encode()


def zstandard() -> Any:
    return pytest.importorskip("zstandard")


def pack(kind: str, content: bytes) -> bytes:
    if kind == "gz":
        return gzip.compress(content)
    return lzma.compress(content) if kind == "xz" else zstandard().ZstdCompressor().compress(content)


@pytest.fixture
def plain(tmp_path: Path) -> Corpus:
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_bytes(as_bytes(side))
    return Corpus(tmp_path / "a.en", tmp_path / "a.de")


def both_ways(corpus: Corpus, folder: Path) -> list[tuple[str, str]]:
    """Return the pairs of a corpus, which must equal the pairs of its plain files."""
    pairs = list(read_pairs(corpus))
    assert list(text.read_pairs(*plain_files(corpus, folder))) == pairs
    return pairs


# ---- the words of --train ----------------------------------------------------------------------------------------


def test_the_words_of_train_give_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a, b = Path("a"), Path("b")
    assert parse(["a", "b"]) == Corpus(a, b)
    assert parse(["a", "b", "2"]) == Corpus(a, b, 2.0)
    assert parse(["a", "0.25"]) == Corpus(a, None, 0.25)
    assert parse(["a"]) == Corpus(a)
    (tmp_path / "7").write_bytes(b"x\n")
    assert parse(["a", "7"]) == Corpus(a, Path("7"))  # a file of that name is a file


@pytest.mark.parametrize("words", [["2"], [], ["a", "b", "c"], ["a", "b", "1", "2"]])
def test_other_words_are_refused(words: list[str]) -> None:
    if words != ["2"]:
        with pytest.raises(UserError, match="expected SRC TGT or FILE, and optionally a weight"):
            parse(words)
    else:
        assert corpora.problems([parse(words)]) == [
            "2: expected a file with both sides in columns; check the path, or give two text files"
        ]


@pytest.mark.parametrize("weight", [0, -1, 1_000, float("nan"), float("inf")])
def test_invalid_weights_are_problems(plain: Corpus, weight: float) -> None:
    (problem,) = corpora.problems([Corpus(plain.src, plain.tgt, weight)])
    assert f"{plain.name}: expected a weight over 0 and under 1,000, not {weight:g}; " in problem


def test_all_problems_are_reported_together(tmp_path: Path, plain: Corpus) -> None:
    (tmp_path / "no.tsv").write_bytes(b"one column\n")
    problems = corpora.problems(
        [plain, Corpus(tmp_path / "x", plain.tgt), Corpus(tmp_path / "no.tsv"), Corpus(tmp_path, plain.tgt)]
    )
    assert [line.split(str(tmp_path), 1)[1].split(";")[0] for line in problems] == [
        "/x: expected a text file, UTF-8, one sentence per line",
        "/no.tsv: expected tab-separated columns, JSON lines, TMX or parquet in a single file",
        ": expected a text file, UTF-8, one sentence per line",
    ]
    assert corpora.problems([]) == ["train: expected at least 1 corpus; give a source and a target file"]
    assert corpora.problems([plain]) == []


def test_two_paths_are_a_corpus(plain: Corpus) -> None:
    assert plain.tgt is not None
    assert corpora.as_corpora((plain.src, plain.tgt)) == corpora.as_corpora([plain]) == [plain]


# ---- compressed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_compressed_text_gives_the_same_lines(tmp_path: Path, plain: Corpus, kind: str) -> None:
    """The file has any name and several streams. Only one side is compressed."""
    assert plain.tgt is not None
    archive = tmp_path / "packed"
    archive.write_bytes(pack(kind, as_bytes(0)[:20_000]) + pack(kind, as_bytes(0)[20_000:]))
    assert compression_format(archive) == kind and compression_format(plain.src) is None
    assert text.count_lines(archive) == len(PAIRS)
    assert both_ways(Corpus(archive, plain.tgt), tmp_path / "made") == PAIRS
    assert plain_files(plain, tmp_path / "none") == (plain.src, plain.tgt) and not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
@pytest.mark.parametrize("content", [b"", b"\n", b"one", b"\xef\xbb\xbfa\r\nb\n"])
def test_short_compressed_texts(tmp_path: Path, kind: str, content: bytes) -> None:
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed").write_bytes(pack(kind, content))
    assert list(text.read_lines(tmp_path / "packed")) == list(text.read_lines(tmp_path / "plain"))


def test_zeros_after_a_stream_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "padded").write_bytes(gzip.compress(b"a\n") + bytes(40_000) + gzip.compress(b"b\n") + bytes(1))
    assert list(text.read_lines(tmp_path / "padded")) == ["a", "b"]


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_damaged_compressed_text_is_refused(tmp_path: Path, plain: Corpus, kind: str) -> None:
    """A truncated file, or one with other bytes in the middle or at the end, is not read as shorter text."""
    archive = tmp_path / "packed"
    chance = "".join(chr(97 + i * i % 7919 % 26) for i in range(60_000))  # text that compresses little
    content = pack(kind, chance.encode())
    if kind == "zst":
        content = zstandard().ZstdCompressor(write_checksum=True).compress(chance.encode())
    for damaged in (*(content[:size] for size in range(7, len(content), len(content) // 9)), content + b"more"):
        archive.write_bytes(damaged)
        with pytest.raises(UserError, match=f"packed: expected a complete {kind} file: .*; get the file again"):
            list(text.read_lines(archive))
    middle = bytearray(content)
    middle[len(content) // 2] ^= 0x10
    archive.write_bytes(middle)
    with pytest.raises(UserError, match=f"packed: expected a complete {kind} file"):
        list(text.read_lines(archive))


def test_the_error_for_zst_without_its_package_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "a.zst"
    archive.write_bytes(pack("zst", b"a\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UserError, match=r"pip install 'transduce\[data\]', or decompress it: zstd -d .*a\.zst"):
        list(text.read_lines(archive))


def test_plain_files_are_written_again_only_when_the_corpus_changes(tmp_path: Path, plain: Corpus) -> None:
    archive, output = tmp_path / "packed", tmp_path / "output"
    archive.write_bytes(gzip.compress(as_bytes(0)))
    corpus = Corpus(archive, plain.tgt)
    src, tgt = plain_files(corpus, output)
    before = src.stat().st_mtime_ns
    assert plain_files(corpus, output) == (src, tgt) and src.stat().st_mtime_ns == before
    archive.write_bytes(gzip.compress(as_bytes(0).replace(b"a dog", b"a cat")))
    assert next(text.read_lines(plain_files(corpus, output)[0])) == "a cat"
    archive.write_bytes(gzip.compress(as_bytes(0))[:-9])
    with pytest.raises(UserError, match="expected a complete"):
        plain_files(corpus, output)
    archive.write_bytes(gzip.compress(as_bytes(0)))
    assert both_ways(corpus, output) == PAIRS  # the incomplete files are replaced


# ---- tab-separated columns ---------------------------------------------------------------------------------------


def test_tab_separated_columns(tmp_path: Path) -> None:
    table = tmp_path / "t.tsv"
    table.write_bytes("".join(f"{src}\t{tgt}\r\n" for src, tgt in PAIRS).encode())
    assert both_ways(Corpus(table), tmp_path / "made") == PAIRS
    table.write_bytes(gzip.compress("".join(f"7\t{tgt}\t{src}\t\n" for src, tgt in PAIRS).encode()))
    assert both_ways(Corpus(Path(f"{table}:3,2")), tmp_path / "made2") == PAIRS
    assert corpora.problems([Corpus(Path(f"{table}:3,2")), Corpus(table)]) == []
    (tmp_path / "u.tsv").write_text("7\tb\ta\n")
    assert both_ways(Corpus(tmp_path / "?.tsv:3,2"), tmp_path / "made3") == [*PAIRS, ("a", "b")]


def test_columns_by_the_names_of_a_header(tmp_path: Path) -> None:
    """A pair of words that could be names of columns is a header only in the first line."""
    rows = ["id\tde\ten", *(f"{i}\t{tgt}\t{src}" for i, (src, tgt) in enumerate([*PAIRS, ("en", "de")]))]
    table = write_lines(tmp_path / "t.tsv", rows)
    assert both_ways(Corpus(Path(f"{table}:en,de")), tmp_path / "made") == [*PAIRS, ("en", "de")]


def test_json_lines(tmp_path: Path) -> None:
    """A cell without a value is a blank side, and a line feed becomes a space."""
    rows = [{"id": 1, "translation": {"en": src, "de": tgt}} for src, tgt in [*PAIRS, ("a", None)]]
    rows.append({"id": 2, "translation": {"en": "a\nb", "de": "c"}})
    table = write_lines(tmp_path / "t.jsonl", ["", *map(json.dumps, rows), ""])
    expected = [*PAIRS, ("a", ""), ("a b", "c")]
    assert both_ways(Corpus(table), tmp_path / "made") == expected
    swapped = [(tgt, src) for src, tgt in expected]
    assert both_ways(Corpus(Path(f"{table}:de,en")), tmp_path / "made2") == swapped


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tmx(encoding: str, tmp_path: Path) -> None:
    def unit(*texts: tuple[str, str]) -> str:
        return "<tu>" + "".join(f'<tuv xml:lang="{code}"><seg>{seg}</seg></tuv>' for code, seg in texts) + "</tu>"

    units = [
        unit(("en-US", "a &lt; b"), ("de-DE", "c")),
        unit(("de-DE", 'd <bpt i="1">&lt;b&gt;</bpt>e<ept i="1">&lt;/b&gt;</ept>\n<hi>f</hi>'), ("en-US", "g")),
        unit(("en-US", "h")),
    ]
    doctype = '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"><header/><body>'
    table = tmp_path / "t.tmx"
    table.write_bytes((doctype + "\n".join(units) + "</body></tmx>").encode(encoding))
    expected = [("a < b", "c"), ("g", "d e f"), ("h", "")]
    assert both_ways(Corpus(table), tmp_path / "made") == expected
    table.write_bytes((doctype + "\n".join([*units, unit(("fr", "i"))]) + "</body></tmx>").encode(encoding))
    with pytest.raises(UserError, match="expected two languages, not de-de, en-us, fr; name two, as in"):
        list(read_pairs(Corpus(table)))
    assert both_ways(Corpus(Path(f"{table}:en,de")), tmp_path / "made2") == [*expected, ("", "")]


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("a\tb\nc\n", "", r"t\.tsv:2: expected at least 2 tab-separated columns, not 1"),
        ("a\tb\tc\n", "", r"t\.tsv: expected 2 tab-separated columns, not 3; name two: .*t\.tsv:1,2$"),
        ("a\tb\tc\n", ":1,4", r"t\.tsv:1: expected at least 4 tab-separated columns, not 3; correct the line"),
        ("c\na\tb\n", "", r"t\.tsv:1: expected at least 2 tab-separated columns, not 1; correct the line"),
        ("c\na\tb\n", ":1,2", r"t\.tsv:1: expected at least 2 tab-separated columns, not 1; correct the line"),
        (
            "a\tb\tc\n",
            ":0,1",
            "expected the numbers of two columns, from 1, or two names in its first line, not 0,1; f",
        ),
        ("a\tb\tc\n", ":en,de", "two names in its first line, not en,de; for"),
        ("a\tb\tc\n", ":2", "two names in its first line, not 2; for"),
        (
            "a\tb\nc\td\te\n",
            "",
            r"t\.tsv:2: expected 2 tab-separated columns, not 3; remove the tabs within a sentence",
        ),
        (
            "en\tde\na\tb\n",
            "",
            r"t\.tsv:1: expected a pair of .*, not the names of columns; name them: .*t\.tsv:en,de$",
        ),
        ("1\tSource\ttarget_text\n", ":2,3", r"name them: .*t\.tsv:Source,target_text$"),
        ('{"en": "a"}\n', "", r"t\.tsv:1: expected two texts, not en; name two of the keys"),
        ('{"en": "a", "de": "b"}\n{"en": "a"}\n', "", r"t\.tsv:2: expected two texts, not en; name two"),
        ('{"en": "a", "de": "b", "id": 3}\n', ":en,id", "expected text for 'id', not 3; correct the line"),
        ('{"en": "a", "de": "\\ud800"}\n', "", "character 1 of .*t.tsv:1: expected a character"),
        ('{"en": "a", \n', "", r"t\.tsv:1: expected a JSON object .*; correct the line"),
        ("<tmx><tu><tuv xml:lang='en'><seg>a</seg></tuv></tu></tmx>", "", "expected two languages, not en; name two"),
        ("<tmx><tu></tmx>", "", "expected TMX, but mismatched tag: line 1, column 11; get the file again"),
        (
            "<!DOCTYPE t [<!ENTITY a 'a'><!ENTITY b '&a;&a;'>]><tmx/>",
            "",
            "t.tsv:1: expected no entities of its own, but",
        ),
        (
            "<!DOCTYPE t [<!ENTITY % a SYSTEM '/etc/passwd'>]><tmx/>",
            "",
            "t.tsv:1: expected no entities of its own, but",
        ),
        ("", "", r"t\.tsv: expected .* the file is empty"),
    ],
)
def test_invalid_tables_are_refused(tmp_path: Path, content: str, columns: str, message: str) -> None:
    (tmp_path / "t.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        list(read_pairs(Corpus(Path(f"{tmp_path / 't.tsv'}{columns}"))))


# ---- parquet and arrow -------------------------------------------------------------------------------------------


@pytest.fixture
def pa() -> Any:
    return pytest.importorskip("pyarrow")


def write_parquet(table: Any, path: Path) -> None:
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=2)


def columns(pa: Any, **more: list[Any]) -> Any:
    return pa.table({"en": [src for src, _ in PAIRS], "de": [tgt for _, tgt in PAIRS], **more})


def test_parquet(tmp_path: Path, pa: Any) -> None:
    path = tmp_path / "p"  # recognised by its first bytes
    write_parquet(columns(pa, id=list(range(5))), path)
    assert both_ways(Corpus(path), tmp_path / "made") == PAIRS
    assert list(read_pairs(Corpus(Path(f"{path}:de,en")))) == [(tgt, src) for src, tgt in PAIRS]
    assert corpora.problems([Corpus(path)]) == []


def test_a_folder_in_the_translation_format_of_hugging_face(tmp_path: Path, pa: Any) -> None:
    """It has two parquet files with a struct column. The rows are in the order of the file names."""
    for number, pairs in enumerate((PAIRS[:2], PAIRS[2:])):
        rows = [{"de": tgt, "en": src} for src, tgt in pairs]
        write_parquet(
            pa.table({"translation": rows, "id": ["x"] * len(rows)}), tmp_path / f"train-0000{number}.parquet"
        )
    assert both_ways(Corpus(Path(f"{tmp_path}:en,de")), tmp_path / "made") == PAIRS
    with pytest.raises(UserError, match="expected two of the text columns de, en, id; name them: .*:de,en"):
        list(read_pairs(Corpus(tmp_path)))
    assert both_ways(Corpus(tmp_path / "train-*.parquet:en,de"), tmp_path / "made2") == PAIRS
    (tmp_path / "test-00000.parquet").write_bytes((tmp_path / "train-00000.parquet").read_bytes())
    with pytest.raises(
        UserError, match=r"test-00000\.parquet: expected training text, but the name says test or validation; give"
    ):
        corpora.problems([Corpus(Path(f"{tmp_path}:en,de"))])
    assert both_ways(Corpus(tmp_path / "train-*.parquet:en,de"), tmp_path / "made2") == PAIRS


def test_a_folder_written_by_save_to_disk(tmp_path: Path, pa: Any) -> None:
    """It has Arrow streams, and a JSON file that is not read."""
    table = columns(pa)
    for number, rows in enumerate((table.slice(0, 2), table.slice(2))):
        with pa.ipc.new_stream(tmp_path / f"data-0000{number}-of-00002.arrow", table.schema) as stream:
            stream.write_table(rows)
    (tmp_path / "state.json").write_text("{}")
    assert both_ways(Corpus(tmp_path), tmp_path / "made") == PAIRS


def test_a_dataset_by_name(tmp_path: Path, pa: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is used: a folder holds the files that the library would download."""
    (tmp_path / "de-en").mkdir()
    for name, rows in (("train-0", PAIRS[:3]), ("train-1", PAIRS[3:]), ("test-0", PAIRS)):
        table = pa.table({"translation": [{"de": tgt, "en": src} for src, tgt in rows]})
        write_parquet(table, tmp_path / "de-en" / f"{name}.parquet")

    class Hub:
        @staticmethod
        def snapshot_download(name: str, *, repo_type: str, allow_patterns: list[str]) -> str:
            if name != "wmt/wmt14":
                raise FileNotFoundError(f"404: no {name}\nand so on")
            assert repo_type == "dataset" and allow_patterns == ["de-en/train-*.parquet"]
            return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub)
    corpus = Corpus(Path("hf:wmt/wmt14/de-en/train-*.parquet:en,de"))
    assert both_ways(corpus, tmp_path / "made") == PAIRS and corpora.problems([corpus]) == []
    reverse = Corpus(Path("hf:wmt/wmt14/de-en/train-*.parquet"))
    assert list(read_pairs(reverse)) == [(tgt, src) for src, tgt in PAIRS]
    with pytest.raises(
        UserError, match="hf:wmt/none/x: expected a dataset that can be fetched: 404: no wmt/none; or download it"
    ):
        corpora.problems([Corpus(Path("hf:wmt/none/x"))])
    with pytest.raises(UserError, match="expected hf:OWNER/SET/FILES"):
        corpora.problems([Corpus(Path("hf:wmt/wmt14"))])
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"huggingface_hub; pip install 'transduce\[data\]'"):
        corpora.problems([corpus])


def test_line_feeds_and_missing_values_in_cells(tmp_path: Path, pa: Any) -> None:
    write_parquet(pa.table({"a": ["x\ny", None, "\r\nz"], "b": ["1", "2", "3"]}), tmp_path / "p.parquet")
    pairs = both_ways(Corpus(tmp_path / "p.parquet"), tmp_path / "made")
    assert pairs == [("x y", "1"), ("", "2"), (" z", "3")]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (":en,fr", "expected two of the text columns en, de; 'fr' is not one of them; name"),
        (":en,d", "'d' is not one of them; did you mean 'de'?"),
        (":en", "name them: .*:en,de"),
        (":en,number", r"'number' is not one of them; name them: .*p\.parquet:en,de$"),
    ],
)
def test_missing_columns_are_refused(tmp_path: Path, pa: Any, names: str, message: str) -> None:
    write_parquet(columns(pa, number=list(range(5))), tmp_path / "p.parquet")
    with pytest.raises(UserError, match=message):
        list(read_pairs(Corpus(Path(f"{tmp_path / 'p.parquet'}{names}"))))


def test_damaged_and_empty_tables_are_refused(tmp_path: Path, pa: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.parquet"
    write_parquet(columns(pa), path)
    content = path.read_bytes()
    for damaged in (content[:-5], content[: len(content) // 2], content[:4]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"p\.parquet: expected a table of sentence pairs: "):
            list(read_pairs(Corpus(path)))
    write_parquet(columns(pa).slice(0, 0), path)
    with pytest.raises(UserError, match="it has no rows"):
        list(read_pairs(Corpus(path)))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"expected \.parquet or \.arrow files"):
        list(read_pairs(Corpus(tmp_path / "folder")))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"expected the package pyarrow; pip install 'transduce\[data\]'"):
        list(read_pairs(Corpus(path)))


def test_reading_corpora_needs_no_torch() -> None:
    program = "import sys, transduce.data.token_store, transduce.data.corpora as _; "
    program += "print('torch' in sys.modules, 'pyarrow' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program]).split() == [b"False", b"False"]


# ---- from the command line ---------------------------------------------------------------------------------------


def test_training_on_several_corpora(tmp_path: Path, toy: Toy, cli: Callable[..., CommandResult]) -> None:
    """The texts are plain, tab-separated and compressed, with weights. The overlap with the validation is reported."""
    lines = [path.read_text().splitlines() for path in (*toy.train, *toy.valid)]
    for path, part in zip((tmp_path / "a.src", tmp_path / "a.tgt"), lines[:2], strict=True):
        path.write_text("".join(line + "\n" for line in part[:500]))
    rows = [f"{src}\t{tgt}\n" for src, tgt in zip(lines[0][500:600], lines[1][500:600], strict=True)]
    unknown = next(src for src in lines[2][1:] if src not in lines[0][:600])
    rows += [f"{lines[2][0]}\t{lines[3][0]}\n", f"{unknown}\tx\n"]
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress("".join(rows).encode()))
    command = ["train", "--recipe", f"{toy.folder / 'recipe.py'}:reverse", "--set", "train.max_steps=2"]
    command += ["--train", tmp_path / "a.src", tmp_path / "a.tgt", "2", "--train", tmp_path / "b.tsv.gz", "0.5"]
    command += ["--valid", *toy.valid, "--out", tmp_path / "run"]
    result = cli(*command)
    assert result.code == 0, result.err
    assert "602 pairs, " in result.err
    training_pairs = {*zip(lines[0][:600], lines[1][:600], strict=True), (lines[2][0], lines[3][0]), (unknown, "x")}
    pair_leaks = [pair in training_pairs for pair in zip(lines[2], lines[3], strict=True)]
    source_leaks = [src in {src for src, _ in training_pairs} for src in lines[2]]
    leaks = (
        f"of the 60 of valid.src, {sum(pair_leaks)} pairs and {sum(source_leaks)} sources are also in the training text"
    )
    assert sum(pair_leaks) < sum(source_leaks) and leaks in result.err
    second = cli(*command, "--resume")
    assert second.code == 0 and leaks in second.err
    command[command.index("0.5")] = "0.25"
    assert f"expected the text and the weight that {tmp_path / 'run'} started with" in cli(*command, "--resume").err


def test_train_refuses_invalid_corpora(tmp_path: Path, toy: Toy, cli: Callable[..., CommandResult]) -> None:
    command = ["train", "--recipe", "small", "--valid", *toy.valid, "--out", tmp_path / "run"]
    for words, message in [
        (["--train", *toy.train, "0"], "expected SRC TGT or FILE, and optionally a weight over 0"),
        (["--train", *toy.train, *toy.train], "expected SRC TGT or FILE"),
        (["--train", toy.train[0]], "expected tab-separated columns, JSON lines, TMX or parquet in a single file"),
        (["--train", *toy.train, "--train", tmp_path / "gone.tsv"], "gone.tsv: expected a file with both sides"),
    ]:
        result = cli(*command, *words)
        assert result.code == 2 and message in result.err, result.err
        assert not (tmp_path / "run").exists()
