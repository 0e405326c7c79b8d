"""Hostile bytes and faulty clients at a server's socket: no traceback, no 5xx, all closed in time (slow tests)."""

import asyncio
import json
import random
import re
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.http_load import (
    TRANSLATE,
    Connection,
    is_open,
    open_socket,
    p95,
    read_metrics,
    request_bytes,
    reset_on_close,
    run_clients,
)
from support.seeds import REQUESTS, seed_of_the_commit
from support.serving import ServerProcess, server_process
from support.toy_task import Toy

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("timing")]


@pytest.fixture
def hasty_server(toy: Toy, tmp_path: Path) -> Iterator[ServerProcess]:
    """Return a server that soon gives up slow clients, and that has keys."""
    (tmp_path / "keys").write_text("canary-key")
    times = ["--header-seconds", 0.3, "--body-seconds", 0.3, "--idle-seconds", 1]
    with server_process(tmp_path, toy.model, *times, "--api-keys", tmp_path / "keys") as server:
        yield server
        server.stop_and_check()


KEYS = {**TRANSLATE, "api_key": "canary-key"}
SOUND = [
    request_bytes("/translate", {"q": "a b", **KEYS}),
    request_bytes("/v2/translate", {"text": ["a b"], "target_lang": "DE", "auth_key": "canary-key"}),
    request_bytes("/translate?q=a+b&source=en&target=de&api_key=canary-key", method="POST"),
    request_bytes("/detect", {"q": "a", "api_key": "canary-key"}),
    request_bytes("/v2/languages", head="Authorization: DeepL-Auth-Key canary-key\r\n"),
    b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
    b'9\r\n{"q": "a"\r\n1\r\n}\r\n0\r\n\r\n',
    b"POST /translate HTTP/1.1\r\nHost:\r\nContent-Length: 90\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n"
    b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\na b\r\n--x--\r\n' + b" " * 30,
    request_bytes("/openapi.json", head="Expect: 100-continue\r\n"),
]
PIECES = [
    *(b"\x00", b"\xff\xfe", b"\r", b"\n", b"\r\n\r\n", b" ", b":", b"%00", b"%ff", b"/../", b"//", b"?", b"\xc3\xa4"),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"X: y\r\n z\r\n", b": x\r\n"),
    *(b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n"),
    *(b"ffffffffffffffff\r\n", b"-1\r\n", b"0\r\n\r\n", b"HTTP/0.9", b"HTTP/2.0", b"X: " + b"y" * 9_000),
    *(b"[" * 3_000, b'"\\ud800"', b"NaN", b"1e999", b"{}", b"null", b"\xef\xbb\xbf", b"#", b"Content-Length: +5\r\n"),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"CONNECT x:1", b"OPTIONS *"),
]  # fmt: skip


def damaged(rng: random.Random) -> bytes:
    """Return a request with pieces inserted, removed, repeated, exchanged or cut anywhere."""
    data = bytearray(rng.choice(SOUND))
    for _ in range(rng.randint(1, 4)):
        place, length = rng.randrange(len(data) + 1), rng.choice([0, 0, 1, 2, 8, 40])
        kind = rng.randrange(5)
        if kind == 0:
            data[place : place + length] = rng.choice(PIECES)
        elif kind == 1:
            del data[place : place + length]
        elif kind == 2:
            data[place:place] = data[place : place + length] * rng.choice([1, 2, 50])
        elif kind == 3:
            data = data[: max(1, place)]
        elif place < len(data):
            data[place] = rng.randrange(256)
    return bytes(data)


