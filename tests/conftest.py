"""Fixtures of several test files: the trained toy model, and the command line."""

import sys
from collections.abc import Callable, Iterator

import pytest
from support.toy_task import RECIPE, CommandResult, Toy, run_transduce, toy_lines, write_pairs


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Return the toy task, trained once per session through the command line."""
    folder = tmp_path_factory.mktemp("toy")
    train_lines = toy_lines(1, 6_000)
    train, valid = write_pairs(folder, "train", train_lines), write_pairs(folder, "valid", toy_lines(2, 60))
    (folder / "recipe.py").write_text(RECIPE, encoding="utf-8")
    texts = ["--train", *train, "--valid", *valid]
    result = run_transduce("train", "--recipe", f"{folder / 'recipe.py'}:reverse", *texts, "--out", folder / "run")
    assert result.code == 0, result.err
    return Toy(folder, train, valid, sorted(set(toy_lines(3, 400)) - set(train_lines)))


@pytest.fixture
def cli(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., CommandResult]]:
    """Run the command line in this process: `cli("translate", folder, ...)`."""
    from transduce.cli.main import main

    def run(*arguments: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["transduce", *map(str, arguments)])
        capfdbinary.readouterr()
        code = 0
        try:
            main()
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
        out, err = capfdbinary.readouterr()
        return CommandResult(code, out, err.decode(errors="replace"))

    yield run
