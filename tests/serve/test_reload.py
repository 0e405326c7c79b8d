"""SIGHUP: new keys, terms and models, without losing a request. And what the server tells systemd."""

import asyncio
import contextlib
import gc
import http.client
import json
import os
import signal
import socket
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import Reverser, ServerProcess, server_process, until
from support.toy_task import Toy

from transduce.cli.serve import Loader
from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DecodingOptions
from transduce.errors import UserError
from transduce.serve.app import ServiceState
from transduce.serve.generation import Description, Generation, Generations, Loaded
from transduce.serve.logs import Log
from transduce.serve.metrics import Metrics
from transduce.serve.server import Life
from transduce.serve.settings import ServerSettings


class Shouter(Reverser):
    """A model that writes capitals."""

    def _translation(self, line: str, n_best: int) -> Translation:
        return Translation(line.upper())


def loaded(model: Reverser, name: str) -> Loaded:
    return Loaded({("en", "de"): model}, ServerSettings(), Description(name, "fp32", "torch", "torch"))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    descriptor = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    log = Log(lambda: None, descriptor)
    yield log
    log.close()
    os.close(descriptor)


async def translate(app: Callable[..., Any]) -> Any:
    """Send a request to an application, and return its answer."""
    body = json.dumps({"q": "a b", "source": "en", "target": "de"}).encode()
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else await asyncio.Event().wait() or {}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/translate", "query_string": b""}
    await app({**scope, "headers": [(b"content-type", b"application/json")]}, receive, send)
    return json.loads(sent[1]["body"])["translatedText"]


def test_a_request_ends_with_the_models_with_which_it_began(log: Log) -> None:
    metrics, old, new = Metrics(), Reverser(), Shouter()
    options, state = DecodingOptions(), ServiceState()
    generations = Generations(
        lambda each: Generation(each, options, metrics, log, state), loaded(old, "first"), metrics
    )
    first = generations.newest

    async def run() -> None:
        await first.warm_up()
        old.gate.clear()
        earlier = asyncio.ensure_future(translate(generations))
        await until(lambda: first.engine.running == 1)
        await generations.replace(loaded(new, "second"))
        assert await translate(generations) == "A B"
        assert "transduce_running_sentences 1.0" in metrics.text().decode()
        old.gate.set()
        assert await earlier == "b a"

    asyncio.run(run())
    assert first.engine.join(5) and generations.newest is not first
    text = metrics.text().decode()
    assert 'model="second"' in text and 'model="first"' not in text
    assert generations.close(5)


def test_a_model_that_was_replaced_leaves_the_memory(log: Log) -> None:
    metrics, options, state = Metrics(), DecodingOptions(), ServiceState()
    generations = Generations(
        lambda each: Generation(each, options, metrics, log, state), loaded(Reverser(), "first"), metrics
    )
    first = generations.newest
    replaced = [weakref.ref(item) for item in (first.service, *first.service.models.by_pair.values())]

    async def run() -> None:
        assert await translate(generations) == "b a"
        await generations.replace(loaded(Shouter(), "second"))
        assert await translate(generations) == "A B"

    asyncio.run(run())
    assert first.engine.join(5)
    del first
    gc.collect()
    assert [reference() for reference in replaced] == [None, None]
    assert generations.close(5)


def test_a_model_whose_translation_fails_does_not_replace_another(log: Log) -> None:
    metrics, options, state = Metrics(), DecodingOptions(), ServiceState()
    generations = Generations(
        lambda each: Generation(each, options, metrics, log, state), loaded(Reverser(), "first"), metrics
    )

    async def run() -> None:
        with pytest.raises(ValueError, match="secret"):
            await generations.replace(loaded(Reverser("a"), "second"))
        assert await translate(generations) == "b a"

    asyncio.run(run())
    assert generations.close(5)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (UserError("beam_size=1: expected at least 2"), "beam_size=1: expected at least 2"),
        (FloatingPointError("nan"), "en-de: expected a model whose outputs are finite numbers: nan; use an earlier"),
        (MemoryError(), "out of memory: a reload holds the old and the new models; restart the server"),
        (FileNotFoundError(2, "No such file", "terms"), "[Errno 2] No such file: 'terms'"),
    ],
)
def test_the_log_says_why_a_reload_changed_nothing(log: Log, tmp_path: Path, problem: Exception, reason: str) -> None:
    metrics, options, state = Metrics(), DecodingOptions(), ServiceState()
    generations = Generations(
        lambda each: Generation(each, options, metrics, log, state), loaded(Reverser(), "first"), metrics
    )
    life = Life(generations, lambda: loaded(Reverser("a", problem), "second"), state, log)

    async def run() -> None:
        reloading = asyncio.ensure_future(life._reload_at_signals())
        life._reloading.set()
        await until(lambda: bool((tmp_path / "log").read_text()))
        reloading.cancel()
        assert await translate(generations) == "b a"

    asyncio.run(run())
    line = json.loads((tmp_path / "log").read_text().splitlines()[0])
    assert (line["level"], line["event"]) == ("error", "reload") and line["reason"].startswith(reason)
    assert generations.close(5)


