"""Corpora in each format give the same pairs as plain text; the error for a damaged file names it."""

import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.corpus_files import PAIRS, both_ways
from support.toy_task import CommandResult, Toy

from transduce.data import corpora, text
from transduce.data.compression import compression_format
from transduce.data.corpora import Corpus, parse, plain_files
from transduce.errors import UserError


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
    assert [line.split(str(tmp_path), 1)[1].split(";")[0].removesuffix(" in a single file") for line in problems] == [
        "/x: expected a text file, UTF-8, one sentence per line",
        "/no.tsv: expected tab-separated columns, CSV in a file named .csv, JSON lines, TMX or parquet",
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
    command = ["train", "--recipe", "mixture", "--valid", *toy.valid, "--out", tmp_path / "run"]
    for words, message in [
        (["--train", *toy.train, "0"], "expected SRC TGT or FILE, and optionally a weight over 0"),
        (["--train", *toy.train, *toy.train], "expected SRC TGT or FILE"),
        (
            ["--train", toy.train[0]],
            "expected tab-separated columns, CSV in a file named .csv, JSON lines, TMX or parquet",
        ),
        (["--train", *toy.train, "--train", tmp_path / "gone.tsv"], "gone.tsv: expected a file with both sides"),
    ]:
        result = cli(*command, *words)
        assert result.code == 2 and message in result.err, result.err
        assert not (tmp_path / "run").exists()
