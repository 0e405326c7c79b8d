"""The API of DeepL's clients: /v2/translate, /v2/languages, /v2/usage. `glossary_routes.py` has its glossaries.

Options that change nothing here are ignored. Those that this server could not keep are refused by name.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from transduce.decoding.options import Split
from transduce.decoding.phrases.terms import NO_TERMS, Terms
from transduce.serve.api import ClientApi, json_response
from transduce.serve.glossaries import Glossaries, owner_of, terms_of
from transduce.serve.models import LanguagePair, name_of
from transduce.serve.phrases import refuse_phrases
from transduce.serve.refusal import Refusal, invalid
from transduce.serve.requests import Fields
from transduce.serve.service import TranslateCall, check_texts

SCHEME = "deepl-auth-key "
CHARACTER_LIMIT = 1_000_000_000_000  # DeepL's clients want a number; this server has no limit over time
# Of split_sentences: how lines are split into sentences, and whether a line break ends one.
SPLITS: dict[str, tuple[Split | None, bool]] = {
    "": (None, True),
    "0": ("long", False),
    "1": ("sentences", True),
    "nonewlines": ("sentences", False),
}
NOT_HERE = (  # options of DeepL that change a translation
    *("glossary_ids", "style_id", "style_rules", "custom_instructions", "translation_memory_id"),
    *("ignore_tags", "non_splitting_tags", "splitting_tags"),
)
FORMALITIES = ("", "default", "prefer_more", "prefer_less")


class DeepL(ClientApi):
    """The routes of DeepL. glossaries: the glossaries of its clients."""

    glossaries: Glossaries

    def error(self, refusal: Refusal) -> Response:
        return json_response({"message": refusal.message}, refusal.status, refusal.headers)

    async def translate(self, request: Request) -> Response:
        fields = await self.fields(request)
        call = self._call(fields, owner_of(self.key(request, fields)))
        translations = await self.service.translate(call, request, self.record(request))
        for i, translation in enumerate(translations):
            if translation.problem is not None:
                raise translation.problem.at(f"$.text[{i}]")
        entries: list[dict[str, object]] = []
        for text, pair, translation in zip(call.texts, call.pairs, translations, strict=True):
            entries.append({"detected_source_language": pair[0].upper(), "text": translation.text})
            if translation.unmet:  # the targets of terms
                entries[-1]["unmetConstraints"] = list(translation.unmet)
            if translation.doubts:
                entries[-1]["doubts"] = list(translation.doubts)
            if translation.text_confidence is not None:
                entries[-1]["textConfidence"] = translation.text_confidence
            if fields.is_true("show_billed_characters"):
                entries[-1]["billed_characters"] = len(text)
        return json_response({"translations": entries})

    async def languages(self, request: Request) -> Response:
        fields = await self.fields(request)
        kind = fields.optional_text("type") or "source"
        if kind not in ("source", "target"):
            raise invalid("type: expected source or target")
        models = self.service.models
        codes = models.sources if kind == "source" else models.targets
        is_target = {"supports_formality": False} if kind == "target" else {}
        return json_response([{"language": code.upper(), "name": name_of(code), **is_target} for code in codes])

    async def usage(self, request: Request) -> Response:
        await self.fields(request)
        return json_response({"character_count": 0, "character_limit": CHARACTER_LIMIT})

    def _terms(self, fields: Fields, owner: str, pairs: Sequence[LanguagePair]) -> Terms:
        """Return the terms of the glossary that a request names."""
        key = fields.optional_text("glossary_id")
        if not key:
            return NO_TERMS
        glossary = self.glossaries.find(owner, key)
        if not fields.optional_text("source_lang"):
            raise invalid("Use of a glossary requires the source_lang parameter to be specified")
        dictionary = glossary.dictionary(pairs[0])
        if dictionary is None:
            raise invalid("The source_lang and target_lang parameters do not match the languages of the glossary")
        return terms_of(glossary.id, frozenset(dictionary.entries.items()))

    def key(self, request: Request, fields: Fields) -> str:
        header = request.headers.get("authorization", "")
        key = header[len(SCHEME) :].strip() if header.lower().startswith(SCHEME) else ""
        field = fields.values.get("auth_key")
        if self.accounts and not key and not isinstance(field, str):
            raise Refusal(403, "Forbidden: expected the header Authorization: DeepL-Auth-Key KEY", "key")
        return key or str(field or "")

    def _call(self, fields: Fields, owner: str) -> TranslateCall:
        texts, _ = fields.texts("text")
        check_texts(texts, self.service.limits)
        _refuse_what_cannot_be_kept(fields)
        split = str(fields.values.get("split_sentences") or "")
        if fields.values.get("split_sentences") == 0:
            split = "0"
        if split not in SPLITS:
            raise invalid("split_sentences: expected 0, 1 or nonewlines")
        models = self.service.models
        target_text, source_text = fields.text("target_lang"), fields.optional_text("source_lang")
        target = models.code(target_text)
        if target not in models.targets:
            raise invalid("Value for 'target_lang' not supported.")
        source = models.code(source_text) if source_text else None
        if source_text and (source is None or (source, target) not in models.by_pair and source != target):
            raise invalid("Value for 'source_lang' not supported.")
        is_html = fields.optional_text("tag_handling") == "html"
        if source is None:
            sources = [language for language, _ in self.detections(texts, target, is_html=is_html)]
        else:
            sources = [source] * len(texts)
        mode, keeps_lines = SPLITS[split]
        pairs = [(source, target) for source in sources]
        return TranslateCall(
            texts,
            pairs,
            is_html=is_html,
            split=mode,
            keeps_lines=keeps_lines,
            terms=self._terms(fields, owner, pairs),
        )


def _refuse_what_cannot_be_kept(fields: Fields) -> None:
    """Raise Refusal for options that would change the translation, and that this server does not have."""
    if fields.optional_text("formality") not in FORMALITIES:
        raise invalid("formality: expected default or prefer_*; this server cannot choose the formality")
    if fields.optional_text("tag_handling") not in ("", "html"):
        raise invalid("tag_handling: expected html; this server does not handle XML")
    for name in NOT_HERE:
        if fields.values.get(name) not in (None, "", [], {}):
            raise invalid(f"{name}: expected none; this server does not have this option")
    refuse_phrases(fields)
