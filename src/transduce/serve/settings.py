"""The settings of the service. Without torch and without the packages of the extra `serve`."""

import dataclasses
from dataclasses import dataclass

from transduce.errors import UserError


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
    waiting_sentences: int = 512
    """Sentences in the queue; beyond: 429."""
    waiting_tokens: int = 65_536
    """Tokens of the source in the queue; beyond: 429."""
    deadline_seconds: float = 30.0
    """Time from the end of the body to the answer; beyond: 503."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise UserError(f"{field.name}={getattr(self, field.name)}: expected a number above 0")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Address, access and life of one server.

    port: port to listen on; 0 takes a free one. metrics_port: separate port of /metrics; None: `port`.
    cors: the origin that browsers may call from; "*" is any. api_keys: accepted keys; empty: no key is needed.
    drain_seconds: time from SIGTERM, when /readyz becomes 503, to the closing of the socket.
    engine_threads: number of threads that translate at a time; None: as many as the models gain by.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    metrics_port: int | None = None
    cors: str = "*"
    api_keys: frozenset[str] = frozenset()
    drain_seconds: float = 0.0
    engine_threads: int | None = None
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for name, port in (("port", self.port), ("metrics_port", self.metrics_port)):
            if port is not None and not 0 <= port < 1 << 16:
                raise UserError(f"{name}={port}: expected 0 to 65,535")
        if not self.drain_seconds >= 0:
            raise UserError(f"drain_s={self.drain_seconds}: expected a number of at least 0")
        if self.engine_threads is not None and self.engine_threads < 1:
            raise UserError(f"engine_threads={self.engine_threads}: expected at least 1")
        if not self.cors.isprintable() or not self.cors.isascii() or not self.cors:
            raise UserError(f"cors={self.cors!r}: expected an origin, such as https://example.org, or *")
