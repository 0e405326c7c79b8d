"""The application: routes, the answer to every error, CORS, request ids, metrics and the log of requests."""

import functools
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.serve.api import PROBES, ClientApi, answer_headers, json_response, new_id
from transduce.serve.deepl import DeepL
from transduce.serve.downloads import Downloads
from transduce.serve.glossaries import Glossaries
from transduce.serve.glossary_routes import GlossaryRoutes
from transduce.serve.keys import Accounts
from transduce.serve.libretranslate import LibreTranslate
from transduce.serve.logs import LEFT, Log, Record
from transduce.serve.metrics import Metrics
from transduce.serve.openapi import document
from transduce.serve.refusal import Refusal
from transduce.serve.service import ClientLeft, Service
from transduce.serve.settings import ServerSettings

Handler = Callable[[Request], Awaitable[Response]]
MAX_AGE = 7_200  # seconds for which a browser may keep the answer to a preflight; none keeps it longer than a day
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class ServiceState:
    """What a server keeps over a reload. is_ready: a first translation was made, and no signal came."""

    is_ready = False

    def __init__(self) -> None:
        self.downloads = Downloads()


def application(service: Service, settings: ServerSettings, state: ServiceState, log: Log) -> ASGIApp:
    """Return the whole application of a server."""
    accounts = Accounts(settings.keys)
    libre, deepl = LibreTranslate(service, settings, accounts), DeepL(service, settings, accounts)
    libre.downloads = state.downloads
    deepl.glossaries = Glossaries(settings.glossaries, log)
    glossaries = GlossaryRoutes(deepl)
    page = files("transduce.serve").joinpath("page.html").read_bytes()

    async def index(request: Request) -> Response:
        return Response(page, headers=PAGE_HEADERS, media_type="text/html")

    def specification(title: str) -> Handler:
        body = msgspec.json.encode(document(service, settings, title))

        async def respond(request: Request) -> Response:
            return Response(body, media_type="application/json")

        return respond

    async def healthz(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def readyz(request: Request) -> Response:
        return json_response({"status": "ready" if state.is_ready else "not ready"}, 200 if state.is_ready else 503)

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    routes: list[tuple[str, str, Handler]] = [
        ("POST", "/translate", libre.translate),
        ("POST", "/detect", libre.detect),
        ("GET", "/languages", libre.languages),
        ("GET", "/frontend/settings", libre.frontend_settings),
        ("GET", "/health", libre.health),
        ("POST", "/suggest", libre.suggest),
        ("POST", "/translate_file", libre.translate_file),
        ("GET", "/download_file/{name}", libre.download_file),
        ("POST", "/v2/translate", deepl.translate),
        ("GET POST", "/v2/languages", deepl.languages),
        ("GET POST", "/v2/usage", deepl.usage),
        ("GET", "/v2/glossary-language-pairs", glossaries.pairs),
        ("GET POST", "/v2/glossaries", glossaries.glossaries),
        ("GET DELETE", "/v2/glossaries/{key}", glossaries.glossary),
        ("GET", "/v2/glossaries/{key}/entries", glossaries.entries),
        ("GET POST", "/v3/glossaries", glossaries.glossaries),
        ("GET PATCH DELETE", "/v3/glossaries/{key}", glossaries.glossary),
        ("GET", "/v3/glossaries/{key}/entries", glossaries.entries),
        ("PUT DELETE", "/v3/glossaries/{key}/dictionaries", glossaries.dictionaries),
        ("GET", "/", index),
        ("GET", "/openapi.json", specification("transduce serve")),
        ("GET", "/spec", specification("LibreTranslate")),
        ("GET", "/healthz", healthz),
        ("GET", "/readyz", readyz),
    ]
    if settings.metrics_port is None:
        routes.append(("GET", "/metrics", metrics))
    table = [Route(path, handler, methods=methods.split()) for methods, path, handler in routes]
    app = Router(table, redirect_slashes=False)
    return Front(app, libre, deepl, settings, log, table)


def metrics_application(metrics: Metrics) -> ASGIApp:
    """Return the application of the metrics port."""

    async def text(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    return Router([Route("/metrics", text)])


PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Front:
    """The outermost layer: it gives each request an id, answers each error, and counts and logs the request."""

    def __init__(
        self,
        app: ASGIApp,
        libre: ClientApi,
        deepl: ClientApi,
        settings: ServerSettings,
        log: Log,
        routes: Sequence[Route],
    ) -> None:
        self._app = app
        self._libre = libre
        self._deepl = deepl
        self._settings = settings
        self._added_headers = functools.lru_cache(maxsize=64)(functools.partial(_added_headers, settings))
        self._log = log
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = "/" + scope["path"].lstrip("/")
        scope = {**scope, "path": path, "app": self}  # with an app, the router raises 404 and 405 as exceptions
        headers = dict(scope["headers"])
        added = self._added_headers(headers.get(b"origin", b"").decode("latin-1"), scope["method"] == "OPTIONS")
        name = headers.get(b"x-request-id", b"").decode("latin-1")
        record = Record(name if REQUEST_ID.fullmatch(name) else new_id())
        record.route = next((route.path for route in self._routes if route.path_regex.match(path)), "other")
        scope["transduce.record"] = record
        start = time.monotonic()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = [*message["headers"], *added, (b"x-request-id", record.id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._respond(scope, receive, send_with_headers, record)
        finally:
            seconds = time.monotonic() - start
            metrics = self._libre.service.metrics
            metrics.requests.labels(record.route, str(record.status)).inc()
            metrics.request_seconds.labels(record.route).observe(seconds)
            if record.key:
                metrics.key_requests.labels(record.key, str(record.status)).inc()
                metrics.key_characters.labels(record.key).inc(record.characters)
            if self._settings.logs_probes or path not in PROBES or record.status >= 400:
                level = "info" if record.status < 500 else "error"
                self._log.write(level, "request", **record.values, ms=1000 * seconds)

    async def _respond(self, scope: Scope, receive: Receive, send: Send, record: Record) -> None:
        """Answer a request; every error becomes an answer of the API that the request came to."""
        api = self._deepl if scope["path"].startswith(("/v2/", "/v3/")) else self._libre
        metrics = self._libre.service.metrics
        try:
            if scope["method"] == "OPTIONS":
                response = Response(status_code=204)
            else:
                await self._app(scope, receive, send)
                return
        except (ClientLeft, ClientDisconnect):
            record.status = LEFT
            metrics.cancelled.labels("left").inc()
            return
        except Refusal as refusal:
            metrics.rejected.labels(refusal.reason).inc()
            response = api.error(refusal)
        except HTTPException as problem:
            response = api.error(Refusal(problem.status_code, problem.detail, "route"))
            response.headers.update(problem.headers or {})
        except Exception as problem:  # a defect of this program; its message may quote the text
            self._log.write_defect(problem, id=record.id)
            response = api.error(Refusal(500, "internal error", "defect"))
        if record.status == LEFT:  # no byte of the answer is sent yet
            await response(scope, receive, send)


def _added_headers(settings: ServerSettings, origin: str, is_preflight: bool) -> list[tuple[bytes, bytes]]:
    headers = answer_headers(settings, origin)
    if is_preflight:
        headers["Access-Control-Max-Age"] = str(MAX_AGE)
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
