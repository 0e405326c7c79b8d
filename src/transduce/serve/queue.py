"""The queue between the client APIs and the engine: admission, turns by request, deadlines, and clients that left.

The event loop puts the sentences of a request in and waits for their results. A thread of the engine takes sentences
out, one of each waiting request in turn, and finishes them. It needs `take`, `finish` and `Sentence.is_wanted`.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from transduce.decoding.hypothesis import Alignment, Translation
from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.line_constraint import LineConstraint
from transduce.decoding.phrases.segment_constraints import FREE
from transduce.serve.models import Model
from transduce.serve.refusal import Refusal
from transduce.serve.settings import Limits

SHORT_SENTENCES, SHORT_TOKENS = 8, 512  # of a request at most, for it to be short
RATE_SECONDS = 10.0  # the speed of the engine is averaged over about this much of its work

Lane = tuple[int, bool]  # the id of a model, and True for short requests


@dataclass(frozen=True)
class Output:
    """The result for one sentence: its translation and, if it was wanted, the alignment of the words."""

    translation: Translation
    alignment: Alignment | None = None


@dataclass(eq=False)
class Sentence:
    """A line that waits for its translation, is being translated, or has its result.

    n_tokens: number of tokens of the source. constraint: phrases of its translation.
    result: translation, which the event loop sets. is_wanted: False after the client left or the deadline.
    is_short: True if its request is short; set by the queue.
    """

    model: Model
    line: str
    options: DecodingOptions
    n_tokens: int
    needs_alignment: bool
    result: "asyncio.Future[Output]"
    constraint: LineConstraint = FREE
    is_wanted: bool = True
    is_short: bool = True
    put_at: float = field(default_factory=time.monotonic)
    taken_at: float | None = None
    finished_at: float | None = None

    @property
    def lane(self) -> Lane:
        """Equal for sentences that are searched together: of one model, and of short requests or of long ones."""
        return id(self.model), self.is_short


def finish(outcomes: Mapping[Sentence, Output | Exception]) -> None:
    """Hand results over to the event loop, all in one call, for each call wakes it. Called by a thread of the engine.

    A sentence is finished once.
    """
    now = time.monotonic()
    for sentence in outcomes:
        sentence.finished_at = now
    for loop in {sentence.result.get_loop() for sentence in outcomes}:
        with suppress(RuntimeError):  # the event loop has ended, after the time to answer was over
            loop.call_soon_threadsafe(_set_results, loop, outcomes)


def _set_results(loop: asyncio.AbstractEventLoop, outcomes: Mapping[Sentence, Output | Exception]) -> None:
    for sentence, outcome in outcomes.items():
        result = sentence.result
        if result.done() or result.get_loop() is not loop:
            continue
        if isinstance(outcome, Exception):
            result.set_exception(outcome)
            result.exception()  # an unread result is no error of this program
        else:
            result.set_result(outcome)


class SentenceQueue:
    """Sentences that wait for the engine, bounded in number and in tokens.

    Requests take turns: the engine gets one sentence of each. So a request of 128 texts does not delay a single one by
    its whole length.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting_sentences = 0
        self.waiting_tokens = 0
        self._requests: deque[deque[Sentence]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._rate = 0.0  # source tokens in a second of the engine's work
        self._work_seconds = 0.0

    # ---- the event loop's side -----------------------------------------------------------------------------------

    def put(self, sentences: Sequence[Sentence]) -> None:
        """Add the sentences of one request, all or none. Raises Refusal with status 429 if they do not fit."""
        tokens = sum(sentence.n_tokens for sentence in sentences)
        for sentence in sentences:
            sentence.is_short = len(sentences) <= SHORT_SENTENCES and tokens <= SHORT_TOKENS
        limits = self.limits
        for name, count, most in (
            ("sentences", len(sentences), limits.waiting_sentences),
            ("tokens", tokens, limits.waiting_tokens),
        ):
            if count > most:
                message = f"Invalid request: expected at most {most:,} {name}, not {count:,}; send several requests"
                raise Refusal(400, message, "limit")
        with self._changed:
            if self._is_closed:
                raise Refusal(503, "the server is shutting down", "shutdown", retry_after=1, closes=True)
            for name, waiting, more, most in (
                ("sentences", self.waiting_sentences, len(sentences), limits.waiting_sentences),
                ("tokens", self.waiting_tokens, tokens, limits.waiting_tokens),
            ):
                if waiting + more > most:
                    seconds = self.retry_after
                    message = (
                        f"Slowdown: {waiting:,} {name} are waiting, at most {most:,} may; try again in {seconds} s"
                    )
                    raise Refusal(429, message, "queue", retry_after=seconds)
            self._requests.append(deque(sentences))
            self.waiting_sentences += len(sentences)
            self.waiting_tokens += tokens
            self._changed.notify_all()

    def drop(self, sentences: Sequence[Sentence]) -> None:
        """Remove sentences that are not wanted any more. One that is being translated is marked."""
        dropped = set(sentences)
        for sentence in sentences:
            sentence.is_wanted = False
        with self._changed:
            for request in self._requests:
                if request and dropped.intersection(request):
                    gone = [sentence for sentence in request if sentence in dropped]
                    self._count_out(gone)
                    remaining = [sentence for sentence in request if sentence not in dropped]
                    request.clear()
                    request.extend(remaining)
            self._requests = deque(request for request in self._requests if request)

    @property
    def retry_after(self) -> int:
        """Seconds until the waiting tokens are translated, by the engine's recent speed; 1 to 60."""
        return min(60, max(1, math.ceil(self.waiting_tokens / self._rate))) if self._rate else 1

    def close(self) -> None:
        """Refuse further sentences. The engine ends when the queue is empty."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # ---- the engine's side ---------------------------------------------------------------------------------------

    def take(self, rooms: Callable[[], Mapping[Lane, tuple[int, int]]], *, waits: bool) -> list[Sentence] | None:
        """Return waiting sentences for which there is room, one of each request in turn.

        rooms: returns how many sentences, and tokens of the source, may be taken of each lane. The last sentence may
        have more tokens than remain. It is called when a sentence waits.
        waits: wait for a sentence. None then means that none will come: the queue is closed.
        """
        with self._changed:
            while waits and not self._requests and not self._is_closed:
                self._changed.wait()
            if waits and not self._requests:
                return None
            sentences: list[Sentence] = []
            remaining = {lane: [*room] for lane, room in rooms().items()} if self._requests else {}
            passed = 0  # requests without a sentence for which there is room, since the last one with
            while passed < len(self._requests) and any(min(room) > 0 for room in remaining.values()):
                request = self._requests.popleft()
                room = remaining[request[0].lane]
                if min(room) > 0:
                    sentences.append(request.popleft())
                    room[0] -= 1
                    room[1] -= sentences[-1].n_tokens
                    passed = 0
                else:
                    passed += 1
                if request:
                    self._requests.append(request)
            self._count_out(sentences)
            now = time.monotonic()
            for sentence in sentences:
                sentence.taken_at = now
            return sentences

    def note_speed(self, tokens: int, seconds: float) -> None:
        """Take the engine's work on `tokens` tokens of the source into its average speed."""
        with self._changed:
            before = self._work_seconds
            total = before + seconds
            if total > 0:
                self._rate = (self._rate * before + tokens) / total
            self._work_seconds = min(total, RATE_SECONDS)

    def _count_out(self, sentences: Sequence[Sentence]) -> None:
        self.waiting_sentences -= len(sentences)
        self.waiting_tokens -= sum(sentence.n_tokens for sentence in sentences)
