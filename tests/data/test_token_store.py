"""The store: it gives back what was encoded, however it was prepared, and damage never passes for text."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.small_texts import contents, open_one, read_one, sentences, write_corpus

from transduce.data import token_file
from transduce.data import tokenize_corpus as prepare
from transduce.data.corpora import Corpus
from transduce.data.text import read_pairs
from transduce.data.token_file import (
    BLOCK_PAIRS,
    TOO_LONG,
    Contents,
    DamagedTokenFile,
    open_token_file,
    write_token_file,
)
from transduce.data.token_store import TokenStore, open_store
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError

PAIRS = [*sentences(300), ("", "leer"), ("leer", ""), ("", ""), ("Hund " * 100, "Hund"), ("Hund", "Katze " * 100)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn((side for pair in PAIRS for side in pair), vocab_size=350)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_corpus(tmp_path_factory.mktemp("corpus"), PAIRS)


@pytest.fixture(scope="module")
def store(corpus: tuple[Path, Path], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return open_one(tmp_path_factory.mktemp("data") / "train", corpus, tokenizer)


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    return write_corpus(tmp_path / "text", PAIRS[:40])


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 7 pairs, pieces of 3."""
    monkeypatch.setattr(prepare, "FILE_PAIRS", 7)
    monkeypatch.setattr(prepare, "CHUNK_PAIRS", 3)


def lengths_of(store: TokenStore) -> list[list[int]]:
    return np.concatenate([lengths for _, lengths, _ in store.lengths()]).tolist()


