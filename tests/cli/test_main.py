"""The command line: help, exit codes, messages instead of tracebacks; and the names that the package offers."""

import errno
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.toy_task import ROOT, Finished, Toy, needs_dev_full, run_transduce, write_lines, write_pairs

import transduce

COMMANDS = ("demo", "check", "train", "translate", "score", "evaluate", "average", "export", "import", "report")


def imported_by(code: str) -> list[str]:
    """Which heavy packages are loaded after `code` ran in a new Python."""
    asking = "import sys; print([n for n in ('torch', 'numpy', 'tokenizers', 'sacrebleu') if n in sys.modules])"
    command = [sys.executable, "-c", f"{code}\n{asking}"]
    done = subprocess.run(command, capture_output=True, env={"PYTHONPATH": str(ROOT / "src")}, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1].replace("'", '"'))


# ---- help --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples(command: str, cli: Callable[..., Finished]) -> None:
    done = cli(command, "--help")
    assert (done.code, done.err) == (0, "")
    text = done.out.decode()
    examples = text[text.index("Examples:") :].splitlines()[1:]
    assert examples and all(len(line) < 80 for line in examples)  # none is broken by the edge of a terminal
    for before, line in zip(["", *examples], examples, strict=False):
        begins = ("      --",) if before.endswith("\\") else (f"  transduce {command} ", "  echo ")
        assert f"{line} ".startswith(begins)


def test_help_lists_the_commands_and_does_not_load_torch(cli: Callable[..., Finished]) -> None:
    text = cli("--help").out.decode()
    assert all(f" {command} " in text for command in COMMANDS)
    assert cli("--version").out.decode().strip() == transduce.__version__
    asked = [f"app(['{command}', '--help'])" for command in COMMANDS]
    assert imported_by("\n".join(["from transduce.cli.main import app", *asked])) == []


def test_what_needs_no_model_does_not_load_torch() -> None:
    modules = (
        "data.text",
        "data.tokenizer",
        "config.schema",
        "errors",
        "evaluation.metrics",
        "evaluate",
        "decoding.hypothesis",
        "decoding.options",
        "decoding.segmentation",
        "cli.stream",
        "interop.ctranslate2_engine",
    )
    assert "torch" not in imported_by(f"import {', '.join(f'transduce.{module}' for module in modules)}")
    assert imported_by("import transduce") == []


# ---- the package -------------------------------------------------------------------------------------------------


def test_every_name_is_there() -> None:
    for name in transduce.__all__:
        assert getattr(transduce, name).__module__.startswith("transduce."), name
    assert {*transduce.__all__} <= {*dir(transduce)}
    everything: dict[str, object] = {}
    exec("from transduce import *", everything)
    assert {*transduce.__all__} <= everything.keys()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = transduce.nothing


def test_python_m_transduce_and_wrong_commands() -> None:
    assert run_transduce("--version").out.decode().strip() == transduce.__version__
    wrong = run_transduce("trian")
    assert wrong.code == 2 and "train" in wrong.err and "Traceback" not in wrong.err and wrong.out == b""


def test_the_commands_that_the_demo_ends_with_can_be_pasted() -> None:
    from transduce.demo.tour import _summary

    figures = ("bleu", "exact_match", "bleu_longer", "exact_match_longer", "train_seconds", "seconds")
    commands = _summary(dict.fromkeys(figures, 1.0), Path("my demo's")).split("Next steps\n")[1].splitlines()
    assert shlex.split(commands[0])[-1] == "my demo's/model"
    asked = shlex.split(commands[1])
    assert asked[:3] == ["transduce", "evaluate", "my demo's/model"]
    assert asked[3:7] == ["--src", "my demo's/corpus/test.en", "--ref", "my demo's/corpus/test.de"]


# ---- mistakes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path) -> list[object]:
    train, valid = (write_pairs(tmp_path, name, ["a b", "c"]) for name in ("train", "valid"))
    return ["--train", *train, "--valid", *valid]


def assert_mistake(done: Finished, *messages: str) -> None:
    assert (done.code, done.out) == (2, b""), done
    assert "Traceback" not in done.err
    for message in messages:
        assert message in done.err, done.err


