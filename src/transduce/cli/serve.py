"""`transduce serve`: answer translation requests over HTTP."""

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from transduce.cli.options import Flag, Integer, with_device
from transduce.cli.translate import AnyPrecisionOption, EngineOption, SearchArguments, ShortlistOption, SplitOption
from transduce.console import printable
from transduce.data.system import ENDING, signals
from transduce.errors import UserError
from transduce.serve.keys import FORM, read_keys
from transduce.serve.settings import Limits, ServerSettings

if TYPE_CHECKING:
    from transduce.decoding.options import DecodingOptions
    from transduce.serve.generation import Loaded
    from transduce.serve.models import LanguagePair, TranslationModel

ServedModelsArgument = Annotated[
    str,
    Parameter(
        required=True,
        help="A model folder with --from and --to, or several as SOURCE-TARGET=FOLDER, such as en-de=run/model.",
    ),
]
SourceLanguageOption = Annotated[
    str | None, Parameter(name="--from", help="Language that a single model reads, such as en.")
]
TargetLanguageOption = Annotated[
    str | None, Parameter(name="--to", help="Language that a single model writes, such as de.")
]
HostOption = Annotated[str, Parameter(help="Address to listen on. 0.0.0.0 is every one of this machine.")]
PortOption = Annotated[int, Integer, Parameter(help="Port to listen on. 0 is a free one.")]
MetricsPortOption = Annotated[
    int | None, Integer, Parameter(help="Separate port of /metrics.", show_default="/metrics is on --port")
]
MetricsHostOption = Annotated[
    str | None, Parameter(help="Address to listen on with --metrics-port.", show_default="the address of --host")
]
ApiKeysOption = Annotated[
    Path | None, Parameter(help=f"File with a line for each key: {FORM}.", show_default="no key is needed")
]
ServedTermsOption = Annotated[
    list[str] | None,
    Parameter(
        help="Terms for all texts, in a file as for transduce translate. With several models: SOURCE-TARGET=FILE, "
        "which may be repeated."
    ),
]
GlossariesOption = Annotated[
    Path | None,
    Parameter(
        help="Folder for the glossaries that clients of DeepL's API create. It is made if needed.",
        show_default="clients cannot create any",
    ),
]
CorsOption = Annotated[str, Parameter(help="Origins whose pages may call this server, with commas between. * is any.")]
QuietProbesOption = Annotated[
    Flag, Parameter(help="Do not log answers to /healthz, /readyz, /health and /metrics, except refusals.")
]
DrainSOption = Annotated[
    float, Parameter(help="Seconds between SIGTERM, when /readyz becomes 503, and the closing of the socket.")
]
EngineThreadsOption = Annotated[
    int | None,
    Integer,
    Parameter(help="Threads that translate.", show_default="with compiled kernels one for each core, at most 4"),
]


@dataclass(frozen=True, kw_only=True)
class ServedSearch(SearchArguments):
    """The search of a service, whose texts are paragraphs."""

    split: SplitOption = "sentences"
    shortlist: ShortlistOption = False


AllServed = Annotated[ServedSearch, Parameter(name="*")]
AllLimits = Annotated[Limits, Parameter(name="*", group="Limits")]

PAIR_AND_FOLDER = re.compile(r"[a-z]{2,3}(-[a-z0-9]+)+=.+", re.IGNORECASE)
IGNORED = signals("SIGHUP", "SIGUSR1", "SIGUSR2")  # until the server is ready; then SIGHUP reloads
PACKAGES = ("starlette", "uvicorn", "httptools", "prometheus_client", "python_multipart")


@with_device
def serve(
    *models: ServedModelsArgument,
    source: SourceLanguageOption = None,
    target: TargetLanguageOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 5000,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    api_keys: ApiKeysOption = None,
    terms: ServedTermsOption = None,
    glossaries: GlossariesOption = None,
    cors: CorsOption = "*",
    drain_s: DrainSOption = 0.0,
    quiet_probes: QuietProbesOption = False,
    search: AllServed = ServedSearch(),  # noqa: B008
    precision: AnyPrecisionOption = None,
    engine: EngineOption = None,
    engine_threads: EngineThreadsOption = None,
    limits: AllLimits = Limits(),  # noqa: B008
) -> None:
    """Serve models over HTTP, for programs that speak to LibreTranslate or DeepL.

    Each answer is what `transduce translate --split sentences` gives for the same text. The page at / translates in a
    browser.

    Examples
    --------
    transduce serve run/model --from en --to de
    transduce serve en-de=run/model de-en=run2/model --api-keys keys.txt
    transduce serve run/model --from en --to de --host 0.0.0.0 --drain-s 5
    transduce serve run/model --from en --to de --terms terms.tsv
    transduce serve small --from en --to de --engine ctranslate2
    """
    folders = model_folders(models, source, target)
    from transduce.decoding.options import DecodingOptions

    options = DecodingOptions.from_arguments(**asdict(search))
    settings = ServerSettings(
        host=host,
        port=port,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        cors=cors,
        keys=() if api_keys is None else read_keys(api_keys),
        logs_probes=not quiet_probes,
        drain_seconds=drain_s,
        engine_threads=engine_threads,
        glossaries=glossary_folder(glossaries),
        limits=limits,
    )
    check_packages()
    before = {number: signal.signal(number, _exit_at_once) for number in ENDING}
    before |= {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    try:
        start(Loader(folders, settings, options, (precision, engine), api_keys, terms_files(terms or [], [*folders])))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_at_once(*_: object) -> None:
    """End the program while the models are loaded: nothing has been accepted yet."""
    os._exit(0)


def model_folders(models: tuple[str, ...], source: str | None, target: str | None) -> dict[tuple[str, str], Path]:
    """Return the folder of each language pair. Raises UserError for arguments that do not say them."""
    from transduce.serve.models import check_pair, pair_of

    if source is not None or target is not None:
        if source is None or target is None or len(models) != 1:
            raise UserError("--from and --to: expected both, and one model; or give SOURCE-TARGET=MODEL for each")
        if PAIR_AND_FOLDER.fullmatch(models[0]) and not Path(models[0]).is_dir():
            raise UserError(f"{models[0]}: expected a model folder with --from and --to; leave out --from and --to")
        return {check_pair(source, target): Path(models[0])}
    folders = {}
    for argument in models:
        pair, equals, folder = argument.partition("=")
        if not equals or not folder:
            raise UserError(f"{argument}: expected SOURCE-TARGET=MODEL, or one model with --from and --to")
        codes = pair_of(pair)
        if codes in folders:
            raise UserError(f"{argument}: expected one model for {pair}; leave out the other one")
        folders[codes] = Path(folder)
    return folders


def terms_files(arguments: Sequence[str], pairs: Sequence["LanguagePair"]) -> dict["LanguagePair", Path]:
    """Return the file of terms of each pair that has one. Raises UserError for arguments that do not say the pair."""
    files = dict["LanguagePair", Path]()
    for argument in arguments:
        name, _, file = argument.partition("=")
        pair = next((pair for pair in pairs if "-".join(pair) == name), None)
        if pair is None and len(pairs) == 1:
            pair, file = pairs[0], argument
        if pair is None or not file or pair in files:
            names = " or ".join("-".join(pair) for pair in pairs)
            raise UserError(
                f"--terms={argument}: expected one file for each pair; write SOURCE-TARGET=FILE, with {names}"
            )
        files[pair] = Path(file)
    return files


def glossary_folder(folder: Path | None) -> Path | None:
    """Return the folder, which exists now. Raises UserError if files cannot be written to it."""
    from transduce.data.disk import error_at

    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"--glossaries={folder}: expected a folder, but a file is there; give another folder") from None
    except OSError as problem:
        raise error_at(problem, "writing", folder) from None
    return folder