def encoded(tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
    return [(tokenizer.encode(src), tokenizer.encode(tgt)) for src, tgt in pairs]


def files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    found = (path for path in folder.rglob("part-*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in found}


# ---- what it holds -----------------------------------------------------------------------------------------------


def test_the_store_holds_what_the_tokenizer_gives(store: TokenStore, tokenizer: Tokenizer) -> None:
    assert contents(store) == encoded(tokenizer, PAIRS)
    assert lengths_of(store) == [[len(src) + 1, len(tgt) + 1] for src, tgt in encoded(tokenizer, PAIRS)]
    assert [(pair.line(0), pair.line(1)) for pair in store.read(np.arange(len(store)))] == PAIRS


@pytest.mark.parametrize("count", [1, 6, 7, 8, 14, 40, 305])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.usefixtures("small_parts")
def test_parts_of_any_number(tmp_path: Path, tokenizer: Tokenizer, count: int, end: str) -> None:
    """More parts than cores are prepared by processes; the last line may do without its end; a BOM is no text."""
    src, tgt = write_corpus(tmp_path, PAIRS[-count:], end)
    src.write_bytes(b"\xef\xbb\xbf" + src.read_bytes().removesuffix(end.encode()))
    if PAIRS[-1][0] == "" or count == 1:
        tgt.write_bytes(tgt.read_bytes().removesuffix(end.encode()))
    store = open_one(tmp_path / "data", (src, tgt), tokenizer)
    assert len(store.files) == -(-count // 7)
    assert contents(store) == encoded(tokenizer, PAIRS[-count:])
    assert [(pair.line(0), pair.line(1)) for pair in store.read(np.arange(count))] == PAIRS[-count:]


@pytest.mark.usefixtures("small_parts")
def test_pairs_read_together_are_those_read_one_by_one(
    tmp_path: Path, corpus: tuple[Path, Path], tokenizer: Tokenizer
) -> None:
    """In the order asked for, with pairs of many files and of one block, and with repetitions."""
    generator = np.random.default_rng(1)
    many_files = open_one(tmp_path / "small", corpus, tokenizer)
    assert len(many_files.files) == 44
    for store in (many_files, open_one(tmp_path / "one", write_corpus(tmp_path / "a", PAIRS[:7]), tokenizer)):
        for size in (1, 2, 11, 400):
            numbers = generator.integers(len(store), size=size)
            pairs = store.read(numbers)
            rows = [(*(ids.tolist() for ids in pair.ids), (*pair.spans[0], *pair.spans[1])) for pair in pairs]
            assert rows == [read_one(store, number) for number in numbers.tolist()]


@pytest.mark.usefixtures("small_parts")
def test_all_cores_make_the_same_files_as_one(
    tmp_path: Path, corpus: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for count in (1, 3):
        monkeypatch.setattr(prepare, "cores", lambda count=count: count)
        open_one(tmp_path / f"{count}", corpus, tokenizer)
        found = sorted((tmp_path / f"{count}").glob("*/part-*"))
        made.append([(path.name, path.read_bytes()) for path in found])
    assert made[0] == made[1] and len(made[0]) == 44


def test_blocks_of_any_fill(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for count in (BLOCK_PAIRS - 1, BLOCK_PAIRS, BLOCK_PAIRS + 1, 3 * BLOCK_PAIRS):
        store = open_one(tmp_path / f"{count}", write_corpus(tmp_path / f"text-{count}", PAIRS[:count]), tokenizer)
        assert contents(store) == encoded(tokenizer, PAIRS[:count])


def test_a_side_of_more_tokens_than_a_length_can_say(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not kept, and its length says so; what is one shorter is kept whole."""
    monkeypatch.setattr(tokenizer, "encode_batch", lambda lines: [[7] * int(line) for line in lines])
    lines = [("3", f"{TOO_LONG - 2}"), (f"{TOO_LONG - 1}", "3"), (f"{TOO_LONG + 9}", "3"), ("4", "5")]
    texts = write_corpus(tmp_path, lines)
    with monkeypatch.context() as patch:
        patch.setattr(type(tokenizer), "sha256", "of another tokenizer")
        store = open_one(tmp_path / "data", texts, tokenizer)
    assert [(len(src), len(tgt)) for src, tgt in contents(store)] == [(3, TOO_LONG - 2), (0, 3), (0, 3), (4, 5)]
    assert lengths_of(store) == [[4, TOO_LONG - 1], [TOO_LONG, 4], [TOO_LONG, 4], [5, 6]]


def test_several_corpora_come_one_after_the_other(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpora = [
        Corpus(*write_corpus(tmp_path / "a", PAIRS[:50])),
        Corpus(*write_corpus(tmp_path / "b", PAIRS[50:80]), 2.0),
    ]
    store = open_store(tmp_path / "data", corpora, tokenizer)
    assert contents(store) == encoded(tokenizer, PAIRS[:80])
    assert list(store.lines()) == PAIRS[:80]
    assert [(first, len(lengths), weight) for first, lengths, weight in store.lengths()] == [(0, 50, 1), (50, 30, 2)]
    assert store.where(np.array([49, 0, 50])) == f"{corpora[0].name}, lines 50, 1; {corpora[1].name}, lines 1"
    keys = {open_store(tmp_path / "data", order, tokenizer).key for order in (corpora, corpora[::-1], corpora[:1])}
    assert len(keys | {store.key}) == 3
    heavier = [corpora[0], Corpus(corpora[1].src, corpora[1].tgt, 3.0)]
    assert open_store(tmp_path / "data", heavier, tokenizer).key not in keys


# ---- when it is made ---------------------------------------------------------------------------------------------


def test_a_second_opening_maps_and_does_not_build(tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer) -> None:
    first = open_one(tmp_path / "data", own, tokenizer)
    before = files_of(tmp_path / "data")
    second = open_one(tmp_path / "data", own, tokenizer)
    assert files_of(tmp_path / "data") == before
    assert contents(first) == contents(second) and first.key == second.key


def test_the_key_is_text_and_tokenizer_not_names(tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer) -> None:
    first = open_one(tmp_path / "a", own, tokenizer)
    src, tgt = (path.rename(path.with_name("moved-" + path.name)) for path in own)
    os.utime(src, (0, 0))
    assert open_one(tmp_path / "a", (src, tgt), tokenizer).key == first.key
    assert open_one(tmp_path / "b", (tgt, src), tokenizer).key != first.key


@pytest.mark.parametrize("side", [0, 1])
def test_each_side_counts(tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, side: int) -> None:
    open_one(tmp_path / "data", own, tokenizer)
    own[side].write_bytes(b"Katze" + own[side].read_bytes())
    store = open_one(tmp_path / "data", own, tokenizer)
    assert contents(store) == [(tokenizer.encode(src), tokenizer.encode(tgt)) for src, tgt in read_pairs(*own)]


def test_other_text_or_another_tokenizer_is_another_store(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer
) -> None:
    first = open_one(tmp_path / "data", own, tokenizer)
    own[0].write_bytes(own[0].read_bytes().replace(b"Hund", b"hund", 1))
    second = open_one(tmp_path / "data", own, tokenizer)
    assert second.key != first.key and len(files_of(tmp_path / "data")) == 1
    other = Tokenizer.learn(["Hund und Katze"] * 3, vocab_size=300)
    third = open_one(tmp_path / "data", own, other)
    assert third.key != second.key and len(files_of(tmp_path / "data")) == 1
    assert third.read(np.array([1]))[0].ids[0].tolist() == other.encode(list(read_pairs(*own))[1][0])


@pytest.mark.usefixtures("small_parts")
def test_preparing_goes_on_with_the_parts_that_are_missing(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill: some parts are whole, another is half written, under the name of a writer."""
    monkeypatch.setattr(prepare, "cores", lambda: 1)
    made = []

    def stop(path: Path, *rest: object) -> None:
        if len(made) == 3:
            path.with_name(path.name + ".tmp-99").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        made.append(path)
        write_token_file(path, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "write_token_file", stop)
        with pytest.raises(OSError, match="No space left"):
            open_one(tmp_path / "data", own, tokenizer)
    before = files_of(tmp_path / "data")
    assert len(before) == 4
    store = open_one(tmp_path / "data", own, tokenizer)
    after = files_of(tmp_path / "data")
    assert contents(store) == encoded(tokenizer, PAIRS[:40])
    assert len(after) == 6 and all(after[path] == before[path] for path in made)


def test_a_full_disk_leaves_no_half_part(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            open_one(tmp_path / "data", own, tokenizer)
    assert not files_of(tmp_path / "data")
    assert contents(open_one(tmp_path / "data", own, tokenizer)) == encoded(tokenizer, PAIRS[:40])


def test_killed_while_all_cores_prepare(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The processes that prepare end by themselves, and what is there afterwards is whole."""
    texts = write_corpus(tmp_path / "text", PAIRS * 200)
    tokenizer.save(tmp_path / "tokenizer.json")
    program = """
import sys
from pathlib import Path
from transduce.data import tokenize_corpus as prepare, token_store as store, corpora, tokenizer as tokens
prepare.FILE_PAIRS = 1_000
prepare.cores = lambda: 2
folder, src, tgt = map(Path, sys.argv[1:])
store.open_store(folder / "data", [corpora.Corpus(src, tgt)], tokens.Tokenizer.load(folder / "tokenizer.json"))
"""
    whole = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), *map(str, texts)], start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("data/*/part-?????"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    whole.kill()
    whole.wait()
    done = files_of(tmp_path / "data")
    assert 5 <= len(done) < 61
    while _alive(whole.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(whole.pid)
    subprocess.run([sys.executable, "-c", program, str(tmp_path), *map(str, texts)], check=True)
    after = files_of(tmp_path / "data")
    assert len(after) == 61
    assert all(after[path] == stamp for path, stamp in done.items() if ".tmp-" not in path.name)


def _alive(session: int) -> bool:
    """Whether a process of this process group is left."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("count", [1, 2])
def test_the_first_mistake_in_the_text_is_told(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(prepare, "cores", lambda: count)
    lines = own[1].read_bytes().split(b"\n")
    lines[16], lines[30] = b"caf\xe9", b"\xff"
    own[1].write_bytes(b"\n".join(lines))
    with pytest.raises(UserError, match=r"train\.de:17: expected UTF-8, but byte 4 of the line is 0xe9"):
        open_one(tmp_path / "data", own, tokenizer)


@pytest.mark.usefixtures("small_parts")
def test_what_the_disk_says_to_a_process_is_said_by_all(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "cores", lambda: 2)
    scanned = prepare.scan_corpora(tmp_path / "scans.json", [own])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="Not a directory"):
        prepare.run_jobs(prepare.plan_jobs(scanned[0], tmp_path / "file" / "below", "00" * 32, 2), tokenizer)


@pytest.mark.usefixtures("small_parts")
def test_a_process_that_is_killed_is_told_of(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the kernel, for want of memory. The next opening goes on."""
    monkeypatch.setattr(prepare, "cores", lambda: 2)

    def die(worker: prepare._Worker, job: prepare.Job) -> None:
        if job.contents.first == 21:
            worker.process.kill()
        worker._send(job)

    with monkeypatch.context() as patch:
        patch.setattr(prepare._Worker, "run", die)
        with pytest.raises(OSError, match="a process that prepares the text ended, with code -9"):
            open_one(tmp_path / "data", own, tokenizer)
    assert contents(open_one(tmp_path / "data", own, tokenizer)) == encoded(tokenizer, PAIRS[:40])


def test_text_that_changes_while_it_is_prepared(tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer) -> None:
    (scan,) = prepare.scan_corpora(tmp_path / "scans.json", [own])
    (job,) = prepare.plan_jobs(scan, tmp_path / "parts", "00" * 32, 2)
    own[0].write_bytes(own[0].read_bytes().split(b"\n", 1)[1])
    with pytest.raises(UserError, match="was changed while in use"):
        prepare.run_job(job, tokenizer)
    assert not files_of(tmp_path)


def test_text_of_the_same_size_and_time_is_not_hashed_again(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = open_one(tmp_path / "data", own, tokenizer).key
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "_scan", lambda path: pytest.fail(f"{path} was read"))
        patch.setattr(Path, "write_bytes", lambda path, _: pytest.fail(f"{path} was written"))
        assert open_one(tmp_path / "data", own, tokenizer).key == key
    scans = tmp_path / "data" / "scans.json"
    for damaged in (b"", b"{}", scans.read_bytes().replace(b'"lines":40', b'"lines":41'), scans.read_bytes()[:-9]):
        scans.write_bytes(damaged)
        assert open_one(tmp_path / "data", own, tokenizer).key == key


def test_text_that_is_wrong_leaves_no_store(tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer) -> None:
    own[1].write_bytes(own[1].read_bytes() + b"one line more\n")
    for _ in range(2):
        with pytest.raises(UserError, match="has 40 lines but .* has 41"):
            open_one(tmp_path / "data", own, tokenizer)


# ---- damage ------------------------------------------------------------------------------------------------------


def test_every_single_bit_is_guarded(tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer) -> None:
    """A flipped bit anywhere is found, at the opening or when it is read; then the part is made again."""
    good = contents(open_one(tmp_path / "data", own, tokenizer))
    (path,) = files_of(tmp_path / "data")
    content, chance = path.read_bytes(), random.Random(1)
    at_opening, footer_bits = 0, 8 * token_file.FOOTER.size
    bits = [*range(8 * len(content) - footer_bits, 8 * len(content), 7), *chance.sample(range(8 * len(content)), 150)]
    for bit in bits:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        store = open_one(tmp_path / "data", own, tokenizer)
        if path.read_bytes() == content:
            at_opening += 1
        else:
            with pytest.raises(DamagedTokenFile, match=r"part-00000 is damaged .* has been removed; .* --resume"):
                store.check()
            assert not path.exists()
            store = open_one(tmp_path / "data", own, tokenizer)
        assert path.read_bytes() == content
    assert footer_bits // 7 <= at_opening < footer_bits // 7 + 30 and contents(store) == good


@pytest.mark.parametrize("damage", ["truncate", "empty", "remove", "longer", "zeros", "another part", "its own half"])
@pytest.mark.usefixtures("small_parts")
def test_a_part_that_is_not_the_right_one_is_made_again(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, damage: str
) -> None:
    good = contents(open_one(tmp_path / "data", own, tokenizer))
    first, second, *_ = sorted(files_of(tmp_path / "data"))
    content = first.read_bytes()
    if damage == "remove":
        first.unlink()
    else:
        half = len(content) // 2
        made = {"truncate": content[:-2], "empty": b"", "longer": b"x" + content, "zeros": bytes(len(content))}
        made |= {"another part": second.read_bytes(), "its own half": content[half:]}
        first.write_bytes(made[damage])
    store = open_one(tmp_path / "data", own, tokenizer)
    assert first.read_bytes() == content and contents(store) == good


def test_blocks_that_changed_places_are_found(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Both are whole, and of one size."""
    texts = write_corpus(tmp_path, [("Hund", "Katze")] * BLOCK_PAIRS + [("Katze", "Hund")] * BLOCK_PAIRS)
    store = open_one(tmp_path / "data", texts, tokenizer)
    _, middle, end = store.files[0].offsets.tolist()
    assert end == 2 * middle
    content = store.files[0].path.read_bytes()
    store.files[0].path.write_bytes(content[middle:end] + content[:middle] + content[end:])
    with pytest.raises(DamagedTokenFile, match="block 0"):
        store.read(np.array([0]))


def test_only_what_is_read_is_tested(tmp_path: Path, tokenizer: Tokenizer) -> None:
    store = open_one(tmp_path / "data", write_corpus(tmp_path, PAIRS[:100]), tokenizer)
    content = bytearray(store.files[0].path.read_bytes())
    content[int(store.files[0].offsets[1]) + 5] ^= 1
    store.files[0].path.write_bytes(content)
    assert store.read(np.array([BLOCK_PAIRS - 1]))[0].line(0) == PAIRS[BLOCK_PAIRS - 1][0]
    with pytest.raises(DamagedTokenFile, match="block 1"):
        store.read(np.array([BLOCK_PAIRS]))


# ---- large -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_the_width_of_a_token_holds_the_vocabulary(
    tmp_path: Path, own: tuple[Path, Path], vocab_size: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.learn(["Hund"], vocab_size=300)
    tokenizer.vocab_size = vocab_size
    highest = vocab_size - 1
    monkeypatch.setattr(tokenizer, "encode_batch", lambda lines: [[7, highest] for _ in lines])
    for _ in range(2):  # built, and mapped
        store = open_one(tmp_path / "data", own, tokenizer)
        (pair,) = store.read(np.array([3]))
        assert pair.ids[0].dtype == dtype
        assert pair.ids[0].tolist() == pair.ids[1].tolist() == [7, highest]


def test_offsets_past_32_bits(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Of the text, and of a part, by holes in files: 5 GB that take no room."""
    hole = 5 << 30
    texts = tmp_path / "src", tmp_path / "tgt"
    for path, line in zip(texts, (b"ein Hund\n", b"eine Katze\n"), strict=True):
        with path.open("wb") as file:
            file.seek(hole)
            file.write(line)
    contents = Contents("ab" * 32, (str(texts[0]), str(texts[1])), first=0, pairs=1, token_bytes=2)
    job = prepare.Job(str(tmp_path / "part"), contents, (hole, hole), tuple(path.stat().st_size for path in texts))
    prepare.run_job(job, tokenizer)
    part = open_token_file(tmp_path / "part", contents)
    assert part is not None and part.read([0])[0].spans == ((hole, hole + 8), (hole, hole + 10))
    assert (part.read([0])[0].line(0), part.read([0])[0].line(1)) == ("ein Hund", "eine Katze")

    content, far = part.path.read_bytes(), tmp_path / "far"
    offsets = np.array([hole, hole + part.blocks_end], "<u8")
    crc = token_file.zlib.crc32(offsets.tobytes())
    fields = list(token_file.FOOTER.unpack(content[-token_file.FOOTER.size :]))
    fields[3], fields[5] = hole + part.blocks_end, crc
    footer = token_file.FOOTER.pack(*fields)[:-4]
    with far.open("wb") as file:
        file.seek(hole)
        lengths = content[part.blocks_end + 16 : -token_file.FOOTER.size]
        end = token_file.zlib.crc32(footer).to_bytes(4, "little")
        file.write(content[: part.blocks_end] + offsets.tobytes() + lengths + footer + end)
    moved = open_token_file(far, contents)
    assert moved is not None and moved.read([0])[0].spans == part.read([0])[0].spans
    assert [ids.tolist() for ids in moved.read([0])[0].ids] == [ids.tolist() for ids in part.read([0])[0].ids]
    moved.check()
