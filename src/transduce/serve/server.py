"""The life of a server: bind, warm up, serve, drain, end."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn

from transduce.decoding.options import DecodingOptions
from transduce.errors import UserError
from transduce.serve.app import State, application, metrics_application
from transduce.serve.engine import Engine
from transduce.serve.language import language_likelihoods
from transduce.serve.logs import Log
from transduce.serve.metrics import Metrics
from transduce.serve.models import Model, Models, primary
from transduce.serve.protocol import MAX_EXTRA, ConnectionObserver, TimedProtocol, protocol_with
from transduce.serve.queue import Sentence, SentenceQueue
from transduce.serve.service import Service
from transduce.serve.settings import Limits, ServerSettings

WARM_UP = "a"
LAST_READ_SECONDS = 0.1  # in which requests that have arrived are read, before idle connections are closed
SEND_BYTES = 64 << 10  # of answers in the kernel that a client has not read; its own limit is some MB a connection
OTHER_FILES = 64  # open files of the program that are no connections; it has about 20
ENGINE_SECONDS = 5.0  # for work that is not wanted any more, at the end


@dataclass(frozen=True)
class Description:
    """The model and the engine of the server, for the metrics and the first line on standard error."""

    model: str
    precision: str
    kernels: str
    engine: str


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet. Raises UserError if the address is not free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UserError(f"--host={host} --port={port}: expected a free address of this machine: {reason}") from None
    return bound


def reserve_files(connections: int, n_ports: int) -> None:
    """Raise the limit of open files to what the connections need. Raises UserError if the system does not allow it."""
    needed = n_ports * (connections + MAX_EXTRA) + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        most = (hard - OTHER_FILES) // n_ports - MAX_EXTRA
        remedy = f"take --connections={most}" if most > 0 else f"run ulimit -n {needed}"
        raise UserError(f"--connections={connections}: expected {needed:,} open files, not {hard:,}; {remedy}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Server(uvicorn.Server):
    """A uvicorn server without its signals, which reads what has arrived before it closes idle connections."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await asyncio.sleep(LAST_READ_SECONDS)
        await super().shutdown(sockets)


def run(
    by_pair: Mapping[tuple[str, str], Model],
    settings: ServerSettings,
    options: DecodingOptions,
    description: Description,
    bound: socket.socket,
    on_ready: Callable[[str], None],
    bound_metrics: socket.socket | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. on_ready: called with the address after the first translation."""
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries log may quote parts of a request
    metrics = Metrics()
    log = Log(metrics.log_errors.inc)
    queue = SentenceQueue(settings.limits)
    engine = Engine(queue, by_pair.values(), metrics.count_step, settings.engine_threads)
    likelihoods = language_likelihoods({primary(code) for pair in by_pair for code in pair})
    service = Service(Models(by_pair, likelihoods), queue, metrics, options, settings.limits)
    metrics.watch("waiting_sentences", "Sentences in the queue", lambda: queue.waiting_sentences)
    metrics.watch("waiting_tokens", "Tokens in the queue", lambda: queue.waiting_tokens)
    metrics.watch("running_sentences", "Sentences in the engine", lambda: engine.running)
    metrics.describe(**vars(description))
    engine.start()
    asyncio.run(_serve(service, settings, log, bound, bound_metrics, on_ready))
    queue.close()
    has_ended = engine.join(ENGINE_SECONDS)
    log.close()
    if not has_ended:
        os._exit(0)  # work that is not wanted any more must not delay the end


async def _serve(
    service: Service,
    settings: ServerSettings,
    log: Log,
    bound: socket.socket,
    bound_metrics: socket.socket | None,
    on_ready: Callable[[str], None],
) -> None:
    state = State()
    observer = ConnectionObserver(settings, service.metrics, log)
    protocol = protocol_with(settings.limits, observer)
    server = Server(uvicorn_config(application(service, settings, state, log), protocol, settings.limits))
    servers = [server.serve([bound])]
    if bound_metrics is not None:
        metrics_server = Server(uvicorn_config(metrics_application(service.metrics), protocol, settings.limits))
        servers.append(_end_with(server, metrics_server, bound_metrics))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrors(log))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping, number)
    life = asyncio.gather(*servers)
    warming = asyncio.ensure_future(_warm_up(service))
    end = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({warming, end, life}, return_when=asyncio.FIRST_COMPLETED)
    if warming.done() and not stopping.is_set():
        warming.result()
        state.is_ready = True
        on_ready(_address(settings.host, bound))
        await asyncio.wait({end, life}, return_when=asyncio.FIRST_COMPLETED)
    state.is_ready = False
    observer.drain()
    if settings.drain_seconds:
        await asyncio.sleep(settings.drain_seconds)
    server.should_exit = True
    await life


class LoopErrors:
    """The handler of errors outside a request. It logs that no connection can be accepted once in a minute."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._silent_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        problem = context.get("exception")
        if "accept" not in context.get("message", "") or not isinstance(problem, OSError):
            self._log.write_defect(problem)
        elif time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + 60
            self._log.write("error", "accept", reason=os.strerror(problem.errno or 0))


async def _end_with(server: Server, other: Server, bound: socket.socket) -> None:
    """Serve `other` until `server` has ended."""
    serving = asyncio.ensure_future(other.serve([bound]))
    while not server.should_exit:
        await asyncio.sleep(0.1)
    other.should_exit = True
    await serving


async def _warm_up(service: Service) -> None:
    """Translate a word with each model, so that the first request does not pay for it."""
    loop = asyncio.get_running_loop()
    models = {id(model): model for model in service.models.by_pair.values()}.values()
    for model in models:
        sentence = Sentence(model, WARM_UP, service.options, 1, False, loop.create_future())
        service.queue.put([sentence])
        await sentence.result


def _on_signal(stopping: asyncio.Event, number: int) -> None:
    if stopping.is_set():
        os._exit(128 + number)  # the second signal
    stopping.set()


def uvicorn_config(app: object, protocol: type[TimedProtocol], limits: Limits) -> uvicorn.Config:
    """Return the configuration of a uvicorn server: without its log, its signals and its headers."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=limits.connections,  # the loop tries to accept as many at a time, also without a descriptor
        timeout_keep_alive=int(limits.idle_seconds) or 1,
        timeout_graceful_shutdown=int(limits.deadline_seconds + limits.body_seconds) + 1,
    )


def _address(host: str, bound: socket.socket) -> str:
    port = bound.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
