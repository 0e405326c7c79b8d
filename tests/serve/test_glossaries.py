"""Glossaries of DeepL's clients: they are kept, used, read and deleted by their owner; wrong ones are refused."""

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.serving import JSON, Answer, Reverser, Served, served
from support.toy_task import Toy

import transduce
from transduce.serve import glossaries
from transduce.serve.keys import ApiKey
from transduce.serve.settings import ServerSettings

ENTRIES = "b\tx\nc d\ty y|z\n"
GLOSSARY = {"name": "names", "source_lang": "en", "target_lang": "de", "entries": ENTRIES, "entries_format": "tsv"}


@pytest.fixture(scope="module")
def translator(toy: Toy) -> transduce.Translator:
    return transduce.load(toy.model)


@pytest.fixture
def service(translator: transduce.Translator, tmp_path: Path) -> Iterator[Served]:
    keys = ApiKey("one", "first"), ApiKey("two", "second")
    settings = ServerSettings(glossaries=tmp_path, keys=keys)
    with served({("en", "de"): translator}, terms={"a": "i"}, settings=settings) as service:
        yield service


def key(name: str = "one") -> dict[str, str]:
    return {"Authorization": f"DeepL-Auth-Key {name}"}


def created(service: Served, **values: Any) -> str:
    answer = service.post("/v2/glossaries", key(), **{**GLOSSARY, **values})
    assert answer.status == 201
    return answer.json["glossary_id"]


def test_a_translation_has_the_terms_of_a_glossary(service: Served, translator: transduce.Translator) -> None:
    """They are terms in addition to the server's, and replace a term of the server."""
    fields = {"text": ["a b c d"], "target_lang": "DE", "source_lang": "EN"}
    for entries, terms in ((ENTRIES, {"a": "i", "b": "x", "c d": "y y|z"}), ("a\tj", {"a": "j"})):
        (expected,) = translator.translate(["a b c d"], terms=terms)
        answer = service.post("/v2/translate", key(), glossary_id=created(service, entries=entries), **fields)
        assert answer.json["translations"] == [{"detected_source_language": "EN", "text": expected.text}]


def test_its_owner_lists_reads_and_deletes_a_glossary(service: Served) -> None:
    first, second = created(service), created(service, entries='b,x,en,de\n\n"c, d",z', entries_format="csv")
    listed = service.call("GET", "/v2/glossaries", headers=key()).json["glossaries"]
    assert [glossary["glossary_id"] for glossary in listed] == [first, second]
    described = service.call("GET", f"/v2/glossaries/{first}", headers=key()).json
    assert described.items() >= {"name": "names", "ready": True, "source_lang": "en", "entry_count": 2}.items()
    entries = service.call("GET", f"/v2/glossaries/{second}/entries", headers=key())
    assert entries.body == b"b\tx\nc, d\tz\n" and "tab-separated" in entries.headers["content-type"]
    assert service.call("DELETE", f"/v2/glossaries/{first}", headers=key()).status == 204
    assert service.call("GET", f"/v2/glossaries/{first}", headers=key()).status == 404
    pairs = service.call("GET", "/v2/glossary-language-pairs", headers=key()).json
    assert pairs == {"supported_languages": [{"source_lang": "en", "target_lang": "de"}]}
    assert b'route="/v2/glossaries/{key}"' in service.metrics.text()


def test_the_owner_of_another_key_does_not_see_it(service: Served) -> None:
    name = created(service)
    assert service.call("GET", "/v2/glossaries", headers=key("two")).json == {"glossaries": []}
    for method, path in (("GET", ""), ("GET", "/entries"), ("DELETE", "")):
        assert service.call(method, f"/v2/glossaries/{name}{path}", headers=key("two")).status == 404
    fields = {"text": ["a"], "target_lang": "DE", "source_lang": "EN"}
    assert service.post("/v2/translate", key("two"), glossary_id=name, **fields).status == 404
    assert service.call("GET", "/v2/glossaries").status == 403


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"entries": "b x"}, "entries: line 1: expected a source term and its target"),
        ({"entries": "b\tx\nb\ty"}, "entries: line 2: expected each source term once"),
        ({"entries": "b\tx\n\ty"}, "entries: line 2"),
        ({"entries": "b\tx||y"}, "entries: line 1"),
        ({"entries": "\n"}, "entries: expected at least one line"),
        ({"entries": 'a,"b\n', "entries_format": "csv"}, "entries: line 1"),
        ({"entries": "a\tb\n" * 2, "entries_format": "xml"}, "entries_format: expected tsv or csv"),
        ({"name": " "}, "name: expected"),
        ({"name": None}, "name"),
        ({"target_lang": "fr"}, "Unsupported glossary"),
    ],
)
def test_a_wrong_glossary_is_refused_and_not_kept(service: Served, values: dict[str, Any], message: str) -> None:
    answer = service.post("/v2/glossaries", key(), **{**GLOSSARY, **values})
    assert answer.status == 400 and message in answer.json["message"]
    assert service.call("GET", "/v2/glossaries", headers=key()).json == {"glossaries": []}


