"""Connections that end below the application: their answers, in the metrics and in the log."""

import secrets

from transduce.serve.logs import Log, Record
from transduce.serve.metrics import Metrics
from transduce.serve.settings import ServerSettings

ROUTE = "connection"  # in metrics and log, of a request whose headers were not read


class ConnectionObserver:
    """Counts and logs the connections that the protocol refuses or ends by itself."""

    def __init__(self, settings: ServerSettings, metrics: Metrics, log: Log) -> None:
        self._settings = settings
        self._metrics = metrics
        self._log = log

    def refuse(self, status: int, reason: str) -> dict[str, str]:
        """Count and log a request that the protocol refuses. Return the headers of its answer."""
        record = Record(new_id(), ROUTE, status)
        self._metrics.requests.labels(ROUTE, str(status)).inc()
        self._metrics.rejected.labels(reason).inc()
        self._log.write("info", "request", **vars(record), ms=0.0)
        return {**answer_headers(self._settings), "X-Request-Id": record.id}

    def abort(self, reason: str) -> None:
        """Count a connection that is closed before its client has read the answer."""
        self._metrics.cancelled.labels(reason).inc()


def new_id() -> str:
    """Return a new request id."""
    return secrets.token_hex(8)


def answer_headers(settings: ServerSettings) -> dict[str, str]:
    """Return the headers that every answer has, beside its request id."""
    headers = {
        "Access-Control-Allow-Origin": settings.cors,
        "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Request-Id",
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Access-Control-Expose-Headers": "Retry-After, X-Request-Id",
    }
    return headers if settings.cors == "*" else {**headers, "Vary": "Origin"}
