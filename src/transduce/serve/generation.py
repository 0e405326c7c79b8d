"""Models with their engine and application, which another generation replaces at a reload, without losing a request."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from transduce.data.languages import language_likelihoods
from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.terms import Terms
from transduce.errors import UserError
from transduce.serve.app import ServiceState, application
from transduce.serve.engine import Engine
from transduce.serve.logs import Log
from transduce.serve.metrics import Metrics
from transduce.serve.models import LanguagePair, ServerModels, TranslationModel, primary
from transduce.serve.queue import SentenceQueue
from transduce.serve.refusal import Refusal
from transduce.serve.sentence import Sentence
from transduce.serve.service import Service
from transduce.serve.settings import ServerSettings

WARM_UP = "a"


@dataclass(frozen=True)
class Description:
    """The model and the engine of a server, for the metrics and the first line on standard error."""

    model: str
    precision: str
    kernels: str
    engine: str


@dataclass(frozen=True)
class Loaded:
    """What a server reads from files: its models and terms by (source, target), and its keys, in the settings."""

    by_pair: Mapping[LanguagePair, TranslationModel]
    settings: ServerSettings
    description: Description
    terms: Mapping[LanguagePair, Terms] = field(default_factory=dict[LanguagePair, Terms])


class Generation:
    """The models between two reloads: their queue, engine, service and application. It counts its open requests."""

    def __init__(
        self, loaded: Loaded, options: DecodingOptions, metrics: Metrics, log: Log, state: ServiceState
    ) -> None:
        settings = loaded.settings
        self.description = loaded.description
        self.n_requests = 0
        self.queue = SentenceQueue(settings.limits)
        self.engine = Engine(self.queue, loaded.by_pair.values(), metrics.count_step, settings.engine_threads)
        likelihoods = language_likelihoods(frozenset(primary(code) for pair in loaded.by_pair for code in pair))
        self.service = Service(
            ServerModels(loaded.by_pair, likelihoods, loaded.terms), self.queue, metrics, options, settings.limits
        )
        self.app = application(self.service, settings, state, log)
        self.engine.start()

    async def warm_up(self) -> None:
        """Translate a word with each model, so that the first request does not pay for it.

        Raises UserError for a model whose output is not finite, and what else makes a model fail, as lack of memory.
        """
        loop = asyncio.get_running_loop()
        models = {id(model): (pair, model) for pair, model in self.service.models.by_pair.items()}.values()
        for pair, model in models:
            sentence = Sentence(model, WARM_UP, self.service.options, 1, loop.create_future())
            self.queue.put([sentence])
            try:
                await sentence.result
            except Refusal as refusal:
                raise _problem_of(pair, refusal) from None


def _problem_of(pair: LanguagePair, refusal: Refusal) -> BaseException:
    """Return why the model of a pair refused the first translation, whose text is not a client's."""
    if not isinstance(refusal.__cause__, FloatingPointError):
        return refusal.__cause__ or refusal
    return UserError(
        f"{'-'.join(pair)}: expected a model whose outputs are finite numbers: {refusal.__cause__}; use an earlier "
        "checkpoint, or another copy"
    )


class Generations:
    """The application of a server. A request ends in the generation in which it began."""

    def __init__(self, make: Callable[[Loaded], Generation], loaded: Loaded, metrics: Metrics) -> None:
        self._make = make
        self._metrics = metrics
        self._all = [make(loaded)]
        for name, text, value in (
            ("waiting_sentences", "Sentences in the queue", lambda each: each.queue.waiting_sentences),
            ("waiting_tokens", "Tokens in the queue", lambda each: each.queue.waiting_tokens),
            ("running_sentences", "Sentences in the engine", lambda each: each.engine.running),
        ):
            metrics.watch(name, text, lambda value=value: sum(map(value, list(self._all))))
        metrics.describe(**vars(loaded.description))

    @property
    def newest(self) -> Generation:
        """The generation to which new requests go."""
        return self._all[-1]

    async def replace(self, loaded: Loaded) -> None:
        """Let new models answer what comes from now on, after a first translation."""
        generation = await asyncio.to_thread(self._make, loaded)  # it reads the model of languages
        try:
            await generation.warm_up()
        except BaseException:
            generation.queue.close()
            raise
        self._all.append(generation)
        self._metrics.describe(**vars(loaded.description))
        self._retire()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        generation = self.newest
        generation.n_requests += 1
        try:
            await generation.app(scope, receive, send)
        finally:
            generation.n_requests -= 1
            self._retire()

    def _retire(self) -> None:
        """End the engine of each older generation without requests. It drops what is not wanted any more."""
        for generation in [each for each in self._all[:-1] if not each.n_requests]:
            generation.queue.close()
            self._all.remove(generation)

    def close(self, seconds: float) -> bool:
        """End all engines. Return False if one still works after `seconds`."""
        for generation in self._all:
            generation.queue.close()
        return all([generation.engine.join(seconds) for generation in self._all])
