"""`transduce score`: log-probabilities of given translations."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import assert_mistake
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
    long = write_lines(tmp_path / "long", ["a"] * 1_100 + ["a " * 9_000])
    assert "line 1101: expected at most" in cli("score", toy.model, "--src", long, "--tgt", long).err
    assert_mistake(cli("score", toy.model, "--src", src, "--tgt", toy.valid[0]), "expected the same number of lines")
