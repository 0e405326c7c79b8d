"""The queue between the client APIs and the engine: admission, turns, deadlines, and clients that left.

The event loop puts the sentences of a request in and waits for their results. A thread of the engine takes sentences
out, as `lanes.py` orders them, and finishes them. It needs `take`, `measure`, and of `sentence.py` `finish` and
`Sentence.is_wanted`.
"""

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from transduce.serve.keys import Sender
from transduce.serve.lanes import HOPELESS, Lane, WaitingRequest
from transduce.serve.refusal import Refusal
from transduce.serve.sentence import LaneId, Sentence
from transduce.serve.settings import Limits

SHORT_SENTENCES, SHORT_TOKENS = 8, 512  # of a request at most, for it to be short
NO_ROOM = "queue"  # the reason of a refusal
FULL = 0.85  # of the time to answer, that the work that waits may need; the estimate is not exact


class SentenceQueue:
    """Sentences that wait for the engine, bounded in number, in tokens, and in the time that they need.

    Requests take turns, so that a request of 128 texts does not delay a single one by its whole length.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting_sentences = 0
        self._lanes: defaultdict[LaneId, Lane] = defaultdict(Lane)
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def waiting_tokens(self) -> int:
        """The tokens of the source that wait."""
        return sum(lane.tokens for lane in list(self._lanes.values()))

    # ---- the event loop's side -----------------------------------------------------------------------------------

    def put(self, sentences: Sequence[Sentence], sender: Sender | None = None) -> None:
        """Add the sentences of one request, all or none. sender: who takes turns; None: the request by itself.

        Raises Refusal: status 429 if they do not fit, and 413 if they would never be done in time.
        """
        tokens = sum(sentence.n_tokens for sentence in sentences)
        for sentence in sentences:
            sentence.is_short = len(sentences) <= SHORT_SENTENCES and tokens <= SHORT_TOKENS
        with self._changed:
            if self._is_closed:
                raise Refusal(503, "the server is shutting down", "shutdown", retry_after=1, closes=True)
            self._check_bounds(len(sentences), tokens)
            sender = sender or Sender()
            deadline = time.monotonic() + self.limits.deadline_seconds
            by_lane = defaultdict[LaneId, deque[Sentence]](deque)
            for sentence in sentences:
                by_lane[sentence.lane].append(sentence)
            parts = {
                lane: WaitingRequest(sender, deadline, part, sum(s.n_tokens for s in part))
                for lane, part in by_lane.items()
            }
            for lane, part in parts.items():
                self._check_time(self._lanes[lane], part.n_tokens)
            for lane, part in parts.items():
                self._lanes[lane].put(part)
            self.waiting_sentences += len(sentences)
            self._changed.notify_all()

    def _check_bounds(self, n_sentences: int, n_tokens: int) -> None:
        """Raise Refusal for a request with too many sentences or tokens, by itself or with what waits."""
        limits = self.limits
        for name, waiting, more, most in (
            ("sentences", self.waiting_sentences, n_sentences, limits.waiting_sentences),
            ("tokens", self.waiting_tokens, n_tokens, limits.waiting_tokens),
        ):
            if more > most:
                message = f"Invalid request: expected at most {most:,} {name}, not {more:,}; send several requests"
                raise Refusal(400, message, "limit")
            if waiting + more > most:
                seconds = _whole(self._seconds() * (waiting + more - most) / max(1, waiting))
                message = f"Slowdown: {waiting:,} {name} are waiting, at most {most:,} may; try again in {seconds} s"
                raise Refusal(429, message, NO_ROOM, retry_after=seconds)

    def _check_time(self, lane: Lane, n_tokens: int) -> None:
        """Raise Refusal for more work than the engine does in time, by its speed of the last minute."""
        most = self.limits.deadline_seconds
        alone = lane.seconds_for(n_tokens, is_alone=True)
        if alone > HOPELESS * most:
            message = f"expected work for {most:g} s, not for {alone:.0f} s as now; send fewer texts in a request"
            raise Refusal(413, message, "work")
        excess = lane.seconds_for(lane.tokens + n_tokens) - FULL * most
        if lane.tokens and excess > 0:
            seconds = _whole(excess)
            message = f"Slowdown: what waits needs the {most:g} s of a request; try again in {seconds} s"
            raise Refusal(429, message, NO_ROOM, retry_after=seconds)

    def drop(self, sentences: Sequence[Sentence]) -> None:
        """Remove sentences that are not wanted any more. One that is being translated is marked."""
        for sentence in sentences:
            sentence.is_wanted = False
        with self._changed:
            for lane in {sentence.lane for sentence in sentences}:
                self.waiting_sentences -= len(self._lanes[lane].drop(set(sentences)))

    @property
    def retry_after(self) -> int:
        """Seconds until the waiting tokens are translated, by the engine's speed; 1 to 60."""
        return _whole(self._seconds())

    def _seconds(self) -> float:
        return max((lane.seconds_for(lane.tokens) for lane in list(self._lanes.values()) if lane.tokens), default=0.0)

    def close(self) -> None:
        """Refuse further sentences. The engine ends when the queue is empty."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # ---- the engine's side ---------------------------------------------------------------------------------------

    def take(self, rooms: Callable[[], Mapping[LaneId, tuple[int, int]]], *, waits: bool) -> list[Sentence] | None:
        """Return waiting sentences for which there is room.

        rooms: returns how many sentences, and tokens of the source, may be taken of each lane. The last sentence may
        have more tokens than remain. It is called when a sentence waits.
        waits: wait for a sentence. None then means that none will come: the queue is closed.
        """
        with self._changed:
            while waits and not self.waiting_sentences and not self._is_closed:
                self._changed.wait()
            if waits and not self.waiting_sentences:
                return None
            sentences = list[Sentence]()
            for lane, room in rooms().items() if self.waiting_sentences else ():
                sentences += self._lanes[lane].take(*room)
            self.waiting_sentences -= len(sentences)
            now = time.monotonic()
            for sentence in sentences:
                sentence.taken_at = now
            return sentences

    def measure(self, lane: LaneId, n_tokens: float | None, seconds: float, translated: Sequence[Sentence]) -> bool:
        """Take a step of the engine into the speed of a lane if sentences wait there; else return False.

        n_tokens: the progress of its sentences in tokens of the source; None if unknown. seconds: of the engine, since
        the step before. translated: sentences that ended.
        """
        with self._changed:
            if not self._lanes[lane].tokens:
                return False
            if n_tokens is not None:
                times = [(s.finished_at or 0.0) - (s.taken_at or 0.0) for s in translated]
                self._lanes[lane].measure(n_tokens, seconds, times)
            return True


def _whole(seconds: float) -> int:
    """Return seconds for Retry-After: 1 to 60."""
    return min(60, max(1, math.ceil(seconds)))