def check_packages() -> None:
    """Raise UserError if the packages of the extra `serve` are not installed."""
    import importlib.util

    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"serve: expected the packages {', '.join(missing)}; pip install 'transduce[serve]'")


def start(load: "Loader") -> None:
    """Load the models and serve them until a signal. The port is taken first, so that a taken one is reported soon."""
    from transduce.serve.server import bind, listen, reserve_files, run

    settings = load.settings
    reserve_files(settings.limits.connections, n_ports=1 if settings.metrics_port is None else 2)
    with ExitStack() as stack:
        bound = stack.enter_context(bind(settings.host, settings.port))
        metrics_host, metrics_port = settings.metrics_host or settings.host, settings.metrics_port
        bound_metrics = None
        if metrics_port is not None:
            bound_metrics = stack.enter_context(bind(metrics_host, metrics_port, "metrics-"))
        loaded = load()
        description = loaded.description
        for each in filter(None, (bound, bound_metrics)):
            listen(each)

        def on_ready(address: str) -> None:
            d = description
            _print(f"{address} serves {d.model}; engine {d.engine}, precision {d.precision}, kernels {d.kernels}")

        run(load, loaded, load.options, (bound, bound_metrics), on_ready)


@dataclass
class Loader:
    """Reads the models, keys and terms of a server. A model whose folder has not changed since the last time is kept.

    engines: precision and engine; None: the folder's. api_keys: file of the keys; None if the server needs none.
    terms: the files of terms.
    """

    folders: Mapping["LanguagePair", Path]
    settings: ServerSettings
    options: "DecodingOptions"
    engines: tuple[str | None, Literal["torch", "ctranslate2"] | None]
    api_keys: Path | None
    terms: Mapping["LanguagePair", Path] = field(default_factory=dict["LanguagePair", Path])
    _models: "dict[tuple[object, ...], TranslationModel]" = field(default_factory=dict)

    def __call__(self) -> "Loaded":
        """Return what the files have now. Raises UserError if one is wrong."""
        from transduce.cli.constraints import ConstraintOptions
        from transduce.cli.stream import ModelFolders, load_translator
        from transduce.decoding.phrases.segment_constraints import check_search
        from transduce.decoding.phrases.terms import NO_TERMS
        from transduce.serve.generation import Description, Loaded

        files = {pair: ConstraintOptions(terms=path) for pair, path in self.terms.items()}
        terms = {pair: file.load_terms() or NO_TERMS for pair, file in files.items()}
        keys = () if self.api_keys is None else read_keys(self.api_keys)
        versions = {path: _version(path) for path in set(self.folders.values())}
        models = {
            version: self._models.get(version) or load_translator(ModelFolders([path], *self.engines), self.options)
            for path, version in versions.items()
        }
        by_pair = {pair: models[versions[path]] for pair, path in self.folders.items()}
        for model in models.values():
            search = self.options.resolve(model.config.search)
            if self.options.placeholders:
                check_search(self.options, search)
        for pair, file in files.items():
            file.check(by_pair[pair], self.options)
        self._models = models
        first = next(iter(by_pair.values()))
        names = ", ".join(f"{'-'.join(pair)}={printable(path)}" for pair, path in self.folders.items())
        description = Description(names, first.precision, first.kernels, first.engine)
        return Loaded(by_pair, replace(self.settings, keys=keys), description, terms)


def _version(folder: Path) -> tuple[object, ...]:
    """Return what differs after a file of a model folder has changed, or the link to the folder."""
    files = [(path, path.stat()) for path in sorted(folder.resolve().rglob("*")) if path.is_file()]
    return folder, *((path, stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in files)


def _print(message: str) -> None:
    print(f"transduce: {printable(message)}", file=sys.stderr, flush=True)
