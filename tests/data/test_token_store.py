"""The store: it returns the encoded text, and is written again only where text or tokenizer differ."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.small_texts import PAIRS, contents, files_of, open_one, read_one, write_corpus

from transduce.data import tokenize_corpus
from transduce.data.corpora import Corpus
from transduce.data.text import read_pairs
from transduce.data.token_file import (
    BLOCK_PAIRS,
    TOO_LONG,
    write_token_file,
)
from transduce.data.token_store import TokenStore, open_store
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError


def lengths_of(store: TokenStore) -> list[list[int]]:
    return np.concatenate([lengths for _, lengths, _ in store.lengths()]).tolist()


def lines_of(store: TokenStore) -> list[tuple[str, str]]:
    """Return the text at the spans of all pairs."""
    texts = [Path(path).read_bytes() for path in store.files[0].contents.texts]
    spans = [read_one(store, number)[2] for number in range(len(store))]
    return [(texts[0][a:b].decode(), texts[1][c:d].decode()) for a, b, c, d in spans]


def ids_of(tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
    return [(tokenizer.encode(src), tokenizer.encode(tgt)) for src, tgt in pairs]


# ---- contents ----------------------------------------------------------------------------------------------------


def test_the_store_holds_the_ids_of_the_tokenizer(store: TokenStore, tokenizer: Tokenizer) -> None:
    assert contents(store) == ids_of(tokenizer, PAIRS)
    assert lengths_of(store) == [[len(src) + 1, len(tgt) + 1] for src, tgt in ids_of(tokenizer, PAIRS)]
    assert lines_of(store) == PAIRS


@pytest.mark.parametrize("count", [1, 6, 7, 8, 14, 40, 305])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.usefixtures("small_files")
def test_token_files_of_any_number(tmp_path: Path, tokenizer: Tokenizer, count: int, end: str) -> None:
    """Worker processes write them if there are several. The last line may lack its LF. A BOM is not text."""
    src, tgt = write_corpus(tmp_path, PAIRS[-count:], end)
    src.write_bytes(b"\xef\xbb\xbf" + src.read_bytes().removesuffix(end.encode()))
    if PAIRS[-1][0] == "" or count == 1:
        tgt.write_bytes(tgt.read_bytes().removesuffix(end.encode()))
    store = open_one(tmp_path / "data", (src, tgt), tokenizer)
    assert len(store.files) == -(-count // 7)
    assert contents(store) == ids_of(tokenizer, PAIRS[-count:])
    assert lines_of(store) == PAIRS[-count:]


@pytest.mark.usefixtures("small_files")
def test_pairs_read_together_are_those_read_one_by_one(
    tmp_path: Path, corpus: tuple[Path, Path], tokenizer: Tokenizer
) -> None:
    """The numbers are in any order, with repetitions, in many files or in one block."""
    generator = np.random.default_rng(1)
    many_files = open_one(tmp_path / "small", corpus, tokenizer)
    assert len(many_files.files) == 44
    for store in (many_files, open_one(tmp_path / "one", write_corpus(tmp_path / "a", PAIRS[:7]), tokenizer)):
        for size in (1, 2, 11, 400):
            numbers = generator.integers(len(store), size=size)
            rows = [(src.tolist(), tgt.tolist()) for src, tgt in zip(*store.read(numbers), strict=True)]
            assert rows == [read_one(store, number)[:2] for number in numbers.tolist()]


@pytest.mark.usefixtures("small_files")
def test_all_cores_make_the_same_files_as_one(
    tmp_path: Path, corpus: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents_of = []
    for count in (1, 3):
        monkeypatch.setattr(tokenize_corpus, "cores", lambda count=count: count)
        open_one(tmp_path / f"{count}", corpus, tokenizer)
        paths = sorted((tmp_path / f"{count}").glob("*/part-*"))
        contents_of.append([(path.name, path.read_bytes()) for path in paths])
    assert contents_of[0] == contents_of[1] and len(contents_of[0]) == 44


def test_blocks_of_any_fill(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for count in (BLOCK_PAIRS - 1, BLOCK_PAIRS, BLOCK_PAIRS + 1, 3 * BLOCK_PAIRS):
        store = open_one(tmp_path / f"{count}", write_corpus(tmp_path / f"text-{count}", PAIRS[:count]), tokenizer)
        assert contents(store) == ids_of(tokenizer, PAIRS[:count])


def test_a_side_with_too_many_tokens_to_store(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ids are not stored, and its length is TOO_LONG. A side that is one token shorter is stored."""
    monkeypatch.setattr(tokenizer, "encode_batch", lambda lines: [[7] * int(line) for line in lines])
    lines = [("3", f"{TOO_LONG - 2}"), (f"{TOO_LONG - 1}", "3"), (f"{TOO_LONG + 9}", "3"), ("4", "5")]
    texts = write_corpus(tmp_path, lines)
    with monkeypatch.context() as patch:
        patch.setattr(type(tokenizer), "sha256", "of another tokenizer")
        store = open_one(tmp_path / "data", texts, tokenizer)
    assert [(len(src), len(tgt)) for src, tgt in contents(store)] == [(3, TOO_LONG - 2), (0, 3), (0, 3), (4, 5)]
    assert lengths_of(store) == [[4, TOO_LONG - 1], [TOO_LONG, 4], [TOO_LONG, 4], [5, 6]]


