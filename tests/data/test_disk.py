"""Full disks while text is prepared: the message has the path and the bytes, and room is checked before."""

import errno
import resource
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from support.small_texts import PAIRS, open_one, write_corpus
from support.toy_task import needs_dev_full

from transduce.data.corpora import Corpus, plain_files
from transduce.data.disk import check_room, synced_file
from transduce.data.tokenizer import Tokenizer


class Usage(NamedTuple):
    free: int


@pytest.fixture
def nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1_000))


@needs_dev_full
def test_an_error_of_a_write_has_the_path_and_the_bytes() -> None:
    with (
        pytest.raises(OSError, match="No space left on device, writing 3 bytes") as caught,
        synced_file(Path("/dev/full")) as file,
    ):
        file.write(b"abc")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")


@pytest.mark.usefixtures("nearly_full")
def test_room_is_checked_for_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    check_room(tmp_path / "a" / "b", 1_000)
    with pytest.raises(OSError, match="No space left on device: 1,001 bytes needed, 1,000 free") as caught:
        check_room(tmp_path / "a" / "b", 1_001)
    assert caught.value.filename == str(tmp_path / "a" / "b")


@pytest.mark.usefixtures("nearly_full")
def test_room_is_checked_before_text_is_prepared(tmp_path: Path, tokenizer: Tokenizer) -> None:
    texts = write_corpus(tmp_path, PAIRS)
    with pytest.raises(OSError, match=r"bytes needed, 1,000 free"):
        open_one(tmp_path / "data", texts, tokenizer)
    assert not list((tmp_path / "data").rglob("part-*"))


def test_the_estimate_is_near_the_size_of_the_token_files(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates: list[int] = []
    monkeypatch.setattr("transduce.data.token_store.check_room", lambda folder, needed: estimates.append(needed))
    store = open_one(tmp_path / "data", write_corpus(tmp_path, PAIRS), tokenizer)
    assert 0.7 < estimates[0] / sum(file.path.stat().st_size for file in store.files) < 1.1


def test_a_limit_of_the_file_size_is_named_with_the_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    texts, table = write_corpus(tmp_path, PAIRS), tmp_path / "table.tsv"
    table.write_bytes(b"".join(b"%s\t%s\n" % (b"a" * 3_000, b"b") for _ in range(3)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    try:
        for call, name in (
            (lambda: open_one(tmp_path / "data", texts, tokenizer), "part-00000"),
            (lambda: plain_files(Corpus(table), tmp_path / "plain"), "src.txt"),
        ):
            with pytest.raises(OSError, match=r"File too large, writing [0-9,]+ bytes") as caught:
                call()
            assert name in caught.value.filename
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
