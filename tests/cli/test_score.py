"""`transduce score`: log-probabilities of given translations."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.streams import piped
from support.toy_task import CommandResult, Toy, write_lines


def test_prints_one_log_probability_per_line(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    src, tgt = write_lines(tmp_path / "src", ["a b", "c é"] * 600), write_lines(tmp_path / "tgt", ["b a", "x"] * 600)
    numbers = [float(line) for line in cli("score", toy.model, "--src", src, "--tgt", tgt).out.split()]
    assert len(numbers) == 1_200
    assert numbers[0] > -0.5 > numbers[1]
    result = cli("score", toy.model, "--src", src, "--tgt", tgt, "--json")
    objects = [json.loads(line) for line in result.out.splitlines()]
    assert [score["log_prob"] for score in objects] == pytest.approx(numbers, abs=1e-5)
    assert objects[0]["pieces"][-1] == "</s>"
    assert len(objects[0]["pieces"]) == len(objects[0]["token_log_probs"])
    with piped(src.read_bytes(), tgt.read_bytes()) as (first, second):
        assert cli("score", toy.model, "--src", first, "--tgt", second, "--json").out == result.out


def test_lines_before_one_that_cannot_be_scored_are_scored(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    lines = ["a b", "", "c"] * 350
    src, tgt = write_lines(tmp_path / "src", [*lines, "a"]), write_lines(tmp_path / "tgt", [*lines, "a " * 9_000])
    expected = cli("score", toy.model, "--src", write_lines(tmp_path / "good", lines), "--tgt", tmp_path / "good").out
    result = cli("score", toy.model, "--src", src, "--tgt", tgt)
    assert (result.code, result.out) == (2, expected)
    assert result.err == f"transduce: {tgt}:1051: expected at most 8,192 tokens, not 9,000; split the line\n"

    (tmp_path / "latin").write_bytes(b"a b\n\nc\n\xe4\n")
    result = cli("score", toy.model, "--src", tmp_path / "latin", "--tgt", tmp_path / "latin")
    assert (result.code, result.out) == (2, b"".join(expected.splitlines(keepends=True)[:3]))
    assert f"{tmp_path / 'latin'}:4: " in result.err

    result = cli("score", toy.model, "--src", src, "--tgt", tmp_path / "good")
    assert (result.code, result.out) == (2, expected) and "expected the same number of lines" in result.err
