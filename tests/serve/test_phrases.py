"""Phrases over HTTP: `must`, `must_not`, `prefix` beside the texts, `unmetConstraints` in the answer, and refusals."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.serving import Reverser, Served, served
from support.toy_task import Toy

import transduce


@pytest.fixture(scope="module")
def translator(toy: Toy) -> transduce.Translator:
    return transduce.load(toy.model)


@pytest.fixture(scope="module")
def service(translator: transduce.Translator) -> Iterator[Served]:
    with served({("en", "de"): translator}) as service:
        yield service


def test_a_text_gets_what_python_gives(service: Served, translator: transduce.Translator) -> None:
    fields = {"must": ["c a", "x"], "must_not": ["b"]}
    (expected,) = translator.translate(["a b c"], constraints=[fields])
    answer = service.translate("a b c", **fields).json
    assert answer == {"translatedText": expected.text, "unmetConstraints": []}
    assert "c a" in expected.text and "x" in expected.text.split() and "b" not in expected.text.split()
    assert service.translate("a b c", prefix="j").json["translatedText"].startswith("j")


def test_each_text_of_a_list_has_its_own(service: Served) -> None:
    must, prefix = [["x"], [], None], [None, None, "i"]
    answer = service.translate(["a b", "a b", "c"], must=must, prefix=prefix, alternatives=1).json
    first, second, third = answer["translatedText"]
    assert "x" in first.split() and second == "b a" and third.startswith("i")
    assert answer["unmetConstraints"] == [[], [], []]
    assert len(answer["alternatives"]) == 3


def test_a_form_has_a_phrase_for_each_field(service: Served) -> None:
    fields = {"q": "a b", "source": "en", "target": "de"}
    assert "x" in service.form("/translate", {**fields, "must": "x"}).json["translatedText"].split()
    both = service.form("/translate", {**fields, "must": ["x", "j"], "must_not": "b"}).json["translatedText"].split()
    assert {"x", "j"} <= {*both} and "b" not in both


def test_what_is_not_met_is_named(service: Served) -> None:
    assert service.translate(" ", must=["x", "x"]).json == {"translatedText": " ", "unmetConstraints": ["x", "x"]}
    assert "unmetConstraints" not in service.translate("a b", must=[], must_not=None, prefix="").json


def test_forbidden_phrases_hold_for_every_line(service: Served) -> None:
    answer = service.translate("a b\nb c", must_not=["b"]).json
    assert "b" not in answer["translatedText"].split() and answer["translatedText"].count("\n") == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"must": "x"}, "$.must: expected a list of strings"),
        ({"must": ["x", 3]}, "$.must: expected a list of strings"),
        ({"must": {"x": 1}}, "$.must: expected a list of strings"),
        ({"must": [" "]}, "$.must[0]=' ': expected a phrase, not a blank one; leave it out"),
        ({"must": ["x" * 257]}, "expected at most 256 characters, not 257"),
        ({"must": ["x"] * 65}, "expected at most 64 phrases, not 65"),
        ({"must": ["x"], "must_not": ["x"]}, "$.must='x': expected a phrase without 'x', which must_not forbids"),
        ({"must": ["ab " * 80] * 4}, "$.q: must="),
        ({"prefix": "a " * 99}, "$.q: the prefix of the line: expected at most"),
        ({"prefix": ["a"]}, "$.prefix: expected a string"),
        ({"q": "a\nb", "must": ["x"]}, "$.q: expected one line with must or prefix, not 2"),
        ({"format": "html", "must_not": ["x"]}, "$.format: expected text with must, must_not or prefix, not html"),
        ({"q": ["a", "b"], "must": ["x"]}, "$.must: expected a list with an entry for each of the 2 texts"),
        ({"q": ["a"], "must": ["x"]}, "$.must[0]: expected a list of strings"),
        ({"q": ["a"], "prefix": [3]}, "$.prefix[0]: expected a string"),
    ],
)
def test_what_cannot_be_met_is_refused(service: Served, fields: dict[str, Any], message: str) -> None:
    answer = service.translate(**{"q": "a b", **fields})
    assert answer.status == 400 and answer.json["error"].startswith("Invalid request: ")
    assert message in answer.json["error"]


def test_one_text_that_is_wrong_does_not_harm_the_others(service: Served) -> None:
    answer = service.translate(["a b", "a\nb"], must=[["x"], ["x"]]).json
    assert "x" in answer["translatedText"][0].split() and "expected one line" in answer["problems"][1]


def test_an_engine_without_phrases_says_so() -> None:
    with served({("en", "de"): Reverser()}) as service:
        answer = service.translate("a b", must=["x"])
        assert answer.status == 400 and "the engine of this server does not have them" in answer.json["error"]