def test_what_is_missing_or_unknown(cli: Callable[..., Finished], texts: list[object], tmp_path: Path) -> None:
    out = ["--out", tmp_path / "run"]
    assert_mistake(cli("train", "--recipe", "small", *texts), "--out")
    assert_mistake(cli("train", "--recipe", "small", *texts, *out, "--steps", 3), "--steps")
    assert_mistake(cli("train", "--recipe", "smal", *texts, *out), "did you mean 'small'?", "vaswani2017-base")
    assert_mistake(cli("train", "--recipe", tmp_path / "no.py:f", *texts, *out), "no.py does not exist")
    assert_mistake(cli("translate", tmp_path / "none"), "no such folder")
    assert_mistake(cli("average", tmp_path, "--last", 3, "--out", tmp_path / "m"), "holds no checkpoints")
    assert_mistake(cli("average", tmp_path, "--last", "three", "--out", tmp_path / "m"), "three")
    assert not (tmp_path / "run").exists()


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def assert_problems(done: Finished, *messages: str) -> None:
    """Each of `messages` has a line of its own, and there is nothing else."""
    assert_mistake(done)
    heading, *lines = done.err.splitlines()
    assert heading == f"transduce: {len(messages)} problems:"
    assert len(lines) == len(messages), lines
    for line, message in zip(lines, messages, strict=True):
        assert message in line


def test_all_problems_of_the_settings_come_at_once(
    cli: Callable[..., Finished], texts: list[object], tmp_path: Path
) -> None:
    wrong = ["train.warmup=100", "model.n_layers=six", "model.dropout", "data.vocab_sise=1", "train.max_steps=0"]
    settings = [word for setting in wrong for word in ("--set", setting)]
    assert_problems(
        cli("train", "--recipe", "small", *texts, "--out", tmp_path / "run", *settings),
        "did you mean 'train.warmup_steps'?",
        "model.n_layers=six: expected an integer",
        "model.dropout: expected section.key=value",
        "did you mean 'data.vocab_size'?",
        "train.max_steps=0: expected at least 1",
    )


