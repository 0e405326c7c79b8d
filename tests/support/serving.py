"""A service over a fake model, called in this process; and a server as a process, called over the loopback."""

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from uvicorn.server import ServerState

from support.toy_task import ROOT
from transduce.config.schema import Config
from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DEFAULTS, DecodingOptions
from transduce.decoding.phrases.terms import Terms
from transduce.serve.app import ServiceState, application
from transduce.serve.engine import Engine
from transduce.serve.keys import ApiKey
from transduce.serve.logs import Log
from transduce.serve.metrics import Metrics
from transduce.serve.models import ServerModels
from transduce.serve.protocol import ConnectionObserver, protocol_with
from transduce.serve.queue import SentenceQueue
from transduce.serve.server import uvicorn_config
from transduce.serve.service import Service
from transduce.serve.settings import Limits, ServerSettings

JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


class WordTokenizer:
    """A tokenizer with a piece for each word."""

    kind = "words"

    def __init__(self) -> None:
        self.target = self
        self.tags: list[str] = []

    def encode(self, line: str) -> list[int]:
        return list(range(len(line.split())))

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.encode(line) for line in lines]


class Reverser:
    """A model that reverses the words of a line. Alternative n has n at its end.

    gate: cleared, it holds the translations back. failing: a word on which the model fails. batches: the calls.
    """

    engine = precision = kernels = "reverser"
    takes_constraints = False
    calibration: Any = None
    parallel_searches = 1

    def __init__(self, failing: str | None = None, problem: Exception | None = None) -> None:
        self.config: Any = Config()
        self.tokenizer: Any = WordTokenizer()
        self.gate = threading.Event()
        self.gate.set()
        self.failing = failing
        self.problem = problem or ValueError("secret")
        self.batches: list[list[str]] = []

    def translate(self, lines: Sequence[str], *, options: DecodingOptions = DEFAULTS) -> list[Translation]:
        self.batches.append(list(lines))
        assert self.gate.wait(30)
        if self.failing is not None and any(self.failing in line for line in lines):
            raise self.problem
        return [self._translation(line, options.n_best) for line in lines]

    def running(self) -> Any:
        return None

    def _translation(self, line: str, n_best: int) -> Translation:
        text = " ".join(reversed(line.split()))
        others = tuple(Translation(f"{text} {n}") for n in range(1, n_best))
        return Translation(text, pieces=tuple(text.split()), alternatives=others)


