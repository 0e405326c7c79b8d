"""`transduce distil`: a student of a model from text to table, continued after an interruption, and mistakes."""

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.toy_task import CommandResult, Toy, reverse_words, write_lines

from transduce import train as training
from transduce.cleaning import unlikely
from transduce.cli import student_table, work_folder
from transduce.cli.distil import Distillation
from transduce.config.recipes import auto
from transduce.data.text import read_lines
from transduce.errors import UserError
from transduce.interop import ctranslate2_export
from transduce.storage import run_choices
from transduce.storage.model_folder import load_model
from transduce.training.state import TrainingState

Command = Callable[..., CommandResult]
LINES = ["a b c", "d e f", "g h", "b a", "h i j", "c d e"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with a text. A training takes two steps, and CTranslate2 is not installed."""
    write_lines(tmp_path / "train.src", [*LINES, ""])
    write_lines(tmp_path / "train.tgt", [*map(reverse_words, LINES), ""])
    monkeypatch.chdir(tmp_path)
    trial = auto.Trial(0.1, 0.1, 1_000)
    monkeypatch.setattr(run_choices, "run_trial", lambda *_: trial)
    monkeypatch.setattr(student_table, "ROUNDS", 1)
    monkeypatch.setattr(ctranslate2_export, "import_ctranslate2", no_ctranslate2)
    return tmp_path


def no_ctranslate2() -> None:
    raise UserError("CTranslate2: expected the package ctranslate2; pip install 'transduce[ctranslate2]'")


def test_a_student_from_text_to_table(toy: Toy, folder: Path, cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is interrupted at its beginning and in its training. The same command continues, and then changes nothing."""
    command = ("distil", toy.model, "--train", "train.src", "train.tgt", "--valid", *toy.valid, "--out", "student")
    command = (*command, "--backward", toy.model, "--precision", "fp32", "--set", "train.max_steps=2")
    command = (*command, "--set", "train.decay_steps=1", "--set", "train.ema_decay=0.5")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(work_folder, "_contents", stop)
        assert cli(*command).code == 130
    assert not [*Path("student/teacher").iterdir()]
    with monkeypatch.context() as patch:
        patch.setattr(training, "loop", stop)
        assert cli(*command).code == 130
    text = [*zip(read_lines("student/distilled.src"), read_lines("student/distilled.tgt"), strict=True)]
    assert text == [(line, reverse_words(line)) for line in LINES]
    result = cli(*command)
    assert result.code == 0, result.err
    assert "no export: CTranslate2: expected the package" in result.err and "translating" not in result.err
    depths = load_model(toy.model).config.model.depths[0], 1
    student = load_model(Path("student/model"))
    assert student.config.model.depths == depths and student.shortlist is not None
    rows = [line.split(" | ") for line in result.out.decode().splitlines() if line.startswith("| ")]
    names = ["teacher", "teacher", "student", "student", "student, shortlist"]
    assert [row[0].strip("| ") for row in rows[2:]] == names and [row[2] for row in rows[2:4]] == ["fp32", "int8"]
    before = {path: path.stat().st_mtime_ns for path in Path("student/model").iterdir()}
    result = cli(*command, "--minutes", "9")
    assert result.code == 0 and "--minutes=9: the training has begun, and keeps its 2 steps; " in result.err, result.err
    assert before == {path: path.stat().st_mtime_ns for path in Path("student/model").iterdir()}
    other = command[: command.index("--backward")]
    assert "student/cleaning: expected the work of the same command" in cli(*other, "--precision", "fp32").err
    write_lines(folder / "train.src", ["", *LINES[::-1]])
    assert "student/teacher: expected the work of the same command" in cli(*command).err


def test_an_unfinished_student_gets_no_table(
    toy: Toy, folder: Path, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With patience, a training may end before its last step, but not each one that ends there is finished."""
    command = ("distil", toy.model, "--train", "train.src", "train.tgt", "--valid", *toy.valid, "--out", "student")
    command = (*command, "--precision", "fp32", "--set", "train.patience=2")
    command = (*command, "--set", "train.max_steps=9", "--set", "train.decay_steps=1")

    def loop(run: object, state: TrainingState, *_: object) -> None:
        state.counters.step += 1
        state.counters.evaluations_since_best += 1

    monkeypatch.setattr(training, "loop", loop)
    result = cli(*command)
    assert result.code == 0 and "the training is not finished" in result.err, result.err
    assert b"| student" not in result.out
    assert not Path("student/model/shortlist.safetensors").exists()
    result = cli(*command)
    assert result.code == 0 and b"| student, shortlist |" in result.out, result.err


def test_an_export_older_than_the_student_is_made_again(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student, out = shutil.copytree(toy.model, tmp_path / "model"), tmp_path / "ctranslate2"
    exports = []

    def export(model: Path, folder: Path, precision: str) -> str:
        exports.append((model, folder, precision))
        folder.mkdir()
        return "exported"

    monkeypatch.setattr(ctranslate2_export, "export_ctranslate2", export)
    job = Distillation([toy.model], [], toy.valid, tmp_path, None, "chrf", None, [])
    for _ in range(2):
        assert job.export(student) == out and exports == [(student, out, "int8")]
    later = out.stat().st_mtime_ns + 10**9
    os.utime(student / "manifest.json", ns=(later, later))
    assert job.export(student) == out and len(exports) == 2


def test_a_dry_run_prints_commands_that_exist(toy: Toy, folder: Path, cli: Command) -> None:
    words = ("distil", toy.model, "--train", "train.src", "train.tgt", "--out", "student", "--layers", "2", "1")
    result = cli(*words, "--set", "model.dropout=0.3", "--n-best", "2", "--dry-run")
    assert result.code == 0 and not Path("student").exists(), result.err
    lines = result.out.decode().splitlines()
    assert lines[0] == "7 lines" and "student 0." in lines[2] and "2 + 1 layers" in lines[2]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("transduce ")]
    assert [command[0] for command in commands] == ["translate", "clean", "train", "shortlist", "export"]
    assert cli(*commands[0]).code == 0
    assert [*read_lines("student/teacher/translations")] == [*map(reverse_words, LINES), ""]
    assert cli(*commands[1]).code == 0 and len([*read_lines("student/distilled.tgt")]) == len(LINES)
    assert "model.dropout=0.3" in commands[2]


def test_translate_prints_the_output_nearest_to_a_reference(toy: Toy, folder: Path, cli: Command) -> None:
    words = ["translate", toy.model, "--input", "train.src", "--n-best", "3"]
    result = cli(*words, "--json")
    outputs = [json.loads(line) for line in result.out.splitlines()]
    third = [output["alternatives"][1]["text"] if output["alternatives"] else "" for output in outputs]
    write_lines(folder / "reference", third)
    for metric in ("bleu", "chrf"):
        result = cli(*words, "--nearest", "reference", "--nearest-by", metric)
        assert result.out.decode().splitlines() == third, result.err
    write_lines(folder / "reference", third[:3])
    assert "reference: expected the same number of lines" in cli(*words, "--nearest", "reference").err.replace(
        " and train.src", ""
    )
    assert "add --n-best 4" in cli(*words[:-2], "--nearest", "reference").err


def test_clean_drops_the_sources_that_a_backward_model_finds_least_likely(
    toy: Toy, folder: Path, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption, only the other pairs are scored."""
    lines = [line for line in read_lines(toy.train[0])][:40]
    pairs = [(line, reverse_words(line)) for line in dict.fromkeys(lines)][:20]
    pairs[7] = ("j j a j", pairs[7][1])
    src, tgt = (
        write_lines(folder / name, side) for name, side in zip(("a", "b"), zip(*pairs, strict=True), strict=True)
    )
    words = ("clean", src, tgt, "--out", "c", "d", "--backward", toy.model, "--without", "many_targets")
    result = cli(*words)
    assert result.code == 0 and "1  unlikely: a source that the model" in result.out.decode(), result.err
    assert [json.loads(line)["line"] for line in read_lines("c.dropped.jsonl")] == [8]

    numbers = list[int]()  # of pairs that are scored

    def scores(*arguments: Any) -> list[float]:
        numbers.append(len(arguments[1]))
        if len(numbers) == 2:
            raise KeyboardInterrupt
        return score(*arguments)

    score = unlikely._scores
    monkeypatch.setattr(unlikely, "PORTION", 8)
    monkeypatch.setattr(unlikely, "_scores", scores)
    command = [{"c": "e", "d": "f"}.get(str(word), word) for word in words]
    assert cli(*command).code == 130
    with Path("e.cleaning/unlikely").open("ab") as file:
        file.write(b"half")
    assert "expected the work of the same command" in cli(*command[:6], "--without", "many_targets").err
    assert cli(*command).code == 0 and numbers[2:] == numbers[1:2] + [4]
    assert Path("c").read_bytes() == Path("e").read_bytes()


def test_a_teacher_without_good_translations_teaches_nothing(toy: Toy, folder: Path, cli: Command) -> None:
    write_lines(folder / "blank", ["", ""])
    result = cli("distil", toy.model, "--train", "blank", "--valid", *toy.valid, "--out", "student")
    assert result.code == 2 and "expected translations that transduce clean keeps" in result.err
    assert not Path("student/distilled.src").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.src", "short"], "expected the same number of lines, not 7 and 1"),
        (["train.src", "train.tgt", "short"], "expected SRC or SRC TGT"),
        (["none"], "none"),
        (["train.src", "--backward", "none"], "none"),
        (["train.src", "--minutes", "0.1"], "--minutes=0.1: expected at least 1 for this text"),
        (["train.src", "--n-best", "3"], "--n-best=3: must not be set without TGT"),
        (["train.src", "--valid", "train.src", "short"], "expected the same number of lines, not 7 and 1"),
        (["train.src", "--layers", "2", "0"], "n_decoder_layers=0"),
        (["train.src", "--set", "model.d_model=8"], "--set model.d_model=8: must not be set with --from"),
        (["train.src", "--out", "train.tgt"], "--out=train.tgt: expected a folder, but train.tgt is a file"),
        (["train.src", "--out", "other"], "--out=other: expected a new folder, or one of this job"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    toy: Toy, folder: Path, cli: Command, arguments: list[str], message: str
) -> None:
    write_lines(folder / "short", ["a"])
    (folder / "other").mkdir()
    write_lines(folder / "other" / "notes", ["a"])
    out = [] if "--out" in arguments else ["--out", "student"]
    result = cli("distil", toy.model, "--train", *arguments, *out)
    assert result.code == 2 and message in result.err, result.err
    assert not Path("student").exists()
