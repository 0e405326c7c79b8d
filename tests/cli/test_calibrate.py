"""`transduce calibrate`, and the confidence of translations: the file, what has it, and mistakes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import msgspec
import pytest
from support.attack_files import contents, forge
from support.random_models import save_to
from support.random_parsers import random_parser
from support.toy_task import CommandResult, Toy, reverse_words, toy_lines, write_lines

import transduce
from transduce.decoding.confidence import Calibration
from transduce.decoding.hypothesis import Translation
from transduce.errors import UserError
from transduce.storage.model_folder import CALIBRATION_FILE, load_model, save_calibration

Cli = Callable[..., CommandResult]


@pytest.fixture(scope="session")
def text(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Return the options of a text of which the model translates half the lines badly: it never saw their letters."""
    folder = tmp_path_factory.mktemp("text")
    lines = toy_lines(11, 120)
    lines = [
        line if i % 2 else line.translate(str.maketrans("abcdefghij", "QRSTUVWXYZ")) for i, line in enumerate(lines)
    ]
    lines[7] = ""
    src = write_lines(folder / "text.src", lines)
    return ["--src", src, "--ref", write_lines(folder / "text.tgt", [reverse_words(line) for line in lines])]


@pytest.fixture
def model(toy: Toy, tmp_path: Path) -> Path:
    return Path(copytree(toy.model, tmp_path / "model"))


def test_a_model_learns_the_confidence_of_its_translations(
    toy: Toy, model: Path, text: list[object], cli: Cli, tmp_path: Path
) -> None:
    before, report = contents(model), tmp_path / "report.html"
    result = cli("calibrate", model, *text, "--report", report)
    assert (result.code, result.err) == (0, "")
    learned, figures, head, *rows = result.out.decode().splitlines()
    assert learned.startswith(f"{model / CALIBRATION_FILE}: learned from {text[1]} (119 lines, ")
    assert learned.endswith(" % good; 1 left out)")
    assert float(figures.partition("AUROC ")[2].partition(";")[0]) > 0.9 and len(rows) == 10, result.out
    assert "AUROC" in report.read_text() and "<svg" in report.read_text()
    after = contents(model)
    assert {name for name in after if after[name] != before.get(name)} == {CALIBRATION_FILE, "manifest.json"}

    lines = write_lines(tmp_path / "lines", ["a b c", "Q R S T", "", "12:30"])
    result = cli("translate", model, "--input", lines, "--json", "--n-best", 2)
    first, second, *others = map(json.loads, result.out.splitlines())
    assert first["confidence"] > 0.6 > second["confidence"] and [t["confidence"] for t in others] == [None, None]
    assert 0 <= first["alternatives"][0]["confidence"] <= 1 and not result.err
    plain = cli("translate", toy.model, "--input", lines, "--json").out.splitlines()
    assert "confidence" not in json.loads(plain[0])
    for form in ([], ["--json"]):
        result = cli("translate", model, "--input", lines, *form, "--min-confidence", 0.6)
        named = f"transduce: {lines}:2: confidence {second['confidence']:g}, below 0.6\n"
        assert (result.code, len(result.out.splitlines()), result.err) == (0, 4, named)
    file = write_lines(tmp_path / "file.txt", ["a b c", "", "Q R S T"])
    result = cli("translate", model, "--file", file, "--output", tmp_path / "out.txt", "--min-confidence", 0.6)
    in_file = named.strip().replace(f"{lines}:2", f"{file}: text 2 'Q R S T'")
    assert (result.code, result.err.splitlines()[0]) == (0, in_file)