def test_all_that_is_wrong_with_a_training_comes_at_once_and_nothing_is_made(
    cli: Callable[..., Finished], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe, its settings, those that --from ignores, missing text, a folder that is no run, a missing package."""
    monkeypatch.setattr("transduce.storage.run_log.find_spec", lambda name: None)
    (tmp_path / "out" / "data").mkdir(parents=True)
    valid = write_lines(tmp_path / "valid.en", ["a"]), tmp_path / "valid.de"
    before = everything(tmp_path)
    ask = ["train", "--train", tmp_path / "no.en", tmp_path / "no.de", "--valid", *valid, "--out", tmp_path / "out"]
    parent = ["--from", tmp_path / "no model"]
    settings = ["--set", "train.warmup=9", "--set", "model.d_ff=64", "--set", "train.seed=-1"]
    common = (
        "did you mean 'train.warmup_steps'?",
        "train.seed=-1: expected 0 or more",
        "--set model.d_ff=64 has no effect with --from",
        "no.en",
        "no.de",
        "valid.de is no file; expected a text file",
        "no model: no such folder; expected a model folder",
        "data exists, but",
        "pip install 'transduce[log]'",
    )
    assert_problems(cli(*ask, "--recipe", "small", *parent, *settings, "--tensorboard"), *common)
    unknown = "no recipe is called 'smal'; did you mean 'small'? There are demo, small,"
    assert_problems(cli(*ask, "--recipe", "smal", *parent, *settings, "--tensorboard"), unknown, *common)
    assert everything(tmp_path) == before


def test_an_unknown_recipe_is_not_blamed_for_what_another_would_lack(
    cli: Callable[..., Finished], texts: list[object], tmp_path: Path
) -> None:
    """train.use=ema needs train.ema_decay, which the recipe that was meant may have."""
    done = cli("train", "--recipe", "smal", *texts, "--out", tmp_path / "run", "--set", "train.use=ema")
    assert_mistake(done, "no recipe is called 'smal'")
    assert "ema" not in done.err


def test_where_no_run_may_be(cli: Callable[..., Finished], texts: list[object], toy: Toy, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "file", ["a"])
    for out, message in (
        (file, f"{file} is a file; --out {file} expects a folder"),
        (file / "a" / "run", f"{file} is a file; --out {file / 'a' / 'run'} expects a folder"),
        (toy.model, "is a model; give another --out"),
        (toy.run, "holds a run already; add --resume"),
    ):
        before = everything(toy.folder), everything(tmp_path)
        assert_mistake(cli("train", "--recipe", "small", *texts, "--out", out), message)
        assert (everything(toy.folder), everything(tmp_path)) == before


def test_mistakes_in_text(cli: Callable[..., Finished], tmp_path: Path) -> None:
    good, longer = write_lines(tmp_path / "good", ["a", "b"]), write_lines(tmp_path / "longer", ["a", "b", "c"])
    empty, bad = write_lines(tmp_path / "empty", []), tmp_path / "bad"
    bad.write_bytes(b"a\nb \xe9\n")
    ask = ["--recipe", "demo", "--out", tmp_path / "run"]
    for train, valid, messages in (
        ((good, longer), (good, good), ("good has 2 lines but", "longer has 3", "must match line by line")),
        ((good, bad), (good, good), ("bad:2 is not valid UTF-8", "iconv")),
        ((empty, empty), (good, good), ("are empty",)),
        ((good, good), (longer, good), ("longer has 3 lines but",)),
        ((good, good), (bad, good), ("bad:2 is not valid UTF-8",)),
        ((good, good), (empty, empty), ("are empty",)),
        ((good, tmp_path), (tmp_path / "none", good), (f"{tmp_path} is no file", "none is no file")),
    ):
        assert_mistake(cli("train", *ask, "--train", *train, "--valid", *valid), *messages)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_damaged_model_is_refused_by_every_command(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
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
        assert_mistake(cli(*arguments), "tokenizer.json has 2 bytes, expected", "use another copy")


def test_scores(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    src, tgt = write_lines(tmp_path / "src", ["a b", "c é"] * 600), write_lines(tmp_path / "tgt", ["b a", "x"] * 600)
    numbers = [float(line) for line in cli("score", toy.model, "--src", src, "--tgt", tgt).out.split()]
    assert len(numbers) == 1_200
    assert numbers[0] > -0.5 > numbers[1]
    done = cli("score", toy.model, "--src", src, "--tgt", tgt, "--json")
    objects = [json.loads(line) for line in done.out.splitlines()]
    assert [scored["log_prob"] for scored in objects] == pytest.approx(numbers, abs=1e-5)
    assert objects[0]["pieces"][-1] == "</s>"
    assert len(objects[0]["pieces"]) == len(objects[0]["token_log_probs"])
    long = write_lines(tmp_path / "long", ["a"] * 1_100 + ["a " * 9_000])
    assert "line 1101 has" in cli("score", toy.model, "--src", long, "--tgt", long).err
    assert_mistake(cli("score", toy.model, "--src", src, "--tgt", toy.valid[0]), "must match line by line")


def test_average(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    assert cli("average", toy.run, "--last", 2, "--out", tmp_path / "model").code == 0
    assert "the mean of the checkpoints step-00000200, step-00000400" in (tmp_path / "model" / "README.md").read_text(
        "utf-8"
    )
    assert len(transduce.load(tmp_path / "model").translate(["a b"])) == 1
    assert_mistake(cli("average", toy.run, "--last", 2, "--out", tmp_path / "model"), "exists already")
    assert_mistake(cli("average", toy.run, "--last", 9, "--out", tmp_path / "m"), "expected 1 to 2")


# ---- exit codes --------------------------------------------------------------------------------------------------


@needs_dev_full
def test_a_full_disk_and_a_closed_pipe(toy: Toy, tmp_path: Path) -> None:
    """3 and one line for the machine's fault, 0 and silence when the reader has had enough; never a traceback."""
    text = write_lines(tmp_path / "text", ["a b c"] * 4_000)
    ask = f"{sys.executable} -m transduce evaluate --hyp {text} --ref {text}"
    for command, code, message in (
        (f"{ask} > /dev/full", 3, "transduce: No space left on device; make room there, or give another place\n"),
        (f"{ask} | true; exit ${{PIPESTATUS[0]}}", 0, ""),
    ):
        environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.parametrize(
    ("problem", "code", "message"),
    [
        (MemoryError(), 3, "out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."), 3, "out of memory"),
        (OSError(errno.ENOSPC, "No space left", "run/x"), 3, "transduce: run/x: No space left; make room there, or"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 3, "x: Permission denied; change its permissions"),
        (OSError(errno.EIO, "Input/output error", b"x"), 3, "transduce: x: Input/output error\n"),
        (OSError("without a number"), 3, "transduce: without a number\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_the_machine_does_wrong(
    problem: BaseException, code: int, message: str, cli: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.cli.main._drop_output", lambda: None)  # or this process would lose its own

    def fail(*arguments: object, **more: object) -> None:
        raise problem

    monkeypatch.setattr("transduce.storage.run_folder.average_run", fail)
    done = cli("average", "run", "--last", 1, "--out", "m")
    assert done.code == code and message in done.err and "Traceback" not in done.err


def test_our_own_faults_are_not_hidden(cli: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("transduce.storage.run_folder.average_run", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli("average", "run", "--last", 1, "--out", "m")
