"""The API of one kind of client: its form of requests, answers and errors. And the headers of every answer."""

import secrets
from collections.abc import Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from transduce.serve.keys import Accounts
from transduce.serve.logs import Record
from transduce.serve.markup import visible_text
from transduce.serve.refusal import Refusal
from transduce.serve.requests import Fields, read_fields
from transduce.serve.service import Service
from transduce.serve.settings import ServerSettings

PROBES = ("/healthz", "/readyz", "/health", "/metrics")  # routes that answer at once, however busy the server is


class ClientApi:
    """The API of one kind of client. Each kind has a class with its routes, which derives from this class."""

    def __init__(self, service: Service, settings: ServerSettings, accounts: Accounts) -> None:
        self.service = service
        self.settings = settings
        self.accounts = accounts

    def error(self, refusal: Refusal) -> Response:
        """Return the answer to a refused request."""
        raise NotImplementedError

    async def fields(self, request: Request) -> Fields:
        """Return the fields of a request, whose key is accepted."""
        fields = await read_fields(request, self.settings.limits)
        account = self.accounts.of(self.key(request, fields))
        if account is not None:
            record = self.record(request)
            record.key, record.sender = account.key.name, account.sender
            account.count_request()
        return fields

    def key(self, request: Request, fields: Fields) -> str:
        """Return the key of a request; empty if it has none."""
        raise NotImplementedError

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


def answer_headers(settings: ServerSettings, origin: str = "") -> dict[str, str]:
    """Return the headers that every answer has in addition to its request id. origin: of the page that asks."""
    origins = settings.origins
    headers = {
        "Access-Control-Allow-Origin": origin if origin in origins else origins[0],
        "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Request-Id",
        "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE, OPTIONS",
        "Access-Control-Expose-Headers": "Retry-After, X-Request-Id",
    }
    return headers if settings.cors == "*" else {**headers, "Vary": "Origin"}
