"""`transduce average`: a model from several checkpoints."""

from collections.abc import Callable
from pathlib import Path

from support.command_line import assert_mistake
from support.toy_task import CommandResult, Toy

import transduce


def test_averages_the_newest_checkpoints(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    assert cli("average", toy.run, "--last", 2, "--out", tmp_path / "model").code == 0
    assert "the mean of the checkpoints step-00000200, step-00000400" in (tmp_path / "model" / "README.md").read_text(
        "utf-8"
    )
    assert len(transduce.load(tmp_path / "model").translate(["a b"])) == 1
    assert_mistake(cli("average", toy.run, "--last", 2, "--out", tmp_path / "model"), "but it exists")
    assert_mistake(cli("average", toy.run, "--last", 9, "--out", tmp_path / "m"), "expected 1 to 2")
