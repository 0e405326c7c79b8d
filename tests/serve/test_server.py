"""A server as a process: the answers of `translate`, hostile connections, and signals."""

import http.client
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.calls import fork_transduce
from support.command_line import assert_mistake
from support.serving import ServerProcess, server_process
from support.toy_task import Toy

import transduce
from transduce.storage.model_folder import load_model, save_model
from transduce.training.weights import weights

FIELDS = {"source": "en", "target": "de"}
MEDIA = "Content-Type: application/json\r\n"
QUICK = ["--header-seconds", 0.5, "--body-seconds", 0.5, "--write-seconds", 0.5, "--connections", 40]


@pytest.fixture(scope="module")
def server(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server"), toy.model, *QUICK) as server:
        yield server
        server.stop_and_check()


def post(server: ServerProcess, **values: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = json.dumps({**FIELDS, **values})
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    value = json.loads(answer.read())
    connection.close()
    return answer.status, value


def exchange(server: ServerProcess, data: bytes, *, ends: bool = False) -> bytes:
    """Send bytes on a connection, and return all that comes back until the server closes it."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(data)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(65_536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def test_every_answer_equals_translate(server: ServerProcess, toy: Toy) -> None:
    lines = [*toy.unseen[:60], "Zürich ist schön.", "", "  "]
    translations = transduce.load(toy.model).translate(lines)
    expected = [translation.text for translation in translations]
    doubts = [translation.doubts for translation in translations]
    assert post(server, q=lines) == (200, {"translatedText": expected} | ({"doubts": doubts} if any(doubts) else {}))
    answers: dict[int, Any] = {}

    def one(i: int) -> None:
        answers[i] = post(server, q=lines[i])[1]["translatedText"]

    threads = [threading.Thread(target=one, args=[i]) for i in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[i] for i in range(30)] == expected[:30]


def test_alternatives_equal_the_n_best_list(server: ServerProcess, toy: Toy) -> None:
    line = toy.unseen[0]
    best = transduce.load(toy.model).translate([line], n_best=4)[0]
    expected = [other.text for other in best.alternatives if other.text != best.text]
    assert post(server, q=line, alternatives=3) == (
        200,
        {"translatedText": best.text, "alternatives": list(dict.fromkeys(expected))},
    )


def test_html_has_its_tags_around_the_words_that_belong_to_theirs(server: ServerProcess) -> None:
    status, answer = post(server, q="<p>a <b>b</b> c</p>", format="html")
    assert (status, answer) == (200, {"translatedText": "<p>c <b>b</b> a</p>"})


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 408),
        (b"POST /translate HTTP/1.1\r\nHost: x\r\n", 408),
        (b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nContent-Type: application/json\r\n\r\n{", 408),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 40_000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: x\r\n" * 10_000, 431),
        (b"GET /" + b"x" * 40_000, 431),
        (b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n", 413),
        (
            b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            + (b"40000\r\n" + b"x" * 0x40000 + b"\r\n") * 5,
            413,
        ),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    ],
    ids=range(13),
)
def test_a_slow_or_damaged_connection_gets_its_status_and_is_closed(
    server: ServerProcess, data: bytes, status: int
) -> None:
    start = time.monotonic()
    answer = exchange(server, data)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert time.monotonic() - start < 5
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower() and json.loads(body)["error"]


def test_refusals_below_the_application_are_in_log_and_metrics(server: ServerProcess) -> None:
    ids = {}
    for status, data in ((400, b"canary\r\n\r\n"), (408, b"GET /canary HTTP/1.1\r\n"), (431, b"GET /" + b"x" * 40_000)):
        head = exchange(server, data).partition(b"\r\n\r\n")[0].decode().lower()
        assert "access-control-allow-origin: *" in head
        ids[re.findall(r"x-request-id: (\w+)", head)[0]] = status
    metrics = exchange(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").decode()
    for status, reason in ((400, "protocol"), (408, "slow"), (431, "headers")):
        assert f'transduce_requests_total{{code="{status}",route="connection"}}' in metrics
        assert f'transduce_rejected_total{{reason="{reason}"}}' in metrics
    log = server.log.read_text("utf-8")
    lines = [json.loads(line) for line in log.splitlines()[1:]]
    statuses = {line["id"]: line["status"] for line in lines if line["route"] == "connection"}
    assert ids.items() <= statuses.items()
    assert "canary" not in log + metrics


def test_what_libraries_say_about_a_request_is_not_in_the_log(server: ServerProcess) -> None:
    body = b"--x\r\n[canary: 1\r\n\r\n--x--\r\n"
    head = f"Content-Length: {len(body)}\r\nContent-Type: multipart/form-data; boundary=x\r\nConnection: close\r\n\r\n"
    answer = exchange(server, b"POST /translate HTTP/1.1\r\nHost: x\r\n" + head.encode() + body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert all(line.startswith("{") for line in server.log.read_text("utf-8").splitlines()[1:])


def test_a_connection_that_does_not_wait_for_answers_is_closed(server: ServerProcess) -> None:
    assert exchange(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000).count(b'{"status":"ok"}') < 200
    assert post(server, q="a b")[0] == 200


def test_pipelined_and_half_closed_requests(server: ServerProcess) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    last = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert exchange(server, request * 20 + last).count(b'{"status":"ok"}') == 21
    for cut in (b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", b"GET / HT", b""):
        exchange(server, cut, ends=True)
    assert post(server, q="a b")[0] == 200


def test_a_body_longer_than_its_length_gets_the_answer_to_the_request(server: ServerProcess) -> None:
    """A usual mistake: the length counts the characters, and not the bytes."""
    body = json.dumps({**FIELDS, "q": "\u00e4 b"}, ensure_ascii=False).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: x\r\n{MEDIA}Content-Length: {len(body) - 1}\r\n\r\n"
    answer = exchange(server, head.encode() + body)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    good = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    assert exchange(server, good + b"no request\r\n\r\n").count(b'{"status":"ok"}') == 1


def test_a_damaged_chunk_gets_400_at_once(server: ServerProcess) -> None:
    head = (
        b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
    )
    start = time.monotonic()
    assert exchange(server, head + b"zz\r\n{}\r\n").startswith(b"HTTP/1.1 400 ")
    assert exchange(server, head + b"2\r\n{}\r\nzz\r\n").startswith(b"HTTP/1.1 400 ")
    assert time.monotonic() - start < 5


def test_clients_that_leave_in_the_middle_are_no_defect(server: ServerProcess, toy: Toy) -> None:
    """The log of the server, which is read at its end, must have only requests."""
    body = json.dumps({**FIELDS, "q": toy.unseen[:100]}).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: x\r\n{MEDIA}Content-Length: {len(body)}\r\n\r\n"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.05)
    assert post(server, q="a b")[0] == 200


def test_bytes_between_requests_do_not_keep_a_connection_open(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(65_536)
        connection.sendall(b"\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 408 ")
        assert connection.recv(65_536) == b""


def test_a_client_that_does_not_read_is_disconnected(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(3)
        end = time.monotonic() + 60
        with pytest.raises(OSError):  # closed, or full for ever
            while time.monotonic() < end:
                connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
                time.sleep(0.001)
    assert post(server, q="a b")[0] == 200


def test_metrics_and_probes(server: ServerProcess) -> None:
    for path, text in (
        ("/healthz", b"ok"),
        ("/readyz", b"ready"),
        ("/metrics", b"transduce_info{"),
        ("/", b"<!doctype"),
    ):
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = exchange(server, request.encode())
        assert answer.startswith(b"HTTP/1.1 200 ") and text in answer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_at_a_signal_it_answers_what_it_accepted_and_exits_with_0(toy: Toy, tmp_path: Path, number: int) -> None:
    with server_process(tmp_path, toy.model) as server:
        statuses: list[int] = []
        texts = [" ".join(toy.unseen[i : i + 8]) for i in range(80)]

        def send() -> None:
            statuses.append(post(server, q=texts)[0])

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        start = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - start < 10
        for thread in threads:
            thread.join()
        assert statuses == [200] * 4


def test_a_taken_port_and_a_missing_model_are_mistakes(toy: Toy, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = fork_transduce("serve", toy.model, "--from", "en", "--to", "de", "--port", port)
        assert_mistake(result, f"--port={port}: expected a free address of this machine")
        ports = "--port", 0, "--metrics-port", port
        result = fork_transduce("serve", toy.model, "--from", "en", "--to", "de", *ports)
        assert_mistake(result, f"--metrics-host=127.0.0.1 --metrics-port={port}: expected a free address")
    assert_mistake(fork_transduce("serve", tmp_path, "--from", "en", "--to", "de", "--port", 0), str(tmp_path))


def test_a_model_that_cannot_translate_ends_the_server_with_the_reason(toy: Toy, tmp_path: Path) -> None:
    arguments = "--from", "en", "--to", "de", "--port", 0
    result = fork_transduce("serve", toy.model, *arguments, "--placeholders", "--beam-size", 1)
    assert_mistake(result, "--beam-size=1: expected at least 2 with must, must_not, terms or placeholders")
    loaded = load_model(toy.model)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(1e30)
    save_model(tmp_path / "model", weights(loaded.model), loaded.config, loaded.tokenizer, "")
    result = fork_transduce("serve", tmp_path / "model", *arguments)
    assert_mistake(result, "en-de: expected a model whose outputs are finite numbers: ", "; use an earlier checkpoint")
