"""Connections: what one may send without end, upgrades, pipelines, strictness, and more connections than the limit."""

import asyncio
import contextlib
import errno
import json
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from support.http_load import TRANSLATE, Reply, read_reply, request_bytes
from support.serving import Reverser, Served, listening, served, until

from transduce.errors import UserError
from transduce.serve.server import LoopErrors, bind, listen, reserve_files

HOST = b"Host: x\r\n"
BODY = json.dumps({"q": "a b", **TRANSLATE}).encode()
HEAD = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(BODY), BODY)
GOOD = request_bytes("/translate", {"q": "a b", **TRANSLATE})
ANSWER = {"translatedText": "b a"}


class Client:
    """A connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> Reply:
        """Send bytes and return the next answer; status 0 if the connection ends without one."""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                self.writer.write(data)
                await self.writer.drain()
            try:
                return await read_reply(self.reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                return Reply(0)

    async def is_closed(self) -> bool:
        """Return True once the server has closed the connection."""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                await self.reader.read()
        return True


@asynccontextmanager
async def clients_of(service: Served) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    """Let a service listen. Yield a function that opens a connection to it; all are closed at the end."""
    async with listening(service) as port, contextlib.AsyncExitStack() as stack:

        async def connect() -> Client:
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            stack.callback(client.writer.close)
            return client

        yield connect


@contextmanager
def held_back(**limits: int) -> Iterator[tuple[Reverser, Served]]:
    """Serve a model whose translations wait until its gate is set, or until the end of the block."""
    model = Reverser()
    model.gate.clear()
    with served(model, **limits) as service:
        try:
            yield model, service
        finally:
            model.gate.set()


def exchange(data: bytes) -> Reply:
    """Send bytes to a new service, and return the first answer."""
    with served() as service:

        async def run() -> Reply:
            async with clients_of(service) as connect:
                return await (await connect()).send(data)

        return asyncio.run(run())


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED + b"0\r\n" + b"a: b\r\n" * 100_000,
        CHUNKED + b"0\r\na: " + b"b" * 600_000,
        CHUNKED + b"1;" + b"x" * 600_000,
    ],
    ids=["trailers", "a trailer", "a chunk extension"],
)
def test_what_follows_a_body_without_end_is_refused_and_not_kept(data: bytes) -> None:
    reply = exchange(data)
    assert reply.status == 431 and "connection: close" in reply.head


def test_trailers_of_a_request_that_is_answered_already_have_an_end() -> None:
    with served() as service:

        async def run() -> None:
            async with clients_of(service) as connect:
                client = await connect()
                assert (await client.send(CHUNKED.replace(b"/translate", b"/nothing") + b"0\r\n")).status == 404
                assert (await client.send(b"a: b\r\n" * 100_000)).status == 431
                assert await client.is_closed()

        asyncio.run(run())


def test_a_few_trailers_are_ignored() -> None:
    reply = exchange(CHUNKED + b"0\r\nHost: y\r\nX-Request-Id: trailer\r\n\r\n")
    assert (reply.status, reply.json) == (200, ANSWER) and "trailer" not in reply.head


@pytest.mark.parametrize(
    "head",
    [
        b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\nUpgrade: h2c\r\n",
        b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket, h2c\r\n",
    ],
    ids=["Java's client", "two protocols"],
)
def test_the_wish_for_another_protocol_is_ignored(head: bytes) -> None:
    request = HEAD + head + b"Content-Length: %d\r\n\r\n" % len(BODY)
    with served() as service:

        async def run() -> None:
            async with clients_of(service) as connect:
                client = await connect()
                for _ in range(2):
                    assert (await client.send(request + BODY)).json == ANSWER
                client.writer.write(request)  # the body comes later
                await asyncio.sleep(0.01)
                assert (await client.send(BODY)).json == ANSWER
                assert (await client.send((request + BODY) * 2)).json == ANSWER
                assert (await client.send(b"")).json == ANSWER
                chunked = CHUNKED.replace(HOST, HOST + head)
                assert (await client.send(chunked + b"0\r\n\r\n")).json == ANSWER

        asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (GOOD.replace(HOST, b""), "one header Host, not 0"),
        (GOOD.replace(HOST, HOST + b"host: y\r\n"), "one header Host, not 2"),
        (GOOD.replace(HOST, HOST * 2).replace(b"HTTP/1.1", b"HTTP/1.0"), "one header Host, not 2"),
        (CHUNKED.replace(b": chunked", b": gzip, chunked") + b"0\r\n\r\n", "Transfer-Encoding: expected chunked"),
        (CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n", "Transfer-Encoding: expected chunked"),
        (CHUNKED.replace(b"\r\n\r\n", b"\r\n\r\n" + b"0" * 16), "the size of a chunk in at most 16 digits"),
        (CHUNKED + b"0" * 17 + b"\r\n\r\n", "the size of a chunk in at most 16 digits"),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", ""),
    ],
)
def test_what_a_proxy_may_read_in_another_way_is_refused(data: bytes, words: str) -> None:
    reply = exchange(data)
    assert reply.status == 400 and words in reply.json["error"] and "connection: close" in reply.head


@pytest.mark.parametrize("length", [1, 7, 10_000])
def test_digits_of_a_size_are_counted_wherever_the_bytes_are_divided(length: int) -> None:
    zeros = b"\r\n" + b"0" * 17 + b"\r\n"  # in a body they are text
    body = b"q=a+b&source=en&target=de&x=" + zeros
    form = HEAD.replace(b"json", b"x-www-form-urlencoded")
    chunk = b"%016x;%s\r\n%s\r\n" % (len(body), b"0" * 17, body)
    chunked = form + b"Transfer-Encoding: chunked\r\n\r\n" + chunk
    end = b"0" * 16 + b"\r\n\r\n"
    with served() as service:

        async def send(client: Client, data: bytes) -> Reply:
            for begin in range(0, len(data), length):
                client.writer.write(data[begin : begin + length])
                await asyncio.sleep(0)
            return await client.send(b"")

        async def run() -> None:
            async with clients_of(service) as connect:
                client = await connect()
                assert (await send(client, chunked + end)).json == ANSWER
                assert (await send(client, form + b"Content-Length: %d\r\n\r\n" % len(body) + body)).json == ANSWER
                assert (await send(client, chunked + b"0" * 17)).status == 400

        asyncio.run(run())


def test_http_1_0_needs_no_host() -> None:
    assert exchange(GOOD.replace(HOST, b"").replace(b"HTTP/1.1", b"HTTP/1.0")).json == ANSWER


def test_a_client_with_a_second_request_that_leaves_is_noticed() -> None:
    with held_back() as (_, service):

        async def run() -> None:
            async with clients_of(service) as connect:
                client, other = await connect(), await connect()
                for each, second in ((client, GOOD[:-4]), (other, GOOD)):
                    each.writer.write(GOOD + second)
                await until(lambda: service.engine.running + service.queue.waiting_sentences == 2)
                for each in (client, other):
                    each.writer.close()
                await until(lambda: service.value("cancelled_total") == 2)

        asyncio.run(run())


def test_bodies_before_the_answers_to_earlier_requests_are_bounded() -> None:
    with held_back(body_bytes=2_000) as (model, service):

        async def run() -> None:
            async with clients_of(service) as connect:
                client = await connect()
                client.writer.write(GOOD + HEAD + b"Content-Length: 90000\r\n\r\n")
                await client.writer.drain()
                client.writer.write(b"x" * 3_000)
                await asyncio.sleep(0.05)
                model.gate.set()
                first = await client.send(b"x" * 1_000)
                assert first.json == ANSWER and "connection: close" in first.head
                assert await client.is_closed()

        asyncio.run(run())


def test_what_is_not_read_has_an_end() -> None:
    with held_back(body_bytes=10_000) as (_, service):

        async def run() -> None:
            async with clients_of(service) as connect:
                client = await connect()
                client.writer.write(GOOD)
                await until(lambda: service.engine.running == 1)
                for _ in range(100):
                    client.writer.write(request_bytes("/health") * 1_000)
                assert await client.is_closed()
            await until(lambda: service.value("cancelled_total") == 1)

        asyncio.run(run())


def test_an_idle_connection_makes_room_for_a_new_one() -> None:
    """The one that has been idle longest is closed."""
    with served(connections=4) as service:

        async def run() -> None:
            async with clients_of(service) as connect:
                idle = [await connect() for _ in range(4)]
                for client in (*idle, idle[0]):
                    assert (await client.send(GOOD)).json == ANSWER
                for _ in range(2):
                    assert (await (await connect()).send(GOOD)).json == ANSWER
                assert await idle[1].is_closed() and await idle[2].is_closed()
                assert (await idle[0].send(GOOD)).json == (await idle[3].send(GOOD)).json == ANSWER

        asyncio.run(run())


def test_with_all_connections_busy_only_probes_get_in() -> None:
    with held_back(connections=2) as (model, service):
        service.state.is_ready = True

        async def run() -> None:
            async with clients_of(service) as connect:
                busy = [await connect() for _ in range(2)]
                for client in busy:
                    client.writer.write(GOOD)
                await until(lambda: service.engine.running + service.queue.waiting_sentences == 2)
                for path in ("/readyz", "/healthz", "/metrics"):
                    reply = await (await connect()).send(request_bytes(path))
                    assert reply.status == 200 and "connection: close" in reply.head
                assert (await (await connect()).send(GOOD)).status == 503
                model.gate.set()
                assert [(await client.send(b"")).json for client in busy] == [ANSWER] * 2
                assert (await (await connect()).send(GOOD)).json == ANSWER

        asyncio.run(run())
    assert [line["route"] for line in service.log].count("connection") == 1


def test_answers_announce_the_end_of_the_connection_while_the_server_drains() -> None:
    with held_back() as (model, service):

        async def run() -> None:
            async with clients_of(service) as connect:
                client, later = await connect(), await connect()
                assert "connection: close" not in (await later.send(request_bytes("/health"))).head
                client.writer.write(GOOD)
                await until(lambda: service.engine.running == 1)
                service.observer.drain()
                model.gate.set()
                for reply in (await client.send(b""), await later.send(GOOD)):
                    assert reply.json == ANSWER and "connection: close" in reply.head
                assert await client.is_closed() and await later.is_closed()

        asyncio.run(run())


def test_that_no_connection_can_be_accepted_is_logged_once() -> None:
    """asyncio reports it for each connection of the backlog, once a second."""
    with served() as service:
        handle = LoopErrors(service.logger)
        loop = asyncio.new_event_loop()
        problem = OSError(errno.EMFILE, "canary")
        for _ in range(1_000):
            handle(loop, {"message": "socket.accept() out of system resource", "exception": problem})
        handle(loop, {"message": "other", "exception": ValueError("canary")})
        loop.close()
    events = [(line["event"], line.get("reason")) for line in service.log]
    assert events == [("accept", "Too many open files"), ("defect", None)]


def test_a_port_that_another_server_takes_while_it_loads_is_a_mistake() -> None:
    """Some systems bind both, since neither listens yet."""
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=f"{port}: expected a free address"), bind("127.0.0.1", port) as second:
            listen(first)
            listen(second)


def test_the_limit_of_open_files_follows_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(64, 1_000)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    reserve_files(512, n_ports=1)
    assert limits[1:] == [(608, 1_000)]
    reserve_files(512, n_ports=1)
    with pytest.raises(UserError, match="=512: expected 1,152 open files, not 1,000; take --connections=436"):
        reserve_files(512, n_ports=2)
    assert limits[1:] == [(608, 1_000)]