def test_a_model_that_has_not_changed_is_kept(toy: Toy, tmp_path: Path) -> None:
    link = tmp_path / "model"
    link.symlink_to(toy.model)
    load = Loader({("en", "de"): link}, ServerSettings(), DecodingOptions(), (None, None), None)
    first, again = (load().by_pair["en", "de"] for _ in range(2))
    assert first is again
    (tmp_path / "copy").mkdir()
    for file in toy.model.iterdir():
        (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    link.unlink()
    link.symlink_to(tmp_path / "copy")
    assert load().by_pair["en", "de"] is not first


class Messages(threading.Thread):
    """What a server tells systemd."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.words: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def run(self) -> None:
        while message := self._socket.recv(1_000):
            self.words.append(message.decode().partition("=")[0])

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self.join()
        self._socket.close()


def translated(server: ServerProcess, key: str) -> tuple[int, str]:
    """Return the status of a request, and the translation of "a b"."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    body = json.dumps({"q": "a b", "source": "en", "target": "de", "api_key": key})
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = json.loads(response.read()).get("translatedText", "")
    connection.close()
    return response.status, text


def status_of(server: ServerProcess, key: str) -> int:
    return translated(server, key)[0]


def test_signals_of_a_server(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("always\nold")
    terms = tmp_path / "terms.tsv"
    terms.write_text("a\tx")
    messages = Messages(tmp_path / "notify")
    messages.start()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    statuses: list[int] = []

    def wait_for(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not condition():
            statuses.append(status_of(server, "always"))
            assert time.monotonic() < end

    with (
        server_process(tmp_path, toy.model, "--api-keys", keys, "--terms", terms, "--quiet-probes") as server,
        contextlib.closing(messages),
    ):
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            server.process.send_signal(number)
        assert [status_of(server, key) for key in ("old", "new")] == [200, 403]
        keys.write_text("two words")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: messages.words[-2:] == ["RELOADING", "READY"])
        assert [status_of(server, key) for key in ("old", "new")] == [200, 403]
        assert "x" in translated(server, "always")[1].split()
        keys.write_text("always\nnew\n")
        terms.write_text("a\tj\nb")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: messages.words[-4:] == ["RELOADING", "READY"] * 2)
        assert "x" in translated(server, "old")[1].split()
        terms.write_text("a\tj\nb\tb")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: messages.words[-6:] == ["RELOADING", "READY"] * 3)
        assert [status_of(server, key) for key in ("old", "new")] == [403, 200]
        assert {"j", "b"} <= {*translated(server, "new")[1].split()}
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=20) as answer:
            assert answer.status == 200
        assert server.stop() == 0
        assert messages.words == ["READY", *["RELOADING", "READY"] * 3, "STOPPING"]
    assert set(statuses) == {200}
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    assert "/healthz" not in {line.get("route") for line in lines}
    reloads = [line for line in lines if line["event"] == "reload"]
    counts = [(line["level"], line.get("keys"), line.get("terms")) for line in reloads]
    assert counts == [("error", None, None)] * 2 + [("info", 2, 2)]
    assert "line 1: expected KEY" in reloads[0]["reason"] and "words" not in reloads[0]["reason"]
    assert reloads[1]["reason"].endswith("terms.tsv:2: expected a source term, a tab and its target; correct the line")
