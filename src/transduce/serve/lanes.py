"""The lanes of the queue: what is searched together, how fast it goes, and whose sentence is next.

A lane has the sentences of one model, and of short requests or of long ones. Senders take turns in it, as long as all
requests will be done in time. If one is in danger, the oldest request comes first. So more work than the engine can do
delays the newest requests, and not all of them. The time that a request needs is estimated from the speed that the
engine had while sentences of the lane waited.
"""

import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from transduce.serve.keys import Sender
from transduce.serve.sentence import Sentence

SPEED_SECONDS = 10.0  # the speed is averaged over about this much of the engine's work
MEMORY_SECONDS = 60.0  # after which an old speed is not believed any more: other programs may have slowed the machine
CALM = 0.7  # of the time to its deadline that a request may need, for turns
HOPELESS = 1.25  # of the same time, from which a request cannot be done; an estimate may be wrong by less


@dataclass(eq=False)
class WaitingRequest:
    """The sentences of a request that wait in a lane, and the tokens in them.

    number: the order of arrival. last_number: the same, or a later number of the moment at which it was served last.
    """

    sender: Sender
    deadline: float
    sentences: deque[Sentence]
    n_tokens: int
    number: int = 0
    last_number: int = 0


@dataclass
class Lane:
    """The requests that wait in a lane, the oldest first, and its speed.

    tokens: of the sentences that wait. turns: of each sender that waits, the tokens that it has had, divided by its
    share. A new sender begins where the last one that was served was.
    """

    requests: list[WaitingRequest] = field(default_factory=list)
    tokens: int = 0
    turns: dict[Sender, float] = field(default_factory=dict)
    _turn: float = 0.0
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _rate: float = 0.0  # tokens a second, while sentences wait
    _measured_seconds: float = 0.0
    _measured_at: float = 0.0
    _search_seconds: float = 0.0  # of a sentence, from the queue to its translation

    def put(self, request: WaitingRequest) -> None:
        """Add a request."""
        request.number = request.last_number = next(self._numbers)
        self.requests.append(request)
        self.tokens += request.n_tokens
        self.turns.setdefault(request.sender, self._turn)

    def seconds_for(self, n_tokens: int, *, is_alone: bool = False) -> float:
        """Return the seconds until the next `n_tokens` tokens are translated; 0 if the speed is unknown.

        is_alone: True for an idle engine. Else the search is full, and the last sentence waits for its place in it.
        """
        if not self._rate or time.monotonic() - self._measured_at > MEMORY_SECONDS:
            return 0.0
        return n_tokens / self._rate + (0.0 if is_alone else self._search_seconds)

    def measure(self, n_tokens: float, seconds: float, search_seconds: Sequence[float]) -> None:
        """Take a step of the engine, made while sentences waited, into the speed of the lane.

        n_tokens: the progress in tokens of the source. seconds: since the step before. search_seconds: of the sentences
        that ended.
        """
        before = self._measured_seconds
        total = before + seconds
        if total > 0:
            self._rate = (self._rate * before + n_tokens) / total
        self._measured_seconds = min(total, SPEED_SECONDS)
        self._measured_at = time.monotonic()
        for value in search_seconds:
            self._search_seconds += 0.1 * (value - self._search_seconds) if self._search_seconds else value

    def take(self, n_sentences: int, n_tokens: int) -> list[Sentence]:
        """Remove and return the next sentences for which there is room. The last one may have more tokens."""
        sentences: list[Sentence] = []
        if not self.requests or n_sentences <= 0 or n_tokens <= 0:
            return sentences
        late = self._late_requests()
        heap = [(self._order(request, late), request.number, request) for request in self.requests]
        heapify(heap)
        while heap and n_sentences > len(sentences) and n_tokens > 0:
            order, number, request = heap[0]
            now = self._order(request, late)
            if order != now:  # another request of its sender was served
                heapreplace(heap, (now, number, request))
                continue
            sentence = request.sentences.popleft()
            self._count(request, sentence, late is None)
            n_tokens -= sentence.n_tokens
            sentences.append(sentence)
            if not request.sentences:
                heappop(heap)
        self._forget_empty()
        return sentences

    def drop(self, dropped: set[Sentence]) -> list[Sentence]:
        """Remove sentences; return the ones that waited here."""
        gone: list[Sentence] = []
        for request in self.requests:
            if not dropped.isdisjoint(request.sentences):
                here = [sentence for sentence in request.sentences if sentence in dropped]
                gone += here
                request.n_tokens -= sum(sentence.n_tokens for sentence in here)
                request.sentences = deque(sentence for sentence in request.sentences if sentence not in dropped)
        self.tokens -= sum(sentence.n_tokens for sentence in gone)
        self._forget_empty()
        return gone

    def _late_requests(self) -> set[int] | None:
        """Return the numbers of the requests that cannot be done in time; None if none is in danger.

        A request needs the time of all before it that can be done, and its own.
        """
        now = time.monotonic()
        late = set[int]()
        is_in_danger = False
        n_tokens = 0
        for request in self.requests:
            needed = self.seconds_for(n_tokens + request.n_tokens)
            remaining = request.deadline - now
            is_in_danger |= needed > CALM * remaining
            if needed > HOPELESS * remaining:
                late.add(request.number)
            else:
                n_tokens += request.n_tokens
        return late if is_in_danger else None

    def _order(self, request: WaitingRequest, late: set[int] | None) -> tuple[float, int]:
        """Return what sorts requests: by turns, or by arrival if requests are in danger; `late` ones then come last."""
        if late is None:
            return self.turns[request.sender], request.last_number
        return request.number in late, request.number

    def _count(self, request: WaitingRequest, sentence: Sentence, is_turn: bool) -> None:
        request.last_number = next(self._numbers)
        request.n_tokens -= sentence.n_tokens
        self.tokens -= sentence.n_tokens
        if is_turn:
            self._turn = self.turns[request.sender]
            self.turns[request.sender] += sentence.n_tokens / request.sender.share

    def _forget_empty(self) -> None:
        self.requests = [request for request in self.requests if request.sentences]
        waiting = {request.sender for request in self.requests}
        self.turns = {sender: turn for sender, turn in self.turns.items() if sender in waiting}
