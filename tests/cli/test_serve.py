"""The arguments of `transduce serve`."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import assert_mistake
from support.toy_task import CommandResult, Toy

from transduce.cli.serve import model_folders, terms_files

Cli = Callable[..., CommandResult]


def test_models_are_given_by_pair() -> None:
    assert model_folders(("run/model",), "en", "de") == {("en", "de"): Path("run/model")}
    assert model_folders(("en-de=a", "pt-BR-en=b=c"), None, None) == {
        ("en", "de"): Path("a"),
        ("pt-BR", "en"): Path("b=c"),
    }


def test_a_folder_may_have_the_name_of_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("en-de=a").mkdir()
    assert model_folders(("en-de=a",), "en", "en-GB") == {("en", "en-GB"): Path("en-de=a")}


def test_terms_are_given_by_pair() -> None:
    one, two = [("en", "de")], [("en", "de"), ("de", "en")]
    assert terms_files(["a=b.tsv"], one) == {("en", "de"): Path("a=b.tsv")}
    assert terms_files(["en-de=a", "de-en=b"], two) == {("en", "de"): Path("a"), ("de", "en"): Path("b")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run/model"], "run/model: expected SOURCE-TARGET=MODEL, or one model with --from and --to"),
        (["run/model", "--from", "en"], "--from and --to: expected both, and one model"),
        (["a", "b", "--from", "en", "--to", "de"], "--from and --to: expected both, and one model"),
        (["en=a"], "en: expected two languages, such as en-de"),
        (["en-de=a", "en-de=b"], "en-de=b: expected one model for en-de"),
        (["en-d/=a"], "'d/': expected the code of a language"),
        (["a", "--from", "auto", "--to", "de"], "'auto': expected the code of a language"),
        (
            ["en-de=a", "--from", "en", "--to", "de"],
            "en-de=a: expected a model folder with --from and --to; leave out --from and --to",
        ),
        (["a", "--from", "en", "--to", "EN"], "en-EN: expected two different languages, such as en-de"),
        (["en-en=a"], "en-en: expected two different languages, such as en-de"),
        (["en-de=a", "--engine-threads", "0"], "--engine-threads=0: expected at least 1"),
        (["en-de=a", "--port", "70000"], "--port=70000: expected 0 to 65,535"),
        (["en-de=a", "--texts", "0"], "--texts=0: expected a finite number above 0"),
        (["en-de=a", "--deadline-seconds", "nan"], "--deadline-seconds=nan: expected a finite number above 0"),
        (["en-de=a", "--deadline-seconds", "inf"], "--deadline-seconds=inf: expected a finite number above 0"),
        (["en-de=a", "--drain-s", "-1"], "--drain-s=-1.0: expected a finite number of at least 0"),
        (["en-de=a", "--drain-s", "inf"], "--drain-s=inf: expected a finite number of at least 0"),
        (["en-de=a", "--cors", "a,b"], "--cors='a,b': expected * or origins, such as https://example.org"),
        (
            ["en-de=a", "--port", "5917", "--metrics-port", "5917"],
            "--metrics-port=5917: expected another port than --port; leave it out to have /metrics on --port",
        ),
        (
            ["en-de=a", "--metrics-port", "5000", "--metrics-host", "0.0.0.0"],
            "--metrics-port=5000: expected another port than --port",
        ),
        (["en-de=a", "--metrics-host", "::1"], "--metrics-host=::1: expected --metrics-port with it"),
        (["en-de=a", "--api-keys", "/nowhere"], "--api-keys=/nowhere: expected a text file that can be read"),
        (["en-de=a", "--terms", "a", "--terms", "b"], "--terms=b: expected one file for each pair"),
        (
            ["en-de=a", "de-en=a", "--terms", "a"],
            "--terms=a: expected one file for each pair; write SOURCE-TARGET=FILE",
        ),
        (["en-de=a", "--port", "0", "--terms", "/nowhere"], "/nowhere: expected a text file, but"),
        (["en-de=a", "--host", "no such host", "--port", "0"], "--host=no such host"),
        (["en-de=/nowhere", "--port", "0"], "/nowhere"),
    ],
)
def test_mistakes_are_named(cli: Cli, arguments: list[str], message: str) -> None:
    assert_mistake(cli("serve", *arguments), message)


@pytest.mark.parametrize("name", ["odd.txt", "odd.txt/glossaries"])
def test_glossaries_need_a_folder(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "odd.txt").write_text("a\tx")
    result = cli("serve", "en-de=a", "--glossaries", tmp_path / name)
    assert_mistake(result, f"--glossaries={tmp_path / name}: expected a folder, but a file is there; give another")


def test_terms_need_a_beam(cli: Cli, toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("a\tx")
    result = cli("serve", f"en-de={toy.model}", "--port", 0, "--terms", tmp_path / "terms", "--beam-size", 1)
    assert_mistake(result, "--beam-size=1: expected at least 2 with must, must_not, terms or placeholders")


def test_without_the_extra_one_line_names_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else object())
    assert_mistake(cli("serve", "en-de=a"), "expected the packages uvicorn; pip install 'transduce[serve]'")
