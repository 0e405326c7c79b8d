"""The API of LibreTranslate's clients: its routes, its requests, its answers, its words."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from transduce.errors import UserError
from transduce.serve.api import ClientApi, json_response
from transduce.serve.documents import filled, lines_of
from transduce.serve.downloads import Downloads
from transduce.serve.file_translation import PORTION, doubtful_texts, translate_parts
from transduce.serve.formats.files import MODULES, File, extension_of, read_file
from transduce.serve.models import LanguagePair, name_of
from transduce.serve.phrases import constraints_of, keeps_placeholders, refuse_phrases_of_file, terms_of
from transduce.serve.refusal import Refusal, invalid
from transduce.serve.requests import Fields
from transduce.serve.service import ClientLeft, TextTranslation, TranslateCall, check_texts

FORMATS = {"text": False, "html": True}
PLACE = "Invalid request: $.q"
Detections = Sequence[tuple[str, float]]  # the language of each text, and the confidence; empty if the source is given
NOT_STORED = {"Cache-Control": "no-store"}
KEY_FIELDS = ("api_key", "secret", "apiKey")


class LibreTranslate(ClientApi):
    """The routes of LibreTranslate. downloads: the translated files of all generations of the server."""

    downloads: Downloads

    def error(self, refusal: Refusal) -> Response:
        return json_response({"error": refusal.message}, refusal.status, refusal.headers)

    async def translate(self, request: Request) -> Response:
        fields = await self.fields(request)
        call, is_list, detections = self._call(fields)
        record = self.record(request)
        if "text/event-stream" in request.headers.get("accept", ""):
            return self._stream(call, request, is_list, detections)
        translations = await self.service.translate(call, request, record)
        return json_response(self._answer(translations, call, is_list, detections))

    async def detect(self, request: Request) -> Response:
        fields = await self.fields(request)
        texts, _ = fields.texts("q")
        check_texts(texts, self.service.limits)
        language, confidence = self.service.models.detect(" ".join(texts))
        return json_response([{"confidence": confidence, "language": language}])

    async def languages(self, request: Request) -> Response:
        """Answer all languages. Clients refuse a target that is not listed itself, also one that is no source."""
        models = self.service.models
        return json_response(
            [{"code": code, "name": name_of(code), "targets": models.targets_of(code)} for code in models.codes]
        )

    async def frontend_settings(self, request: Request) -> Response:
        pair = next(iter(self.service.models.by_pair))
        source, target = ({"code": code, "name": name_of(code)} for code in pair)
        return json_response(
            {
                "charLimit": self.service.limits.text_characters,
                "frontendTimeout": 500,
                "apiKeys": bool(self.accounts),
                "keyRequired": bool(self.accounts),
                "suggestions": False,
                "filesTranslation": True,
                "supportedFilesFormat": [f".{extension}" for extension in MODULES],
                "language": {"source": source, "target": target},
            }
        )

    async def health(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    async def suggest(self, request: Request) -> Response:
        raise Refusal(403, "Suggestions are disabled on this server.", "disabled")

    async def translate_file(self, request: Request) -> Response:
        """Translate a file, a portion of its texts after the other, and keep it for a download."""
        fields = await self.fields(request)
        refuse_phrases_of_file(fields)
        async with self.downloads.work(self.service.limits.file_seconds):
            return await self._file_answer(request, fields)

    async def _file_answer(self, request: Request, fields: Fields) -> Response:
        name, content = fields.file("file")
        file = await self._file(name, content)
        parts = lines_of(file.document)
        (pair, *_), _ = self._pairs(fields, [" ".join(part.line for part in parts[:PORTION])], is_html=False)
        min_confidence, placeholders = self._min_confidence(fields, pair), keeps_placeholders(fields)
        translations = await translate_parts(
            self.service, parts, pair, request, self.record(request), placeholders=placeholders
        )
        sources = (part.write(part.line, None) for part in parts)
        pieces = [source if each.problem else each.text for source, each in zip(sources, translations, strict=True)]
        data = await self.downloads.run(file.write, filled(file.document, pieces))
        url = _download_address(request) + self.downloads.add(name, pair[1], data)
        doubtful = doubtful_texts(parts, translations, min_confidence)
        return json_response({"translatedFileUrl": url, "doubtfulTexts": doubtful})

    async def _file(self, name: str, content: bytes) -> File:
        """Return a file of a request. Raises Refusal for one that is not sound, or has too many characters."""
        try:
            extension = extension_of(name, "Invalid request: file")
            file = await self.downloads.run(read_file, content, extension, "Invalid request: file")
        except UserError as error:
            raise invalid(str(error)) from None
        most, count = self.service.limits.file_characters, sum(len(part.line) for part in lines_of(file.document))
        if count > most:
            raise invalid(f"Invalid request: file ({count} characters) exceeds limit ({most})")
        return file

    def _min_confidence(self, fields: Fields, pair: LanguagePair) -> float | None:
        """Return the confidence below which a text is doubtful. Raises Refusal if the model has no calibration."""
        least = fields.fraction("min_confidence")
        model = self.service.models.by_pair.get(pair)
        if least is not None and model is not None and model.calibration is None:
            raise invalid("Invalid request: $.min_confidence: expected a model with a calibration; leave it out")
        return least

    async def download_file(self, request: Request) -> Response:
        file = self.downloads.take(request.path_params["name"], is_kept=request.method == "HEAD")
        disposition = f"attachment; filename*=UTF-8''{quote(file.name)}"
        headers = {**NOT_STORED, "Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
        return Response(file.content, headers=headers, media_type="application/octet-stream")

    def key(self, request: Request, fields: Fields) -> str:
        keys = [fields.values.get(name) for name in KEY_FIELDS]
        return next((key for key in keys if key and isinstance(key, str)), "")

    def _call(self, fields: Fields) -> tuple[TranslateCall, bool, Detections]:
        """Return what a request asks for, True if its texts were a list, and the languages if they are detected."""
        texts, is_list = fields.texts("q")
        name = fields.optional_text("format") or "text"
        if name not in FORMATS:
            raise invalid(f"{name} format is not supported")
        alternatives = fields.number("alternatives", self.service.max_alternatives)
        check_texts(texts, self.service.limits)
        pairs, detections = self._pairs(fields, texts, is_html=FORMATS[name])
        constraints = constraints_of(fields, len(texts), is_list)
        if any(constraints) and FORMATS[name]:
            raise invalid("Invalid request: $.format: expected text with must, must_not or prefix, not html")
        has_confidence = fields.is_true("confidence") and not FORMATS[name]
        more = {"has_confidence": has_confidence, "constraints": constraints if any(constraints) else ()}
        more |= {"terms": terms_of(fields), "placeholders": keeps_placeholders(fields)}
        call = TranslateCall(texts, pairs, alternatives, is_html=FORMATS[name], **more)
        return call, is_list, detections

    def _pairs(self, fields: Fields, texts: Sequence[str], *, is_html: bool) -> tuple[list[LanguagePair], Detections]:
        """Return source and target of each text, and the languages if they are detected."""
        source, target = fields.text("source"), fields.text("target")
        models = self.service.models
        target_code = models.code(target)
        is_auto = source.lower() == "auto"
        source_code = None if is_auto else models.code(source)
        for code, text in ((source_code, source), (target_code, target)):
            if code is None and not (is_auto and text is source):
                raise invalid(f"{text} is not supported")
        assert target_code is not None
        detections = self.detections(texts, target_code, is_html=is_html) if is_auto else []
        sources = [language for language, _ in detections] or [source_code or ""] * len(texts)
        for source in sources:
            if source != target_code and (source, target_code) not in models.by_pair:
                names = f"{name_of(target_code)} ({target_code})", f"{name_of(source)} ({source})"
                raise invalid(f"{names[0]} is not available as a target language from {names[1]}")
        return [(source, target_code) for source in sources], detections

    def _answer(
        self, translations: Sequence[TextTranslation], call: TranslateCall, is_list: bool, detections: Detections
    ) -> Mapping[str, object]:
        """Return the answer: lists if the texts were a list, else the first of each."""
        problems = [t.problem for t in translations]
        if problems[0] is not None and (not is_list or all(problem and problem.status >= 500 for problem in problems)):
            raise problems[0].at(PLACE)
        lists: dict[str, list[object]] = {"translatedText": [t.text for t in translations]}
        if detections:
            lists["detectedLanguage"] = [
                {"confidence": confidence, "language": language} for language, confidence in detections
            ]
        if call.alternatives:
            lists["alternatives"] = [list(t.alternatives) for t in translations]
        if call.has_confidence:
            lists["confidence"] = [t.confidence for t in translations]
        if any(t.text_confidence is not None for t in translations):
            lists["textConfidence"] = [t.text_confidence for t in translations]
        if call.constraints or call.terms or call.placeholders or any(t.unmet for t in translations):
            lists["unmetConstraints"] = [list(t.unmet) for t in translations]
        if any(t.doubts for t in translations):
            lists["doubts"] = [list(t.doubts) for t in translations]
        if any(problems):
            lists["problems"] = [problem and problem.message for problem in problems]
        return lists if is_list else {name: values[0] for name, values in lists.items()}

    def _stream(self, call: TranslateCall, request: Request, is_list: bool, detections: Detections) -> Response:
        """Return the translation as server-sent events: one for each finished segment, and at the end the answer."""
        if is_list:
            raise invalid("Invalid request: $.q: expected one text for text/event-stream, not a list")
        record = self.record(request)
        work = self.service.start(call, record)
        if work.texts[0].problem is not None:
            raise work.texts[0].problem.at(PLACE)

        async def events() -> AsyncIterator[bytes]:
            try:
                async for index, text in self.service.segments(work):
                    yield _event("segment", {"index": index, "text": text})
                yield _event("done", self._answer(work.translations(call), call, is_list, detections))
            except Refusal as refusal:
                self.service.metrics.rejected.labels(refusal.reason).inc()
                yield _event("error", {"error": refusal.message})

        return EventStream(events(), lambda: self.service.end(work, record))


def _download_address(request: Request) -> str:
    """Return the address of downloads, to which a name is added."""
    scheme = request.headers.get("x-forwarded-proto", "")
    scheme = scheme if scheme in ("http", "https") else request.scope["scheme"]
    return f"{scheme}://{request.headers.get('host', '')}/download_file/"


class EventStream(StreamingResponse):
    """An answer in events. on_end: called when it ends, also if the client left before the first event."""

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        self._is_complete = False
        self._on_end = on_end
        super().__init__(self._until_complete(events), media_type="text/event-stream", headers=NOT_STORED)

    async def _until_complete(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for event in events:
            yield event
        self._is_complete = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
        if not self._is_complete:
            raise ClientLeft


def _event(name: str, value: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode()
