"""DeepL's contract: the requests of its two official clients, and what cannot be kept."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.serving import Served, served


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:
        yield service


def test_the_python_client_sends_json(service: Served) -> None:
    answer = service.post("/v2/translate", text=["a b", ""], target_lang="DE", show_billed_characters=True)
    assert answer.json == {
        "translations": [
            {"detected_source_language": "EN", "text": "b a", "billed_characters": 3},
            {"detected_source_language": "EN", "text": "", "billed_characters": 0},
        ]
    }


def test_the_node_client_sends_a_form(service: Served) -> None:
    fields = [("target_lang", "de"), ("source_lang", "en"), ("show_billed_characters", "1")]
    answer = service.form("/v2/translate", [*fields, ("text", "a b"), ("text", "c d")])
    assert [translation["text"] for translation in answer.json["translations"]] == ["b a", "d c"]


def test_languages_take_their_type_from_query_or_body(service: Served) -> None:
    target = [{"language": "DE", "name": "German", "supports_formality": False}]
    assert service.call("GET", "/v2/languages?type=target").json == target
    assert service.form("/v2/languages", {"type": "target"}).json == target
    assert service.call("GET", "/v2/languages").json == [{"language": "EN", "name": "English"}]
    assert set(service.call("GET", "/v2/usage").json) == {"character_count", "character_limit"}


@pytest.mark.parametrize(("split", "text"), [("0", "d c b a"), ("1", "b a\nd c"), (0, "d c b a"), (None, "b a\nd c")])
def test_split_sentences(service: Served, split: Any, text: str) -> None:
    answer = service.post("/v2/translate", text=["a b\nc d"], target_lang="DE", split_sentences=split)
    assert answer.json["translations"][0]["text"] == text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"formality": "more"}, "formality"),
        ({"tag_handling": "xml"}, "tag_handling"),
        ({"glossary_ids": ["x"]}, "glossary_ids"),
        ({"glossary_id": "x"}, "--glossaries"),
        ({"ignore_tags": ["b"]}, "ignore_tags"),
        ({"splitting_tags": "p"}, "splitting_tags: expected none"),
        ({"non_splitting_tags": "p"}, "non_splitting_tags"),
        ({"custom_instructions": ["short"]}, "custom_instructions"),
        ({"style_id": "x"}, "style_id"),
        ({"split_sentences": "2"}, "split_sentences"),
        ({"target_lang": "FR"}, "target_lang"),
        ({"source_lang": "FR"}, "source_lang"),
        ({"target_lang": None}, "target_lang"),
        ({"text": None}, "text"),
        ({"text": [1]}, "$.text[0]"),
        ({"formality": 3}, "$.formality"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(service: Served, values: dict[str, Any], message: str) -> None:
    answer = service.post("/v2/translate", **{"text": ["a b"], "target_lang": "DE", **values})
    assert answer.status == 400 and message in answer.json["message"]


@pytest.mark.parametrize(
    "values", [{"formality": "prefer_more"}, {"ignore_tags": []}, {"context": "x"}, {"model_type": "latency_optimized"}]
)
def test_what_changes_nothing_is_ignored(service: Served, values: dict[str, Any]) -> None:
    assert service.post("/v2/translate", text=["a b"], target_lang="DE", **values).status == 200


@pytest.mark.parametrize("code", ["EN-GB", "en", "En-us"])
def test_regions_mean_the_language(service: Served, code: str) -> None:
    answer = service.post("/v2/translate", text=["a b"], target_lang="de-DE", source_lang=code)
    assert answer.json["translations"][0]["text"] == "b a"


def test_the_key_is_in_the_header() -> None:
    with served(keys=["ab:fx"]) as service:
        body = {"text": ["a b"], "target_lang": "DE"}
        assert service.post("/v2/translate", {"Authorization": "DeepL-Auth-Key ab:fx"}, **body).status == 200
        for headers in ({}, {"Authorization": "DeepL-Auth-Key x"}, {"Authorization": "Bearer ab:fx"}):
            answer = service.post("/v2/translate", headers, **body)
            assert answer.status == 403 and answer.json["message"]


def test_errors_of_routes_have_a_message(service: Served) -> None:
    assert service.call("GET", "/v2/translate").json == {"message": "Method Not Allowed"}
    assert service.call("GET", "/v3/languages").json == {"message": "Not Found"}
