"""The API of one kind of client: its form of requests, answers and errors. And the headers of every answer."""

import secrets
from collections.abc import Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from transduce.serve.logs import Record
from transduce.serve.markup import visible_text
from transduce.serve.refusal import Refusal
from transduce.serve.requests import Fields, read_fields
from transduce.serve.service import Service
from transduce.serve.settings import ServerSettings


class ClientApi:
    """The API of one kind of client. Each kind has a class with its routes, which derives from this class."""

    def __init__(self, service: Service, settings: ServerSettings) -> None:
        self.service = service
        self.settings = settings

    def error(self, refusal: Refusal) -> Response:
        """Return the answer to a refused request."""
        raise NotImplementedError

    async def fields(self, request: Request) -> Fields:
        """Return the fields of a request."""
        return await read_fields(request, self.settings.limits)

    def detections(self, texts: Sequence[str], target: str, *, is_html: bool) -> list[tuple[str, float]]:
        """Return the language of each text that is to be translated into `target`, and the confidence."""
        detect = self.service.models.detect
        return [detect(visible_text(text) if is_html else text, target) for text in texts]

    @staticmethod
    def record(request: Request) -> Record:
        """Return what the log will say about the request."""
        return request.scope["transduce.record"]


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer in JSON."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")


def new_id() -> str:
    """Return a new request id."""
    return secrets.token_hex(8)


def answer_headers(settings: ServerSettings) -> dict[str, str]:
    """Return the headers that every answer has in addition to its request id."""
    headers = {
        "Access-Control-Allow-Origin": settings.cors,
        "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Request-Id",
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Access-Control-Expose-Headers": "Retry-After, X-Request-Id",
    }
    return headers if settings.cors == "*" else {**headers, "Vary": "Origin"}
