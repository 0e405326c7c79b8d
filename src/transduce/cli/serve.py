"""`transduce serve`: answer translation requests over HTTP."""

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from transduce.cli.options import Alpha, BeamSize, Integer, Lookahead
from transduce.cli.translate import AnyPrecision, Engine, ShortlistFlag, SplitLines
from transduce.console import printable
from transduce.errors import UserError
from transduce.serve.settings import Limits, ServerSettings

if TYPE_CHECKING:
    from socket import socket

    from transduce.decoding.options import DecodingOptions
    from transduce.serve.models import Model

ServedModels = Annotated[
    str,
    Parameter(
        required=True,
        help="A model folder with --from and --to, or several as SOURCE-TARGET=FOLDER, such as en-de=run/model.",
    ),
]
From = Annotated[str | None, Parameter(name="--from", help="Language that a single model reads, such as en.")]
To = Annotated[str | None, Parameter(name="--to", help="Language that a single model writes, such as de.")]
Host = Annotated[str, Parameter(help="Address to listen on. 0.0.0.0 is every one of this machine.")]
Port = Annotated[int, Integer, Parameter(help="Port to listen on. 0 is a free one.")]
MetricsPort = Annotated[
    int | None, Integer, Parameter(help="Separate port of /metrics.", show_default="/metrics is on --port")
]
ApiKeys = Annotated[
    Path | None, Parameter(help="File with the accepted keys, one on a line.", show_default="no key is needed")
]
Cors = Annotated[str, Parameter(help="Origin whose pages may call this server. * is any.")]
DrainS = Annotated[
    float, Parameter(help="Seconds between SIGTERM, when /readyz becomes 503, and the closing of the socket.")
]
EngineThreads = Annotated[
    int | None,
    Integer,
    Parameter(help="Threads that translate.", show_default="with compiled kernels one for each core, at most 4"),
]
AllLimits = Annotated[Limits, Parameter(name="*", group="Limits")]

PACKAGES = ("starlette", "uvicorn", "httptools", "prometheus_client", "python_multipart")


