"""`transduce backtranslate`: pairs of target text alone, continued after an interruption, and mistakes."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.toy_task import CommandResult, Toy, reverse_words, write_lines

from transduce import Translator, UserError
from transduce.cleaning import clean
from transduce.cli import file_translation
from transduce.cli.work_folder import open_work
from transduce.data import overlap
from transduce.data.text import read_lines
from transduce.decoding.confidence import Calibration
from transduce.storage.model_folder import save_calibration

Command = Callable[..., CommandResult]
OUT = ("--out", "back.src", "back.tgt")
LINES = ["a b c", "d e f", "", "b a", "a b c", "h i j"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_lines(tmp_path / "more.tgt", LINES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pairs() -> list[tuple[str, str]]:
    return [*zip(read_lines("back.src"), read_lines("back.tgt"), strict=True)]


def test_each_line_gets_its_translation_and_bad_pairs_go(toy: Toy, folder: Path, cli: Command) -> None:
    write_lines(folder / "test.src", ["j i h"])
    write_lines(folder / "test.tgt", ["h i j"])
    result = cli("backtranslate", toy.model, "--input", "more.tgt", *OUT, "--test", "test.src", "test.tgt")
    assert result.code == 0, result.err
    assert pairs() == [(reverse_words(line), line) for line in ("a b c", "d e f", "b a")]
    dropped = [json.loads(line) for line in read_lines("back.src.dropped.jsonl")]
    assert [(line["line"], line["rule"]) for line in dropped] == [(3, "blank"), (5, "repeated"), (6, "near_test")]
    assert "translating 6 lines, done before: 0" in result.err and "6 pairs: 3 kept, 3 dropped" in result.out.decode()
    assert not [*folder.glob("*.translating")]


def test_a_tag_marks_the_sources(toy: Toy, folder: Path, cli: Command) -> None:
    words = ("backtranslate", toy.model, "--input", "more.tgt", *OUT, "--source-tag", "<bt>", "--top-k", "2")
    assert cli(*words).code == 0
    assert all(src.startswith("<bt> ") and not tgt.startswith("<") for src, tgt in pairs())
    assert not any("<bt>" in line for line in read_lines("back.src.dropped.jsonl"))


def test_an_interrupted_translation_continues(
    toy: Toy, folder: Path, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws depend on the number of a line, so that a continued file equals an uninterrupted one."""
    with gzip.open("more.tgt.gz", "wb") as file:
        file.write("".join(f"{line}\n" for line in LINES).encode())
    words = ("backtranslate", toy.model, "--input", "more.tgt.gz", "--temperature", "9")
    assert cli(*words, "--out", "whole.src", "whole.tgt", "--without", "repeated").code == 0
    monkeypatch.setattr(file_translation, "CHUNK_LINES", 2)
    chunks: list[int] = []

    def stop(*arguments: object, first_number: int, **more: object) -> object:
        chunks.append(first_number)
        if first_number == 4 and len(chunks) == 3:
            raise KeyboardInterrupt
        return translate(*arguments, first_number=first_number, **more)  # type: ignore[arg-type]

    translate = Translator.translate
    monkeypatch.setattr(Translator, "translate", stop)
    command = (*words, *OUT, "--without", "repeated")
    assert cli(*command).code == 130
    work = folder / "back.src.translating"
    assert len((work / "translations").read_bytes().splitlines()) == 4 and not Path("back.src").exists()
    with (work / "translations").open("ab") as file:
        file.write(b"half a li")
    other = cli(*words[:-1], "8", *OUT)
    assert other.code == 2 and "expected the work of the same command" in other.err
    result = cli(*command)
    assert result.code == 0 and "translating 6 lines, done before: 4" in result.err, result.err
    assert chunks == [0, 2, 4, 4] and not work.exists()
    assert Path("back.src").read_bytes() == Path("whole.src").read_bytes()


def test_a_card_and_a_calibration_make_no_other_model(toy: Toy, folder: Path) -> None:
    model = shutil.copytree(toy.model, folder / "model")
    with open_work(folder / "work", [model], None) as work:
        (work / "translations").write_text("c b a\n")
    (model / "README.md").write_text("my model\n")
    save_calibration(model, Calibration(50.0, 0.0, ()))  # it changes the manifest, too
    with open_work(folder / "work", [model], None):
        pass
    (model / "config.json").write_text("{}")
    with pytest.raises(UserError, match="expected the work of the same command"), open_work(work, [model], None):
        pass


def test_an_interrupted_cleaning_continues(
    toy: Toy, folder: Path, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("backtranslate", toy.model, "--input", "more.tgt", *OUT)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(clean, "_learn", stop)
        assert cli(*command).code == 130
    assert (folder / "back.src.cleaning" / "check.safetensors").exists() and not Path("back.src").exists()
    monkeypatch.setattr(clean, "examine", stop)
    result = cli(*command)
    assert result.code == 0 and "translating" not in result.err and len(pairs()) == 4, result.err
    assert not [*folder.glob("*ing")]


def test_a_dry_run_prints_examples_and_writes_nothing(toy: Toy, folder: Path, cli: Command) -> None:
    result = cli("backtranslate", toy.model, "--input", "more.tgt", "--dry-run")
    assert result.code == 0 and result.out.decode().startswith("c b a\n    a b c\n"), result.err
    assert "6 lines: about " in result.out.decode() and [path.name for path in folder.iterdir()] == ["more.tgt"]


@pytest.mark.parametrize("target", [["--dry-run"], OUT])
def test_a_model_that_writes_the_language_of_the_text_is_named(
    toy: Toy, folder: Path, cli: Command, monkeypatch: pytest.MonkeyPatch, target: list[str]
) -> None:
    words = ("backtranslate", toy.model, "--input", "more.tgt", *target)
    assert "look like one language" not in cli(*words).err
    for path in folder.glob("back.*"):
        path.unlink()
    monkeypatch.setattr(overlap, "WORD", re.compile(r"\w"))  # the letters, which both sides have
    assert "more.tgt: 100% of the words of its translations are its own most frequent words" in cli(*words).err


def test_mistakes_are_named_before_the_work(toy: Toy, folder: Path, cli: Command) -> None:
    def mistake(*words: object) -> str:
        result = cli("backtranslate", toy.model, "--input", *words)
        assert (result.code, result.out) == (2, b"")
        return result.err

    assert "--out: expected two files" in mistake("more.tgt")
    assert "--source-tag='a b': expected one word" in mistake("more.tgt", *OUT, "--source-tag", "a b")
    assert "--without=twice: expected the name of a rule" in mistake("more.tgt", *OUT, "--without", "twice")
    assert "expected another file than the input" in mistake("more.tgt", "--out", "back.src", "more.tgt")
    assert "none: expected a text file" in mistake("more.tgt", *OUT, "--test", "none", "none")
    (folder / "latin1").write_bytes(b"a b\n\xe4\n")
    assert "latin1:2: expected UTF-8" in mistake("latin1", *OUT)
    write_lines(folder / "empty", [])
    assert "empty: expected at least 1 line" in mistake("empty", *OUT)
    write_lines(folder / "back.src", ["mine"])
    assert "back.src: expected no file with this name" in mistake("more.tgt", *OUT)
    assert [*read_lines("back.src")] == ["mine"] and not [*folder.glob("*.translating")]
