"""Installed clients of LibreTranslate and DeepL, each by its own calls; recorded bodies of programs on the web."""

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import deepl
import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException
from libretranslate_aio import LibreTranslate
from libretranslate_aio.exceptions import LibreTranslateError
from libretranslatepy import LibreTranslateAPI
from support.serving import FORM, JSON, ServerProcess, served, server_process
from support.toy_task import Toy

KEY = "a-key"


@pytest.fixture(scope="module")
def server(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("clients")
    (folder / "keys").write_text(KEY)
    with server_process(folder, toy.model, "--api-keys", folder / "keys") as server:
        yield server


@pytest.fixture(scope="module")
def address(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}/"


def test_libretranslatepy(address: str) -> None:
    client = LibreTranslateAPI(address, KEY)
    assert client.translate("a b c", "en", "de") == "c b a"
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["de", "en"]}]
    assert client.detect("a b") == [{"confidence": 0.0, "language": "en"}]
    with pytest.raises(urllib.error.HTTPError):
        LibreTranslateAPI(address, "wrong").translate("a b c", "en", "de")


def test_libretranslate_aio(address: str, tmp_path: Path) -> None:
    with LibreTranslate(address, api_key=KEY) as client:
        assert client.translate("a b", "en", "de").translated_text == "b a"
        lists = client.translate(["a b", "c d"], "auto", "de", alternatives=2)
        assert lists.translated_text == ["b a", "d c"]
        assert client.languages()[0].targets == ["de", "en"]
        assert client.frontend_settings().language.target.code == "de"
        assert client.detect("a")[0].language == "en"
        (tmp_path / "a.txt").write_text("a b")
        for call in (lambda: client.translate("a", "en", "fr"), lambda: client.suggest("a", "b", "en", "de"),
                     lambda: client.translate_file(tmp_path / "a.txt", "en", "de")):  # fmt: skip
            with pytest.raises(LibreTranslateError):
                call()


def test_deep_translator(address: str) -> None:
    client = LibreTranslator(source="en", target="de", api_key=KEY, custom_url=address)
    assert client.translate("a b c") == "c b a"
    assert client.translate_batch(["a b", "c d"]) == ["b a", "d c"]
    with pytest.raises(AuthorizationException):
        LibreTranslator(source="en", target="de", api_key="wrong", custom_url=address).translate("a b c")


def test_deepl(address: str) -> None:
    client = deepl.Translator(KEY, server_url=address.rstrip("/"))
    assert client.translate_text("a b c", target_lang="DE").text == "c b a"
    results = client.translate_text(["a b", "c d"], source_lang="EN", target_lang="DE", split_sentences="0")
    assert [result.text for result in results] == ["b a", "d c"]
    assert results[0].detected_source_lang == "EN"
    assert client.translate_text("<p>a b</p>", target_lang="DE", tag_handling="html").text == "<p>b a</p>"
    assert [language.code for language in client.get_target_languages()] == ["DE"]
    assert not client.get_usage().any_limit_reached
    with pytest.raises(deepl.DeepLException, match="formality"):
        client.translate_text("a b c", target_lang="DE", formality="more")
    with pytest.raises(deepl.AuthorizationException):
        deepl.Translator("wrong", server_url=address.rstrip("/")).translate_text("a", target_lang="DE")


def test_recorded_bodies_of_programs_on_the_web() -> None:
    with served() as service:
        mastodon = {"q": ["<p>a b</p>", "c", ""], "source": "auto", "target": "de", "format": "html", "api_key": None}
        answer = service.call("POST", "/translate", json.dumps(mastodon).encode(), JSON).json
        assert answer["translatedText"] == ["<p>b a</p>", "c", ""]
        assert [one["language"] for one in answer["detectedLanguage"]] == ["en"] * 3
        weblate = {"api_key": "", "q": ["a b"], "source": "en", "target": "de"}
        assert service.post("/translate", **weblate).json == {"translatedText": ["b a"]}
        twp = b"q=a%20b&source=auto&target=de&format=text&api_key="
        assert service.call("POST", "/translate", twp, FORM).json["detectedLanguage"]["language"] == "en"
        npm = service.post("/translate", q="a b", source="en", target="de", apiKey="x")
        assert npm.json == {"translatedText": "b a"}
