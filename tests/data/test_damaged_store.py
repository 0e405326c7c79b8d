"""Damage of a token store: each flipped bit and each exchanged part is detected."""

import random
from pathlib import Path

import numpy as np
import pytest
from support.small_texts import PAIRS, check_sums, contents, files_of, open_one, write_corpus

from transduce.data import token_file
from transduce.data.token_file import (
    BLOCK_PAIRS,
    DamagedTokenFile,
)
from transduce.data.tokenizer import Tokenizer


def test_every_flipped_bit_is_detected(tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer) -> None:
    """`open_store` or a read detects a flipped bit. Then the file is written again."""
    good = contents(open_one(tmp_path / "data", small_corpus, tokenizer))
    (path,) = files_of(tmp_path / "data")
    content, chance = path.read_bytes(), random.Random(1)
    at_opening, footer_bits = 0, 8 * token_file.FOOTER.size
    bits = [*range(8 * len(content) - footer_bits, 8 * len(content), 7), *chance.sample(range(8 * len(content)), 150)]
    for bit in bits:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        store = open_one(tmp_path / "data", small_corpus, tokenizer)
        if path.read_bytes() == content:
            at_opening += 1
        else:
            with pytest.raises(DamagedTokenFile, match=r"part-00000 is damaged .* has been removed; .* --resume"):
                check_sums(store.files)
            assert not path.exists()
            store = open_one(tmp_path / "data", small_corpus, tokenizer)
        assert path.read_bytes() == content
    assert footer_bits // 7 <= at_opening < footer_bits // 7 + 30 and contents(store) == good


@pytest.mark.parametrize("damage", ["truncate", "empty", "remove", "longer", "zeros", "another part", "its own half"])
@pytest.mark.usefixtures("small_files")
def test_a_token_file_with_other_contents_is_written_again(
    tmp_path: Path, small_corpus: tuple[Path, Path], tokenizer: Tokenizer, damage: str
) -> None:
    good = contents(open_one(tmp_path / "data", small_corpus, tokenizer))
    first, second, *_ = sorted(files_of(tmp_path / "data"))
    content = first.read_bytes()
    if damage == "remove":
        first.unlink()
    else:
        half = len(content) // 2
        damaged = {"truncate": content[:-2], "empty": b"", "longer": b"x" + content, "zeros": bytes(len(content))}
        damaged |= {"another part": second.read_bytes(), "its own half": content[half:]}
        first.write_bytes(damaged[damage])
    store = open_one(tmp_path / "data", small_corpus, tokenizer)
    assert first.read_bytes() == content and contents(store) == good


def test_exchanged_blocks_are_detected(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Both blocks are intact and have the same size."""
    texts = write_corpus(tmp_path, [("Hund", "Katze")] * BLOCK_PAIRS + [("Katze", "Hund")] * BLOCK_PAIRS)
    store = open_one(tmp_path / "data", texts, tokenizer)
    _, middle, end = store.files[0].offsets.tolist()
    assert end == 2 * middle
    content = store.files[0].path.read_bytes()
    store.files[0].path.write_bytes(content[middle:end] + content[:middle] + content[end:])
    with pytest.raises(DamagedTokenFile, match="block 0"):
        store.read(np.array([0]))


def test_a_read_checks_only_its_own_blocks(tmp_path: Path, tokenizer: Tokenizer) -> None:
    store = open_one(tmp_path / "data", write_corpus(tmp_path, PAIRS[:100]), tokenizer)
    content = bytearray(store.files[0].path.read_bytes())
    content[int(store.files[0].offsets[1]) + 5] ^= 1
    store.files[0].path.write_bytes(content)
    assert store.read(np.array([BLOCK_PAIRS - 1]))[0][0].tolist() == tokenizer.encode(PAIRS[BLOCK_PAIRS - 1][0])
    with pytest.raises(DamagedTokenFile, match="block 1"):
        store.read(np.array([BLOCK_PAIRS]))
