"""The description of the service in OpenAPI 3.1."""

from collections.abc import Mapping, Sequence

from transduce import __version__
from transduce.decoding.phrases.line_constraint import MOST_CHARACTERS, MOST_PHRASES
from transduce.serve.phrases import MOST_TERMS
from transduce.serve.service import Service
from transduce.serve.settings import ServerSettings

STRING: dict[str, object] = {"type": "string"}
TEXTS = {"oneOf": [STRING, {"type": "array", "items": STRING}]}
PHRASE: dict[str, object] = {**STRING, "minLength": 1, "maxLength": MOST_CHARACTERS}
PHRASE_LIST: dict[str, object] = {"type": ["array", "null"], "items": PHRASE, "maxItems": MOST_PHRASES}
PHRASES = {"anyOf": [PHRASE_LIST, {"type": "array", "items": PHRASE_LIST}]}
REQUIRED: dict[str, object] = {"anyOf": [PHRASE, {"type": "array", "items": PHRASE, "minItems": 1}]}
REQUIRED_LIST: dict[str, object] = {**PHRASE_LIST, "items": REQUIRED}
REQUIRED_PHRASES = {"anyOf": [REQUIRED_LIST, {"type": "array", "items": REQUIRED_LIST}]}
PREFIX = {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": ["string", "null"]}}]}
KEY_IN_PATH: dict[str, object] = {"name": "key", "in": "path", "required": True, "schema": STRING}
GLOSSARY_KEY: dict[str, object] = {"parameters": [KEY_IN_PATH]}
LANGUAGES: list[dict[str, object]] = [
    {"name": name, "in": "query", "required": True, "schema": STRING} for name in ("source_lang", "target_lang")
]
DICTIONARY_KEY: dict[str, object] = {"parameters": [KEY_IN_PATH, *LANGUAGES]}
DICTIONARY: dict[str, object] = {
    "source_lang": STRING,
    "target_lang": STRING,
    "entries": STRING,
    "entries_format": {"enum": ["tsv", "csv"]},
}
DICTIONARIES: dict[str, object] = {
    "type": "array",
    "items": {"type": "object", "properties": DICTIONARY, "required": [*DICTIONARY]},
}
FILE: dict[str, object] = {
    "file": {**STRING, "format": "binary"},
    "source": STRING,
    "target": STRING,
    "placeholders": {"type": "boolean", "default": False},
    "min_confidence": {
        "type": ["number", "null"],
        "minimum": 0,
        "maximum": 1,
        "description": "the confidence below which a text is doubtful; the model needs a calibration",
    },
}
FORMS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")


def document(service: Service, settings: ServerSettings, title: str) -> dict[str, object]:
    """Return the description of a server, with its languages and its limits.

    title: "LibreTranslate" for clients that accept only a server of this title, such as Dialect.
    """
    key = {"api_key": {"type": ["string", "null"], "description": "needed if the server has keys"}}
    translate, deepl = {**_translate_fields(service, settings), **key}, _deepl_fields(service, settings)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": __version__,
            "description": "transduce serve: translation by own models, for clients of LibreTranslate and DeepL.",
        },
        "paths": {
            "/translate": {"post": _post("Translate", translate, ["q", "source", "target"], "Translation", "Error")},
            "/detect": {"post": _post("Detect the language", {"q": TEXTS, **key}, ["q"], "Detections", "Error")},
            "/languages": {"get": _get("The languages and their targets")},
            "/frontend/settings": {"get": _get("The settings that a page needs")},
            "/suggest": {"post": _refusal("Suggestions are disabled")},
            "/translate_file": {
                "post": _post(
                    "Translate a file", {**FILE, **key}, ["file", "source", "target"], "File", "Error", FORMS[-1:]
                )
            },
            "/download_file/{name}": {"get": {**_download(), "parameters": [{**KEY_IN_PATH, "name": "name"}]}},
            "/health": {"get": _get("The process lives")},
            "/healthz": {"get": _get("The process lives")},
            "/readyz": {"get": _get("200 if the server takes requests, else 503")},
            "/v2/translate": {
                "post": _post("Translate, for DeepL's clients", deepl, ["text", "target_lang"], "DeepL", "Message")
            },
            "/v2/languages": _get_or_post("The languages, for DeepL's clients"),
            "/v2/usage": _get_or_post("The usage, for DeepL's clients; it is not counted"),
            **_glossary_paths(),
            "/": {"get": _get("The page that translates")},
            "/openapi.json": {"get": _get("This description")},
            "/spec": {"get": _get("This description, titled as LibreTranslate's clients expect")},
            **({"/metrics": {"get": _get("Figures for Prometheus")}} if settings.metrics_port is None else {}),
        },
        "components": {"schemas": SCHEMAS},
    }


