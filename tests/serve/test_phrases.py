"""Phrases over HTTP: `must`, `must_not`, `prefix` next to the texts, `unmetConstraints` in the answer, and refusals."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.serving import Reverser, Served, served
from support.toy_task import Toy

import transduce
from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.line_constraint import LineConstraint
from transduce.serve.service import TranslateCall, Work


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


def test_an_entry_may_be_a_list_of_alternatives(service: Served, translator: transduce.Translator) -> None:
    must = ["c a", ["x", "y y"]]
    (expected,) = translator.translate(["a b c"], constraints=[{"must": must}])
    answer = {"translatedText": expected.text, "unmetConstraints": []}
    assert service.translate("a b c", must=must).json == answer
    assert service.translate(["a b c"], must=[must]).json == {name: [value] for name, value in answer.items()}
    assert "x" in expected.text.split() or "y y" in expected.text
    assert service.translate(" ", must=[["x", "y"]]).json["unmetConstraints"] == ["x|y"]


@pytest.mark.parametrize("name", ["mustnot", "mustNot", "must-not", "musts", "must[]", "MUST", "Prefix", "prefixes"])
def test_a_misspelt_field_is_refused(service: Served, name: str) -> None:
    near = "prefix" if "prefix" in name.lower() else "must_not" if "not" in name.lower() else "must"
    names = "must, must_not, prefix, terms, placeholders"
    message = f"Invalid request: $.{name}: expected one of {names}; did you mean {near!r}?"
    answer = service.translate("a b", **{name: ["x"]})
    assert (answer.status, answer.json) == (400, {"error": message})
    assert service.form("/translate", {"q": "a", "source": "en", "target": "de", name: "x"}).json == {"error": message}


def test_other_fields_of_clients_are_ignored(service: Served) -> None:
    names = "apiKey secret text from to lang engine custom suffix postfix preset detected " + "x" * 9999
    assert service.translate("a b", **dict.fromkeys(names.split(), "x")).json == {"translatedText": "b a"}


@pytest.mark.parametrize("fields", [{"must": ["x"]}, {"must_not": ["x"]}, {"prefix": "x"}, {"mustNot": "x"}])
def test_the_routes_of_deepl_have_no_phrases(service: Served, fields: dict[str, Any]) -> None:
    (name,) = fields
    answer = service.post("/v2/translate", text=["a b"], target_lang="DE", **fields)
    message = f"{name}: expected no must, must_not, prefix, terms, placeholders; send phrases to /translate"
    assert (answer.status, answer.json) == (400, {"message": message})


def test_the_routes_of_deepl_ignore_fields_of_its_clients(service: Served) -> None:
    names = "context model_type preserve_formatting outline_detection tag_handling_version"
    fields = {**dict.fromkeys(names.split(), "x"), "must": [], "prefix": None}
    answer = service.post("/v2/translate", text=["a b"], target_lang="DE", **fields)
    assert answer.json["translations"][0]["text"] == "b a"


def test_what_is_not_met_is_named(service: Served) -> None:
    assert service.translate(" ", must=["x", "x"]).json == {"translatedText": " ", "unmetConstraints": ["x", "x"]}
    assert "unmetConstraints" not in service.translate("a b", must=[], must_not=None, prefix="").json


def test_no_alternative_lacks_a_phrase_that_the_translation_has() -> None:
    class Written:
        """A text whose outputs are given; the search cut some of them at their maximum length."""

        failure, sentences, doubts, confidence = None, (), (), None

        def __init__(self, *texts: str) -> None:
            self.texts = texts

        def written(self, number: int) -> str:
            return self.texts[number]

    texts: Any = [Written("x y", "y x", "y y", "x z y"), Written("y", "y y", "z z", "x")]
    constraint = LineConstraint(must=["x", "y"])
    call = TranslateCall(["", ""], [("en", "de")] * 2, alternatives=3, constraints=[constraint] * 2)
    first, second = Work(texts).translations(call)
    assert (first.text, first.unmet, first.alternatives) == ("x y", [], ["y x", "x z y"])
    assert (second.text, second.unmet, second.alternatives) == ("y", ["x"], ["y y"])


def test_forbidden_phrases_hold_for_every_line(service: Served) -> None:
    answer = service.translate("a b\nb c", must_not=["b"]).json
    assert "b" not in answer["translatedText"].split() and answer["translatedText"].count("\n") == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"must": "x"}, "$.must='x': expected a list of phrases; write a list"),
        ({"must": ["x", 3]}, "$.must[1]=3: expected a phrase; write a string"),
        ({"must": ["x", None]}, "$.must[1]: expected a phrase; leave it out"),
        ({"must": [["x", None]]}, "$.must[0][1]: expected a phrase; leave it out"),
        ({"must": [[]]}, "$.must[0]: expected a phrase, or a list of at least one; leave it out"),
        ({"must": {}}, "$.must={}: expected a list of phrases; write a list"),
        ({"must_not": [["x"]]}, "$.must_not[0]=['x']: expected a phrase; write a string"),
        ({"must": [" "]}, "$.must[0]=' ': expected a phrase, not a blank one; leave it out"),
        ({"must": ["x" * 257]}, "expected at most 256 characters, not 257"),
        ({"must": ["x"] * 65}, "expected at most 64 phrases, not 65"),
        ({"must": ["x"], "must_not": ["x"]}, "$.must='x': expected a phrase without 'x', which must_not forbids"),
        ({"must": ["ab " * 80] * 4}, "$.q: must="),
        ({"prefix": "a " * 99}, "$.q: prefix='a a a a a a ...a a a a a a a': expected at most"),
        ({"prefix": ["a"]}, "$.prefix=['a']: expected text; write a string"),
        ({"q": "a\nb", "must": ["x"]}, "$.q: expected one line with must or prefix, not 2"),
        ({"format": "html", "must_not": ["x"]}, "$.format: expected text with must, must_not or prefix, not html"),
        ({"q": ["a", "b"], "must": ["x"]}, "$.must: expected a list with an entry for each of the 2 texts"),
        ({"q": ["a"], "must": ["x"]}, "$.must[0]='x': expected a list of phrases; write a list"),
        ({"q": ["a", "b"], "must": [None, ["x", " "]]}, "$.must[1][1]=' ': expected a phrase, not a blank one"),
        ({"q": ["a"], "prefix": [3]}, "$.prefix[0]=3: expected text; write a string"),
    ],
)
def test_what_cannot_be_met_is_refused(service: Served, fields: dict[str, Any], message: str) -> None:
    answer = service.translate(**{"q": "a b", **fields})
    assert answer.status == 400 and answer.json["error"].startswith("Invalid request: ")
    assert message in answer.json["error"]


def test_one_text_that_is_wrong_does_not_harm_the_others(service: Served) -> None:
    answer = service.translate(["a b", "a\nb"], must=[["x"], ["x"]]).json
    assert "x" in answer["translatedText"][0].split() and "expected one line" in answer["problems"][1]


def test_terms_of_the_server_hold_for_each_request(translator: transduce.Translator) -> None:
    terms, text = {"b": "x", "e f": "y y|z"}, "a b. c d. e f."
    with served({("en", "de"): translator}, terms=terms) as service:
        (expected,) = translator.translate([text], terms=terms)
        assert not expected.unmet
        assert service.translate(text).json == {"translatedText": expected.text}
        html = service.translate(f"<p>{text}</p>", format="html").json["translatedText"]
        assert html == f"<p>{expected.text}</p>"
        deepl = service.post("/v2/translate", text=[text], target_lang="DE").json["translations"][0]
        assert deepl["text"] == expected.text and "unmetConstraints" not in deepl
        assert service.translate("c d").json == {"translatedText": translator.translate(["c d"])[0].text}


def test_phrases_of_a_request_add_to_the_terms_and_forbid_them(translator: transduce.Translator) -> None:
    with served({("en", "de"): translator}, terms={"b": "x"}) as service:
        both = service.translate(["a b"], must=[["j"]], alternatives=1).json
        assert {"j", "x"} <= {*both["translatedText"][0].split()} and both["unmetConstraints"] == [[]]
        without = service.translate("a b\nc", must_not=["x"]).json
        assert "x" not in without["translatedText"].split() and without["unmetConstraints"] == ["x"]


def test_a_term_that_is_not_met_is_named(translator: transduce.Translator) -> None:
    target = "é" * 200  # of too many tokens to be searched for
    with served({("en", "de"): translator}, terms={"b": target}) as service:
        assert service.translate("a b").json["unmetConstraints"] == [target]
        deepl = service.post("/v2/translate", text=["a b", "c"], target_lang="DE").json["translations"]
        assert [each.get("unmetConstraints") for each in deepl] == [[target], None]


def test_placeholders_stay_or_are_named(service: Served, translator: transduce.Translator) -> None:
    link = f"www.{'a' * 300}.de"  # too long for a phrase
    texts = ["a b {name}", "a b", f"c {link}"]
    expected = translator.translate(texts, placeholders=True)
    assert expected[0].text.count("{name}") == 1 and (expected[0].problem, expected[0].unmet) == (None, ())
    assert expected[2].unmet == (link,) and "as often as in the source" in (expected[2].problem or "")
    answer = service.translate(texts, placeholders=True).json
    assert answer == {
        "translatedText": [translation.text for translation in expected],
        "unmetConstraints": [[], [], [link]],
        "doubts": [[], [], ["short"]],
    }
    answer = service.translate("<p>a <b>b</b> {name} c</p>", format="html", placeholders="true").json
    assert answer["translatedText"].count("{name}") == answer["translatedText"].count("<b>") == 1
    assert answer["unmetConstraints"] == [] and "unmetConstraints" not in service.translate("a {name}").json
    for fields, message in (({"placeholders": "x"}, "expected true or false"), ({"placeholder": True}, "did you mean")):
        assert message in service.translate("a", **fields).json["error"]


def test_a_server_may_keep_placeholders_for_all(translator: transduce.Translator) -> None:
    with served({("en", "de"): translator}) as service:
        service.service.options = DecodingOptions(placeholders=True)
        (answer,) = service.post("/v2/translate", text=["a b {name}"], target_lang="DE").json["translations"]
    assert answer["text"] == translator.translate(["a b {name}"], placeholders=True)[0].text


def test_an_engine_without_phrases_says_so() -> None:
    with served({("en", "de"): Reverser()}) as service:
        answer = service.translate("a b", must=["x"])
        assert answer.status == 400 and "the engine of this server does not have them" in answer.json["error"]
        assert "no placeholders: the engine" in service.translate("a b", placeholders=True).json["error"]
