"""HTTP/1.1 on a connection, with the time-outs and limits that uvicorn's protocol does not have."""

import asyncio
import json
import socket
import struct
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from transduce.serve.api import PROBES, answer_headers, new_id
from transduce.serve.logs import Log, Record
from transduce.serve.metrics import Metrics
from transduce.serve.settings import Limits, ServerSettings

PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
MAX_SIZE_DIGITS = 16  # of the size of a chunk: 64 bits; another program may cut what is longer, zeros at its front too
MAX_PIPELINE = 64  # requests of a connection that wait for the answers to earlier ones; no client needs more
MAX_EXTRA = 32  # connections beyond the limit, which may only ask for a probe
SECONDS_TO_BEGIN = 1.0  # in which a new connection is not closed in favour of another; a client takes milliseconds
ROUTE = "connection"  # in metrics and log, of a request whose headers were not read
REASONS = {400: "protocol", 408: "slow", 431: "headers", 503: "connections"}  # labels of the metrics


class ConnectionObserver:
    """Counts and logs the connections that the protocol refuses or ends by itself.

    connections: the open ones. is_draining: True if each answer is the last one of its connection.
    """

    def __init__(self, settings: ServerSettings, metrics: Metrics, log: Log) -> None:
        self.connections = set[TimedProtocol]()
        self.is_draining = False
        self._settings = settings
        self._metrics = metrics
        self._log = log

    def refuse(self, status: int, reason: str) -> dict[str, str]:
        """Count and log a request that the protocol refuses. Return the headers of its answer."""
        record = Record(new_id(), route=ROUTE, status=status)
        self._metrics.requests.labels(ROUTE, str(status)).inc()
        self._metrics.rejected.labels(reason).inc()
        self._log.write("info", "request", **record.values, ms=0.0)
        return {**answer_headers(self._settings), "X-Request-Id": record.id}

    def drain(self) -> None:
        """Let each answer from now on announce the end of its connection."""
        self.is_draining = True
        for connection in self.connections:
            connection.announce_close()

    def abort(self, reason: str) -> None:
        """Count a connection that is closed before its client has read the answer."""
        self._metrics.cancelled.labels(reason).inc()


class _AlwaysReading(FlowControl):
    """The flow of a connection that is read while it is answered, so that a client that leaves is noticed."""

    def pause_reading(self) -> None:
        """Read on: `TimedProtocol` bounds what it keeps."""


