"""A door: the routes of one kind of client, with its form of requests, answers and errors."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from transduce.serve.logs import Record
from transduce.serve.refusal import Refusal
from transduce.serve.requests import Fields, read_fields
from transduce.serve.service import Service
from transduce.serve.settings import ServerSettings


class Door:
    """A form of the API; the routes of each derive from this class."""

    def __init__(self, service: Service, settings: ServerSettings) -> None:
        self.service = service
        self.settings = settings

    def error(self, refusal: Refusal) -> Response:
        """Return the answer to a refused request."""
        raise NotImplementedError

    async def fields(self, request: Request) -> Fields:
        """Return the fields of a request."""
        return await read_fields(request, self.settings.limits)

    @staticmethod
    def record(request: Request) -> Record:
        """Return what the log will say about the request."""
        return request.scope["transduce.record"]


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer in JSON."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")