def test_another_text_measures_it(model: Path, text: list[object], cli: Cli, tmp_path: Path) -> None:
    good = write_lines(tmp_path / "good.src", ["a b", "c"])
    test = ["--test", good, write_lines(tmp_path / "good.tgt", ["b a", "c"])]
    result = cli("calibrate", model, *text, *test, "--good", 50, "--precision", "int8")
    assert result.code == 0, result.err
    assert load_model(model).calibration == msgspec.json.decode(
        (model / CALIBRATION_FILE).read_bytes(), type=Calibration
    )
    expected = f"on {good} (2 lines, 100.0 % good), not learned from: AUROC unknown, because all lines are alike; "
    assert expected in result.out.decode()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_confidence_does_not_depend_on_the_other_lines(
    model: Path, text: list[object], cli: Cli, precision: str
) -> None:
    assert cli("calibrate", model, *text).code == 0
    translator = transduce.load(model, precision=precision)
    lines = [*toy_lines(5, 12), "Q b"]
    together = [translation.confidence for translation in translator.translate(lines)]
    assert together == [translator.translate([line])[0].confidence for line in lines]
    running = translator.running()
    for i, line in enumerate(lines):
        running.admit(i, line, transduce.DecodingOptions())
    outputs: dict[object, Translation | Exception] = {}
    while len(running):
        outputs |= running.step()
    assert [outputs[i] for i in range(len(lines))] == translator.translate(lines)
    assert transduce.load(model, model).translate(["a b"])[0].confidence is None


def test_mistakes_are_refused_in_words(toy: Toy, model: Path, text: list[object], cli: Cli, tmp_path: Path) -> None:
    parser = save_to(random_parser("top-down"), tmp_path / "parser")
    lines, empty = write_lines(tmp_path / "lines", ["a b"]), write_lines(tmp_path / "empty", [])
    blank = write_lines(tmp_path / "blank", ["", "a"])
    before = contents(model)
    for command, message in (
        (["translate", model, "--min-confidence", 0.5], f"--min-confidence=0.5: expected a model folder with {CALIBRATION_FILE}; run transduce calibrate {model} --src TEXT --ref TEXT"),  # noqa: E501
        (["translate", model, "--min-confidence", 1.5], "--min-confidence=1.5: expected 0 to 1; give another number"),
        (["translate", model, "--min-confidence", "nan"], "--min-confidence=nan: expected 0 to 1"),
        (["translate", model, model, "--min-confidence", 1], "--min-confidence=1: expected one model, because an ens"),
        (["calibrate", model, *text, "--good", 0], "--good=0: expected a chrF over 0, at most 100"),
        (["calibrate", model, *text, "--good", "nan"], "--good=nan: expected a chrF over 0"),
        (["calibrate", model, "--src", lines, "--ref", lines], f"{lines}: expected at least 10 lines with a chrF of"),
        (["calibrate", model, "--src", toy.valid[0], "--ref", toy.valid[1]], " and as many with less, not "),
        (["calibrate", model, "--src", blank, "--ref", write_lines(tmp_path / "b", ["a", ""])], "blank: expected li"),
        (["calibrate", model, "--src", empty, "--ref", empty], "empty: expected at least 1 line, not an empty file"),
        (["calibrate", model, "--src", lines, "--ref", blank], "expected the same number of lines, not 1 and 2"),
        (["calibrate", model, *text, "--test", lines, blank], "expected the same number of lines, not 1 and 2"),
        (["calibrate", model, *text, "--report", lines], "lines: expected no file with this name; delete it"),
        (["calibrate", model, *text, "--report", text[1]], f"--report={text[1]}: expected another file than the input"),
        (["calibrate", parser, *text], "expected a model that writes text"),
        (["calibrate", tmp_path / "none", *text], "it does not exist"),
    ):  # fmt: skip
        result = cli(*command)
        assert (result.code, result.out) == (2, b"") and message in result.err, (command, result)
    assert contents(model) == before


def test_a_calibration_that_does_not_fit_is_refused(model: Path, text: list[object], cli: Cli) -> None:
    assert cli("calibrate", model, *text).code == 0
    calibration = load_model(model).calibration
    assert calibration is not None
    weights = calibration.weights
    for other in (
        replace(calibration, weights=weights[1:]),
        replace(calibration, weights=weights[::-1]),
        replace(calibration, weights=(replace(weights[0], deviation=0.0), *weights[1:])),
        replace(calibration, weights=(replace(weights[0], deviation=1e999), *weights[1:])),
        replace(calibration, weights=()),
    ):
        save_calibration(model, other)
        with pytest.raises(UserError, match="calibration.json: expected .*learn it again with transduce calibrate"):
            load_model(model)
    for content in (b"", b"[]", b'{"good": 1}', b"\xff", b"[" * 100_000, b'{"good":40,"constant":1e999,"weights":[]}'):
        forge(model, CALIBRATION_FILE, content)
        with pytest.raises(UserError, match="calibration.json: expected"):
            load_model(model)
