"""The routes of DeepL's glossaries: /v2 for glossaries of one dictionary, /v3 for any number of them."""

import re
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from transduce.serve.api import json_response
from transduce.serve.deepl import DeepL
from transduce.serve.glossaries import Dictionary, Glossary, owner_of, parse_entries
from transduce.serve.models import LanguagePair
from transduce.serve.refusal import Refusal, invalid
from transduce.serve.requests import Fields

_OF_DICTIONARY = re.compile(r"dictionaries\[(\d{1,3})\]\.(\w+)")  # a field of a form


class GlossaryRoutes:
    """The glossaries of the clients of an API."""

    def __init__(self, api: DeepL) -> None:
        self._api = api
        self._glossaries = api.glossaries

    async def pairs(self, request: Request) -> Response:
        await self._api.fields(request)
        pairs = [{"source_lang": source, "target_lang": target} for source, target in self._api.service.models.by_pair]
        return json_response({"supported_languages": pairs})

    async def glossaries(self, request: Request) -> Response:
        """Create a glossary, or list them."""
        fields, owner = await self._read(request)
        if request.method == "GET":
            every = [each for each in self._glossaries.of(owner) if _is_there(each, request)]
            return json_response({"glossaries": [_described(each, request) for each in every]})
        dictionaries = [self._dictionary(fields)] if _is_v2(request) else self._dictionaries(fields)
        if not dictionaries:
            raise invalid("dictionaries: expected at least one")
        glossary = self._glossaries.create(owner, fields.text("name"), dictionaries)
        return json_response(_described(glossary, request), 201)

    async def glossary(self, request: Request) -> Response:
        """Describe a glossary, delete it, or change its name or entries."""
        fields, owner = await self._read(request)
        glossary = self._find(owner, request)
        if request.method == "DELETE":
            self._glossaries.delete(owner, glossary.id)
            return Response(status_code=204)
        if request.method == "PATCH":
            name, dictionaries = fields.optional_text("name") or glossary.name, self._dictionaries(fields)
            glossary = self._glossaries.change(glossary, name, [_extended(glossary, each) for each in dictionaries])
        return json_response(_described(glossary, request))

    async def entries(self, request: Request) -> Response:
        fields, owner = await self._read(request)
        glossary = self._find(owner, request)
        if _is_v2(request):
            return Response(_tsv(glossary.dictionaries[0]), media_type="text/tab-separated-values")
        dictionary = self._named(glossary, fields)
        entries = {**_languages(dictionary), "entries": _tsv(dictionary), "entries_format": "tsv"}
        return json_response({"dictionaries": [entries]})

    async def dictionaries(self, request: Request) -> Response:
        """Replace a dictionary of a glossary, or delete it."""
        fields, owner = await self._read(request)
        glossary = self._find(owner, request)
        if request.method == "DELETE":
            self._glossaries.remove(glossary, self._named(glossary, fields))
            return Response(status_code=204)
        dictionary = self._dictionary(fields)
        self._glossaries.change(glossary, glossary.name, [dictionary])
        return json_response(_counted(dictionary))

    # ---- requests --------------------------------------------------------------------------------------------------

    async def _read(self, request: Request) -> tuple[Fields, str]:
        """Return the fields of a request, and the owner of its glossaries."""
        fields = await self._api.fields(request)
        return fields, owner_of(self._api.key(request, fields))

    def _find(self, owner: str, request: Request) -> Glossary:
        glossary = self._glossaries.find(owner, request.path_params["key"])
        if not _is_there(glossary, request):
            raise Refusal(404, "Glossary not found among those with one dictionary; ask /v3/glossaries", "glossaries")
        return glossary

    def _named(self, glossary: Glossary, fields: Fields) -> Dictionary:
        """Return the dictionary that a request names. Raises Refusal if the glossary does not have it."""
        dictionary = glossary.dictionary(self._pair(fields))
        if dictionary is None:
            raise Refusal(404, "Glossary dictionary not found", "glossaries")
        return dictionary

    def _dictionaries(self, fields: Fields) -> list[Dictionary]:
        """Return the dictionaries of a request: a list of objects, or fields such as `dictionaries[0].entries`."""
        values = fields.values.get("dictionaries") or []
        if fields.is_form:
            by_number = dict[int, dict[str, object]]()
            for name, value in fields.values.items():
                if match := _OF_DICTIONARY.fullmatch(name):
                    by_number.setdefault(int(match[1]), {})[match[2]] = value
            values = [by_number[number] for number in sorted(by_number)]
        try:
            objects = msgspec.convert(values, list[dict[str, object]])
        except msgspec.ValidationError:
            raise invalid("dictionaries: expected a list of objects") from None
        dictionaries = [self._dictionary(Fields(each)) for each in objects]
        if len({each.pair for each in dictionaries}) < len(dictionaries):
            raise invalid("dictionaries: expected each pair of languages once")
        return dictionaries

    def _dictionary(self, fields: Fields) -> Dictionary:
        source, target = self._pair(fields)
        entries = parse_entries(fields.text("entries"), fields.text("entries_format"))
        return Dictionary(source=source, target=target, entries=entries)

    def _pair(self, fields: Fields) -> LanguagePair:
        """Return the languages of a dictionary. Raises Refusal if no model translates between them."""
        models = self._api.service.models
        source, target = (models.code(fields.text(name)) for name in ("source_lang", "target_lang"))
        if source is None or target is None or (source, target) not in models.by_pair:
            raise invalid("Unsupported glossary source and target language pair.")
        return source, target


def _is_v2(request: Request) -> bool:
    return request.scope["path"].startswith("/v2/")


def _is_there(glossary: Glossary, request: Request) -> bool:
    """Return True for a glossary that the version of a request can describe."""
    return not _is_v2(request) or len(glossary.dictionaries) == 1


def _extended(glossary: Glossary, more: Dictionary) -> Dictionary:
    """Return a dictionary with the entries of the glossary's own one, which its own replace."""
    before = glossary.dictionary(more.pair)
    return more if before is None else msgspec.structs.replace(more, entries={**before.entries, **more.entries})


def _described(glossary: Glossary, request: Request) -> dict[str, object]:
    """Return the description of a glossary, in the version of a request."""
    created = datetime.fromtimestamp(glossary.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    about = {"glossary_id": glossary.id, "name": glossary.name, "creation_time": created}
    dictionaries = [_counted(each) for each in glossary.dictionaries]
    return {**about, "ready": True, **dictionaries[0]} if _is_v2(request) else {**about, "dictionaries": dictionaries}


def _counted(dictionary: Dictionary) -> dict[str, object]:
    return {**_languages(dictionary), "entry_count": len(dictionary.entries)}


def _languages(dictionary: Dictionary) -> dict[str, object]:
    return {"source_lang": dictionary.source, "target_lang": dictionary.target}


def _tsv(dictionary: Dictionary) -> str:
    return "".join(f"{source}\t{target}\n" for source, target in dictionary.entries.items())
