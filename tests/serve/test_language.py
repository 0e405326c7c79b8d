"""The language of a text by py3langid: between a pair and its reverse, and with the target as a candidate."""

import importlib.util
from collections.abc import Iterator

import pytest
from support.serving import Reverser, Served, served
from support.toy_task import ROOT

from transduce.data.languages import language_likelihoods
from transduce.serve.models import ServerModels

TEXTS = ROOT / "benchmarks" / "short_texts.tsv"
ENGLISH, GERMAN, REVERSED = "The old dog runs.", "Der alte Hund rennt.", "runs. dog old The"


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """Return a service of a pair and its reverse, which share one tokenizer."""
    pytest.importorskip("py3langid")
    pairs = {("en", "de"): Reverser(), ("de", "en"): Reverser()}
    with served(pairs) as service:
        service.service.models = ServerModels(pairs, language_likelihoods(frozenset(["en", "de"])))
        yield service


def languages_of(service: Served, texts: list[str], **fields: str) -> tuple[list[str], list[str]]:
    """Return the translations of texts, and the languages in which they were."""
    answer = service.translate(texts, source="auto", **fields).json
    return answer["translatedText"], [detection["language"] for detection in answer["detectedLanguage"]]


def test_a_text_in_the_target_language_stays_as_it_is_and_the_answer_says_so(service: Served) -> None:
    assert languages_of(service, [ENGLISH, GERMAN]) == ([REVERSED, GERMAN], ["en", "de"])
    texts = [f"<p>{ENGLISH}</p>", f"<p class='the of and to in'>{GERMAN}</p>"]
    assert languages_of(service, texts, format="html") == ([f"<p>{REVERSED}</p>", texts[1]], ["en", "de"])
    answer = service.post("/v2/translate", text=[ENGLISH, GERMAN], target_lang="DE").json["translations"]
    assert [(text["detected_source_language"], text["text"]) for text in answer] == [("EN", REVERSED), ("DE", GERMAN)]


def test_a_text_of_which_it_is_not_sure_is_translated(service: Served) -> None:
    for text in ("12:30", "Ja", " "):
        answer = service.translate(text, source="auto").json
        assert answer["detectedLanguage"] == {"language": "en", "confidence": 0.0}, text


def test_detect_tells_a_pair_from_its_reverse(service: Served) -> None:
    for text, language in ((ENGLISH, "en"), (GERMAN, "de")):
        (verdict,) = service.post("/detect", q=text).json
        assert verdict["language"] == language and verdict["confidence"] > 80


def test_a_server_of_one_pair_knows_its_target_language() -> None:
    pytest.importorskip("py3langid")
    models = ServerModels({("nb", "pt-BR"): Reverser()}, language_likelihoods(frozenset(["nb", "pt"])))
    assert models.detect("O cachorro velho corre.", "pt-BR")[0] == "pt-BR"
    assert models.detect("Den gamle hunden løper.", "pt-BR")[0] == "nb"


def test_without_the_package_or_with_an_unknown_language_the_tokenizers_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert language_likelihoods(frozenset(["en", "tlh"])) is None
    language_likelihoods.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert language_likelihoods(frozenset(["en", "de"])) is None
    language_likelihoods.cache_clear()


def test_short_texts_of_twenty_languages() -> None:
    """Measured: 198 of 200."""
    pytest.importorskip("py3langid")
    rows = [line.split("\t") for line in TEXTS.read_text("utf-8").splitlines()]
    languages = sorted({language for language, _ in rows})
    likelihoods = language_likelihoods(frozenset(languages))
    assert likelihoods is not None and len(languages) == 20
    n_right = 0
    for language, text in rows:
        scores = likelihoods(text)
        n_right += language == max(scores, key=lambda code: scores[code])
    assert n_right >= 196
