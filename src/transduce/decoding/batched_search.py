"""Searches of many sources: batches by length, threads, and smaller batches where memory runs out."""

import contextlib
import math
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from transduce.config.schema import SearchConfig
from transduce.decoding.beam import beam_of
from transduce.decoding.constraint import Constraint
from transduce.decoding.decoder import Decoder, State
from transduce.decoding.hypothesis import Outputs, Request
from transduce.decoding.options import Sampling
from transduce.decoding.repetition import Watched, watch
from transduce.decoding.search import sample
from transduce.errors import is_out_of_memory

# Source tokens times beam in a batch. More on a GPU, where a step of few rows takes as long as one of many.
BATCH_TOKENS = {"cpu": 8_192, "cuda": 65_536, "mps": 8_192}


class BatchPlan(NamedTuple):
    """The indices of the sources of each batch. n_threads: number of batches to search at a time."""

    members: Sequence[Sequence[int]]
    n_threads: int


class SearchBackend(ABC, Generic[State]):
    """What a search computes with: a model, or several, and the state before the first token.

    locks: of the models that only one search at a time may use.
    gains_by_threads: True if several batches at a time, each on one thread, are faster than one after the other.
    beam_of: returns the empty rows of a search with the settings of a request.
    """

    locks: Sequence[threading.Lock] = ()
    gains_by_threads = False
    beam_of = staticmethod(beam_of)

    def __init__(self, decoder: Decoder[State]) -> None:
        self.decoder = decoder
        self.device = torch.device(decoder.device)

    @abstractmethod
    def start(self, sources: Sequence[Sequence[int]], constraint: Constraint | None = None) -> State:
        """Return the decoder's state before the first token, a row for each of `sources`. constraint: of the search."""
        ...

    @abstractmethod
    def request(
        self, sources: Sequence[Sequence[int]], settings: SearchConfig, constraint: Constraint | None = None
    ) -> Request:
        """Return the request for outputs of `sources`. constraint: one row for each."""
        ...

    def watched(
        self, state: State, sources: Sequence[Sequence[int]], settings: SearchConfig
    ) -> tuple[Decoder[Watched[State]], Watched[State]]:
        """Return the decoder and the state of `start` as ones that avoid repeated tokens, as the settings say."""
        return watch(self.decoder, state, len(sources), settings)

    def computing(self) -> AbstractContextManager[None]:
        """Be in inference mode."""
        return torch.inference_mode()

    def batches(self, sources: Sequence[Sequence[int]], settings: SearchConfig) -> BatchPlan:
        """Return the sources in batches that are searched together."""
        n_threads = torch.get_num_threads() if self.gains_by_threads else 1
        lengths, most = [len(source) for source in sources], BATCH_TOKENS[self.device.type]
        return BatchPlan([*length_batches(lengths, settings.beam_size, most, n_threads)], n_threads)


def search_all(
    backend: SearchBackend[Any],
    sources: Sequence[Sequence[int]],
    settings: SearchConfig,
    constraint: Constraint | None = None,
    *,
    n_best: int = 1,
) -> Outputs:
    """Return the n_best outputs for each source (ids without EOS), best first, in the order of the sources.

    The backend's request limits the length of an output: a translation is at most settings.max_extra_tokens longer than
    its own source (§6.1). constraint: one row for each source.
    """
    work = _Work(backend, sources, settings, constraint, n_best=n_best)
    return search_batches(work.outputs, backend.batches(sources, settings))


def sample_all(
    backend: SearchBackend[Any],
    sources: Sequence[Sequence[int]],
    settings: SearchConfig,
    *,
    sampling: Sampling,
    seeds: Sequence[Sequence[int]],
    constraint: Constraint | None = None,
) -> Outputs:
    """Return for each source one sample for each of its seeds, in their order.

    settings, constraint: as in `search_all`.
    """
    assert len(seeds) == len(sources)
    index = [i for i, of_source in enumerate(seeds) for _ in of_source]  # the source of each sample
    if constraint is not None:
        constraint = constraint.select(index)
    flat = [seed for of_source in seeds for seed in of_source]
    sources = [sources[i] for i in index]
    work = _Work(backend, sources, settings, constraint, sampling=sampling, seeds=flat)
    samples = iter(search_batches(work.outputs, backend.batches(sources, settings)))
    return [[hypothesis for _ in of_source for hypothesis in next(samples)] for of_source in seeds]


@dataclass(frozen=True)
class _Work:
    """The arguments of `search_all`, to be searched batch by batch, or one sample for each source."""

    backend: SearchBackend[Any]
    sources: Sequence[Sequence[int]]
    settings: SearchConfig
    constraint: Constraint | None
    n_best: int = 1
    sampling: Sampling | None = None
    seeds: Sequence[int] = ()  # of the samples

    def outputs(self, members: Sequence[int]) -> Outputs:
        """Return the outputs of one batch."""
        backend, sources = self.backend, [self.sources[i] for i in members]
        constraint = None if self.constraint is None else self.constraint.select(members)
        request = backend.request(sources, self.settings, constraint)
        with contextlib.ExitStack() as stack:
            for lock in backend.locks:
                stack.enter_context(lock)
            stack.enter_context(backend.computing())
            state = backend.start(sources, constraint)
            decoder = backend.decoder
            if self.sampling is None and decoder.search is not None and request.is_plain:
                return decoder.search(state, request, self.n_best)
            if request.avoids_repetition:
                decoder, state = backend.watched(state, sources, self.settings)
            if self.sampling is None:
                return backend.beam_of(decoder, request).search(state, request, n_best=self.n_best)
            seeds = [self.seeds[i] for i in members]
            samples = sample(decoder, state, request, sampling=self.sampling, seeds=seeds)
            return [[hypothesis] for hypothesis in samples]


