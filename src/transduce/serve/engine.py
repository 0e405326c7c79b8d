"""The engine: threads that take sentences from the queue, translate them, and finish them.

A model of `transduce.load` searches step by step (`decoding/running_translation.py`). New lines join at every step. A
sentence leaves at the step at which it is done, and at the next one if it is not wanted any more.
CTranslate2 gives no way into its search, and gets `WholeBatches`.

Short and long requests are searched separately, and so are the sentences of several models. These
searches share the time of a thread. A step with many sentences takes ten times as long as one with a single sentence,
and a short request must not wait for a long one at each of its steps.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.line_constraint import LineConstraint
from transduce.decoding.phrases.segment_constraints import FREE
from transduce.decoding.phrases.terms import NO_TERMS, Terms
from transduce.errors import UserError, is_out_of_memory
from transduce.serve.models import Search, TranslationModel
from transduce.serve.queue import SentenceQueue
from transduce.serve.refusal import Refusal, invalid
from transduce.serve.sentence import LaneId, Sentence, finish

Outcomes = dict[Sentence, Translation | Exception]

MAX_SENTENCES = 64  # of a batch that is translated as a whole; more are hardly faster, and delay the next one
RECENT = 0.99  # weight of a sentence that ended, for each one that ended later, in the length of a search
MAX_TOKENS = 2_048  # of its sources; times a beam of 4 it is a batch of `batched_search`


class WholeBatches:
    """The search of an engine that only translates lists of lines. A step translates all lines."""

    def __init__(self, model: TranslationModel) -> None:
        self.model = model
        self.lines: dict[Sentence, tuple[str, DecodingOptions]] = {}

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def room(self) -> tuple[int, int]:
        return (0, 0) if self.lines else (MAX_SENTENCES, MAX_TOKENS)

    @property
    def is_blocked(self) -> bool:
        return False

    def admit(
        self,
        key: Sentence,
        text: str,
        options: DecodingOptions,
        constraint: LineConstraint = FREE,
        terms: Terms = NO_TERMS,
    ) -> None:
        assert not constraint and not terms  # the service refuses them
        self.lines[key] = text, options

    def step(self) -> Outcomes:
        outcomes: Outcomes = {}
        for options in dict.fromkeys(options for _, options in self.lines.values()):
            self._translate([key for key, line in self.lines.items() if line[1] == options], options, outcomes)
        self.lines.clear()
        return outcomes

    def _translate(self, keys: Sequence[Sentence], options: DecodingOptions, outcomes: Outcomes) -> None:
        """Translate lines with the same options, or half by half where the model fails."""
        try:
            lines = [self.lines[key][0] for key in keys]
            outcomes.update(zip(keys, self.model.translate(lines, options=options), strict=True))
            return
        except Exception as problem:
            failure = problem.with_traceback(None)
        if len(keys) == 1:
            outcomes[keys[0]] = failure
        else:
            middle = len(keys) // 2
            self._translate(keys[:middle], options, outcomes)
            self._translate(keys[middle:], options, outcomes)

    def drop(self, keys: Collection[Sentence]) -> None:
        for key in keys:
            self.lines.pop(key, None)

    def close(self) -> None:
        self.lines.clear()


def search_of(model: TranslationModel) -> Search[Sentence]:
    """Return an empty search of a model."""
    running = model.running()
    return WholeBatches(model) if running is None else running


@dataclass(frozen=True)
class EngineStep:
    """A step of a search, for the metrics.

    n_sentences: number of sentences in the search. translated: sentences that ended with a translation.
    seconds: duration of the step.
    """

    n_sentences: int
    translated: Sequence[Sentence]
    target_tokens: int
    seconds: float


class Engine:
    """Threads that translate what waits in a queue.

    models: models of the sentences in the queue. n_threads: number of threads; each has its own searches, and takes its
    share of the sentences. None: as many as the models gain by.
    """

    def __init__(
        self,
        queue: SentenceQueue,
        models: Iterable[TranslationModel],
        on_step: Callable[[EngineStep], None] = lambda step: None,
        n_threads: int | None = None,
    ) -> None:
        self.queue = queue
        self._on_step = on_step
        different = {id(model): model for model in models}.values()
        count = n_threads or min(model.parallel_searches for model in different)
        self._tasks = [  # of each thread
            [_Task(model, is_short) for model in different for is_short in (True, False)] for _ in range(count)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=[tasks], name=f"transduce-engine-{i}", daemon=True)
            for i, tasks in enumerate(self._tasks)
        ]

    @property
    def running(self) -> int:
        """The number of sentences that are searched."""
        return sum(map(len, itertools.chain(*self._tasks)))

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> bool:
        """Wait until the threads have ended, after the queue was closed. Return False if one has not."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, tasks: Sequence["_Task"]) -> None:
        """Translate until the queue is closed and empty. Each step is one of the task that has had the least time.

        Where only one search at a time may use a model, as on a GPU, the other one waits for its end.
        """
        now = 0.0  # the time that the task of the last step had had before
        while True:
            for task in tasks:
                task.drop_unwanted()
            sentences = self.queue.take(lambda: self._rooms(tasks), waits=not any(map(len, tasks)))
            if sentences is None:
                return
            for task in tasks:
                task.admit([sentence for sentence in sentences if sentence.lane == task.lane], now)
            if busy := [task for task in tasks if len(task)]:
                ready = [task for task in busy if not task.search.is_blocked]
                task = min(ready or busy, key=lambda task: task.seconds)
                now, step = task.seconds, task.step()
                task.measure(step, self.queue, len(self._tasks))
                self._on_step(step)
                del step
            del sentences

    def _rooms(self, tasks: Sequence["_Task"]) -> dict[LaneId, tuple[int, int]]:
        """Return how many sentences and tokens a thread may take of each lane: its share of all sentences."""
        share = math.ceil((self.queue.waiting_sentences + self.running) / len(self._tasks))
        n_more = share - sum(map(len, tasks))
        return {task.lane: task.room(n_more) for task in tasks}