class TimedProtocol(HttpToolsProtocol):
    """The protocol of one connection. limits, observer: set by `protocol_with`.

    - From the connection, or the first byte of a request, to the end of its headers: `header_seconds`, `header_bytes`.
    - As many bytes as headers may have, without a byte of the body among them: the same for trailers and chunk sizes.
    - A client that reads nothing of its answer for `write_seconds` is disconnected.
    - A connection beyond `connections` takes the place of the one that has waited longest for a request. If all have
      one, it may only ask for a probe, else it gets 503.
    - A connection with too many requests, or bytes of them, before their answers is closed after the earlier ones.
    """

    limits: Limits
    observer: ConnectionObserver

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._bytes_without_body = 0  # since the last byte of a body, or the end of headers or of a request
        self._is_in_headers = True
        self._is_in_body = False  # or in its trailers
        self._length_left = 0  # bytes of a chunk, or of a body with a length
        self._size_line: bytes | None = None  # what has arrived of the line with the size of a chunk; None elsewhere
        self._is_refused = False  # what else arrives is not read, and has an end
        self._unread_bytes = 0
        self._is_extra = False
        self._waiting_since: float | None = None  # None while a request is read or answered
        self._answered: RequestResponseCycle | None = None  # `cycle` is the newest request, this the oldest

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.observer.connections.add(self)
        self.flow = _AlwaysReading(transport)
        transport.set_write_buffer_limits(high=0)  # so that pause_writing tells that the client does not read
        self._waiting_since = self.loop.time()
        self._await_headers()
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        self.observer.connections.discard(self)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """Close the connection that has waited longest for a request, or let this one only ask for a probe."""
        others = cast("set[TimedProtocol]", self.connections) - {self}
        n_open = sum(not other.transport.is_closing() for other in others)
        if n_open < self.limits.connections:
            return
        waiting = {since: other for other in others if (since := other._evictable_since()) is not None}
        if waiting:
            waiting[min(waiting)]._evict()
        elif n_open < self.limits.connections + MAX_EXTRA:
            self._is_extra = True
        else:
            self._refuse(503, "too many connections")

    def _evictable_since(self) -> float | None:
        """Return the time since which the connection waits for a request; None if it must not be closed."""
        since = self._waiting_since
        if since is None or self.transport.is_closing():
            return None
        return since if self._is_between_requests() or self.loop.time() - since > SECONDS_TO_BEGIN else None

    def _is_between_requests(self) -> bool:
        return self.cycle is not None and self._bytes_without_body == 0

    def _evict(self) -> None:
        if self._is_between_requests():
            self.transport.close()
        else:
            self._refuse(503, "too many connections")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_refused:
            self._unread_bytes += len(data)
            if self._unread_bytes > self.limits.body_bytes:
                self.transport.abort()  # the answers to earlier requests go with it
            return
        self._unset_keepalive_if_required()
        self._bytes_without_body += len(data)
        begin = 0
        while begin < len(data) and not self._is_refused:
            # A line at a time, so that each line with a size begins a part
            end = begin + self._length_left if self._length_left else data.find(b"\n", begin) + 1 or len(data)
            part = data[begin:end]
            if self._has_long_size(part):
                self._refuse(400, f"expected the size of a chunk in at most {MAX_SIZE_DIGITS} digits")
                return
            try:
                self.parser.feed_data(part)
                begin += len(part)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade() + data[begin + upgrade.args[0] :]
                begin = 0
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
        if self._is_refused or self.transport.is_closing():
            return
        if self._bytes_without_body > self.limits.header_bytes:
            self._refuse_headers()
        elif not self._is_in_headers and self._is_idle() and self.timeout_keep_alive_task is None:
            self._await_headers()  # bytes between two requests have ended the keep-alive timer

    def _has_long_size(self, part: bytes) -> bool:
        """Return True if bytes on the line with the size of a chunk make the size too long."""
        if self._size_line is None:
            return False
        self._size_line += part
        return len(self._size_line) - len(self._size_line.lstrip(b"0123456789abcdefABCDEF")) > MAX_SIZE_DIGITS

    def on_chunk_header(self) -> None:
        """Read the chunk, whose size has arrived."""
        size, _, _ = (self._size_line or b"0").partition(b";")
        self._length_left = int(size, 16)
        self._size_line = None

    def on_chunk_complete(self) -> None:
        """Expect the line with the size of the next chunk."""
        self._size_line = b""

    def _without_upgrade(self) -> bytes:
        """Return the head of a request without its Upgrade header, and start to parse again.

        The parser ends at such a request, although a server may ignore the header (RFC 9110, 7.8).
        """
        head = f"{self.parser.get_method().decode()} {self.url.decode()} HTTP/{self.parser.get_http_version()}".encode()
        lines = [head, *(name + b": " + value for name, value in self.headers if name != b"upgrade")]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _is_idle(self) -> bool:
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_body = False
        if not self._is_refused:
            self._await_headers()
            if self._waiting_since is not None:
                self._waiting_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_body:  # trailers have no use here
            super().on_header(name, value)
        if len(self.url) + len(name) + len(value) > self.limits.header_bytes:
            self._bytes_without_body = self.limits.header_bytes + 1

    def on_headers_complete(self) -> None:
        is_upgrade = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._is_refused or self.transport.is_closing() or is_upgrade:
            return
        self._is_in_headers = False
        self._is_in_body = True
        self._bytes_without_body = 0
        headers = dict(self.headers)
        self._length_left = int(headers.get(b"content-length", 0))
        self._size_line = b"" if b"transfer-encoding" in headers else None
        self._cancel_header_timer()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.header_bytes:
            self._refuse_headers()
        elif len(self.pipeline) >= MAX_PIPELINE:
            self._refuse(400, f"expected at most {MAX_PIPELINE} requests before their answers")
        elif fault := self._fault():
            self._refuse(400, fault)
        elif self._is_extra and self.url.partition(b"?")[0].decode("latin-1") not in PROBES:
            self._refuse(503, "too many connections")
        else:
            super().on_headers_complete()
            self._waiting_since = None
            if self._is_extra or self.observer.is_draining:
                self.cycle.keep_alive = False

    def _fault(self) -> str | None:
        """Return what is wrong with headers that the parser accepts, and of which a proxy may think otherwise."""
        version = self.parser.get_http_version()
        n_hosts = sum(name == b"host" for name, _ in self.headers)
        if n_hosts > 1 or n_hosts == 0 and version == "1.1":
            return f"expected one header Host, not {n_hosts}"
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (codings != [b"chunked"] or version != "1.1"):
            return "Transfer-Encoding: expected chunked, in HTTP/1.1"
        return None

    def on_body(self, body: bytes) -> None:
        self._bytes_without_body = 0
        self._length_left = max(0, self._length_left - len(body))
        if self.cycle is None or self._is_refused:
            return
        super().on_body(body)
        if self.pipeline and sum(len(cycle.body) for cycle, _ in self.pipeline) > self.limits.body_bytes:
            most = f"{self.limits.body_bytes:,} bytes"
            self._refuse(400, f"expected at most {most} of requests before the answers to earlier ones")

    def on_message_complete(self) -> None:
        self._bytes_without_body = 0
        if self.cycle is not None and not self._is_refused:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._waiting_since = self.loop.time()
        super().on_response_complete()

    def announce_close(self) -> None:
        """Let the answer to the newest request be the last one of this connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

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

    def _refuse_headers(self) -> None:
        self._refuse(431, f"expected headers, or trailers, of at most {self.limits.header_bytes:,} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Answer without the application, and close the connection. The answers to earlier requests come first."""
        self._is_refused = True
        self._cancel_header_timer()
        if self.pipeline and self.cycle.more_body:
            self.pipeline.popleft()  # the newest request, which is incomplete
            self.cycle = self.pipeline[0][0] if self.pipeline else cast("RequestResponseCycle", self._answered)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False  # its answer is the last one
            return
        self._cancel_timers()
        if cycle is not None and not cycle.response_complete and cycle.response_started:
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
