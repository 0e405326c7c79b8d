"""Cleaning: which pairs stay, in which order, and the number of those that do not."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest

from transduce.download.cleaning import OUTCOMES, clean
from transduce.errors import UserError

GOOD = [(f"This is sentence number {n} of the text.", f"Das ist der Satz Nummer {n} des Textes.") for n in range(40)]


def write(folder: Path, name: str, pairs: Sequence[tuple[str | bytes, str | bytes]]) -> tuple[Path, Path]:
    sides = folder / f"{name}.en", folder / f"{name}.de"
    for path, lines in zip(sides, zip(*pairs, strict=True), strict=True):
        path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return sides


def cleaned(
    folder: Path, parts: dict[str, tuple[Path, Path]]
) -> tuple[list[tuple[str, str]], dict[str, dict[str, int]]]:
    out = folder / "train.en", folder / "train.de"
    counts = clean(parts, out)
    sides = [path.read_text("utf-8").split("\n")[:-1] for path in out]
    return list(zip(*sides, strict=True)), counts


def counts_of(pairs: int, **outcomes: int) -> dict[str, int]:
    """Return the counts of a part with `pairs` pairs, of which the others are kept."""
    return {**dict.fromkeys(OUTCOMES, 0), **outcomes, "kept": pairs - sum(outcomes.values())}


@pytest.mark.parametrize(
    ("outcome", "pair"),
    [
        ("not_utf8", (b"caf\xe9", "Kaffee")),
        ("not_utf8", ("coffee", b"Caf\xe9")),
        ("blank", ("", "Kaffee")),
        ("blank", ("coffee", " \t\u200b")),
        ("long", ("word " * 251, "Wort")),
        ("long", ("word", "Wort " * 251)),
        ("copied", ("The same on both sides", "The same on both sides")),
        ("ratio", ("x" * 400, "y")),
        ("ratio", ("x", "y" * 400)),
        ("repeated", GOOD[3]),
    ],
)
def test_a_pair_that_is_dropped_is_counted(tmp_path: Path, outcome: str, pair: tuple[str | bytes, str | bytes]) -> None:
    paths = write(tmp_path, "part", [*GOOD, pair])
    pairs, counts = cleaned(tmp_path, {"part": paths})
    assert pairs == GOOD and counts == {"part": counts_of(41, **{outcome: 1})}


@pytest.mark.parametrize(
    "pair",
    [("Max Weber", "Max Weber"), ("word " * 249 + "end", "Wort " * 249 + "Ende"), (GOOD[0][0], GOOD[1][1]),
     ("A\u2028B & <b> \u00a0 C is one line of text", "A\x85B & <b> C ist eine Zeile des Textes")],
    ids=["a name", "250 words", "a repeated source", "odd characters"],
)  # fmt: skip
def test_other_pairs_stay_as_they_are(tmp_path: Path, pair: tuple[str, str]) -> None:
    pairs, counts = cleaned(tmp_path, {"part": write(tmp_path, "part", [*GOOD, pair])})
    assert pairs == [*GOOD, pair] and counts["part"] == counts_of(41)


def test_white_space_around_lines_goes(tmp_path: Path) -> None:
    padded = [(f"  {src}\t", f"{tgt} \r") for src, tgt in GOOD]
    assert cleaned(tmp_path, {"part": write(tmp_path, "part", padded)})[0] == GOOD


def test_parts_keep_their_order_and_the_first_of_equal_pairs_stays(tmp_path: Path) -> None:
    parts = {
        "b": write(tmp_path, "b", [*GOOD[:20], ("blank", "")]),
        "a": write(tmp_path, "a", [*GOOD[10:30], GOOD[5], ("new", "neu")]),
    }
    pairs, counts = cleaned(tmp_path, parts)
    assert pairs == [*GOOD[:30], ("new", "neu")]
    assert counts == {"b": counts_of(21, blank=1), "a": counts_of(22, repeated=11)}


def test_parts_may_be_compressed(tmp_path: Path) -> None:
    src, tgt = write(tmp_path, "part", [*GOOD])
    packed = tmp_path / "part.en.gz"
    packed.write_bytes(gzip.compress(src.read_bytes()))
    assert cleaned(tmp_path, {"part": (packed, tgt)})[0] == GOOD


def test_sides_of_unequal_length_are_refused(tmp_path: Path) -> None:
    src, tgt = write(tmp_path, "part", [*GOOD])
    tgt.write_bytes(tgt.read_bytes() + b"one\nmore\n")
    with pytest.raises(UserError, match=r"expected the same number of lines, not 40 and 42"):
        cleaned(tmp_path, {"part": (src, tgt)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part.de", "part.en"]
