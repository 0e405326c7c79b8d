"""The models of a server: what it needs of an engine, the model of a language pair, codes and names of languages."""

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from transduce.config.schema import Config
from transduce.data.languages import Likelihoods
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.confidence import Calibration
from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.line_constraint import LineConstraint
from transduce.decoding.phrases.terms import NO_TERMS, Terms
from transduce.errors import UserError

SURE = 50  # the confidence from which a text counts as one in the target language

LineKey = TypeVar("LineKey", bound=Hashable)
LanguagePair = tuple[str, str]  # the codes of source and target


class Search(Protocol[LineKey]):
    """Lines that one model translates together, in one thread. The caller knows a line by its key."""

    def __len__(self) -> int:
        """Return the number of lines that are not done."""
        ...

    @property
    def room(self) -> tuple[int, int]:
        """The number of lines, and of source tokens, that it can take in now."""
        ...

    @property
    def is_blocked(self) -> bool:
        """True while another search has the model, if only one at a time may use it. A step then translates nothing."""
        ...

    def admit(
        self, key: LineKey, text: str, options: DecodingOptions, constraint: LineConstraint = ..., terms: Terms = ...
    ) -> None:
        """Take a line in. An exception concerns only this line."""
        ...

    def step(self) -> dict[LineKey, Translation | Exception]:
        """Compute for a while; return the lines that end here, by key: the translation, or the reason for none."""
        ...

    def drop(self, keys: Collection[LineKey]) -> None:
        """Stop translating lines."""
        ...

    def close(self) -> None:
        """Let other searches have the model. The search is not used again."""
        ...


class TranslationModel(Protocol):
    """A model of any engine: `transduce.Translator`, or `interop.ctranslate2_engine.ExportedTranslator`."""

    config: Config
    tokenizer: TokenizerLike

    @property
    def engine(self) -> str:
        """The name of the engine, as in --engine."""
        ...

    @property
    def precision(self) -> str:
        """The precision of the search, in words."""
        ...

    @property
    def kernels(self) -> str:
        """The kernels that compute: "compiled", "torch", "cuda" or "ctranslate2"."""
        ...

    @property
    def takes_constraints(self) -> bool:
        """True if a line can have phrases that its translation must have, and must not have."""
        ...

    @property
    def calibration(self) -> Calibration | None:
        """The calibration, which gives translations their confidence; None: they have none."""
        ...

    @property
    def parallel_searches(self) -> int:
        """The number of searches that are fastest together, each in a thread."""
        ...

    def translate(self, lines: Sequence[str], *, options: DecodingOptions = ...) -> list[Translation]:
        """Return the translation of each line."""
        ...

    def running(self) -> Search[Any] | None:
        """Return an empty search that takes lines in before each step; None if the engine has none."""
        ...


class ServerModels:
    """The models of a server, by (source, target).

    tags: for each pair, the tag of its target language, or None. likelihoods: of the language of a text; None: the
    tokenizers tell it. terms: for each pair that has some.
    """

    def __init__(
        self,
        by_pair: Mapping[LanguagePair, TranslationModel],
        likelihoods: Likelihoods | None = None,
        terms: Mapping[LanguagePair, Terms] | None = None,
    ) -> None:
        self._likelihoods = likelihoods
        self.by_pair = dict(by_pair)
        self.terms = {pair: NO_TERMS for pair in by_pair} | dict(terms or {})
        self.tags = {pair: tag_of(model.tokenizer.tags, pair[1]) for pair, model in by_pair.items()}
        self.sources = list(dict.fromkeys(source for source, _ in by_pair))
        self.targets = list(dict.fromkeys(target for _, target in by_pair))
        self.codes = list(dict.fromkeys([*self.sources, *self.targets]))

    def code(self, text: str) -> str | None:
        """Return the code of this server that `text` means, or None.

        Case does not matter. The region of `text` is ignored if no code of this server has it.
        """
        name = text.replace("_", "-").lower()
        exact = [code for code in self.codes if code.lower() == name]
        same_language = [code for code in self.codes if primary(code) == primary(name)]
        return next(iter(exact + same_language), None) if name else None

    def targets_of(self, source: str) -> list[str]:
        """Return the languages into which `source` can be translated, itself included."""
        return list(dict.fromkeys([*(target for code, target in self.by_pair if code == source), source]))

    def detect(self, text: str, target: str | None = None) -> tuple[str, float]:
        """Return the most likely language of `text`, and the confidence, from 0 to 100; 0 is "cannot tell".

        target: only this language, and sources with a model into it, are considered. A text is taken for one in the
        target language, which needs no translation, only if that is twice as likely.
        """
        sources = [source for source, other in self.by_pair if other == target or target is None]
        sources = list(dict.fromkeys(sources)) or self.sources
        if self._likelihoods is None or not text.strip():
            return self._language_of_fewest_pieces(text, sources)
        likelihoods = self._likelihoods(text)
        candidates = list(dict.fromkeys([*sources, target] if target else self.codes))
        ranking = sorted(candidates, key=lambda code: -likelihoods[primary(code)])
        rivals = [code for code in ranking if primary(code) != primary(ranking[0])]
        if not rivals:
            return ranking[0], 0.0
        confidence = 100 * (1 - likelihoods[primary(rivals[0])] / likelihoods[primary(ranking[0])])
        if ranking[0] == target and confidence < SURE:
            return rivals[0], 0.0
        return ranking[0], round(confidence, 1)

    def _language_of_fewest_pieces(self, text: str, sources: Sequence[str]) -> tuple[str, float]:
        """Return the source whose tokenizer needs the fewest pieces for a text, and the confidence."""
        if len(sources) == 1 or not text.strip():
            return sources[0], 0.0
        counts = []
        for source in sources:
            model = next(model for (code, _), model in self.by_pair.items() if code == source)
            counts.append((len(model.tokenizer.encode(text)), source))
        (fewest, best), (second, _) = sorted(counts, key=lambda pair: pair[0])[:2]
        return best, round(100.0 * (1 - fewest / second), 1) if second else 0.0


