"""Many clients of a running server at the same time, in this process, on the loopback."""

import asyncio
import json
import os
import re
import socket
import statistics
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.serving import ServerProcess

TRANSLATE = {"source": "en", "target": "de"}
ESTABLISHED = 1  # a state of TCP


@dataclass(frozen=True)
class Reply:
    """An answer, or its lack: status 0 is a connection that ended without one. seconds: from the request on."""

    status: int
    head: str = ""
    body: bytes = b""
    seconds: float = 0.0

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request_bytes(path: str, values: Any = None, *, method: str = "", head: str = "", closes: bool = False) -> bytes:
    """Return a request. values: sent as JSON; None is a GET. head: further lines of the header."""
    body = b"" if values is None else json.dumps(values).encode()
    media = "" if values is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    end = "Connection: close\r\n" if closes else ""
    method = method or ("GET" if values is None else "POST")
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{media}{head}{end}\r\n".encode() + body


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """Read one answer with a length, in chunks, or up to the end of the connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = int(head.split(" ", 2)[1])
    if match := re.search(r"content-length: (\d+)", head):
        body = await reader.readexactly(int(match[1]))
    elif "transfer-encoding: chunked" in head:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = b"" if status == 204 else await reader.read()
    return Reply(status, head, body)


class Connection:
    """A connection that is kept, and opened again when the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes, seconds: float = 60) -> Reply:
        """Send a request, and return its answer."""
        start = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                if self._ends is None:
                    self._ends = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._ends
                writer.write(data)
                reply = await read_reply(reader)
        except (OSError, EOFError, ValueError, TimeoutError):
            self.close()
            return Reply(0, seconds=time.monotonic() - start)
        except BaseException:  # the client is cancelled
            self.close()
            raise
        if "connection: close" in reply.head:
            self.close()
        return Reply(reply.status, reply.head, reply.body, time.monotonic() - start)

    async def translate(self, q: Any, **values: Any) -> Reply:
        return await self.send(request_bytes("/translate", {"q": q, **TRANSLATE, **values}))

    def close(self) -> None:
        if self._ends is not None:
            self._ends[1].close()
            self._ends = None


async def leave(port: int, data: bytes, seconds: float) -> None:
    """Send a request, and close the connection after `seconds`, before the answer is read."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await asyncio.sleep(seconds)
    writer.transport.abort()


async def run_clients(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Run `work` for each of `count` clients at the same time."""
    await asyncio.gather(*(work(i) for i in range(count)))


def open_socket(port: int, receive_bytes: int | None = None) -> socket.socket:
    """Return a connected socket that does not block."""
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    return client


def is_open(client: socket.socket) -> bool:
    """Return True until the server has closed the connection."""
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED


def reset_on_close(client: socket.socket) -> None:
    """Let the close of a socket end its connection at once, with all that is unread."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# ---- what a server's process and its metrics tell --------------------------------------------------------------------


def metrics_of(text: str) -> Counter[str]:
    """Return each metric of /metrics, summed over its labels."""
    values: Counter[str] = Counter()
    for line in text.splitlines():
        if match := re.match(r"transduce_(\w+)(?:\{.*\})? (\S+)$", line):
            values[match[1]] += float(match[2])  # type: ignore[assignment]
    return values


async def read_metrics(port: int) -> Counter[str]:
    connection = Connection(port)
    reply = await connection.send(request_bytes("/metrics", closes=True))
    return metrics_of(reply.body.decode())


def resident_bytes(server: ServerProcess) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def p95(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


def p99(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100)[-1]
