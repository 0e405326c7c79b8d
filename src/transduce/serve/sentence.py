"""Sentences on their way through the queue and the engine, and the results that come back to the event loop."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.line_constraint import LineConstraint
from transduce.decoding.phrases.segment_constraints import FREE
from transduce.decoding.phrases.terms import NO_TERMS, Terms
from transduce.serve.models import TranslationModel

LaneId = tuple[int, bool]  # the id of a model, and True for short requests


@dataclass(eq=False)
class Sentence:
    """A line that waits for its translation, is being translated, or has its result.

    n_tokens: number of tokens of the source. constraint, terms: phrases of its translation.
    result: translation, which the event loop sets. is_wanted: False after the client left or the deadline.
    is_short: True if its request is short; set by the queue.
    """

    model: TranslationModel
    line: str
    options: DecodingOptions
    n_tokens: int
    result: "asyncio.Future[Translation]"
    constraint: LineConstraint = FREE
    terms: Terms = NO_TERMS
    is_wanted: bool = True
    is_short: bool = True
    put_at: float = field(default_factory=time.monotonic)
    taken_at: float | None = None
    finished_at: float | None = None

    @property
    def lane(self) -> LaneId:
        """Equal for sentences that are searched together: of one model, and of short requests or of long ones."""
        return id(self.model), self.is_short


def finish(outcomes: Mapping[Sentence, Translation | Exception]) -> None:
    """Hand results over to the event loop, all in one call, for each call wakes it. Called by a thread of the engine.

    A sentence is finished once.
    """
    now = time.monotonic()
    for sentence in outcomes:
        sentence.finished_at = now
    for loop in {sentence.result.get_loop() for sentence in outcomes}:
        with suppress(RuntimeError):  # the event loop has ended, after the time to answer was over
            loop.call_soon_threadsafe(_set_results, loop, outcomes)


def _set_results(loop: asyncio.AbstractEventLoop, outcomes: Mapping[Sentence, Translation | Exception]) -> None:
    for sentence, outcome in outcomes.items():
        result = sentence.result
        if result.done() or result.get_loop() is not loop:
            continue
        if isinstance(outcome, Exception):
            result.set_exception(outcome)
            result.exception()  # an unread result is no error of this program
        else:
            result.set_result(outcome)