def _glossary_paths() -> dict[str, object]:
    """Return the paths of DeepL's glossaries."""
    return {
        "/v2/glossary-language-pairs": {"get": _get("The languages of glossaries")},
        "/v2/glossaries": {
            "get": _of_glossaries("The glossaries of the key with one dictionary"),
            "post": _kept("Keep a glossary", {"name": STRING, **DICTIONARY}, "201"),
        },
        "/v2/glossaries/{key}": {
            "get": {**_of_glossaries("A glossary"), **GLOSSARY_KEY},
            "delete": {**_of_glossaries("Delete a glossary", "204"), **GLOSSARY_KEY},
        },
        "/v2/glossaries/{key}/entries": {"get": {**_of_glossaries("The entries, in TSV"), **GLOSSARY_KEY}},
        "/v3/glossaries": {
            "get": _of_glossaries("The glossaries of the key"),
            "post": _kept("Keep a glossary", {"name": STRING, "dictionaries": DICTIONARIES}, "201"),
        },
        "/v3/glossaries/{key}": {
            "get": {**_of_glossaries("A glossary"), **GLOSSARY_KEY},
            "patch": {
                **_kept(
                    "Change the name, or add entries", {"name": STRING, "dictionaries": DICTIONARIES}, n_required=0
                ),
                **GLOSSARY_KEY,
            },
            "delete": {**_of_glossaries("Delete a glossary", "204"), **GLOSSARY_KEY},
        },
        "/v3/glossaries/{key}/entries": {
            "get": {**_of_glossaries("The entries of a dictionary, in TSV"), **DICTIONARY_KEY}
        },
        "/v3/glossaries/{key}/dictionaries": {
            "put": {**_kept("Replace the entries of a dictionary", DICTIONARY), **GLOSSARY_KEY},
            "delete": {**_of_glossaries("Delete a dictionary", "204"), **DICTIONARY_KEY},
        },
    }


def _translate_fields(service: Service, settings: ServerSettings) -> dict[str, object]:
    """Return the fields of a request to /translate, without the key."""
    models, limits = service.models, settings.limits
    texts = {"oneOf": [{**STRING, "maxLength": limits.text_characters}, {"type": "array", "maxItems": limits.texts}]}
    return {
        "q": {**texts, "description": "the text, or a list of texts"},
        "source": {**STRING, "examples": ["auto", *models.sources]},
        "target": {**STRING, "examples": models.targets},
        "format": {"enum": ["text", "html", None], "default": "text"},
        "alternatives": {"type": ["integer", "null"], "maximum": service.max_alternatives, "default": 0},
        "confidence": {"type": "boolean", "default": False},
        "must": {
            **REQUIRED_PHRASES,
            "description": "phrases that the translation has, or lists of alternatives; a list of lists for a list",
        },
        "must_not": {**PHRASES, "description": "phrases that the translation does not have"},
        "prefix": {**PREFIX, "description": "text that the translation begins with; a list for a list"},
        "terms": {
            "type": ["object", "null"],
            "additionalProperties": STRING,
            "maxProperties": MOST_TERMS,
            "description": "targets of terms of the source language, with | between alternatives; for all texts",
        },
        "placeholders": {"type": "boolean", "default": False, "description": "keep {name}, %s, tags and the like"},
    }


def _deepl_fields(service: Service, settings: ServerSettings) -> dict[str, object]:
    """Return the fields of a request to /v2/translate."""
    models, limits = service.models, settings.limits
    return {
        "text": {"type": "array", "items": STRING, "maxItems": limits.texts},
        "target_lang": {**STRING, "examples": [code.upper() for code in models.targets]},
        "source_lang": {**STRING, "examples": [code.upper() for code in models.sources]},
        "split_sentences": {"enum": ["0", "1", "nonewlines"]},
        "tag_handling": {"enum": ["html"]},
        "glossary_id": {"type": ["string", "null"], "description": "needs source_lang"},
        "show_billed_characters": {"type": "boolean"},
    }


