"""The engine: a thread that takes sentences from the queue and translates them in micro-batches.

It serves every translator, because it needs only `translate`. A micro-batch is what waits when the last one is done:
nothing waits for a batch to fill.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transduce.errors import is_out_of_memory
from transduce.serve.alignment import align
from transduce.serve.languages import Model
from transduce.serve.queue import Output, Sentence, SentenceQueue
from transduce.serve.refusal import Refusal

MAX_SENTENCES = 64  # of a micro-batch; more are hardly faster, and delay the next one
MAX_TOKENS = 2_048  # of the source; times a beam of 4 it is a batch of `batched_search`


@dataclass(frozen=True)
class Batch:
    """A finished micro-batch, for the metrics."""

    sentences: Sequence[Sentence]
    target_tokens: int
    seconds: float


class MicroBatchEngine:
    """One thread that translates what waits in a queue. running: the sentences of the present micro-batch."""

    def __init__(self, queue: SentenceQueue, on_batch: Callable[[Batch], None] = lambda batch: None) -> None:
        self.queue = queue
        self.running = 0
        self._on_batch = on_batch
        self._thread = threading.Thread(target=self._run, name="transduce-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait until the thread has ended, after the queue was closed. Return False if it has not."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self.queue.take(MAX_SENTENCES, MAX_TOKENS, waits=True):
            self.running = len(batch)
            start = time.monotonic()
            n_target = self._translate(batch)
            seconds = time.monotonic() - start
            self.queue.note_speed(sum(sentence.n_tokens for sentence in batch), seconds)
            self.running = 0
            self._on_batch(Batch(batch, n_target, seconds))
            del batch

    def _translate(self, batch: Sequence[Sentence]) -> int:
        """Translate and finish each sentence. Return the number of target tokens.

        A batch that fails is halved, so that a sentence that makes the model fail harms only itself, and so that less
        memory is needed.
        """
        batch = [sentence for sentence in batch if sentence.is_wanted]
        if not batch:
            return 0
        outputs = _outputs(batch)
        if isinstance(outputs, Refusal):
            if len(batch) == 1:
                batch[0].finish(outputs)
                return 0
            middle = len(batch) // 2
            return self._translate(batch[:middle]) + self._translate(batch[middle:])
        for sentence, output in zip(batch, outputs, strict=True):
            sentence.finish(output)
        return sum(len(output.translation.pieces) for output in outputs)


def _outputs(batch: Sequence[Sentence]) -> list[Output] | Refusal:
    """Return the results for sentences of one group, or the reason for which the model failed on them.

    The exception itself ends here: a live one keeps the tensors of its frames in memory.
    """
    model: Model = batch[0].model
    try:
        lines = [sentence.line for sentence in batch]
        translations = model.translate(lines, options=batch[0].options)
        return [
            Output(translation, align(model, sentence.line, translation.text) if sentence.needs_alignment else None)
            for sentence, translation in zip(batch, translations, strict=True)
        ]
    except Exception as problem:
        if is_out_of_memory(problem):
            return Refusal(503, "out of memory; send a shorter text", "memory", retry_after=1)
        return Refusal(500, f"the model failed on this text: {type(problem).__name__}", "model")