Output = TypeVar("Output")
Result = TypeVar("Result")
BatchWork = Callable[[Sequence[int]], Result]  # the indices of the members of a batch -> the result of the batch
BatchSearch = Callable[[Sequence[int]], list[Output]]  # the indices of the members of a batch -> their outputs


def search_batches(search: BatchSearch[Output], batches: BatchPlan) -> list[Output]:
    """Return the outputs of all members of the batches, by index. The batch must change no output.

    Where memory runs out, a batch is searched half by half.
    """
    in_threads = min(batches.n_threads, len(batches.members)) > 1
    work = partial(_work_or_halve, search)
    parts = _in_threads(work, *batches) if in_threads else map(work, batches.members)
    by_index = dict[int, Output]()
    for members, of_members in chain.from_iterable(parts):
        by_index |= zip(members, of_members, strict=True)
    return [by_index[i] for i in range(len(by_index))]


def by_length(
    work: BatchWork[Result], lengths: Sequence[int], device: torch.device
) -> Iterator[tuple[Sequence[int], Result]]:
    """Yield the indices of each batch of similar lengths, and its result, as `in_batches` does.

    lengths: of each member in tokens, without EOS. device: of the model.
    """
    return in_batches(work, length_batches(lengths, 1, BATCH_TOKENS[device.type]))


def in_batches(work: BatchWork[Result], batches: Iterable[Sequence[int]]) -> Iterator[tuple[Sequence[int], Result]]:
    """Yield the members of each batch and work(members), half by half where memory runs out."""
    for members in batches:
        yield from _work_or_halve(work, members)


def _work_or_halve(work: BatchWork[Result], members: Sequence[int]) -> list[tuple[Sequence[int], Result]]:
    """Return the members and their result, or both halves with their results where memory runs out."""
    try:
        return [(members, work(members))]
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem) or len(members) == 1:
            raise
    middle = len(members) // 2  # after the handler: a live exception keeps the tensors of its frames in memory
    return _work_or_halve(work, members[:middle]) + _work_or_halve(work, members[middle:])


def _in_threads(work: BatchWork[Result], batches: Sequence[Sequence[int]], n_threads: int) -> list[Result]:
    """Work on `n_threads` batches at a time, each on one thread."""
    threads_of_torch = torch.get_num_threads()
    try:
        with SHORT_TURNS, ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, batches))
    finally:
        torch.set_num_threads(threads_of_torch)


class _ShortTurns:
    """A short switch interval of the interpreter while at least one caller is in the context.

    A thread that returns from a kernel of 0.1 ms must not wait 5 ms for its turn. The interval is the same for all
    threads, so the first of several callers at a time sets it, and the last restores it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.callers = 0
        self.interval_before = 0.0  # seconds

    def __enter__(self) -> None:
        with self.lock:
            if self.callers == 0:
                self.interval_before = sys.getswitchinterval()
                sys.setswitchinterval(5e-5)
            self.callers += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.callers -= 1
            if self.callers == 0:
                sys.setswitchinterval(self.interval_before)


SHORT_TURNS = _ShortTurns()


def length_batches(
    lengths: Sequence[int], beam_size: int, batch_tokens: int, n_threads: int = 1
) -> Iterator[list[int]]:
    """Yield the indices of sources in batches of similar length, the longest first.

    lengths: of each source in tokens, without EOS. A batch has at most `batch_tokens` tokens, padding included and
    times the beam. A longer source is a separate batch.
    n_threads: above 1 for a backend that does not pad and searches as many batches at a time. The batches are then even
    shares, a multiple of n_threads, so that no thread waits at the end. But none has fewer tokens than a sixteenth of
    `batch_tokens`, nor more than twice as many with padding.
    """
    costs = [(length + 1) * beam_size for length in lengths]
    remaining, shares = sum(costs), 1
    least, most = batch_tokens // 16, batch_tokens
    if n_threads > 1:
        rounds = math.ceil(remaining / (batch_tokens * n_threads))
        shares, most = min(rounds * n_threads, remaining // least), 2 * batch_tokens
    members: list[int] = []
    cost = 0
    for i in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        is_full = shares > 1 and cost + costs[i] / 2 > max(remaining / shares, least)
        if members and (is_full or (len(members) + 1) * costs[members[0]] > most):
            yield members
            remaining, shares = remaining - cost, shares - is_full
            members, cost = [], 0
        members.append(i)
        cost += costs[i]
    if members:
        yield members
