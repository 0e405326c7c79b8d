"""LibreTranslate's contract: the four forms of a request, lists, alternatives, detection, errors."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.serving import JSON, Reverser, Served, served, until

from transduce.decoding.hypothesis import Translation
from transduce.serve.words import confidences


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:
        yield service


BOUNDARY = {"content-type": "multipart/form-data; boundary=xx"}
MULTIPART = b"".join(
    b'--xx\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % pair
    for pair in ((b"q", b"a b"), (b"source", b"en"), (b"target", b"de"))
)


def test_a_request_may_come_in_four_forms(service: Served) -> None:
    fields = {"q": "a b", "source": "en", "target": "de"}
    answers = [
        service.post("/translate", **fields),
        service.form("/translate", fields),
        service.call("POST", "/translate", MULTIPART + b"--xx--\r\n", BOUNDARY),
        service.call("POST", "/translate?q=a+b&source=en&target=de"),
        service.form("/translate?source=en&target=de", {"q": "a b"}),
        service.call("POST", "/translate", json.dumps(fields).encode(), {"content-type": "application/x+json"}),
        service.call("POST", "/translate", b"\xef\xbb\xbf" + json.dumps(fields).encode(), JSON),
        service.call("POST", "//translate?q=a+b&source=en&target=de"),
    ]
    assert [(answer.status, answer.json) for answer in answers] == [(200, {"translatedText": "b a"})] * len(answers)


@pytest.mark.parametrize(
    ("q", "translation"),
    [
        (["", "a b"], ["", "b a"]),
        (["a b"], ["b a"]),
        ("  ", "  "),
        ("a b\nc d\r\n\n e f\n", "b a\nd c\r\n\nf e\n"),
        (["a b\rc d"], ["b a\rd c"]),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_texts(service: Served, q: Any, translation: Any) -> None:
    assert service.translate(q).json == {"translatedText": translation}


def test_a_field_of_the_form_has_priority_over_the_query(service: Served) -> None:
    answer = service.form("/translate?q=c+d&source=de&target=de", {"q": "a b", "source": "en"})
    assert answer.json == {"translatedText": "b a"}


def test_every_route_is_described_and_spec_has_the_title_of_libretranslate(service: Served) -> None:
    paths = service.call("GET", "/openapi.json").json["paths"]
    described = {(path, method.upper()) for path, operations in paths.items() for method in operations}
    routes = {(route.path, method) for route in service.app._app.routes for method in route.methods - {"HEAD"}}
    assert described == routes
    spec = service.call("GET", "/spec").json
    assert spec["info"]["title"] == "LibreTranslate" and spec["paths"] == paths  # Dialect accepts no other title


class Doubtful(Reverser):
    """A model whose translations of long lines are cut, and that repeats "ha"."""

    def translate(self, lines: Any, **more: Any) -> list[Translation]:
        outputs = super().translate(lines, **more)
        return [replace(t, finished=len(t.text) < 9, is_loop="ha" in t.text) for t in outputs]


def test_doubts_are_named() -> None:
    with served(Doubtful()) as service:
        assert service.translate("a b").json == {"translatedText": "b a"}
        assert service.translate("a b c d e f").json["doubts"] == ["cut"]
        assert service.translate(["a b", "ha b\na b c d e f"]).json["doubts"] == [[], ["repeated", "cut"]]
        body = {"text": ["a b", "ha"], "target_lang": "DE"}
        translations = service.post("/v2/translate", **body).json["translations"]
        assert "doubts" not in translations[0] and translations[1]["doubts"] == ["repeated"]


class Confident(Reverser):
    """A calibrated model: the confidence falls with the length, and copied text has none."""

    def translate(self, lines: Any, **more: Any) -> list[Translation]:
        outputs = super().translate(lines, **more)
        return [replace(t, confidence=None if "1" in t.text else 1 / len(t.text)) for t in outputs]


def test_a_text_has_the_lowest_confidence_of_its_lines() -> None:
    with served(Confident()) as service:
        assert service.translate("a b c").json == {"translatedText": "c b a", "textConfidence": 0.2}
        assert service.translate("<p>a</p><p>ab</p>", format="html").json["textConfidence"] == 0.5
        answer = service.translate(["a\n1\na b", "x1", " "], confidence=True).json
        assert answer["textConfidence"] == [1 / 3, None, None] and len(answer["confidence"]) == 3
        assert service.translate("x1").json == {"translatedText": "x1"}
        translations = service.post("/v2/translate", text=["a b c", "x1"], target_lang="DE").json["translations"]
        assert [t.get("textConfidence") for t in translations] == [0.2, None]


def test_a_repeated_field_of_a_form_is_a_list(service: Served) -> None:
    answer = service.form("/translate", [("q", "a b"), ("q", "c d"), ("source", "en"), ("target", "de")])
    assert answer.json == {"translatedText": ["b a", "d c"]}


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"q": ""}, "Invalid request: missing q parameter"),
        ({"q": []}, "Invalid request: missing q parameter"),
        ({"q": None}, "Invalid request: missing q parameter"),
        ({"source": None}, "Invalid request: missing source parameter"),
        ({"target": ""}, "Invalid request: missing target parameter"),
        ({"q": 3}, "Invalid request: $.q: expected a string or a list of strings, not a number"),
        ({"q": {}}, "Invalid request: $.q: expected a string or a list of strings, not an object"),
        ({"q": ["a", 3]}, "Invalid request: $.q[1]: expected a string, not a number"),
        ({"q": [["a"]]}, "Invalid request: $.q[0]: expected a string, not a list"),
        ({"q": ["a", None]}, "Invalid request: $.q[1]: expected a string, not null"),
        ({"source": 1}, "Invalid request: $.source: expected a string, not a number"),
        ({"alternatives": "x"}, "Invalid request: $.alternatives: expected a number"),
        ({"alternatives": "\u0663"}, "Invalid request: $.alternatives: expected a number"),
        ({"alternatives": 30}, "Invalid request: alternatives (30) exceeds limit (3)"),
        ({"alternatives": 10**400}, f"Invalid request: alternatives (1{'0' * 17}...{'0' * 19}) exceeds limit (3)"),
        ({"alternatives": []}, "Invalid request: $.alternatives: expected a number"),
        ({"target": "xx"}, "xx is not supported"),
        ({"source": "fr"}, "fr is not supported"),
        ({"source": "de", "target": "en"}, "English (en) is not available as a target language from German (de)"),
        ({"format": "HTML"}, "HTML format is not supported"),
        ({"format": "md"}, "md format is not supported"),
        ({"q": "x" * 10_001}, "Invalid request: request (10001) exceeds text limit (10000)"),
        ({"q": ["x" * 10_000] * 6}, "Invalid request: request (60000) exceeds text limit (50000)"),
        ({"q": ["x"] * 129}, "Invalid request: request (129 texts) exceeds limit (128)"),
        ({"q": "x\n" * 600}, "Invalid request: expected at most 512 sentences, not 600; send several requests"),
    ],
)
def test_wrong_requests_are_named(service: Served, values: dict[str, Any], error: str) -> None:
    answer = service.translate(**{"q": "a b", **values})
    assert (answer.status, answer.json) == (400, {"error": error})


@pytest.mark.parametrize(
    "body",
    [
        b'{"q": NaN}',
        b'{"q": "\\ud800"}',
        b'{"x": ' + b"[" * 100_000,
        b"[]",
        b"1",
        b"",
        b"\xff\xfe",
        b'{"q": "\xff"}',
        b'{"q": 1e999}',
        b"\xef\xbb\xbf",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(service: Served, body: bytes) -> None:
    answer = service.call("POST", "/translate", body, JSON)
    assert answer.status == 400 and answer.json["error"].startswith("Invalid request: expected ")


@pytest.mark.parametrize("media", ["text/plain", "", "application/x-www-form-urlencoded"])
def test_json_with_another_content_type_gets_the_remedy(service: Served, media: str) -> None:
    answer = service.call("POST", "/translate", b'{"q": "a"}', {"content-type": media})
    assert answer.status == 400
    remedy = "a body in JSON needs the header Content-Type: application/json"
    assert answer.json["error"] == f"Invalid request: missing q parameter; {remedy}"


@pytest.mark.parametrize(
    "headers", [BOUNDARY, {"content-type": "multipart/form-data"}, {"content-type": "multipart/form-data; boundary="}]
)
def test_a_damaged_multipart_body_is_refused(service: Served, headers: dict[str, str]) -> None:
    for body in (MULTIPART[:50], b"--xx\r\n\r\n", b"\x00" * 50, b""):
        assert service.call("POST", "/translate", body, headers).status == 400


def test_a_query_that_is_not_utf8_is_refused(service: Served) -> None:
    for query in ("q=%ff", "q=\xff", "&".join(f"a{i}=1" for i in range(2_000))):
        assert service.call("POST", f"/translate?{query}").status == 400


@pytest.mark.parametrize(("alternatives", "count"), [("2", 2), (1.9, 1), (-1, 0), (None, 0), ("", 0), (3, 3)])
def test_alternatives(service: Served, alternatives: Any, count: int) -> None:
    answer = service.translate("a b", alternatives=alternatives).json
    assert answer.get("alternatives", []) == [f"b a {n}" for n in range(1, count + 1)]
    lists = service.translate(["a b", ""], alternatives=alternatives).json
    assert lists.get("alternatives", [[], []]) == [[f"b a {n}" for n in range(1, count + 1)], []]


@pytest.mark.parametrize("codes", [("EN", "de"), ("en-GB", "DE"), ("en_us", "de-DE")])
def test_case_and_region_of_a_language_do_not_matter(service: Served, codes: tuple[str, str]) -> None:
    assert service.translate("a b", source=codes[0], target=codes[1]).json == {"translatedText": "b a"}


def test_a_text_in_the_target_language_stays_as_it_is(service: Served) -> None:
    assert service.translate("a b", source="de").json == {"translatedText": "a b"}


def test_detection_by_a_server_of_one_pair_cannot_tell(service: Served) -> None:
    verdict = {"language": "en", "confidence": 0.0}
    answer = service.translate(["a b", ""], source="auto").json
    assert answer == {"translatedText": ["b a", ""], "detectedLanguage": [verdict, verdict]}
    assert service.translate("a b", source="auto").json["detectedLanguage"] == verdict
    assert service.post("/detect", q=["a", "b"]).json == [verdict]


def test_languages_and_settings_have_what_clients_read(service: Served) -> None:
    assert service.call("GET", "/languages").json == [
        {"code": "en", "name": "English", "targets": ["de", "en"]},
        {"code": "de", "name": "German", "targets": ["de"]},  # clients refuse a target that is not listed itself
    ]
    settings = service.call("GET", "/frontend/settings").json
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    names = "charLimit frontendTimeout apiKeys keyRequired suggestions filesTranslation supportedFilesFormat language"
    assert set(settings) == set(names.split())
    assert service.call("GET", "/health").json == {"status": "ok"}
    assert settings["filesTranslation"] and {".srt", ".docx", ".odt"} <= set(settings["supportedFilesFormat"])
    assert service.post("/suggest", q="a").status == 403


def test_keys_are_taken_from_any_form() -> None:
    with served(keys=["ab", "cd"]) as service:
        fields = {"q": "a b", "source": "en", "target": "de"}
        assert service.post("/translate", **fields).status == 400
        wrong = service.post("/translate", **fields, api_key="ax")
        assert (wrong.status, wrong.json) == (403, {"error": "Invalid API key"})
        for name in ("api_key", "secret", "apiKey"):
            assert service.form("/translate", {**fields, name: "cd"}).status == 200
        assert service.call("POST", "/translate?api_key=ab&q=a&source=en&target=de").status == 200
        assert service.post("/translate", **fields, api_key="\u00e9").status == 403
        assert service.call("GET", "/languages").status == 200


def test_errors_of_routes_are_json_with_cors(service: Served) -> None:
    wrong_method, unknown = service.call("GET", "/translate"), service.call("GET", "/translate/")
    assert (wrong_method.status, wrong_method.json, wrong_method.headers["allow"]) == (
        405,
        {"error": "Method Not Allowed"},
        "POST",
    )
    assert (unknown.status, unknown.json) == (404, {"error": "Not Found"})
    preflight = service.call("OPTIONS", "/translate")
    assert preflight.status == 204
    for answer in (wrong_method, unknown, preflight, service.translate("a"), service.translate(3)):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


def test_a_line_of_too_many_tokens_is_a_separate_problem() -> None:
    long = "a " * 8_193
    with served(text_characters=20_000) as service:
        assert service.translate(long).status == 400
        answer = service.translate([long, "a b"]).json
        assert answer["translatedText"] == ["", "b a"]
        assert answer["problems"] == ["expected at most 8,192 tokens, not 8,193; split the line", None]


def test_finished_segments_are_streamed_in_order(service: Served) -> None:
    body = json.dumps({"q": "a b\n\nc d\ne", "source": "en", "target": "de"}).encode()
    answer = service.call("POST", "/translate", body, {**JSON, "accept": "text/event-stream"})
    events = [event.split("\n", 1) for event in answer.body.decode().strip().split("\n\n")]
    segments = [json.loads(data[6:]) for name, data in events if name == "event: segment"]
    assert segments == [{"index": i, "text": text} for i, text in enumerate(["b a\n\n", "d c\n", "e"])]
    assert json.loads(events[-1][1][6:]) == {"translatedText": "b a\n\nd c\ne"}


@pytest.mark.parametrize("leaves", [True, False])
def test_a_stream_whose_client_leaves_is_cancelled(leaves: bool) -> None:
    """Before the first event, or between two."""
    model = Reverser()
    model.gate.clear()
    with served(model) as service:

        async def run() -> None:
            end = asyncio.Event()
            body = json.dumps({"q": "a b\n" * 50, "source": "en", "target": "de"}).encode()
            headers = {**JSON, "accept": "text/event-stream"}
            stream = asyncio.ensure_future(service.request("POST", "/translate", body, headers, leaves or end))
            if not leaves:
                await until(lambda: service.engine.running > 0)
                end.set()
            await stream
            assert service.queue.waiting_sentences == 0
            model.gate.set()
            await until(lambda: service.engine.running == 0)

        asyncio.run(run())
        assert service.value("cancelled_total") == 1 and service.translate("a b").status == 200
    assert [line["status"] for line in service.log] == [499, 200]


def test_several_models_detect_by_pieces_and_name_their_pairs() -> None:
    letters = Reverser()
    letters.tokenizer.encode = lambda line: list(line)
    with served({("en", "de"): Reverser(), ("fr", "de"): letters}) as service:
        answer = service.translate("a b c", source="auto").json
        assert answer["detectedLanguage"] == {"language": "en", "confidence": 40.0}
        assert service.translate("a b", source="fr").json == {"translatedText": "b a"}


def test_each_word_has_a_confidence() -> None:
    pieces, log_probs = ("a", "b", "▁c", ".", "</s>"), (-0.1, -1.0, -0.2, 0.0, -9.0)
    tokenizer = Reverser().tokenizer
    translation = Translation("ab c.", pieces=pieces, token_log_probs=log_probs)
    assert confidences(translation, tokenizer) == [("ab", 0.368), (" c.", 0.819)]
    translation = Translation("ab c.\u00a0d", pieces=pieces, token_log_probs=log_probs)  # spelled by other pieces
    assert confidences(translation, tokenizer) == [("ab", None), (" c.", None), ("\u00a0d", None)]


def test_confidence_is_given_where_it_is_wanted(service: Served) -> None:
    answer = service.translate(["a b\n\nc", "  "], confidence=True).json
    words = [["b", None], [" a", None], ["\n", None], ["\n", None], ["c", None]]
    assert answer["confidence"] == [words, [["  ", None]]]
    assert "confidence" not in service.translate("a b", format="html", confidence=True).json