def test_the_store_concatenates_several_corpora(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpora = [
        Corpus(*write_corpus(tmp_path / "a", PAIRS[:50])),
        Corpus(*write_corpus(tmp_path / "b", PAIRS[50:80]), 2.0),
    ]
    store = open_store(tmp_path / "data", corpora, tokenizer)
    assert contents(store) == ids_of(tokenizer, PAIRS[:80])
    assert list(store.lines()) == PAIRS[:80]
    assert [(first, len(lengths), weight) for first, lengths, weight in store.lengths()] == [(0, 50, 1), (50, 30, 2)]
    assert store.where(np.array([49, 0, 50])) == f"{corpora[0].name}, lines 50, 1; {corpora[1].name}, lines 1"
    keys = {open_store(tmp_path / "data", order, tokenizer).key for order in (corpora, corpora[::-1], corpora[:1])}
    assert len(keys | {store.key}) == 3
    heavier = [corpora[0], Corpus(corpora[1].src, corpora[1].tgt, 3.0)]
    assert open_store(tmp_path / "data", heavier, tokenizer).key not in keys


# ---- writing -----------------------------------------------------------------------------------------------------


def test_a_second_opening_writes_nothing(tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer) -> None:
    first = open_one(tmp_path / "data", small_corpus, tokenizer)
    before = files_of(tmp_path / "data")
    second = open_one(tmp_path / "data", small_corpus, tokenizer)
    assert files_of(tmp_path / "data") == before
    assert contents(first) == contents(second) and first.key == second.key


def test_the_key_depends_on_text_and_tokenizer_and_not_on_names(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer
) -> None:
    first = open_one(tmp_path / "a", small_corpus, tokenizer)
    src, tgt = (path.rename(path.with_name("moved-" + path.name)) for path in small_corpus)
    os.utime(src, (0, 0))
    assert open_one(tmp_path / "a", (src, tgt), tokenizer).key == first.key
    assert open_one(tmp_path / "b", (tgt, src), tokenizer).key != first.key


@pytest.mark.parametrize("side", [0, 1])
def test_a_change_of_either_side_is_detected(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer, side: int
) -> None:
    open_one(tmp_path / "data", small_corpus, tokenizer)
    small_corpus[side].write_bytes(b"Katze" + small_corpus[side].read_bytes())
    store = open_one(tmp_path / "data", small_corpus, tokenizer)
    assert contents(store) == [(tokenizer.encode(src), tokenizer.encode(tgt)) for src, tgt in read_pairs(*small_corpus)]


def test_other_text_or_another_tokenizer_is_another_store(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer
) -> None:
    first = open_one(tmp_path / "data", small_corpus, tokenizer)
    small_corpus[0].write_bytes(small_corpus[0].read_bytes().replace(b"Hund", b"hund", 1))
    second = open_one(tmp_path / "data", small_corpus, tokenizer)
    assert second.key != first.key and len(files_of(tmp_path / "data")) == 1
    other = Tokenizer.learn(["Hund und Katze"] * 3, vocab_size=300)
    third = open_one(tmp_path / "data", small_corpus, other)
    assert third.key != second.key and len(files_of(tmp_path / "data")) == 1
    assert contents(third)[1][0] == other.encode(list(read_pairs(*small_corpus))[1][0])


@pytest.mark.usefixtures("small_files")
def test_only_missing_token_files_are_written(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state after a kill: some token files are complete, and a temporary file is incomplete."""
    monkeypatch.setattr(tokenize_corpus, "cores", lambda: 1)
    paths = []

    def stop(path: Path, *arguments: object) -> None:
        if len(paths) == 3:
            path.with_name(path.name + ".tmp-99").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        paths.append(path)
        write_token_file(path, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(tokenize_corpus, "write_token_file", stop)
        with pytest.raises(OSError, match="No space left"):
            open_one(tmp_path / "data", small_corpus, tokenizer)
    before = files_of(tmp_path / "data")
    assert len(before) == 4
    store = open_one(tmp_path / "data", small_corpus, tokenizer)
    after = files_of(tmp_path / "data")
    assert contents(store) == ids_of(tokenizer, PAIRS[:40])
    assert len(after) == 6 and all(after[path] == before[path] for path in paths)


def test_a_full_disk_leaves_no_incomplete_file(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            open_one(tmp_path / "data", small_corpus, tokenizer)
    assert not files_of(tmp_path / "data")
    assert contents(open_one(tmp_path / "data", small_corpus, tokenizer)) == ids_of(tokenizer, PAIRS[:40])


def test_a_kill_while_all_cores_write(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The worker processes end. All token files with their final name are complete."""
    texts = write_corpus(tmp_path / "text", PAIRS * 200)
    tokenizer.save(tmp_path / "tokenizer.json")
    program = """
import sys
from pathlib import Path
from transduce.data import tokenize_corpus, token_store as store, corpora, tokenizer as tokens
tokenize_corpus.FILE_PAIRS = 1_000
tokenize_corpus.cores = lambda: 2
folder, src, tgt = map(Path, sys.argv[1:])
store.open_store(folder / "data", [corpora.Corpus(src, tgt)], tokens.Tokenizer.load(folder / "tokenizer.json"))
"""
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), *map(str, texts)], start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("data/*/part-?????"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    before = files_of(tmp_path / "data")
    assert 5 <= len(before) < 61
    while _is_alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_alive(process.pid)
    subprocess.run([sys.executable, "-c", program, str(tmp_path), *map(str, texts)], check=True)
    after = files_of(tmp_path / "data")
    assert len(after) == 61
    assert all(after[path] == stamp for path, stamp in before.items() if ".tmp-" not in path.name)


def _is_alive(session: int) -> bool:
    """Return True if a process of this group is alive."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("count", [1, 2])
def test_the_first_mistake_in_the_text_is_reported(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(tokenize_corpus, "cores", lambda: count)
    lines = small_corpus[1].read_bytes().split(b"\n")
    lines[16], lines[30] = b"caf\xe9", b"\xff"
    small_corpus[1].write_bytes(b"\n".join(lines))
    with pytest.raises(UserError, match=r"train\.de:17: expected UTF-8, but byte 4 of the line is 0xe9"):
        open_one(tmp_path / "data", small_corpus, tokenizer)


@pytest.mark.usefixtures("small_files")
def test_an_error_of_the_disk_in_a_worker_is_raised(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenize_corpus, "cores", lambda: 2)
    scans = tokenize_corpus.scan_corpora(tmp_path / "scans.json", [small_corpus])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="Not a directory"):
        tokenize_corpus.run_jobs(
            tokenize_corpus.plan_jobs(scans[0], tmp_path / "file" / "below", "00" * 32, 2), tokenizer
        )


@pytest.mark.usefixtures("small_files")
def test_a_killed_worker_is_reported(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills a process when memory runs out. The next `open_store` writes the missing files."""
    monkeypatch.setattr(tokenize_corpus, "cores", lambda: 2)

    def die(worker: tokenize_corpus._Worker, job: tokenize_corpus.TokenFileJob) -> None:
        if job.contents.first == 21:
            worker.process.kill()
        worker._send(job)

    with monkeypatch.context() as patch:
        patch.setattr(tokenize_corpus._Worker, "run", die)
        with pytest.raises(OSError, match="a process that prepares the text ended, with code -9"):
            open_one(tmp_path / "data", small_corpus, tokenizer)
    assert contents(open_one(tmp_path / "data", small_corpus, tokenizer)) == ids_of(tokenizer, PAIRS[:40])


def test_text_that_changes_while_it_is_tokenized(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer
) -> None:
    (scan,) = tokenize_corpus.scan_corpora(tmp_path / "scans.json", [small_corpus])
    (job,) = tokenize_corpus.plan_jobs(scan, tmp_path / "parts", "00" * 32, 2)
    small_corpus[0].write_bytes(small_corpus[0].read_bytes().split(b"\n", 1)[1])
    with pytest.raises(UserError, match="expected the same text as before"):
        tokenize_corpus.run_job(job, tokenizer)
    assert not files_of(tmp_path)


def test_text_of_the_same_size_and_time_is_not_hashed_again(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = open_one(tmp_path / "data", small_corpus, tokenizer).key
    with monkeypatch.context() as patch:
        patch.setattr(tokenize_corpus, "_scan", lambda path: pytest.fail(f"{path} was read"))
        patch.setattr(Path, "write_bytes", lambda path, _: pytest.fail(f"{path} was written"))
        assert open_one(tmp_path / "data", small_corpus, tokenizer).key == key
    scans = tmp_path / "data" / "scans.json"
    for damaged in (b"", b"{}", scans.read_bytes().replace(b'"lines":40', b'"lines":41'), scans.read_bytes()[:-9]):
        scans.write_bytes(damaged)
        assert open_one(tmp_path / "data", small_corpus, tokenizer).key == key


def test_sides_of_unequal_length_leave_no_store(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer
) -> None:
    small_corpus[1].write_bytes(small_corpus[1].read_bytes() + b"one line more\n")
    for _ in range(2):
        with pytest.raises(UserError, match="expected the same number of lines, not 40 and 41"):
            open_one(tmp_path / "data", small_corpus, tokenizer)
