"""Held-out text: a small part of the pairs, of which the rest has no source and no target."""

import os
from pathlib import Path

import pytest
from support.toy_task import write_pairs

from transduce.data.corpora import Corpus, read_pairs
from transduce.data.held_out import HeldOut, hold_out
from transduce.errors import UserError


def corpus(folder: Path, name: str, pairs: list[tuple[str, str]], weight: float = 1.0) -> Corpus:
    src, tgt = (folder / f"{name}.{side}" for side in ("src", "tgt"))
    src.write_text("".join(f"{src}\n" for src, _ in pairs))
    tgt.write_text("".join(f"{tgt}\n" for _, tgt in pairs))
    return Corpus(src, tgt, weight)


def pairs_of(held_out: HeldOut) -> list[tuple[str, str]]:
    return [pair for part in held_out.training for pair in read_pairs(part)]


def test_both_parts_are_the_whole_text_and_share_no_side(tmp_path: Path) -> None:
    pairs = [(f"source {i}", f"target {i}") for i in range(300)]
    repeated = [("source same", f"other {i}") for i in range(50)] + [(f"other {i}", "target same") for i in range(50)]
    spaced = [("  source 7 ", "x"), ("", "y"), ("z", ""), ("long " * 200, "long")]
    first = corpus(tmp_path, "first", [*pairs[:100], *repeated, *spaced], 2.0)
    second = corpus(tmp_path, "second", pairs[100:], 0.5)
    held_out = hold_out([first, second], tmp_path / "out", seed=1)
    valid = list(read_pairs(held_out.valid))
    rest = pairs_of(held_out)
    assert held_out.n_valid == len(valid) == int(0.02 * 404)
    assert sorted([*valid, *rest]) == sorted([*pairs, *repeated, *spaced])
    assert {*valid} <= {*pairs}
    assert not {src.strip() for src, _ in valid} & {src.strip() for src, _ in rest}
    assert not {tgt.strip() for _, tgt in valid} & {tgt.strip() for _, tgt in rest}
    assert [part.weight for part in held_out.training] == [2.0, 0.5]
    kept = [pair for pair in read_pairs(first) if pair not in valid]
    assert list(read_pairs(held_out.training[0])) == kept, "the order of the pairs changed"


def test_the_seed_decides_and_a_changed_text_is_divided_again(tmp_path: Path) -> None:
    text = corpus(tmp_path, "text", [(f"a {i}", f"b {i}") for i in range(200)])
    first = list(read_pairs(hold_out([text], tmp_path / "one", seed=1).valid))
    assert list(read_pairs(hold_out([text], tmp_path / "two", seed=1).valid)) == first
    assert list(read_pairs(hold_out([text], tmp_path / "three", seed=2).valid)) != first
    written = (tmp_path / "one" / "valid.src").stat().st_mtime_ns
    hold_out([text], tmp_path / "one", seed=1)
    assert (tmp_path / "one" / "valid.src").stat().st_mtime_ns == written, "the same text was divided twice"
    text = corpus(tmp_path, "text", [(f"c {i}", f"d {i}") for i in range(400)])
    assert len(pairs_of(hold_out([text], tmp_path / "one", seed=1))) == 392


def test_the_same_source_with_another_tag_is_the_same_source(tmp_path: Path) -> None:
    twice = [(f"{tag} a {i}", f"{tag} {i}") for i in range(100) for tag in ("<2de>", "<2fr>")]
    once = [(f"<2de> b {i}", f"b {i}") for i in range(10)]
    text = corpus(tmp_path, "text", [*twice, *once])
    valid = list(read_pairs(hold_out([text], tmp_path / "out", seed=1, tags=["<2de>", "<2fr>"]).valid))
    assert len(valid) == 4 and {*valid} <= {*once}


def test_no_side_of_a_held_out_pair_stays_on_the_other_side(tmp_path: Path) -> None:
    text = [(f"<2de> a {i}", f"b {i}") for i in range(300)]
    reverse = [(f"<2en> b {i}", f"a {i}") for i in range(200)]
    others = [("<2en> b 201", "c"), ("<2de> d", "a 202"), *[(f"<2de> e {i}", f"e {i}") for i in range(100)]]
    tags = ["<2de>", "<2en>"]
    corpora = [corpus(tmp_path, "text", [*text, *others]), corpus(tmp_path, "reverse", reverse)]
    drawn = set[str]()
    for seed in range(40):
        held_out = hold_out(corpora, tmp_path / "out", seed=seed, tags=tags)
        valid, rest = [
            {side.removeprefix("<2de> ").removeprefix("<2en> ") for pair in pairs for side in pair}
            for pairs in (read_pairs(held_out.valid), pairs_of(held_out))
        ]
        assert not valid & rest
        assert held_out.n_valid == len(list(read_pairs(held_out.valid))) in (11, 12)
        drawn |= valid
    assert not drawn & {"a 201", "b 201", "a 202", "b 202"}
    numbers = [int(side.split()[1]) for side in drawn if side.startswith("a")]
    assert min(numbers) < 200 < max(numbers) and any(side.startswith("e") for side in drawn)


@pytest.mark.parametrize("pairs", [[("a", "b")], [("a", "b")] * 1_000, [("a", f"{i}") for i in range(100)]])
def test_a_text_that_is_too_small_is_refused_before_anything_is_written(
    pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="expected at least 50 pairs.*give more text, or --valid"):
        hold_out([corpus(tmp_path, "text", pairs)], tmp_path / "out", seed=1)
    assert not (tmp_path / "out").exists()


def test_the_copy_of_a_private_text_is_private(tmp_path: Path) -> None:
    src, tgt = write_pairs(tmp_path, "text", [f"a {i}" for i in range(60)])
    os.chmod(src, 0o600)
    hold_out([Corpus(src, tgt)], tmp_path / "out", seed=1)
    assert (tmp_path / "out").stat().st_mode & 0o077 == 0
