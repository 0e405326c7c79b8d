"""`transduce translate` with phrases, prefixes and terms."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.toy_task import CommandResult, Toy, write_lines

Cli = Callable[..., CommandResult]


def lines_of(result: CommandResult) -> list[str]:
    assert result.code == 0, result.err
    return result.out.decode().splitlines()


def test_phrases_after_tabs(toy: Toy, tmp_path: Path, cli: Cli) -> None:
    source = write_lines(tmp_path / "in", ["a b c\tc a\tj", "a b", "", "d e\t"])
    phrases, plain, blank, alone = lines_of(cli("translate", toy.model, "--input", source, "--constraints", "tabs"))
    assert "c a" in phrases and "j" in phrases.split()
    assert (plain, blank, alone) == ("b a", "", "e d")


def test_lines_of_json(toy: Toy, tmp_path: Path, cli: Cli) -> None:
    lines = [
        '{"text": "a b c", "must": [["x", "y y"]], "must_not": ["b"]}',
        '{"text": "a", "prefix": "j", "must": null}',
        "",
    ]
    source = write_lines(tmp_path / "in", lines)
    arguments = ["translate", toy.model, "--input", source, "--constraints", "json", "--prefix", "i"]
    first, second, blank = lines_of(cli(*arguments))
    assert first.startswith("i") and not {*first.split()} & {"b"} and ("x" in first.split() or "y y" in first)
    assert second.startswith("j") and blank == ""
    objects = [json.loads(line) for line in lines_of(cli(*arguments, "--json", "--n-best", "2"))]
    assert [values["text"] for values in objects] == [first, second, blank]
    assert [values["unmet"] for values in objects] == [[], [], []] and objects[0]["alternatives"][0]["unmet"] == []


def test_lines_whose_sentences_a_phrase_keeps_together_are_counted(toy: Toy, tmp_path: Path, cli: Cli) -> None:
    source = write_lines(tmp_path / "in", ["a b! c d!\tx", "a b! c d!"])
    result = cli("translate", toy.model, "--input", source, "--constraints", "tabs", "--split", "sentences")
    (message,) = result.err.splitlines()
    assert "in: 1 of 2 translations are of several sentences as one, because of must or prefix" in message
    arguments = ["translate", toy.model, "--input", source, "--json", "--split", "sentences"]
    objects = [json.loads(line) for line in lines_of(cli(*arguments, "--constraints", "tabs"))]
    assert [values["is_unsplit"] for values in objects] == [True, False]
    assert "is_unsplit" not in json.loads(lines_of(cli(*arguments))[0])


def test_terms_of_a_file(toy: Toy, tmp_path: Path, cli: Cli) -> None:
    terms = write_lines(tmp_path / "terms.tsv", ["b c\tx y|x z", "e\tw"])
    source = write_lines(tmp_path / "in", ["a b c", "d", "e f"])
    both, free, last = lines_of(cli("translate", toy.model, "--input", source, "--terms", terms))
    assert ("x y" in both or "x z" in both) and free == "d" and "w" in last.split()


def test_json_without_constraints_has_no_field_more(toy: Toy, tmp_path: Path, cli: Cli) -> None:
    source = write_lines(tmp_path / "in", ["a b"])
    (line,) = lines_of(cli("translate", toy.model, "--input", source, "--json"))
    assert "unmet" not in json.loads(line)


def test_a_phrase_that_is_missing_is_named_on_standard_error(toy: Toy, tmp_path: Path, cli: Cli) -> None:
    source = write_lines(tmp_path / "in", ["a", "\tx"])
    result = cli("translate", toy.model, "--input", source, "--constraints", "tabs")
    assert result.out == b"a\n\n"
    assert result.err.endswith("in:2: expected 'x' in the translation, where it did not fit\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Hund", "expected a JSON object such as"),
        ("[1]", "expected a JSON object with a text"),
        ('{"must": []}', "expected a JSON object with a text"),
        ('{"text": "a", "must": "b"}', "must='b': expected a list of phrases"),
        ('{"text": "a", "must": ["q q", null]}', "must[1]: expected a phrase; leave it out"),
        ('{"text": "a", "musst": []}', "musst: expected one of must, must_not, prefix"),
    ],
)
def test_a_line_of_another_form_ends_the_output_before_it(
    toy: Toy, tmp_path: Path, cli: Cli, line: str, message: str
) -> None:
    source = write_lines(tmp_path / "in", ['{"text": "a b"}', line])
    result = cli("translate", toy.model, "--input", source, "--constraints", "json")
    assert (result.code, result.out) == (2, b"b a\n")
    assert f"in:2: {message}" in result.err and "Traceback" not in result.err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefix": "a " * 99}, "prefix='a a a a a a ...a a a a a a a': expected at most "),
        ({"must": ["ab " * 80] * 4}, "must='ab"),
    ],
)
def test_what_only_the_model_refuses_is_named_by_file_and_line(
    toy: Toy, tmp_path: Path, cli: Cli, fields: dict[str, object], message: str
) -> None:
    source = write_lines(tmp_path / "in", ['{"text": "a b"}', json.dumps({"text": "a", **fields})])
    result = cli("translate", toy.model, "--input", source, "--constraints", "json")
    assert result.code == 2 and f"in:2: {message}" in result.err and "line 2" not in result.err, result.err


def test_what_meets_no_phrases_is_refused(toy: Toy, tmp_path: Path, cli: Cli) -> None:
    source, terms = write_lines(tmp_path / "in", ["a b"]), write_lines(tmp_path / "terms.tsv", ["b"])
    for more, message in (
        (
            ["--constraints", "tabs", "--beam-size", 1],
            "--beam-size=1: expected at least 2 with must, must_not, terms or placeholders",
        ),
        (["--constraints", "tabs", "--temperature", 1], "must not be set with must, must_not, terms or placeholders"),
        (["--constraints", "json", "--mbr", 8], "--mbr=8: expected candidates of a beam with must, must_not, terms or"),
        (["--terms", terms], "terms.tsv:1: expected a source term, a tab and its target"),
        (["--terms", tmp_path / "none"], "none"),
        (["--terms", tmp_path], "expected"),
        (["--constraints", "tab"], "--constraints=tab: expected tabs or json"),
    ):
        result = cli("translate", toy.model, "--input", source, *more)
        assert (result.code, result.out) == (2, b""), (more, result)
        assert message in result.err and "Traceback" not in result.err, result.err
