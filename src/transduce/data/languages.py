"""The language of a text, by py3langid. That package is the extra `detect`; without it no language is known."""

import functools
import importlib.util
from collections.abc import Callable, Mapping

Identifier = Callable[[str], tuple[str, float]]  # a text -> the code of its language, and the probability of it
Likelihoods = Callable[[str], Mapping[str, float]]  # a text -> the likelihood of each language, by its code

CHARACTERS = 1_000  # of a text that are read: 2 ms, and more change nothing
SHORT_CHARACTERS = 200  # of a line of a corpus
ALIASES = {"nb": "no"}  # codes that the package has under another name


@functools.cache  # reading its model takes half a second
def language_likelihoods(languages: frozenset[str]) -> Likelihoods | None:
    """Return a function that knows `languages`; None without the package, or if it does not know one of them."""
    if importlib.util.find_spec("py3langid") is None:
        return None
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    labels = {language: ALIASES.get(language, language) for language in languages}
    if not set(labels.values()) <= set(identifier.labels):
        return None
    identifier.set_languages(labels.values())

    def likelihoods(text: str) -> Mapping[str, float]:
        by_label = dict(identifier.rank(text[:CHARACTERS]))
        return {language: by_label[label] for language, label in labels.items()}

    return likelihoods


@functools.cache
def language_identifier() -> Identifier | None:
    """Return a function that knows all languages of the package; None without it."""
    if importlib.util.find_spec("py3langid") is None:
        return None
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    def identify(text: str) -> tuple[str, float]:
        language, probability = identifier.classify(text[:SHORT_CHARACTERS])
        return str(language), float(probability)

    return identify
