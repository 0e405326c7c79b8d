"""`transduce translate --file`: files of several formats through the command line."""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import assert_mistake
from support.toy_task import CommandResult, Toy

from transduce.data.tokenizer import Tokenizer

SRT = "1\n00:00:01,000 --> 00:00:02,000\n<i>{}</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n{}\n"


def test_a_file_keeps_all_but_its_texts(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source, target = tmp_path / "in.srt", tmp_path / "new" / "out.SRT"
    source.write_text(SRT.format("a b c", "d e\nf"))
    result = cli("translate", toy.model, "--file", source, "--output", target)
    assert (result.code, result.out) == (0, b""), result.err
    assert "2 texts translated" in result.err
    assert target.read_text() == SRT.format("c b a", "f e\nd")


def test_inline_markup_is_around_its_words(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source, target = tmp_path / "in.html", tmp_path / "out.html"
    source.write_text("<p>a <b>b</b> c d</p>")
    assert cli("translate", toy.model, "--file", source, "--output", target).code == 0
    assert target.read_text() in ("<p>d c <b>b</b> a</p>", "<p><b>d c b a</b></p>")  # where the attention is, or all


def test_columns_between_tabs_keep_their_numbers(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source, target = tmp_path / "in.odt", tmp_path / "out.odt"
    xml = "<text:p>a b<text:tab/>12<text:tab/>c <text:span>d</text:span> e</text:p>"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("content.xml", f"<d>{xml}</d>")
    assert cli("translate", toy.model, "--file", source, "--output", target).code == 0
    text = re.sub(r"</?(?:d|text:p|text:span)>", "", zipfile.ZipFile(target).read("content.xml").decode())
    assert text == "b a<text:tab/>12<text:tab/>e d c"


def test_a_text_that_is_too_long_stays(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a b\n\n" + "c " * 9_000 + "\n")
    result = cli("translate", toy.model, "--file", source, "--output", target)
    assert "in.txt: text 2 'c c c c c c ...c c c c c c c': expected at most 8,192 tokens" in result.err
    assert target.read_text() == "b a\n\n" + "c " * 9_000 + "\n"


def test_doubtful_texts_are_counted_and_named(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source = tmp_path / "in.srt"
    source.write_text(SRT.format("a b", "a b\nc d e"))
    command = ["translate", toy.model, "--file", source, "--output", tmp_path / "out.srt", "--beam-size", 1]
    result = cli(*command, "--max-length", 3)
    assert "in.srt: 1 of 2 translations were cut at their maximum length (text 2 'a b c d e')" in result.err


def test_a_text_whose_translation_is_empty_stays_and_is_named(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: decode(self, ids) if len(ids) > 3 else "")
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a {b}\n\na b c d\n")
    result = cli("translate", toy.model, "--file", source, "--output", target)
    assert target.read_text() == "a {b}\n\nd c b a\n"
    assert "in.txt: 1 of 2 translations have few words for the length of their source, or none" in result.err
    assert "(text 1 'a {b}')" in result.err and "do not have each" not in result.err
    source.write_text("a b\na b c d\n")
    result = cli("translate", toy.model, "--input", source, "--json")
    assert [json.loads(line)["is_short"] for line in result.out.splitlines()] == [True, False]
    assert "in.txt: 1 of 2 translations have few words" in result.err and "(line 1)" in result.err


def test_texts_that_lose_placeholders_are_named(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    (tmp_path / "in.txt").write_text("a b\n\n{name} a\n\na 5 km\n")
    command = ["translate", toy.model, "--file", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]
    result = cli(*command)
    assert "{name}" not in (tmp_path / "out.txt").read_text()
    assert "in.txt: 1 of 3 translations do not have each {name}, %s, tag, address" in result.err
    assert "(text 2 '{name} a')" in result.err


@pytest.mark.parametrize(("is_there", "state"), [(True, "unchanged"), (False, "not written")])
def test_an_interrupt_says_that_nothing_was_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Callable[..., CommandResult],
    is_there: bool,
    state: str,
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transduce.cli.file.load_with_terms", interrupt)
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a b")
    if is_there:
        target.write_text("old")
    result = cli("translate", "model", "--file", source, "--output", target)
    assert (result.code, result.out) == (130, b"")
    assert result.err == f"transduce: {target}: {state}; interrupted before the output\n"
    assert [path.read_text() for path in tmp_path.glob("out*")] == ["old"] * is_there


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--file", "in.doc"], "--file=in.doc: expected a name that ends with .txt"),
        (["--file", "in.srt"], "--file=in.srt: expected --output with it; add --output NAME.srt"),
        (["--file", "in.srt", "--output", "out.vtt"], "--output=out.vtt: expected a name that ends with .srt"),
        (["--file", "in.srt", "--output", "in.srt"], "--output=in.srt: expected another file than the input"),
        (["--file", "no.srt", "--output", "out.srt"], "no.srt: expected a text file, but it does not exist"),
        (["--file", "in.srt", "--output", "out.srt", "--json"], "--json: must not be set with --file=in.srt"),
        (["--file", "in.srt", "--output", "out.srt", "--n-best", "2"], "--n-best: must not be set with --file"),
        (["--file", "in.srt", "--output", "out.srt"], "in.srt:1: expected a number, and times"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Callable[..., CommandResult],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.srt").write_text("a dog")
    result = cli("translate", "no-model", *options)
    assert_mistake(result, message)
    assert len(result.err.splitlines()) == 1
    assert not Path("out.srt").exists()