@dataclass
class Answer:
    """An HTTP answer. events: the events of a stream."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A service in this process. log: the lines of its log, once it is closed."""

    def __init__(
        self,
        models: Mapping[tuple[str, str], Any],
        settings: ServerSettings,
        n_threads: int = 1,
        terms: Mapping[str, str] | None = None,
    ) -> None:
        self.metrics = Metrics()
        reading, writing = os.pipe()
        self._log_ends = reading, writing
        self.logger = Log(self.metrics.log_errors.inc, writing)
        self.queue = SentenceQueue(settings.limits)
        self.engine = Engine(self.queue, models.values(), self.metrics.count_step, n_threads)
        self.models = ServerModels(models, terms=dict.fromkeys(models, Terms.of(terms)))
        self.service = Service(self.models, self.queue, self.metrics, DecodingOptions(), settings.limits)
        self.settings = settings
        self.observer = ConnectionObserver(settings, self.metrics, self.logger)
        self.state = ServiceState()
        self.app = application(self.service, settings, self.state, self.logger)
        self.log: list[dict[str, Any]] = []
        self.log_text = ""
        self.engine.start()

    def close(self) -> None:
        self.queue.close()
        assert self.engine.join(10)
        self.logger.close()
        os.close(self._log_ends[1])
        with os.fdopen(self._log_ends[0]) as file:
            self.log_text = file.read()
        self.log = [json.loads(line) for line in self.log_text.splitlines()]

    def call(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, leaves: bool = False
    ) -> Answer:
        return asyncio.run(self.request(method, path, body, headers, leaves))

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        leaves: bool | asyncio.Event = False,
    ) -> Answer:
        """Send a request to the application. leaves: the client closes the connection after the body, or later."""
        path, _, query = path.partition("?")
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode("latin-1"),
            "headers": pairs,
            "root_path": "",
            "http_version": "1.1",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "http",
            "server": ("127.0.0.1", 5000),
            "client": ("127.0.0.1", 5001),
        }
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            if leaves is not True:
                await (leaves or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        if not sent:
            return Answer(0, {}, b"")
        names = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], names, b"".join(message.get("body", b"") for message in sent[1:]))

    def post(self, path: str, headers: Mapping[str, str] | None = None, /, **values: Any) -> Answer:
        """Send fields as JSON."""
        return self.call("POST", path, json.dumps(values).encode(), {**JSON, **(headers or {})})

    def form(self, path: str, values: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """Send fields as a urlencoded form."""
        return self.call("POST", path, urlencode(values, doseq=True).encode(), {**FORM, **(headers or {})})

    def translate(self, q: Any, **values: Any) -> Answer:
        """Translate from en to de by JSON."""
        return self.post("/translate", **{"q": q, "source": "en", "target": "de", **values})

    def value(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        lines = self.metrics.text().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(rf"transduce_{name}[{{ ]", line))


@contextlib.contextmanager
def served(
    models: Any = None,
    keys: Sequence[str] = (),
    n_threads: int = 1,
    settings: ServerSettings | None = None,
    terms: Mapping[str, str] | None = None,
    **limits: Any,
) -> Iterator[Served]:
    """Serve a model from en to de, or models by pair, in this process, with an engine of `n_threads` threads.

    terms: of each pair.
    """
    if models is None or hasattr(models, "translate"):
        models = {("en", "de"): models or Reverser()}
    accepted = tuple(ApiKey(key, f"owner-{number}") for number, key in enumerate(keys))
    settings = settings or ServerSettings(keys=accepted, limits=dataclasses.replace(Limits(), **limits))
    service = Served(models, settings, n_threads, terms)
    try:
        yield service
    finally:
        service.close()


@contextlib.asynccontextmanager
async def listening(service: Served) -> AsyncIterator[int]:
    """Let a service listen on a free port of the loopback. Yield the port."""
    limits = service.settings.limits
    protocol = protocol_with(limits, service.observer)
    config = uvicorn_config(service.app, protocol, limits)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}, loop), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true, at most 10 s."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@dataclass
class ServerProcess:
    """A running `transduce serve`."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def stop(self, number: int = signal.SIGTERM, seconds: float = 15) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def stop_and_check(self) -> None:
        """Stop the server. Its log must have one JSON object for each request, and no traceback."""
        assert self.stop() == 0
        start, line, requests = self.log.read_text("utf-8").partition(" serves ")
        assert line and len(start.splitlines()) <= 2  # a notice may come first, as of int8 without kernels
        lines = requests.splitlines()[1:]
        others = [line for line in lines if not line.startswith('{"time"')]
        assert not others, others[:40]
        assert all(json.loads(line)["event"] == "request" for line in lines)


@contextlib.contextmanager
def server_process(folder: Path, model: Path | Sequence[str], *arguments: object) -> Iterator[ServerProcess]:
    """Run `transduce serve` on a free port until the block ends.

    folder: for its log. model: of en-de, or models such as "en-de=FOLDER".
    """
    models = [model, "--from", "en", "--to", "de"] if isinstance(model, Path) else model
    command = [sys.executable, "-m", "transduce", "serve", *models, "--port", 0, *arguments]
    log = folder / "serve.log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with log.open("wb") as file:
        process = subprocess.Popen([*map(str, command)], stderr=file, stdout=file, env=environment)
    try:
        for _ in range(3000):
            if match := re.search(r"http://[\d.]+:(\d+) serves", log.read_text("utf-8")):
                break
            assert process.poll() is None, log.read_text("utf-8")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        else:
            raise AssertionError("the server did not start")
        yield ServerProcess(process, int(match[1]), log)
    finally:
        process.kill()
        process.wait()