def test_a_server_has_room_for_so_many(service: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(glossaries, "MOST", 1)
    monkeypatch.setattr(glossaries, "MOST_ENTRIES", 2)
    created(service)
    assert service.post("/v2/glossaries", key(), **GLOSSARY).status == 456  # as DeepL's quota
    assert len(os.listdir(tmp_path)) == 1
    answer = service.post("/v2/glossaries", key(), **{**GLOSSARY, "entries": "a\ti\nb\ti\nc\ti"})
    assert answer.json["message"] == "entries: expected at most 2"


def test_a_glossary_of_an_older_version_is_found(
    service: Served, translator: transduce.Translator, tmp_path: Path
) -> None:
    name = "00000000-0000-0000-0000-000000000001"
    old = {"id": name, "name": "old", "source": "en", "target": "de", "owner": sha256(b"one").hexdigest()}
    (tmp_path / f"{name}.json").write_text(json.dumps({**old, "created": 1.5, "entries": {"b": "x"}}))
    listed = service.call("GET", "/v2/glossaries", headers=key()).json["glossaries"]
    assert [(glossary["glossary_id"], glossary["entry_count"]) for glossary in listed] == [(name, 1)]
    fields = {"text": ["a b"], "target_lang": "DE", "source_lang": "EN"}
    answer = service.post("/v2/translate", key(), glossary_id=name, **fields)
    (expected,) = translator.translate(["a b"], terms={"a": "i", "b": "x"})
    assert answer.json["translations"][0]["text"] == expected.text
    assert service.call("DELETE", f"/v3/glossaries/{name}", headers=key()).status == 204


def test_a_damaged_file_is_skipped_and_logged(translator: transduce.Translator, tmp_path: Path) -> None:
    settings = ServerSettings(glossaries=tmp_path, keys=(ApiKey("one", "first"),))
    names = [f"00000000-0000-0000-0000-00000000000{i}" for i in range(4)]
    for name, content in zip(names, (b"", b'{"id": "secret"', b'{"name": "\xff"}', b"[]"), strict=True):
        (tmp_path / f"{name}.json").write_bytes(content)
    with served({("en", "de"): translator}, settings=settings) as service:
        mine = created(service)
        listed = service.call("GET", "/v3/glossaries", headers=key()).json["glossaries"]
        assert [glossary["glossary_id"] for glossary in listed] == [mine]
        assert service.call("GET", f"/v3/glossaries/{names[0]}", headers=key()).status == 404
    files = {line["file"] for line in service.log if line["event"] == "glossary"}
    assert files == {f"{name}.json" for name in names} and "secret" not in service.log_text


@pytest.mark.parametrize("name", ["x", "../keys", "%2e%2e%2fkeys", "00000000-0000-0000-0000-000000000000"])
def test_no_other_file_is_read(service: Served, tmp_path: Path, name: str) -> None:
    (tmp_path.parent / "keys.json").write_text("{}")
    assert service.call("GET", f"/v2/glossaries/{name}", headers=key()).status == 404
    fields = {"text": ["a"], "target_lang": "DE", "source_lang": "EN"}
    assert service.post("/v2/translate", key(), glossary_id=name, **fields).status == 404


def test_a_glossary_needs_its_languages(service: Served) -> None:
    name = created(service)
    answer = service.post("/v2/translate", key(), glossary_id=name, text=["a"], target_lang="DE")
    assert answer.status == 400 and "source_lang" in answer.json["message"]
    fields = {"text": ["a"], "target_lang": "DE", "source_lang": "DE"}
    assert "do not match" in service.post("/v2/translate", key(), glossary_id=name, **fields).json["message"]


def test_a_server_without_a_folder_and_an_engine_without_phrases_say_so(tmp_path: Path) -> None:
    with served() as service:
        for answer in (service.post("/v2/glossaries", **GLOSSARY), service.call("GET", "/v2/glossaries")):
            assert answer.status == 400 and "--glossaries FOLDER" in answer.json["message"]
    with served(Reverser(), settings=ServerSettings(glossaries=tmp_path)) as service:
        name = service.post("/v2/glossaries", **GLOSSARY).json["glossary_id"]
        fields = {"text": ["a"], "target_lang": "DE", "source_lang": "EN"}
        answer = service.post("/v2/translate", glossary_id=name, **fields)
        assert answer.status == 400 and "engine" in answer.json["message"]


# ---- glossaries of several dictionaries ----------------------------------------------------------------------------

ENGLISH = {"source_lang": "en", "target_lang": "de", "entries": "b\tx", "entries_format": "tsv"}
FRENCH = {**ENGLISH, "source_lang": "fr", "entries": "b\ty"}


@pytest.fixture
def languages(translator: transduce.Translator, tmp_path: Path) -> Iterator[Served]:
    """A server of two pairs of languages."""
    keys = ApiKey("one", "first"), ApiKey("two", "second")
    settings = ServerSettings(glossaries=tmp_path, keys=keys)
    with served({("en", "de"): translator, ("fr", "de"): translator}, settings=settings) as service:
        yield service


def sent(service: Served, method: str, path: str, owner: str = "one", **values: Any) -> Answer:
    """Return the answer to a request, in JSON if it has values."""
    body, headers = (json.dumps(values).encode(), JSON) if values else (b"", {})
    return service.call(method, f"/v3/glossaries{path}", body, {**headers, **key(owner)})


def test_a_glossary_of_version_2_is_one_with_a_single_dictionary(languages: Served) -> None:
    single = created(languages)
    both = sent(languages, "POST", "", name="both", dictionaries=[ENGLISH, FRENCH]).json["glossary_id"]
    assert [each["glossary_id"] for each in sent(languages, "GET", "").json["glossaries"]] == [single, both]
    assert sent(languages, "GET", f"/{single}").json["dictionaries"] == [
        {"source_lang": "en", "target_lang": "de", "entry_count": 2}
    ]
    assert [e["glossary_id"] for e in languages.call("GET", "/v2/glossaries", headers=key()).json["glossaries"]] == [
        single
    ]
    answer = languages.call("GET", f"/v2/glossaries/{both}", headers=key())
    assert answer.status == 404 and "/v3/glossaries" in answer.json["message"]
    assert sent(languages, "DELETE", f"/{both}/dictionaries?source_lang=fr&target_lang=de").status == 204
    assert languages.call("GET", f"/v2/glossaries/{both}/entries", headers=key()).body == b"b\tx\n"


@pytest.mark.parametrize(
    ("method", "path", "values", "status", "message"),
    [
        ("POST", "", {"name": "a"}, 400, "dictionaries: expected at least one"),
        ("POST", "", {"name": "a", "dictionaries": ["b"]}, 400, "dictionaries: expected a list of objects"),
        ("POST", "", {"name": "a", "dictionaries": [ENGLISH, ENGLISH]}, 400, "expected each pair of languages once"),
        ("POST", "", {"dictionaries": [ENGLISH]}, 400, "name"),
        ("POST", "", {"name": "a", "dictionaries": [{**ENGLISH, "entries": "b x"}]}, 400, "entries: line 1"),
        ("PATCH", "/{}", {"name": " "}, 400, "name: expected the name"),
        ("PATCH", "/{}", {"dictionaries": [{**ENGLISH, "target_lang": "it"}]}, 400, "Unsupported glossary"),
        ("PATCH", "/{}", {"dictionaries": [{**ENGLISH, "entries": "c\tc\nd\td\ne\te"}]}, 400, "expected at most 3"),
        ("PUT", "/{}/dictionaries", {**FRENCH, "entries_format": "xml"}, 400, "entries_format: expected tsv or csv"),
        ("DELETE", "/{}/dictionaries?source_lang=fr&target_lang=de", {}, 404, "dictionary not found"),
        ("GET", "/{}/entries", {}, 400, "source_lang"),
        ("PATCH", "/00000000-0000-0000-0000-000000000000", {"name": "a"}, 404, "not found"),
    ],
    ids=range(12),
)
def test_a_wrong_change_is_refused_and_nothing_changes(
    languages: Served,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    method: str,
    path: str,
    values: dict[str, Any],
    status: int,
    message: str,
) -> None:
    monkeypatch.setattr(glossaries, "MOST_ENTRIES", 3)
    name = sent(languages, "POST", "", name="one", dictionaries=[ENGLISH]).json["glossary_id"]
    before = [path.read_bytes() for path in tmp_path.iterdir()]
    answer = sent(languages, method, path.format(name), **values)
    assert answer.status == status and message in answer.json["message"], answer
    assert [path.read_bytes() for path in tmp_path.iterdir()] == before
    for other in ("PATCH", "DELETE"):
        assert sent(languages, other, f"/{name}", "two", name="mine").status == 404


# ---- terms of a request to /translate -----------------------------------------------------------------------------


def test_a_request_has_its_terms(service: Served, translator: transduce.Translator) -> None:
    terms = {"b": "x", "c d": "y y|z"}
    (expected,) = translator.translate(["a b c d"], terms={"a": "i", **terms})
    answer = service.translate("a b c d", terms=terms, api_key="one").json
    assert answer == {"translatedText": expected.text, "unmetConstraints": [*expected.unmet]}


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ("b=x", "$.terms: expected an object"),
        ({"b": 1}, "$.terms['b']: expected a target"),
        ({"": "x"}, "$.terms['']"),
        ({"b": "x|"}, "$.terms['b']"),
        ({str(i): "x" for i in range(1_001)}, "$.terms: expected at most 1,000, not 1,001"),
    ],
)
def test_wrong_terms_are_refused(service: Served, terms: Any, message: str) -> None:
    answer = service.translate("a", terms=terms, api_key="one")
    assert answer.status == 400 and message in answer.json["error"]