def tag_of(tags: Sequence[str], target: str) -> str | None:
    """Return the tag of a language: its letters are the code, such as <2fr> and >>fr<<. None for a model without tags.

    Raises UserError if no tag, or more than one, belongs to the language.
    """
    if not tags:
        return None
    letters = re.sub(r"[^a-z]", "", target.lower())
    matches = [tag for tag in tags if re.sub(r"[^a-z]", "", tag.lower()) == letters]
    if len(matches) != 1:
        names = ", ".join(tags)
        raise UserError(f"{target}: expected the language of one tag of the model; name it as one of {names} does")
    return matches[0]


def primary(code: str) -> str:
    """Return the language of a code without its region: "pt" for "pt-BR"."""
    return code.lower().partition("-")[0]


def check_code(code: str) -> str:
    """Return a language code of the command line unchanged. Raises UserError for other text."""
    parts = code.split("-")
    if not all(part.isascii() and part.isalnum() and len(part) <= 8 for part in parts) or not 2 <= len(parts[0]) <= 3:
        raise UserError(f"{code!r}: expected the code of a language, such as en or pt-BR")
    return code


def check_pair(source: str, target: str) -> LanguagePair:
    """Return two language codes of the command line. Raises UserError for other text, and for one language twice."""
    pair = check_code(source), check_code(target)
    if source.lower() == target.lower():
        raise UserError(f"{source}-{target}: expected two different languages, such as en-de; correct one of them")
    return pair


def pair_of(text: str) -> LanguagePair:
    """Return the two codes of a pair such as en-de or pt-BR-en: the target is what follows the last hyphen."""
    source, _, target = text.rpartition("-")
    if not source:
        raise UserError(f"{text}: expected two languages, such as en-de")
    return check_pair(source, target)


def name_of(code: str) -> str:
    """Return the English name of a language, or the code itself."""
    name = NAMES.get(primary(code), code)
    region = code.partition("-")[2]
    return f"{name} ({region})" if region and name != code else name


NAMES: dict[str, str] = {
    item.partition("=")[0]: item.partition("=")[2]
    for item in (
        "af=Afrikaans am=Amharic ar=Arabic az=Azerbaijani be=Belarusian bg=Bulgarian bn=Bengali bs=Bosnian ca=Catalan "
        "cs=Czech cy=Welsh da=Danish de=German el=Greek en=English eo=Esperanto es=Spanish et=Estonian eu=Basque "
        "fa=Persian fi=Finnish fr=French ga=Irish gl=Galician gu=Gujarati ha=Hausa he=Hebrew hi=Hindi hr=Croatian "
        "hu=Hungarian hy=Armenian id=Indonesian ig=Igbo is=Icelandic it=Italian ja=Japanese ka=Georgian kk=Kazakh "
        "km=Khmer kn=Kannada ko=Korean ky=Kyrgyz la=Latin lb=Luxembourgish lo=Lao lt=Lithuanian lv=Latvian "
        "mk=Macedonian ml=Malayalam mn=Mongolian mr=Marathi ms=Malay mt=Maltese my=Burmese nb=Norwegian ne=Nepali "
        "nl=Dutch nn=Nynorsk no=Norwegian pa=Punjabi pl=Polish ps=Pashto pt=Portuguese ro=Romanian ru=Russian "
        "rw=Kinyarwanda si=Sinhala sk=Slovak sl=Slovenian so=Somali sq=Albanian sr=Serbian sv=Swedish sw=Swahili "
        "ta=Tamil te=Telugu tg=Tajik th=Thai tk=Turkmen tl=Filipino tr=Turkish tt=Tatar uk=Ukrainian ur=Urdu uz=Uzbek "
        "vi=Vietnamese xh=Xhosa yo=Yoruba zh=Chinese zu=Zulu"
    ).split()
}
