"""BPE-dropout in C++ equals the one in Python, for any ids, and reads and writes only its own memory."""

import ctypes
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.tokenizer_texts import in_a_new_process
from support.toy_task import ROOT

from transduce.data import bpe_dropout
from transduce.data.bpe_dropout import CompiledMerger, Merger
from transduce.data.native_library import native_library

NATIVE = ROOT / "src" / "transduce" / "data" / "native"
Words = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids, starts, keys
LETTERS = 6
PROBABILITIES = [1e-300, 1e-15, 0.03, 0.1, 0.5, 0.97, 1.0]
needs_source = pytest.mark.skipif(not (NATIVE / "bpe_dropout.cpp").exists(), reason="a wheel has no source")
needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def vocabulary(seed: int, n_merges: int = 40) -> tuple[list[list[int]], dict[tuple[int, int], int]]:
    """Return the symbols of random pieces, and the merges that make them. Some pieces have several merges or none."""
    chance = random.Random(seed)
    symbols, pairs = [[i] for i in range(LETTERS)], {}
    for _ in range(n_merges):
        pair = chance.randrange(len(symbols)), chance.randrange(len(symbols))
        piece = symbols[pair[0]] + symbols[pair[1]]
        if len(piece) < 12 and pair not in pairs:
            if piece not in symbols:
                symbols.append(piece)
            pairs[pair] = symbols.index(piece)
    return [*symbols, [len(symbols)]], pairs


def words(n_pieces: int, lengths: Sequence[int], seed: int) -> Words:
    """Return words of random ids, also of ids that the library would merge."""
    generator = np.random.default_rng(seed)
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    keys = generator.integers(0, 1 << 64, len(lengths), np.uint64, endpoint=False)
    return generator.integers(0, n_pieces, starts[-1]), starts, keys


def assert_equal_in_both(functions: ctypes.CDLL) -> None:
    """Compare C++ with Python for words of 1 to 300 ids, with merges or without any."""
    for seed, n_merges in enumerate((0, 1, 3, 40, 40, 40)):
        symbols, pairs = vocabulary(seed, n_merges)
        plain, compiled = Merger(symbols, pairs), CompiledMerger(functions, symbols, pairs)
        lengths = [1] * 30 + [2] * 30 + [3, 4, 5, 9, 20, 65, 300][: 7 if seed == 3 else 5]
        random.Random(seed).shuffle(lengths)
        for p in PROBABILITIES:
            batch = words(len(symbols), lengths, seed)
            for ours, expected in zip(compiled.merge(*batch, p), plain.merge(*batch, p), strict=True):
                assert ours.dtype == expected.dtype == np.int64
                assert ours.tolist() == expected.tolist()


@pytest.fixture
def functions() -> ctypes.CDLL:
    functions = bpe_dropout.library()
    if functions is None:
        pytest.skip("needs compiled BPE-dropout")
    return functions


@needs_source
@needs_compiler
def test_the_installation_has_compiled_this_source() -> None:
    """Otherwise the tests here would be skipped, or test an earlier source."""
    is_current = native_library(NATIVE, "bpe_dropout") is not None
    assert is_current, "data/native has changed since its last compilation; CONTRIBUTING.md has the command"


def test_without_a_library_the_program_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bpe_dropout, "native_library", lambda folder, name: None)
    assert bpe_dropout.library.__wrapped__() is None
    (record,) = caplog.records
    assert "no compiled BPE-dropout" in record.message and "install a C++ compiler" in record.message


def test_both_are_equal(functions: ctypes.CDLL) -> None:
    assert_equal_in_both(functions)


def mergers(functions: ctypes.CDLL) -> list[Merger | CompiledMerger]:
    """Return both, for the letters 0 to 3 and the merges 01 = 4, 23 = 5, 45 = 6, 12 = 7."""
    symbols, pairs = (
        [[0], [1], [2], [3], [0, 1], [2, 3], [0, 1, 2, 3], [1, 2]],
        {(0, 1): 4, (2, 3): 5, (4, 5): 6, (1, 2): 7},
    )
    return [Merger(symbols, pairs), CompiledMerger(functions, symbols, pairs)]


def test_the_key_decides_which_attempts_are_dropped(functions: ctypes.CDLL) -> None:
    """A drop lasts until the next merge, and the merges of a step are tried in the order of their ranks."""
    ids, starts = np.array([6]), np.array([0, 1])
    expected = {"": [6], "1": [6], "11": [0, 7, 3], "111": [0, 1, 2, 3], "001": [4, 5], "01": [4, 2, 3]}
    for drops, out in expected.items():
        key = next(key for key in np.arange(10_000, dtype=np.uint64)[:, None] if has_drops(key, drops))
        for merger in mergers(functions):
            assert merger.merge(ids, starts, key, 0.5)[0].tolist() == out, drops


def has_drops(key: np.ndarray, drops: str) -> bool:
    is_dropped = bpe_dropout._drops(key, 0.5)
    return [next(is_dropped) for _ in range(8)] == [drop == "1" for drop in drops.ljust(8, "0")]


def test_a_word_of_one_symbol_and_a_word_without_drops_keep_their_ids(functions: ctypes.CDLL) -> None:
    ids, starts = np.array([0, 6, 7, 7, 0, 1]), np.array([0, 1, 2, 4, 6])
    for merger in mergers(functions):
        for p in (0.0, 1e-300):
            out, out_starts = merger.merge(ids, starts, np.arange(4, dtype=np.uint64), p)
            assert (out.tolist(), out_starts.tolist()) == (ids.tolist(), starts.tolist())
        assert merger.merge(ids, starts, np.arange(4, dtype=np.uint64), 1.0)[1].tolist() == [0, 1, 5, 9, 11]


SANITIZED = """
import ctypes, sys
from transduce.data import bpe_dropout
bpe_dropout.native_library = lambda folder, name: ctypes.CDLL(sys.argv[1])
from data.test_bpe_dropout_compiled import assert_equal_in_both
assert_equal_in_both(bpe_dropout.library())
print("with torch" if "torch" in sys.modules else "without torch")
"""


@pytest.mark.slow
@needs_source
@needs_compiler
def test_it_stays_in_its_memory(tmp_path: Path) -> None:
    """The sanitizers of the compiler end the program at the first access outside of an array, also one of numpy."""
    library = tmp_path / "bpe_dropout.so"
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", '-DSOURCE_HASH=""', "-D_GLIBCXX_ASSERTIONS"]
    command = ["c++", "-std=c++17", "-g", "-O1", "-shared", "-fPIC", *flags, NATIVE / "bpe_dropout.cpp", "-o", library]
    sanitizer = subprocess.check_output(["c++", "-print-file-name=libasan.so"], text=True).strip()
    if not Path(sanitizer).is_absolute() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs a compiler with sanitizers")
    environment = {"LD_PRELOAD": sanitizer, "ASAN_OPTIONS": "detect_leaks=0"}
    assert in_a_new_process(SANITIZED, str(library), **environment) == "without torch"
