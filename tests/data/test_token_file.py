"""Token files: the width of ids, and offsets above 2^32."""

import struct
from pathlib import Path

import numpy as np
import pytest
from support.small_texts import PAIRS, check_sums, open_one, write_corpus

from transduce.data import token_file, tokenize_corpus
from transduce.data.token_file import (
    Contents,
    open_token_file,
)
from transduce.data.tokenizer import Tokenizer


@pytest.fixture
def small_corpus(tmp_path: Path) -> tuple[Path, Path]:
    return write_corpus(tmp_path / "text", PAIRS[:40])


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_the_width_of_a_token_holds_the_vocabulary(
    tmp_path: Path, small_corpus: tuple[Path, Path], vocab_size: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.learn(["Hund"], vocab_size=300)
    tokenizer.vocab_size = vocab_size
    highest = vocab_size - 1
    monkeypatch.setattr(tokenizer, "encode_batch", lambda lines: [[7, highest] for _ in lines])
    for _ in range(2):  # written, and opened again
        store = open_one(tmp_path / "data", small_corpus, tokenizer)
        ((src,), (tgt,)) = store.read(np.array([3]))
        assert src.dtype == dtype
        assert src.tolist() == tgt.tolist() == [7, highest]


def test_offsets_past_32_bits(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The text and the token file are sparse files of 5 GB."""
    hole = 5 << 30
    texts = tmp_path / "src", tmp_path / "tgt"
    for path, line in zip(texts, (b"ein Hund\n", b"eine Katze\n"), strict=True):
        with path.open("wb") as file:
            file.seek(hole)
            file.write(line)
    contents = Contents("ab" * 32, (str(texts[0]), str(texts[1])), first=0, pairs=1, token_bytes=2)
    job = tokenize_corpus.TokenFileJob(
        str(tmp_path / "part"), contents, (hole, hole), tuple(path.stat().st_size for path in texts)
    )
    tokenize_corpus.run_job(job, tokenizer)
    part = open_token_file(tmp_path / "part", contents)
    assert part is not None and struct.unpack_from("<4Q", part.block(0)) == (hole, hole + 8, hole, hole + 10)

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
    far_file = open_token_file(far, contents)
    assert far_file is not None and far_file.block(0) == part.block(0)
    check_sums([far_file])