def test_damaged_bytes_on_a_socket_get_no_5xx(hasty_server: ServerProcess) -> None:
    statuses: Counter[int] = Counter()
    seed = seed_of_the_commit()
    print(f"seed {seed}")

    async def client(number: int) -> None:
        rng, connection = random.Random(f"{seed} {number}"), Connection(hasty_server.port)
        for _ in range(REQUESTS // 100):
            data = damaged(rng)
            reply = await connection.send(data, seconds=20)
            connection.close()
            statuses[reply.status] += 1
            assert reply.status < 500, (data, reply)
            if reply.status >= 400 and reply.body:
                assert {"error", "message"} & set(reply.json), (data, reply)

    asyncio.run(run_clients(100, client))
    print(f"\n{dict(statuses)}")
    assert sum(statuses.values()) == REQUESTS // 100 * 100 and statuses[0] < 20  # HEAD: its length has no body


def test_requests_drawn_from_the_description_get_no_5xx(server: ServerProcess, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    address = f"http://127.0.0.1:{server.port}/openapi.json"
    checks = "not_a_server_error,response_schema_conformance,status_code_conformance,content_type_conformance"
    seed = zlib.crc32(seed_of_the_commit().encode())
    print(f"seed {seed}")
    limits = ["--max-examples", REQUESTS // 250, "--seed", seed, "--request-timeout", 20, "--checks", checks]
    command = [sys.executable, "-m", "schemathesis.cli", "run", address, *limits]
    result = subprocess.run([*map(str, command)], capture_output=True, timeout=900, cwd=tmp_path)
    print(result.stdout.decode()[-3_000:])
    assert result.returncode == 0, result.stdout.decode()[-6_000:] + result.stderr.decode()


def test_no_word_of_a_client_is_in_log_metrics_or_the_answer_to_another(hasty_server: ServerProcess) -> None:
    """1,000 requests, each with a different word in every place that a client can fill."""
    answers: dict[int, bytes] = {}

    async def client(number: int) -> None:
        connection = Connection(hasty_server.port)
        for i in range(number, 1_000, 20):
            reply = await connection.send(request_with(f"canary{i}x", random.Random(i)), seconds=20)
            answers[i] = reply.head.encode() + reply.body
        connection.close()

    async def all_of_it() -> str:
        await run_clients(20, client)
        connection = Connection(hasty_server.port)
        return (await connection.send(request_bytes("/metrics", closes=True))).body.decode()

    metrics = asyncio.run(all_of_it())
    assert "canary" not in hasty_server.log.read_text("utf-8") + metrics
    assert len(answers) == 1_000 and "transduce_requests_total" in metrics
    for i, answer in answers.items():
        others = {word for word in re.findall(rb"canary(\d+)x", answer) if int(word) != i}
        assert not others and b"canary-key" not in answer, (i, answer)


def request_with(word: str, rng: random.Random) -> bytes:
    """Return a request with `word` in a place of it, or in many."""
    values = {"q": f"a {word}", **KEYS}
    deepl = {"text": [word], "auth_key": "canary-key"}
    kinds = [
        request_bytes("/translate", values, head=f"X-Request-Id: {word} {word}\r\nUser-Agent: {word}\r\n"),
        request_bytes("/translate", {**values, "q": [word, 3]}),
        request_bytes("/translate", {**values, "source": word}),
        request_bytes("/translate", {**values, "target": word, "format": word}),
        request_bytes("/translate", {**values, "api_key": word}),
        request_bytes("/translate", {**values, word: word, "alternatives": word}),
        request_bytes("/v2/translate", {**deepl, "target_lang": word}),
        request_bytes("/v2/translate", {**deepl, "target_lang": "DE", "formality": word}),
        request_bytes("/v2/translate", {"text": [word]}, head=f"Authorization: DeepL-Auth-Key {word}\r\n"),
        request_bytes(f"/translate?q={word}&source=en&target=de&api_key=canary-key", method="POST"),
        request_bytes(f"/{word}?{word}={word}", head=f"{word}: {word}\r\nCookie: {word}\r\nReferer: {word}\r\n"),
        request_bytes(f"/translate/{word}", {word: [word]}),
        f"{word} / HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        f"GET /{word} {word}\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\nHost : {word}\r\n\r\n".encode(),
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f'Content-Length: {5 + len(word)}\r\n\r\n{{"q" {word}'.encode(),
        f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{word}".encode(),
        f"GET /{word} HTTP/1.1\r\nHost: x\r\nX: {word}".encode(),
        f"GET /{word * 5_000} HTTP/1.1\r\nHost: x\r\n".encode(),
    ]  # fmt: skip
    return rng.choice(kinds)


# ---- slow, silent and half-closed clients ----------------------------------------------------------------------------

KINDS = ["slow header", "slow body", "slow reading", "silence", "half-closed"]
FIRST_BYTES = {
    "slow header": b"POST /translate HTTP/1.1\r\nHost: x\r\nX: ",
    "slow body": b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{",
    "slow reading": b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 60,
    "silence": b"",
    "half-closed": b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{",
}


@pytest.mark.parametrize("kind", KINDS)
def test_300_faulty_clients_do_not_delay_a_good_one(server: ServerProcess, toy: Toy, kind: str) -> None:
    closed_after: list[float] = []
    times: list[float] = []

    async def faulty(number: int) -> None:
        await asyncio.sleep(0.01 * number)
        loop = asyncio.get_running_loop()
        client = open_socket(server.port, receive_bytes=4_096)
        reset_on_close(client)
        start = time.monotonic()
        try:
            async with asyncio.timeout(5):
                await loop.sock_sendall(client, FIRST_BYTES[kind])
        except TimeoutError:
            assert kind == "slow reading"  # the server reads no more while its answers wait
        if kind == "half-closed":
            client.shutdown(1)
        while is_open(client) and time.monotonic() < start + 30:
            await asyncio.sleep(0.5)
            try:
                if kind == "slow reading":
                    client.recv(1)
                elif kind in ("slow header", "slow body"):
                    client.send(b"x")
            except OSError:
                pass
        closed_after.append(time.monotonic() - start)
        client.close()

    async def good(faulty_clients: "asyncio.Future[list[None]]") -> None:
        connection = Connection(server.port)
        while not faulty_clients.done() or len(times) < 200:
            reply = await connection.translate(toy.unseen[len(times) % 100])
            assert reply.status == 200
            times.append(reply.seconds)
            await asyncio.sleep(0.02)
        connection.close()

    async def all_of_it() -> Counter[str]:
        faulty_clients = asyncio.gather(*(faulty(number) for number in range(300)))
        await good(faulty_clients)
        await faulty_clients
        return await read_metrics(server.port)

    metrics = asyncio.run(all_of_it())
    print(f"\n{kind}: p95 {1e3 * p95(times):.0f} ms, closed within {max(closed_after):.1f} s")
    limit = 22 if kind == "slow reading" else 12  # its 10 s begin anew when it has made room for another answer
    assert p95(times) < 1 and max(closed_after) < limit
    assert metrics["waiting_sentences"] == 0 and json.loads(server.log.read_text().splitlines()[-1])
