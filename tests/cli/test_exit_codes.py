"""Exit codes, and messages instead of tracebacks."""

import errno
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import assert_mistake
from support.toy_task import ROOT, CommandResult, Toy, needs_dev_full, run_transduce, write_lines, write_pairs

import transduce
from transduce.cli.messages import name_option_as_typed


def test_python_m_transduce_runs_the_command_line() -> None:
    assert run_transduce("--version").out.decode().strip() == transduce.__version__
    wrong = run_transduce("trian")
    assert wrong.code == 2 and "train" in wrong.err and "Traceback" not in wrong.err and wrong.out == b""


@pytest.mark.parametrize(("handler", "code"), [("default_int_handler", 130), ("SIG_IGN", 0)])
def test_an_interrupt_during_the_imports_gives_no_traceback(handler: str, code: int) -> None:
    program = f"""
import os, signal
signal.signal(signal.SIGINT, signal.{handler})
import transduce.__main__
os.kill(os.getpid(), signal.SIGINT)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (code, "")


@pytest.fixture
def texts(tmp_path: Path) -> list[object]:
    train, valid = (write_pairs(tmp_path, name, ["a b", "c"]) for name in ("train", "valid"))
    return ["--train", *train, "--valid", *valid]


def test_missing_and_unknown_arguments_and_files(
    cli: Callable[..., CommandResult], texts: list[object], tmp_path: Path
) -> None:
    out = ["--out", tmp_path / "run"]
    assert_mistake(cli("train", "--recipe", "mixture", *texts), "--out")
    assert_mistake(cli("train", "--recipe", "mixture", *texts, *out, "--steps", 3), "--steps")
    assert_mistake(cli("train", "--recipe", "mixtur", *texts, *out), "did you mean 'mixture'?")
    assert_mistake(cli("train", "--recipe", tmp_path / "no.py:f", *texts, *out), "no.py does not exist")
    assert_mistake(cli("translate", tmp_path / "none"), "does not exist")
    assert_mistake(cli("average", tmp_path, "--last", 3, "--out", tmp_path / "m"), "expected a run with checkpoints")
    assert_mistake(cli("average", tmp_path, "--last", "three", "--out", tmp_path / "m"), "three")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian", "trian: expected a known command; did you mean 'train'?"),
        ("xyz", "xyz: expected a known command; see `transduce --help`"),
        ("study tabel1", "tabel1: expected a known command; did you mean 'table1'?"),
        ("translate m --bem-size 3", "--bem-size: expected a known option; did you mean '--beam-size'?"),
        ("train", "--train: expected a value; see `transduce train --help`"),
        ("check --valid a", "--valid: expected 2 values; see `transduce check --help`"),
        ("check", "CORPUS: expected a value; see `transduce check --help`"),
        ("translate m --beam-size four", "--beam-size=four: expected an integer; see `transduce translate --help`"),
        ("translate m --alpha x", "--alpha=x: expected a number; see `transduce translate --help`"),
        (
            "export a b --to x",
            "--to=x: expected ctranslate2 or argos or huggingface or onnx or marian; see `transduce export --help`",
        ),
        ("report a b", "b: expected no further argument; leave it out; see `transduce report --help`"),
        ("demo --out a --out b", "--out: expected once; leave out the repeated one; see `transduce demo --help`"),
    ],
)
def test_mistakes_in_arguments_have_one_form(arguments: str, message: str, cli: Callable[..., CommandResult]) -> None:
    result = cli(*arguments.split())
    assert (result.code, result.out, result.err) == (2, b"", f"transduce: {message}\n")


@pytest.mark.parametrize(
    ("message", "arguments", "expected"),
    [
        ("search.beam_size=0: expected 1", ["--beam-size", "0"], "--beam-size=0: expected 1"),
        ("top_p=1.5: expected 1", ["--top-p=1.5"], "--top-p=1.5: expected 1"),
        ("search.alpha=11: expected 0", ["--set", "search.alpha=11"], "search.alpha=11: expected 0"),
        ("m/config.json: search.alpha=11", ["m", "--alpha", "1"], "m/config.json: search.alpha=11"),
        ("--alpha=11: expected 0", ["--alpha", "11"], "--alpha=11: expected 0"),
    ],
)
def test_a_message_names_an_option_as_typed(message: str, arguments: list[str], expected: str) -> None:
    assert name_option_as_typed(message, arguments) == expected


def test_a_damaged_model_is_refused_by_every_command(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    shutil.copytree(toy.model, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}", encoding="utf-8")
    text = write_lines(tmp_path / "text", ["a"])
    texts = ["--train", text, text, "--valid", text, text, "--out", tmp_path / "run"]
    for arguments in (
        ["translate", tmp_path / "model", "--input", text],
        ["score", tmp_path / "model", "--src", text, "--tgt", text],
        ["evaluate", tmp_path / "model", "--src", text, "--ref", text],
        ["train", "--recipe", "demo", *texts, "--from", tmp_path / "model"],
    ):
        assert_mistake(cli(*arguments), "tokenizer.json: expected ", "bytes, not 2; ", "use another copy")


@needs_dev_full
def test_a_full_disk_exits_with_3_and_a_closed_pipe_with_0(toy: Toy, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "text", ["a b c"] * 4_000)
    evaluate = f"{sys.executable} -m transduce evaluate --hyp {text} --ref {text}"
    for command, code, message in (
        (
            f"{evaluate} > /dev/full",
            3,
            r"transduce: standard output: No space left on device, writing 1,\d+ bytes; .*\n",
        ),
        (f"{evaluate} | true; exit ${{PIPESTATUS[0]}}", 0, ""),
    ):
        environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
        assert result.returncode == code and re.fullmatch(message, result.stderr), result


@pytest.mark.parametrize(
    ("problem", "code", "message"),
    [
        (MemoryError(), 3, "out of memory"),
        (
            RuntimeError("can't start new thread"),
            3,
            "transduce: can't start new thread: no process or no memory is left",
        ),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."), 3, "out of memory"),
        (OSError(errno.ENOSPC, "No space left", "run/x"), 3, "transduce: run/x: No space left; make room there, or"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 3, "x: Permission denied; change its permissions"),
        (OSError(errno.EIO, "Input/output error", b"x"), 3, "transduce: x: Input/output error\n"),
        (OSError("without a number"), 3, "transduce: without a number\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_of_the_machine_exit_with_3(
    problem: BaseException, code: int, message: str, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise problem

    monkeypatch.setattr("transduce.storage.run_folder.average_run", fail)
    result = cli("average", "run", "--last", 1, "--out", "m")
    assert result.code == code and message in result.err and "Traceback" not in result.err


def test_other_errors_keep_their_traceback(cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("transduce.storage.run_folder.average_run", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli("average", "run", "--last", 1, "--out", "m")
