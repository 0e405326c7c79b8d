"""HTTP/1.1 on a connection, with the time-outs and limits that uvicorn's protocol does not have."""

import asyncio
import json
import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from transduce.serve.api import answer_headers, new_id
from transduce.serve.logs import Log, Record
from transduce.serve.metrics import Metrics
from transduce.serve.settings import Limits, ServerSettings

PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
MAX_PIPELINE = 64  # requests of a connection that wait for the answers to earlier ones; no client needs more
ROUTE = "connection"  # in metrics and log, of a request whose headers were not read
REASONS = {400: "protocol", 408: "slow", 431: "headers", 503: "connections"}  # labels of the metrics


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


class TimedProtocol(HttpToolsProtocol):
    """The protocol of one connection. limits, observer: set by `protocol_with`.

    - From the connection, or the first byte of a request, to the end of its headers: `header_seconds`, `header_bytes`.
    - A client that reads nothing of its answer for `write_seconds` is disconnected.
    - A connection beyond `connections` gets 503.
    - A connection with too many requests before their answers is closed.
    """

    limits: Limits
    observer: ConnectionObserver

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._is_in_headers = True
        self._is_refused = False  # what else arrives is not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that pause_writing tells that the client does not read
        self._await_headers()
        if len(self.connections) > self.limits.connections:
            self._refuse(503, "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        if self._is_in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._is_in_headers and self._header_bytes > self.limits.header_bytes and not self.transport.is_closing():
            self._refuse(431, f"expected headers of at most {self.limits.header_bytes:,} bytes")
        elif not self._is_in_headers and self._is_idle() and self.timeout_keep_alive_task is None:
            self._await_headers()  # bytes between two requests have ended the keep-alive timer

    def _is_idle(self) -> bool:
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._is_refused:
            self._await_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers[-1:]) > self.limits.header_bytes:
            self._header_bytes = self.limits.header_bytes + 1

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        self._cancel_header_timer()
        if self._is_refused or self.transport.is_closing():
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.header_bytes:
            self._refuse(431, f"expected headers of at most {self.limits.header_bytes:,} bytes")
        elif len(self.pipeline) >= MAX_PIPELINE:
            self._refuse(400, f"expected at most {MAX_PIPELINE} requests before their answers")
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None and not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._header_bytes = 0
        if self.cycle is not None and not self._is_refused:
            super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write_seconds, self._on_unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._refuse(400, msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Answer an upgrade as a plain request, without a word in the log."""

    def _await_headers(self) -> None:
        self._is_in_headers = True
        self._cancel_header_timer()
        self._header_timer = self.loop.call_later(self.limits.header_seconds, self._on_slow_headers)

    def _on_slow_headers(self) -> None:
        self._header_timer = None
        if self._is_in_headers and not self.transport.is_closing():
            self._refuse(408, f"expected all headers within {self.limits.header_seconds:g} s")

    def _on_unread(self) -> None:
        self.observer.abort("unread")
        reset = struct.pack("ii", 1, 0)  # else the kernel keeps the unread answer for minutes
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        """Answer without the application, and close the connection. The answers to earlier requests come first."""
        self._is_refused = True
        self._cancel_header_timer()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False  # its answer is the last one
            return
        self._cancel_timers()
        if cycle is not None and not cycle.response_complete and (self.pipeline or cycle.response_started):
            self.transport.close()
            return
        body = json.dumps({"error": message, "message": message}).encode()
        headers = {"Content-Type": "application/json", "Content-Length": len(body), "Connection": "close"}
        headers |= self.observer.refuse(status, REASONS[status])
        lines = [f"HTTP/1.1 {status} {PHRASES[status]}", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        self.transport.close()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write_seconds, self._on_unread)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _cancel_timers(self) -> None:
        self._cancel_header_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def protocol_with(limits: Limits, observer: ConnectionObserver) -> type[TimedProtocol]:
    """Return the protocol with limits, and with the observer of the connections that it refuses."""
    return type("TimedProtocol", (TimedProtocol,), {"limits": limits, "observer": observer})
