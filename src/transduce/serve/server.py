"""The life of a server: bind, warm up, serve, reload, drain, end."""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import uvicorn

from transduce.data.system import ENDING, allow_open_files, call_at_signal, signals
from transduce.decoding.options import DecodingOptions
from transduce.errors import UserError, is_out_of_memory
from transduce.serve.app import ServiceState, metrics_application
from transduce.serve.generation import Generation, Generations, Loaded
from transduce.serve.logs import Log
from transduce.serve.metrics import Metrics
from transduce.serve.protocol import MAX_EXTRA, ConnectionObserver, TimedProtocol, protocol_with
from transduce.serve.settings import Limits, ServerSettings

LAST_READ_SECONDS = 0.1  # in which requests that have arrived are read, before idle connections are closed
SEND_BYTES = 64 << 10  # of answers in the kernel that a client has not read; its own limit is some MB a connection
SOLE_USE = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)  # on Windows, SO_REUSEADDR shares a port
OTHER_FILES = 64  # open files of the program that are no connections; it has about 20
ENGINE_SECONDS = 5.0  # for work that is not wanted any more, at the end
NO_ROOM = "out of memory: a reload holds the old and the new models; restart the server"


def bind(host: str, port: int, prefix: str = "") -> socket.socket:
    """Return a bound socket that does not listen yet. Raises UserError if the address is not free.

    prefix: of the names of the options that say host and port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, SOLE_USE, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        options = f"--{prefix}host={host} --{prefix}port={port}"
        raise UserError(f"{options}: expected a free address of this machine: {reason}") from None
    return bound


def listen(bound: socket.socket) -> None:
    """Let a bound socket listen. Raises UserError if another one has begun to listen at its address meanwhile."""
    try:
        bound.listen()
    except OSError as problem:
        host, port = bound.getsockname()[:2]
        raise UserError(f"{host}:{port}: expected a free address of this machine: {problem.strerror}") from None


def reserve_files(connections: int, n_ports: int) -> None:
    """Raise the limit of open files to what the connections need. Raises UserError if the system does not allow it."""
    needed = n_ports * (connections + MAX_EXTRA) + OTHER_FILES
    allowed = allow_open_files(needed)
    if allowed < needed:
        most = (allowed - OTHER_FILES) // n_ports - MAX_EXTRA
        remedy = f"take --connections={most}" if most > 0 else f"run ulimit -n {needed}"
        raise UserError(f"--connections={connections}: expected {needed:,} open files, not {allowed:,}; {remedy}")


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
    load: Callable[[], Loaded],
    loaded: Loaded,
    options: DecodingOptions,
    sockets: tuple[socket.socket, socket.socket | None],
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT.

    load: returns the models, keys and terms of the files as they are now; called at SIGHUP. loaded: what it returned
    first. sockets: socket of the service, and of the metrics or None. on_ready: called with the address after the
    first translation.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries log may quote parts of a request
    metrics = Metrics()
    log = Log(metrics.log_errors.inc)
    state = ServiceState()
    generations = Generations(lambda each: Generation(each, options, metrics, log, state), loaded, metrics)
    life = Life(generations, load, state, log)
    asyncio.run(life.run(loaded.settings, metrics, sockets, on_ready))
    has_ended = generations.close(ENGINE_SECONDS)
    log.close()
    if not has_ended:
        os._exit(0)  # work that is not wanted any more must not delay the end


class Life:
    """The life of a server in its event loop: its first translation, its signals, and its end."""

    def __init__(self, generations: Generations, load: Callable[[], Loaded], state: ServiceState, log: Log) -> None:
        self._generations = generations
        self._load = load
        self._state = state
        self._log = log
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Event()

    async def run(
        self,
        settings: ServerSettings,
        metrics: Metrics,
        sockets: tuple[socket.socket, socket.socket | None],
        on_ready: Callable[[str], None],
    ) -> None:
        """Serve on bound sockets until a signal to end."""
        bound, bound_metrics = sockets
        observer = ConnectionObserver(settings, metrics, self._log)
        protocol = protocol_with(settings.limits, observer)
        server = Server(uvicorn_config(self._generations, protocol, settings.limits))
        servers = [server.serve([bound])]
        if bound_metrics is not None:
            metrics_server = Server(uvicorn_config(metrics_application(metrics), protocol, settings.limits))
            servers.append(_end_with(server, metrics_server, bound_metrics))
        self._handle_signals()
        serving = asyncio.gather(*servers)
        warming = asyncio.ensure_future(self._generations.newest.warm_up())
        end = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({warming, end, serving}, return_when=asyncio.FIRST_COMPLETED)
        if warming.done() and not self._stopping.is_set():
            warming.result()
            self._state.is_ready = True
            on_ready(_address(settings.host, bound))
            notify("READY=1")
            reloading = asyncio.ensure_future(self._reload_at_signals())
            await asyncio.wait({end, serving}, return_when=asyncio.FIRST_COMPLETED)
            reloading.cancel()
        notify("STOPPING=1")
        self._state.is_ready = False
        self._state.downloads.close()
        observer.drain()
        if settings.drain_seconds:
            await asyncio.sleep(settings.drain_seconds)
        server.should_exit = True
        await serving

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrors(self._log))
        for number in ENDING:
            call_at_signal(loop, number, partial(self._stop, number))
        for number in signals("SIGHUP"):
            call_at_signal(loop, number, self._reloading.set)

    def _stop(self, number: int) -> None:
        if self._stopping.is_set():
            os._exit(128 + number)  # the second signal
        self._stopping.set()

    async def _reload_at_signals(self) -> None:
        """Read models, keys and terms again at each SIGHUP. What cannot be read leaves all as it was."""
        while await self._reloading.wait():
            self._reloading.clear()
            notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1_000}")
            try:
                loaded = await asyncio.to_thread(self._load)
                await self._generations.replace(loaded)
            except (UserError, OSError) as error:
                self._log.write("error", "reload", reason=str(error))
            except Exception as problem:
                if is_out_of_memory(problem):
                    self._log.write("error", "reload", reason=NO_ROOM)
                else:
                    self._log.write_defect(problem)
            else:
                counts = {"keys": len(loaded.settings.keys), "terms": sum(map(len, loaded.terms.values()))}
                self._log.write("info", "reload", models=loaded.description.model, **counts)
            notify("READY=1")


def notify(message: str) -> None:
    """Tell systemd about the life of the server, if its unit has Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection, contextlib.suppress(OSError):
            connection.sendto(message.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


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