def serve(
    *models: ServedModels,
    source: From = None,
    target: To = None,
    host: Host = "127.0.0.1",
    port: Port = 5000,
    metrics_port: MetricsPort = None,
    api_keys: ApiKeys = None,
    cors: Cors = "*",
    drain_s: DrainS = 0.0,
    beam_size: BeamSize = None,
    alpha: Alpha = None,
    lookahead: Lookahead = None,
    split: SplitLines = "long",
    shortlist: ShortlistFlag = False,
    precision: AnyPrecision = None,
    engine: Engine = None,
    engine_threads: EngineThreads = None,
    limits: AllLimits = Limits(),  # noqa: B008
) -> None:
    """Serve models over HTTP, for programs that speak to LibreTranslate or DeepL.

    Each answer is what `transduce translate` gives for the same text. The page at / translates in a browser.

    Examples
    --------
    transduce serve run/model --from en --to de
    transduce serve en-de=run/model de-en=run2/model --api-keys keys.txt
    transduce serve run/model --from en --to de --host 0.0.0.0 --drain-s 5
    transduce serve small --from en --to de --engine ctranslate2
    """
    folders = model_folders(models, source, target)
    from transduce.decoding.options import DecodingOptions

    options = DecodingOptions.from_arguments(
        beam_size=beam_size, alpha=alpha, lookahead=lookahead, split=split, shortlist=shortlist
    )
    settings = ServerSettings(
        host=host,
        port=port,
        metrics_port=metrics_port,
        cors=cors,
        api_keys=frozenset() if api_keys is None else read_keys(api_keys),
        drain_seconds=drain_s,
        engine_threads=engine_threads,
        limits=limits,
    )
    check_packages()
    before = {number: signal.signal(number, _exit_at_once) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        start(folders, settings, options, precision, engine)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_at_once(*_: object) -> None:
    """End the program while the models are loaded: nothing has been accepted yet."""
    os._exit(0)


def model_folders(models: tuple[str, ...], source: str | None, target: str | None) -> dict[tuple[str, str], Path]:
    """Return the folder of each language pair. Raises UserError for arguments that do not say them."""
    from transduce.serve.models import check_code

    if source is not None or target is not None:
        if source is None or target is None or len(models) != 1:
            raise UserError("--from and --to: expected both, and one model; or give SOURCE-TARGET=MODEL for each")
        return {(check_code(source), check_code(target)): Path(models[0])}
    folders = {}
    for argument in models:
        pair, equals, folder = argument.partition("=")
        if not equals or not folder:
            raise UserError(f"{argument}: expected SOURCE-TARGET=MODEL, or one model with --from and --to")
        codes = _pair(pair)
        if codes in folders:
            raise UserError(f"{argument}: expected one model for {pair}; leave out the other one")
        folders[codes] = Path(folder)
    return folders


def _pair(text: str) -> tuple[str, str]:
    """Return the two codes of a pair such as en-de or pt-BR-en: the target is what follows the last hyphen."""
    from transduce.serve.models import check_code

    source, _, target = text.rpartition("-")
    if not source:
        raise UserError(f"{text}: expected two languages, such as en-de")
    return check_code(source), check_code(target)


def read_keys(path: Path) -> frozenset[str]:
    """Return the keys of a file, one on a line; blank lines and lines with # at the start are left out."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8"
        raise UserError(f"--api-keys={path}: expected a text file that can be read: {reason}") from None
    keys = frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise UserError(f"--api-keys={path}: expected at least one key; leave the option out to need none")
    return keys


def check_packages() -> None:
    """Raise UserError if the packages of the extra `serve` are not installed."""
    import importlib.util

    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"serve: expected the packages {', '.join(missing)}; pip install 'transduce[serve]'")


def start(
    folders: dict[tuple[str, str], Path],
    settings: ServerSettings,
    options: "DecodingOptions",
    precision: str | None,
    engine: Literal["torch", "ctranslate2"] | None,
) -> None:
    """Load the models and serve them until a signal. The port is taken first, so that a taken one is reported soon."""
    from transduce.serve.server import bind, reserve_files

    reserve_files(settings.limits.connections, n_ports=1 if settings.metrics_port is None else 2)
    with ExitStack() as stack:
        bound = stack.enter_context(bind(settings.host, settings.port))
        metrics_port = settings.metrics_port
        bound_metrics = None if metrics_port is None else stack.enter_context(bind(settings.host, metrics_port))
        load_and_run(folders, settings, options, (precision, engine), (bound, bound_metrics))


def load_and_run(
    folders: dict[tuple[str, str], Path],
    settings: ServerSettings,
    options: "DecodingOptions",
    engines: tuple[str | None, Literal["torch", "ctranslate2"] | None],
    sockets: "tuple[socket, socket | None]",
) -> None:
    """Load the models, and serve them on bound sockets.

    engines: precision and engine; None: the folder's. sockets: socket of the service, and of the metrics or None.
    """
    from transduce.cli.stream import Models as Folders
    from transduce.cli.stream import load_translator
    from transduce.serve.server import Description, run

    precision, engine = engines
    by_folder = {path: load_translator(Folders([path], precision, engine), options) for path in set(folders.values())}
    by_pair: dict[tuple[str, str], Model] = {pair: by_folder[path] for pair, path in folders.items()}
    for model in by_pair.values():
        options.resolve(model.config.search)
    first = next(iter(by_pair.values()))
    names = ", ".join(f"{'-'.join(pair)}={printable(path)}" for pair, path in folders.items())
    description = Description(names, first.precision, first.kernels, first.engine)
    if description.precision == "int8" and description.kernels == "torch":
        _print("int8 without compiled kernels is about three times slower; install g++, or take fp32")

    def on_ready(address: str) -> None:
        d = description
        _print(f"{address} serves {d.model}; engine {d.engine}, precision {d.precision}, kernels {d.kernels}")

    run(by_pair, settings, options, description, sockets[0], on_ready, sockets[1])


def _print(message: str) -> None:
    print(f"transduce: {printable(message)}", file=sys.stderr, flush=True)
