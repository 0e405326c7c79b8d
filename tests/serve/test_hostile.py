"""Malformed requests: each gets an answer below 500, in JSON, at both doors."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.seeds import REQUESTS, seed_of_the_commit
from support.serving import FORM, JSON, Served, served

SCALARS = ["", "a b", None, 0, -1, 1.5, 1e300, 10**400, True, "\x00", "\u2028", "\ufeff", "\U0001f600", "<b>", "a\nb"]
VALUES = [*SCALARS, [], {}, [[]], [None], ["a", 1], [{}], {"a": {"b": []}}, "x" * 11_000, ["x"] * 130, "auto", "html"]
FIELDS = {
    "/translate": "q source target format alternatives api_key secret extra".split(),
    "/detect": ["q", "api_key"],
    "/v2/translate": "text target_lang source_lang split_sentences tag_handling formality glossary_id auth_key".split(),
    "/v2/languages": ["type"],
    "/suggest": ["q"],
    "/translate_file": ["file"],
}
GOOD = {"q": "a b", "source": "en", "target": "de", "text": ["a b"], "target_lang": "DE"}
HEADERS = [JSON, JSON, FORM, {}, {"content-type": "multipart/form-data; boundary=x"}, {"content-type": "\xff"},
           {"content-type": "application/json; charset=utf-16"}, {"content-length": "abc", **JSON},
           {"content-encoding": "gzip", **JSON}, {"accept": "text/event-stream", **JSON}]  # fmt: skip


def body_of(rng: random.Random, path: str) -> bytes:
    """Return a request with wrong values, or with damaged bytes."""
    values: dict[str, Any] = {name: GOOD.get(name) for name in FIELDS[path] if name in GOOD}
    for name in rng.sample(FIELDS[path], rng.randint(0, min(2, len(FIELDS[path])))):
        values[name] = rng.choice(VALUES)
    body = bytearray(json.dumps(values, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass"))
    for _ in range(rng.choice([0, 0, 1, 3])):
        place = rng.randrange(len(body) + 1)
        body[place : place + rng.randint(0, 3)] = rng.choice(
            [b"", b"\xff", b"\x00", b'"', b"{", b"[" * 2_000, b"NaN", b"&"]
        )
    return bytes(body)


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:
        yield service


@pytest.mark.parametrize("count", [600, pytest.param(REQUESTS, marks=pytest.mark.slow)])
def test_malformed_requests_get_an_answer_below_500(service: Served, count: int) -> None:
    seed = "1" if count == 600 else seed_of_the_commit()
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(count):
        path = rng.choice(list(FIELDS))
        body, headers = body_of(rng, path), rng.choice(HEADERS)
        query = rng.choice(["", "", "?q=%ff", "?source=en&target=de", "?" + "&" * 50, "?q", "?%00=%00", "?\xff"])
        answer = service.call(rng.choice(["POST", "POST", "POST", "GET", "PUT", "HEAD"]), path + query, body, headers)
        assert 200 <= answer.status < 500, (path, query, body, headers, answer)
        if answer.status >= 400 and answer.body:
            assert answer.json["message" if path.startswith("/v2/") else "error"]
    assert service.translate("a b").json == {"translatedText": "b a"}