class _Task:
    """The search of a lane in a thread, and the sentences in it.

    seconds: time that it has had. A task that was idle has no claim to the time of the others. It begins with the time
    that the task at work had before its present step (start-time fair queuing, Goyal et al. 1996).
    """

    def __init__(self, model: TranslationModel, is_short: bool) -> None:
        self.model = model
        self.lane = id(model), is_short
        self.seconds = 0.0
        self.search = search_of(model)
        self.sentences: dict[Sentence, int] = {}  # with the steps before each
        self._n_steps = 0
        self._ended_at: float | None = None  # of the last step, if sentences waited for room
        self._steps_of_ended = 0.0  # of the sentences that ended lately, and their tokens
        self._tokens_of_ended = 0.0

    def __len__(self) -> int:
        """Return the number of sentences that are searched."""
        return len(self.sentences)

    def room(self, share: int) -> tuple[int, int]:
        """Return how many sentences and tokens may be taken, at most `share` sentences."""
        n_sentences, n_tokens = self.search.room
        return min(n_sentences, share), n_tokens

    def drop_unwanted(self) -> None:
        """Drop the sentences that are not wanted any more."""
        unwanted = {sentence for sentence in self.sentences if not sentence.is_wanted}
        if unwanted:
            self.search.drop(unwanted)
            self._remove(unwanted)

    def _remove(self, sentences: Iterable[Sentence]) -> None:
        for sentence in sentences:
            del self.sentences[sentence]

    def admit(self, sentences: Sequence[Sentence], now: float) -> None:
        """Let the search take sentences in. One that it refuses is finished. now: the least `seconds` after a pause."""
        if sentences and not self.sentences:
            self.seconds = max(self.seconds, now)
            self._ended_at = None
        for sentence in sentences:
            try:
                self.search.admit(sentence, sentence.line, sentence.options, sentence.constraint, sentence.terms)
            except UserError as error:
                has_phrases = sentence.constraint or sentence.terms
                finish({sentence: invalid(str(error)) if has_phrases else _refusal(error)})
            except Exception as problem:
                finish({sentence: _refusal(problem)})
            else:
                self.sentences[sentence] = self._n_steps

    def step(self) -> EngineStep:
        """Make a step, and finish the sentences that end."""
        start = time.monotonic()
        n_sentences = len(self.sentences)
        ended = self._outcomes()
        self._n_steps += 1
        for sentence in ended:
            self._steps_of_ended = RECENT * self._steps_of_ended + self._n_steps - self.sentences[sentence]
            self._tokens_of_ended = RECENT * self._tokens_of_ended + sentence.n_tokens
        self._remove(ended)
        outputs = {key: _answer(outcome) for key, outcome in ended.items()}
        finish(outputs)
        translated = {key: output for key, output in outputs.items() if isinstance(output, Translation)}
        n_target = sum(len(translation.pieces) for translation in translated.values())
        seconds = time.monotonic() - start
        self.seconds += seconds
        return EngineStep(n_sentences, [*translated], n_target, seconds)

    def measure(self, step: EngineStep, queue: SentenceQueue, n_threads: int) -> None:
        """Tell the queue how far the sentences of a step came, and in what time, so that it knows the speed.

        A sentence comes as far in each step as sentences that ended did on average: after all steps, through its
        tokens. n_threads: number of threads that do the same.
        """
        now = time.monotonic()
        tokens_a_step = self._tokens_of_ended / self._steps_of_ended if self._steps_of_ended else None
        n_tokens = None if tokens_a_step is None else step.n_sentences * tokens_a_step
        seconds = step.seconds if self._ended_at is None else now - self._ended_at
        is_full = queue.measure(self.lane, n_tokens, seconds / n_threads, step.translated)
        self._ended_at = now if is_full else None

    def _outcomes(self) -> dict[Sentence, Translation | Exception]:
        try:
            return self.search.step()
        except Exception as problem:  # a defect: nothing is known of the search any more
            self.search.close()
            self.search = search_of(self.model)
            return dict.fromkeys(self.sentences, problem.with_traceback(None))


def _answer(outcome: Translation | Exception) -> Translation | Refusal:
    """Return the translation of a sentence, or the reason for none: the model failed, or the sentence is too long."""
    if isinstance(outcome, Exception):
        return _refusal(outcome)
    return outcome if outcome.problem is None or outcome.pieces else invalid(outcome.problem)


def _refusal(problem: Exception) -> Refusal:
    """Return the answer to a client whose text made the model fail. It has no words of the text; its cause may."""
    refusal = Refusal(500, f"the model failed on this text: {type(problem).__name__}", "model")
    if is_out_of_memory(problem):
        refusal = Refusal(503, "out of memory; send a shorter text", "memory", retry_after=1)
    refusal.__cause__ = problem.with_traceback(None)
    return refusal
