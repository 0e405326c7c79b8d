"""The settings of the service. Without torch and without the packages of the extra `serve`."""

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path

from transduce.errors import UserError
from transduce.serve.keys import ApiKey

ALL_ADDRESSES = {"0.0.0.0", "::"}  # of this machine; a port of one is a port of each address
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s,/]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one server. Each is an option of `transduce serve`.

    Sizes are in bytes or characters, times in seconds. A request beyond a limit is refused with a message that names
    the limit. Raises UserError for a limit that is not positive.
    """

    body_bytes: int = 1 << 20
    """Bytes of a request's body; beyond: 413."""
    header_bytes: int = 32 << 10
    """Bytes of the request line and all headers; beyond: 431."""
    header_seconds: float = 5.0
    """Time from the first byte to the end of the headers; beyond: 408."""
    body_seconds: float = 10.0
    """Time from the headers to the end of the body; beyond: 408."""
    idle_seconds: float = 75.0
    """Time between two requests of a connection. 5 would race with the time-outs of proxies."""
    write_seconds: float = 10.0
    """Time in which a client reads nothing of its answer; beyond: closed."""
    connections: int = 512
    """Open connections; beyond: 503."""
    texts: int = 128
    """Texts of a request; beyond: 400."""
    text_characters: int = 10_000
    """Characters of a text; beyond: 400."""
    request_characters: int = 50_000
    """Characters of all texts of a request; beyond: 400."""
    file_characters: int = 500_000
    """Characters of all texts of a file; beyond: 400. `body_bytes` bounds the file itself."""
    waiting_sentences: int = 512
    """Sentences in the queue; beyond: 429."""
    waiting_tokens: int = 65_536
    """Tokens of the source in the queue; beyond: 429."""
    file_seconds: float = 300.0
    """Time from the end of the body to the answer, for a file; beyond: 503."""
    deadline_seconds: float = 30.0
    """Time from the end of the body to the answer; beyond: 503."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not 0 < getattr(self, field.name) < math.inf:
                raise UserError(f"{field.name}={getattr(self, field.name)}: expected a finite number above 0")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Address, access and life of one server.

    port: port to listen on; 0 takes a free one. metrics_port: separate port of /metrics; None: `port`.
    metrics_host: address of metrics_port; None: `host`. cors: the origins that browsers may call from, with commas
    between them; "*" is any. keys: accepted keys; empty: no key is needed. logs_probes: False leaves answers to probes
    out of the log.
    drain_seconds: time from SIGTERM, when /readyz becomes 503, to the closing of the socket.
    engine_threads: number of threads that translate at a time; None: as many as the models gain by.
    glossaries: folder of the glossaries that clients keep on the server; None: they cannot.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    metrics_port: int | None = None
    metrics_host: str | None = None
    cors: str = "*"
    keys: tuple[ApiKey, ...] = ()
    logs_probes: bool = True
    drain_seconds: float = 0.0
    engine_threads: int | None = None
    glossaries: Path | None = None
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for name, port in (("port", self.port), ("metrics_port", self.metrics_port)):
            if port is not None and not 0 <= port < 1 << 16:
                raise UserError(f"{name}={port}: expected 0 to 65,535")
        if not 0 <= self.drain_seconds < math.inf:
            raise UserError(f"drain_s={self.drain_seconds}: expected a finite number of at least 0")
        if self.engine_threads is not None and self.engine_threads < 1:
            raise UserError(f"engine_threads={self.engine_threads}: expected at least 1")
        if self.metrics_host is not None and self.metrics_port is None:
            raise UserError(f"metrics_host={self.metrics_host}: expected --metrics-port with it; add it")
        hosts = {self.host, self.metrics_host or self.host}
        if self.port == self.metrics_port != 0 and (len(hosts) == 1 or hosts & ALL_ADDRESSES):
            remedy = "leave it out to have /metrics on --port"
            raise UserError(f"metrics_port={self.metrics_port}: expected another port than --port; {remedy}")
        if self.cors != "*" and not all(origin.isascii() and ORIGIN.fullmatch(origin) for origin in self.origins):
            form = "* or origins, such as https://example.org,https://example.com:8080"
            raise UserError(f"cors={self.cors!r}: expected {form}; leave out paths and a final slash")

    @property
    def origins(self) -> list[str]:
        """The origins that browsers may call from."""
        return self.cors.split(",")
