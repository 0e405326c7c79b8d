"""Installed clients of LibreTranslate and DeepL, each by its own calls; recorded bodies of programs on the web."""

import asyncio
import json
import shutil
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException, ServerException
from libretranslate_aio import AsyncLibreTranslate, LibreTranslate
from libretranslate_aio.exceptions import LibreTranslateError
from libretranslatepy import LibreTranslateAPI
from support.serving import FORM, JSON, Reverser, ServerProcess, served, server_process
from support.toy_task import ROOT, Toy

NPM = ROOT / "tests" / "serve" / "npm"
KEY = "a-key"
ENGLISH = {"code": "en", "name": "English", "targets": ["de", "en"]}
GERMAN = {"code": "de", "name": "German", "targets": ["de"]}


@pytest.fixture(scope="module")
def server(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("clients")
    (folder / "keys").write_text(KEY)
    options = "--api-keys", folder / "keys", "--glossaries", folder / "glossaries"
    with server_process(folder, toy.model, *options) as server:
        yield server


@pytest.fixture(scope="module")
def address(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}/"


def npm_results(address: str, client: str, calls: str = "") -> Any:
    """Return what npm/CALLS.mjs, or else npm/CLIENT.mjs, prints as JSON. Skip the test without node or the client."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    if not (NPM / "node_modules" / client).is_dir():
        pytest.skip(f"needs {client} of npm: npm ci --prefix tests/serve/npm")
    command = [node, NPM / f"{calls or client}.mjs", address.rstrip("/"), KEY]
    result = subprocess.run([*map(str, command)], capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr.decode()
    return json.loads(result.stdout)


def test_libretranslatepy(address: str) -> None:
    """This client has neither lists nor alternatives."""
    client = LibreTranslateAPI(address, KEY)
    assert client.translate("a b c", "en", "de") == "c b a"
    assert client.translate("a b", "auto", "de") == "b a"
    assert client.languages() == [ENGLISH, GERMAN]
    assert client.detect("The old dog runs.")[0]["language"] == "en"
    for key in ("wrong", None):
        with pytest.raises(urllib.error.HTTPError):
            LibreTranslateAPI(address, key).translate("a b c", "en", "de")


def test_libretranslate_aio(address: str, tmp_path: Path) -> None:
    with LibreTranslate(address, api_key=KEY) as client:
        single = client.translate("a b c", "auto", "de", alternatives=2)
        assert single.translated_text == "c b a" and single.alternatives and "c b a" not in single.alternatives
        assert client.translate("<p>a <b>b</b></p>", "en", "de", format="html").translated_text == "<p><b>b</b> a</p>"
        lists = client.translate(["a b", "c d"], "auto", "de", alternatives=2)
        assert lists.translated_text == ["b a", "d c"] and len(lists.alternatives or []) == 2
        assert [language.targets for language in client.languages()] == [["de", "en"], ["de"]]
        settings = client.frontend_settings()
        assert settings.language.target.code == "de" and settings.key_required
        assert client.detect("The old dog runs.")[0].language == "en" and client.health()
        (tmp_path / "a.txt").write_text("a b")
        assert client.translate_file(tmp_path / "a.txt", "en", "de")
        for call in (lambda: client.translate("a", "en", "fr"), lambda: client.suggest("a", "b", "en", "de")):
            with pytest.raises(LibreTranslateError):
                call()

    async def asynchronous() -> Any:
        async with AsyncLibreTranslate(address, api_key=KEY) as client:
            return await asyncio.gather(*(client.translate(["a b", letter], "en", "de") for letter in "cd"))

    assert [answer.translated_text for answer in asyncio.run(asynchronous())] == [["b a", "c"], ["b a", "d"]]


def test_deep_translator(address: str) -> None:
    """This client sends everything in the query, the key too. It has neither alternatives nor lists in one request."""
    client = LibreTranslator(source="en", target="de", api_key=KEY, custom_url=address)
    assert client.translate("a b c") == "c b a"
    assert client.translate_batch(["a b", "c d"]) == ["b a", "d c"]
    assert LibreTranslator(source="auto", target="de", api_key=KEY, custom_url=address).translate("a b") == "b a"
    with pytest.raises(AuthorizationException):
        LibreTranslator(source="en", target="de", api_key="wrong", custom_url=address).translate("a b c")
    with pytest.raises(ServerException):
        LibreTranslator(source="en", target="fr", api_key=KEY, custom_url=address).translate("a b c")


def test_libretranslate_of_npm(address: str) -> None:
    """This client asks for a target only if /languages lists it. It sends its key in a separate field, apiKey."""
    assert npm_results(address, "libretranslate") == {
        "single": "c b a",
        "list": ["b a", "d c"],
        "auto": "b a",
        "html": "<p>b a</p>",
        "unknown": "TypeError: This language was not found/does not exist.",
        "wrongKey": None,
    }


def test_deepl_node(address: str) -> None:
    assert npm_results(address, "deepl-node") == {
        "single": {"text": "c b a", "detectedSourceLang": "en", "billedCharacters": 5},
        "list": ["b a", "d c"],
        "html": "<p>b a</p>",
        "split": "d c b a",
        "source": [["en", "English"]],
        "target": [["de", "German"]],
        "limitReached": False,
        "glossary": True,
        "entries": [["b", "x"]],
        "formality": "Error: Bad request, message: formality: expected default or prefer_*; "
        "this server cannot choose the formality",
        "wrongKey": "Error: Authorization failure, check auth_key, message: Invalid API key",
    }


def test_deepl(address: str) -> None:
    client = deepl.Translator(KEY, server_url=address.rstrip("/"))
    assert client.translate_text("a b c", target_lang="DE").text == "c b a"
    results = client.translate_text(["a b", "c d"], source_lang="EN", target_lang="DE", split_sentences="0")
    assert [result.text for result in results] == ["b a", "d c"]
    assert results[0].detected_source_lang == "EN"
    assert client.translate_text("<p>a b</p>", target_lang="DE", tag_handling="html").text == "<p>b a</p>"
    assert [language.code for language in client.get_target_languages()] == ["DE"]
    assert not client.get_usage().any_limit_reached
    glossary = client.create_glossary("names", "EN", "DE", {"b": "x"})
    assert client.get_glossary(glossary.glossary_id).entry_count == 1
    assert client.get_glossary_entries(glossary) == {"b": "x"}
    assert "x" in client.translate_text("a b", source_lang="EN", target_lang="DE", glossary=glossary).text.split()
    assert [each.glossary_id for each in client.list_glossaries()] == [glossary.glossary_id]
    client.delete_glossary(glossary)
    with pytest.raises(deepl.exceptions.GlossaryNotFoundException):
        client.get_glossary(glossary.glossary_id)
    with pytest.raises(deepl.DeepLException, match="formality"):
        client.translate_text("a b c", target_lang="DE", formality="more")
    with pytest.raises(deepl.AuthorizationException):
        deepl.Translator("wrong", server_url=address.rstrip("/")).translate_text("a", target_lang="DE")


@pytest.fixture(scope="module")
def address_of_two_pairs(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("glossaries")
    models = [f"{pair}={toy.model}" for pair in ("en-de", "fr-de")]
    with server_process(folder, models, "--glossaries", folder / "glossaries") as server:
        yield f"http://127.0.0.1:{server.port}/"


def test_glossaries_of_several_languages_of_deepl(address_of_two_pairs: str) -> None:
    client = deepl.DeepLClient(KEY, server_url=address_of_two_pairs.rstrip("/"))
    entries = deepl.api_data.MultilingualGlossaryDictionaryEntries
    glossary = client.create_multilingual_glossary(
        "names", [entries("EN", "DE", {"b": "x"}), entries("FR", "DE", {"b": "y"})]
    )

    def counts() -> list[tuple[str, str, int]]:
        described = client.get_multilingual_glossary(glossary.glossary_id)
        return [(each.source_lang, each.target_lang, each.entry_count) for each in described.dictionaries]

    def of(source: str) -> str:
        (found,) = client.get_multilingual_glossary_entries(glossary, source, "DE").dictionaries
        return str(found.entries)  # the client gives the text of the answer

    def translated(source: str) -> list[str]:
        return client.translate_text(
            "a b", source_lang=source, target_lang="DE", glossary=glossary.glossary_id
        ).text.split()

    assert counts() == [("EN", "DE", 1), ("FR", "DE", 1)]
    assert "x" in translated("EN") and "y" in translated("FR")
    changed = client.update_multilingual_glossary_dictionary(glossary, entries("EN", "DE", {"a": "z", "c": "c"}))
    assert changed.name == "names" and counts() == [("EN", "DE", 3), ("FR", "DE", 1)]
    assert of("EN") == "b\tx\na\tz\nc\tc\n"
    replaced = client.replace_multilingual_glossary_dictionary(glossary, entries("EN-GB", "DE", {"a": "y"}))
    assert replaced.entry_count == 1 and of("EN") == "a\ty\n" and "y" in translated("EN")
    csv = client.replace_multilingual_glossary_dictionary_from_csv(glossary, "FR", "DE", "b,x")
    assert csv.entry_count == 1 and of("FR") == "b\tx\n"
    assert client.update_multilingual_glossary_name(glossary, "others").name == "others"
    assert [each.name for each in client.list_multilingual_glossaries()] == ["others"]
    assert client.list_glossaries() == []
    client.delete_multilingual_glossary_dictionary(glossary, source_lang="FR", target_lang="DE")
    assert counts() == [("EN", "DE", 1)] and client.list_glossaries()[0].name == "others"
    with pytest.raises(deepl.exceptions.GlossaryNotFoundException):
        client.get_multilingual_glossary_entries(glossary, "FR", "DE")
    client.delete_multilingual_glossary(glossary)
    with pytest.raises(deepl.exceptions.GlossaryNotFoundException):
        client.get_multilingual_glossary(glossary.glossary_id)


def test_glossaries_of_several_languages_of_deepl_node(address_of_two_pairs: str) -> None:
    assert npm_results(address_of_two_pairs, "deepl-node", "deepl-node-glossaries") == {
        "created": [["en", "de", 1], ["fr", "de", 1]],
        "translated": [True, True],
        "updated": [["en", "de", 2], ["fr", "de", 1]],
        "entries": [["b", "x"], ["a", "z"]],
        "replaced": ["en", "de", 1],
        "csv": ["fr", "de", 2],
        "name": "others",
        "listed": ["others"],
        "withoutFrench": [["en", "de", 1]],
        "noDictionary": "GlossaryNotFoundError",
        "deleted": "GlossaryNotFoundError",
    }


# ---- programs that cannot be installed here: their requests, as their sources write them -----------------------------

TWP = b"q=a%20b%20%26%20c&source=auto&target=de&format=text&api_key="
WEB_PAGE = (
    ("q", "a b"),
    ("source", "auto"),
    ("target", "de"),
    ("format", "text"),
    ("alternatives", "3"),
    ("api_key", ""),
)


def multipart(fields: Any, boundary: str = "----WebKitFormBoundaryA1b2C3d4E5f6G7h8") -> tuple[bytes, dict[str, str]]:
    """Return fields as a browser sends a FormData, and its header."""
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{v}\r\n' for name, v in fields]
    return ("".join(parts) + f"--{boundary}--\r\n").encode(), {
        "content-type": f"multipart/form-data; boundary={boundary}"
    }


def test_mastodon() -> None:
    """A post, its warning, the options of its poll and the text of a picture; then its statuses that mean something."""
    with served() as service:
        texts = ["<p>a b<br>c d</p>", "a &lt; b", "", "c"]
        for source in ("auto", "en"):
            body = {"q": texts, "source": source, "target": "de", "format": "html", "api_key": None}
            answer = service.call("POST", "/translate", json.dumps(body).encode(), JSON).json
            assert answer["translatedText"] == ["<p>b a<br>d c</p>", "b &lt; a", "", "c"]
            codes = [language["language"] for language in answer.get("detectedLanguage", [])]
            assert codes == (["en"] * 4 if source == "auto" else [])
        languages = service.call("GET", "/languages").json
        assert {language["code"]: language["targets"] for language in languages} == {"en": ["de", "en"], "de": ["de"]}
    with served(keys=["k"]) as service:
        assert service.post("/translate", **{**body, "api_key": "wrong"}).status == 403


@pytest.mark.parametrize("key", ["", "k"])
def test_weblate(key: str) -> None:
    """It reads the codes of /languages, and sends a list as JSON; older versions send one text in a form."""
    with served(keys=[key] if key else []) as service:
        assert [language["code"] for language in service.call("GET", "/languages").json] == ["en", "de"]
        fields = {"api_key": key, "q": ["a b", "c"], "source": "en", "target": "de"}
        assert service.post("/translate", **fields).json == {"translatedText": ["b a", "c"]}
        assert service.form("/translate", {**fields, "q": "a b"}).json == {"translatedText": "b a"}


def test_the_browser_extension_twp() -> None:
    with served() as service:
        answer = service.call("POST", "/translate", TWP, FORM)
        assert answer.json["translatedText"] == "c & b a"
        assert answer.json["detectedLanguage"]["language"] == "en"  # it reads this without a check
        assert answer.headers["access-control-allow-origin"] == "*"


def test_the_web_page_of_libretranslate() -> None:
    """It sends a multipart form, and drops the request when its user types on."""
    model = Reverser()
    with served(model) as service:
        body, headers = multipart(WEB_PAGE)
        answer = service.call("POST", "/translate", body, headers).json
        assert answer["translatedText"] == "b a" and answer["alternatives"] == ["b a 1", "b a 2", "b a 3"]
        assert set(answer["detectedLanguage"]) == {"language", "confidence"}
        languages = {language["code"]: language for language in service.call("GET", "/languages").json}
        # it looks each of them up
        assert all(code in languages for language in languages.values() for code in language["targets"])
        model.gate.clear()
        assert service.call("POST", "/translate", body, headers, leaves=True).status == 0
        model.gate.set()
        assert service.translate("a b").status == 200


def test_a_plug_in_that_sends_lists_of_fifty() -> None:
    with served() as service:
        answer = service.translate([f"a {i}" for i in range(50)], source="auto").json
        assert answer["translatedText"] == [f"{i} a" for i in range(50)]
