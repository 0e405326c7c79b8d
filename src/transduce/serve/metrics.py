"""The figures of a running server, in the format of Prometheus. No label has a value that a client can choose."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from transduce import __version__
from transduce.serve.engine import EngineStep

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one server, in its own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"transduce_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(f"transduce_{name}", text, labels, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Answered requests", "route", "code")
        self.request_seconds = histogram("request_seconds", "Time of a request", "route")
        self.queue_seconds = histogram("queue_seconds", "Time of a sentence in the queue")
        self.step_seconds = histogram("step_seconds", "Time of a step of the engine")
        self.step_rows = histogram("step_rows", "Sentences in a step of the engine", buckets=ROWS)
        self.sentences = counter("sentences", "Translated sentences")
        self.failed_texts = counter("failed_texts", "Texts without a translation, in answered requests")
        self.source_tokens = counter("source_tokens", "Tokens of the source, of translated sentences")
        self.target_tokens = counter("target_tokens", "Tokens of the translations")
        self.rejected = counter("rejected", "Refused requests", "reason")
        self.cancelled = counter("cancelled", "Requests that ended without their answer", "reason")
        self.log_errors = counter("log_errors", "Lines of the log that could not be written")
        self.key_requests = counter("key_requests", "Requests with a key, by the name of its owner", "key", "code")
        self.key_characters = counter("key_characters", "Characters of these requests", "key")
        labels = ("version", "model", "precision", "kernels", "engine")
        self._info = Gauge("transduce_info", "The program and its model", labels, registry=registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed when it is read."""
        Gauge(f"transduce_{name}", text, registry=self.registry).set_function(value)

    def describe(self, *, model: str, precision: str, kernels: str, engine: str) -> None:
        """Set the constant `transduce_info`."""
        labels = {"version": __version__, "model": model, "precision": precision, "kernels": kernels, "engine": engine}
        self._info.clear()
        self._info.labels(**labels).set(1)

    def count_step(self, step: EngineStep) -> None:
        """Count a step of the engine. Called by its threads."""
        self.step_seconds.observe(step.seconds)
        self.step_rows.observe(step.n_sentences)
        self.sentences.inc(len(step.translated))
        self.source_tokens.inc(sum(sentence.n_tokens for sentence in step.translated))
        self.target_tokens.inc(step.target_tokens)
        for sentence in step.translated:
            self.queue_seconds.observe((sentence.taken_at or sentence.put_at) - sentence.put_at)

    def text(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)
