"""`transduce train`: mistakes in its arguments, settings and text."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import assert_mistake, assert_problems
from support.toy_task import CommandResult, Toy, write_lines, write_pairs


@pytest.fixture
def texts(tmp_path: Path) -> list[object]:
    train, valid = (write_pairs(tmp_path, name, ["a b", "c"]) for name in ("train", "valid"))
    return ["--train", *train, "--valid", *valid]


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_all_problems_of_the_settings_are_reported_together(
    cli: Callable[..., CommandResult], texts: list[object], tmp_path: Path
) -> None:
    wrong = ["train.warmup=100", "model.n_layers=six", "model.dropout", "data.vocab_sise=1", "train.max_steps=0"]
    settings = [word for setting in wrong for word in ("--set", setting)]
    assert_problems(
        cli("train", "--recipe", "mixture", *texts, "--out", tmp_path / "run", *settings),
        "did you mean 'train.warmup_steps'?",
        "model.n_layers=six: expected an integer",
        "model.dropout: expected section.key=value",
        "did you mean 'data.vocab_size'?",
        "train.max_steps=0: expected at least 1",
    )


def test_all_problems_of_a_training_are_reported_together_and_no_file_is_written(
    cli: Callable[..., CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Problems of the recipe, of settings, of --from, of text files, of the folder, and a missing package."""
    monkeypatch.setattr("transduce.storage.trackers.find_spec", lambda name: None)
    (tmp_path / "out" / "data").mkdir(parents=True)
    valid = write_lines(tmp_path / "valid.en", ["a"]), tmp_path / "valid.de"
    before = everything(tmp_path)
    arguments = [
        "train",
        "--train",
        tmp_path / "no.en",
        tmp_path / "no.de",
        "--valid",
        *valid,
        "--out",
        tmp_path / "out",
    ]
    parent = ["--from", tmp_path / "no model"]
    settings = ["--set", "train.warmup=9", "--set", "model.d_ff=64", "--set", "train.seed=-1"]
    common = (
        "did you mean 'train.warmup_steps'?",
        "train.seed=-1: expected at least 0",
        "--set model.d_ff=64: must not be set with --from",
        "no.en",
        "no.de",
        "valid.de: expected a text file",
        "no model: expected a model folder such as RUN/model",
        "expected a new folder or a run, but data exists there",
        "pip install 'transduce[log]'",
    )
    assert_problems(cli(*arguments, "--recipe", "mixture", *parent, *settings, "--tracker", "tensorboard"), *common)
    unknown = "recipe='mixtur': expected the name of a recipe, or FILE.py:FUNCTION; did you mean 'mixture'?"
    assert_problems(
        cli(*arguments, "--recipe", "mixtur", *parent, *settings, "--tracker", "tensorboard"), unknown, *common
    )
    assert everything(tmp_path) == before


def test_an_unknown_recipe_reports_no_problem_of_the_defaults(
    cli: Callable[..., CommandResult], texts: list[object], tmp_path: Path
) -> None:
    """train.use=ema needs train.ema_decay, which the right recipe may set."""
    result = cli("train", "--recipe", "mixtur", *texts, "--out", tmp_path / "run", "--set", "train.use=ema")
    assert_mistake(result, "recipe='mixtur': expected the name of a recipe")
    assert "ema" not in result.err


def test_impossible_folders_for_a_run_are_refused(
    cli: Callable[..., CommandResult], texts: list[object], toy: Toy, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "file", ["a"])
    for out, message in (
        (file, f"--out={file}: expected a folder, but {file} is a file"),
        (file / "a" / "run", f"--out={file / 'a' / 'run'}: expected a folder, but {file} is a file"),
        (toy.model, "expected a new folder or a run, not a model"),
        (toy.run, "expected a new folder, not a run; add --resume"),
    ):
        before = everything(toy.folder), everything(tmp_path)
        assert_mistake(cli("train", "--recipe", "mixture", *texts, "--out", out), message)
        assert (everything(toy.folder), everything(tmp_path)) == before


def test_mistakes_in_text_are_refused(cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    good, longer = write_lines(tmp_path / "good", ["a", "b"]), write_lines(tmp_path / "longer", ["a", "b", "c"])
    empty, bad = write_lines(tmp_path / "empty", []), tmp_path / "bad"
    bad.write_bytes(b"a\nb \xe9\n")
    options = ["--recipe", "demo", "--out", tmp_path / "run"]
    for train, valid, messages in (
        ((good, longer), (good, good), ("longer: expected the same number of lines, not 2 and 3;",)),
        ((good, bad), (good, good), ("bad:2: expected UTF-8", "iconv")),
        ((empty, empty), (good, good), ("expected at least 1 line",)),
        ((good, good), (longer, good), ("good: expected the same number of lines, not 3 and 2;",)),
        ((good, good), (bad, good), ("bad:2: expected UTF-8",)),
        ((good, good), (empty, empty), ("expected at least 1 line",)),
        (
            (good, tmp_path),
            (tmp_path / "none", good),
            (f"{tmp_path}: expected a text file", "none: expected a text file"),
        ),
    ):
        assert_mistake(cli("train", *options, "--train", *train, "--valid", *valid), *messages)
    assert not (tmp_path / "run" / "checkpoints").exists()