def _post(
    summary: str,
    properties: Mapping[str, object],
    required: list[str],
    answer: str,
    error: str,
    forms: Sequence[str] = FORMS,
) -> dict[str, object]:
    schema = {"type": "object", "properties": properties, "required": required}
    refusals = {
        "400": "the request is wrong",
        "403": "the key is wrong",
        "408": "the body was too slow",
        "413": "the body is too long, or the texts are more than can be translated in time",
        "429": "too much is waiting; see Retry-After",
        "503": "no answer in time; see Retry-After",
    }
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {form: {"schema": schema} for form in forms}},
        "responses": {
            "200": _response("the answer", answer),
            **{status: _response(text, error) for status, text in refusals.items()},
        },
    }


def _download() -> dict[str, object]:
    responses = {"200": {"description": "the file"}, "404": _response("no such file waits", "Error")}
    return {"summary": "A translated file, once", "responses": responses}


def _get(summary: str) -> dict[str, object]:
    return {"summary": summary, "responses": {"200": {"description": "the answer"}}}


def _kept(
    summary: str, properties: Mapping[str, object], status: str = "200", n_required: int | None = None
) -> dict[str, object]:
    schema = {"type": "object", "properties": properties, "required": [*properties][:n_required]}
    refusals = {
        "400": "a field is wrong",
        "403": "the key is wrong",
        "404": "the key has no such glossary",
        "456": "the server has too many glossaries",
    }
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {form: {"schema": schema} for form in FORMS}},
        "responses": {
            status: {"description": "the glossary, or the dictionary"},
            **{number: _response(text, "Message") for number, text in refusals.items()},
        },
    }


def _of_glossaries(summary: str, status: str = "200") -> dict[str, object]:
    refusals = {
        "400": "the server keeps no glossaries, or the request is wrong",
        "403": "the key is wrong",
        "404": "the key has no such glossary",
    }
    responses = {number: _response(text, "Message") for number, text in refusals.items()}
    return {"summary": summary, "responses": {status: {"description": "done"}, **responses}}


def _get_or_post(summary: str) -> dict[str, object]:
    return {"get": _get(summary), "post": _get(summary)}


def _refusal(summary: str) -> dict[str, object]:
    return {"summary": summary, "responses": {"403": _response("disabled", "Error")}}


def _response(description: str, schema: str) -> dict[str, object]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


CONFIDENCE: dict[str, object] = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
DOUBT = {"enum": ["repeated", "cut", "unsplit", "short"]}
DETECTION = {
    "type": "object",
    "properties": {"language": STRING, "confidence": {"type": "number", "minimum": 0, "maximum": 100}},
}
SCHEMAS: dict[str, object] = {
    "Translation": {
        "type": "object",
        "required": ["translatedText"],
        "properties": {
            "translatedText": TEXTS,
            "detectedLanguage": {"oneOf": [DETECTION, {"type": "array", "items": DETECTION}]},
            "alternatives": {"type": "array"},
            "confidence": {"type": "array"},
            "textConfidence": {"anyOf": [CONFIDENCE, {"type": "array", "items": CONFIDENCE}]},
            "unmetConstraints": {"type": "array"},
            "doubts": {"type": "array", "items": {"anyOf": [DOUBT, {"type": "array", "items": DOUBT}]}},
            "problems": {"type": "array", "items": {"type": ["string", "null"]}},
        },
    },
    "File": {
        "type": "object",
        "required": ["translatedFileUrl", "doubtfulTexts"],
        "properties": {
            "translatedFileUrl": STRING,
            "doubtfulTexts": {
                "type": "array",
                "description": "the texts of the file that a reader should look at, with the reasons",
                "items": {
                    "type": "object",
                    "required": ["number", "text"],
                    "properties": {
                        "number": {"type": "integer", "minimum": 1, "description": "of the text, in the file's order"},
                        "text": {**STRING, "description": "of the source"},
                        "problem": {**STRING, "description": "why the text has no translation"},
                        "unmetConstraints": {"type": "array", "items": STRING},
                        "doubts": {"type": "array", "items": DOUBT},
                        "textConfidence": {**CONFIDENCE, "description": "if it is below min_confidence"},
                    },
                },
            },
        },
    },
    "Detections": {"type": "array", "items": DETECTION},
    "DeepL": {
        "type": "object",
        "properties": {
            "translations": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "detected_source_language": STRING,
                        "text": STRING,
                        "unmetConstraints": {"type": "array", "items": STRING},
                        "doubts": {"type": "array", "items": DOUBT},
                        "textConfidence": CONFIDENCE,
                    },
                },
            }
        },
    },
    "Error": {"type": "object", "required": ["error"], "properties": {"error": STRING}},
    "Message": {"type": "object", "required": ["message"], "properties": {"message": STRING}},
}
