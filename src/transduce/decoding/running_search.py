"""The search of a service (continuous batching): sentences of many requests, each with its settings, in one search."""

import contextlib
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from transduce.config.schema import SearchConfig
from transduce.decoding.batched_search import BATCH_TOKENS, SearchBackend, search_all
from transduce.decoding.constraint import Constraint, joined
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.rows import Rows
from transduce.errors import is_out_of_memory

Key = TypeVar("Key", bound=Hashable)

LOCK_SECONDS = 0.01  # that an admission waits for a search of another thread
RECOVERY = 256  # steps in which the limit grows again by as much as it is, after memory ran out


@dataclass(frozen=True)
class Job(Generic[Key]):
    """A sentence to search.

    key: by which the caller knows the sentence. source: ids without EOS. constraint: with one row.
    """

    key: Key
    source: Sequence[int]
    settings: SearchConfig
    n_best: int = 1
    constraint: Constraint | None = None

    @property
    def tokens(self) -> int:
        """The size of the job: tokens of the source, with EOS, times the beam."""
        return (len(self.source) + 1) * self.settings.beam_size


@dataclass
class SearchStep(Generic[Key]):
    """The sentences that a step ends. All other ones are still searched.

    outputs: the n_best outputs by key, best first.
    failures: by key, the cause: FloatingPointError where the model gives NaN, the error of the machine for a sentence
    that needs more memory than there is.
    returned: sentences to be admitted again, the oldest first: memory ran out, or another search has the model.
    """

    outputs: dict[Key, list[Hypothesis]] = field(default_factory=dict)
    failures: dict[Key, Exception] = field(default_factory=dict)
    returned: list[Job[Key]] = field(default_factory=list)


@dataclass
class _Group(Generic[Key]):
    """The sentences with the same settings, in a beam. keys: the key of each sentence, by its number in the beam."""

    beam: Rows[Any]
    keys: dict[int, Key] = field(default_factory=dict)


class RunningSearch(Generic[Key]):
    """A search that admits sentences before any step, and returns each at the step at which it ends.

    One thread calls it. An output equals the one of `batched_search.search_all`, whatever else is searched.
    Sentences with the same settings share the steps of one beam. Where the decoder of the backend cannot join states,
    only an empty search admits sentences, all with the settings of the first.

    limit: maximum number of tokens of all jobs together; a larger job runs by itself. None: as in a batch of a file.
    """

    def __init__(self, backend: SearchBackend[Any], limit: int | None = None) -> None:
        self.backend = backend
        self.most_tokens = limit or BATCH_TOKENS[backend.device.type]
        self.limit = self.most_tokens  # lower for a while after memory ran out
        self.jobs: dict[Key, Job[Key]] = {}  # the oldest first
        self.groups: dict[SearchConfig, _Group[Key]] = {}
        self.step_after = SearchStep[Key]()  # what the next step reports of an admission
        self.locks = contextlib.ExitStack()

    def __len__(self) -> int:
        """Return the number of sentences that are searched."""
        return len(self.jobs)

    @property
    def tokens(self) -> int:
        """Tokens of all jobs that run."""
        return sum(job.tokens for job in self.jobs.values())

    @property
    def can_admit(self) -> bool:
        """True if `admit` is possible now, where there is room."""
        return not self.jobs or self.backend.decoder.join is not None

    @property
    def is_blocked(self) -> bool:
        """True while another search has a model that only one at a time may use."""
        return not self.jobs and any(lock.locked() for lock in self.backend.locks)

    # ---- admission -----------------------------------------------------------------------------------------------

    def admit(self, jobs: Sequence[Job[Key]]) -> int:
        """Admit the first jobs for which there is room, and return how many.

        The next `step` reports those that fail, or that memory does not suffice for.
        """
        count = self._count_with_room(jobs)
        for settings in dict.fromkeys(job.settings for job in jobs[:count]):
            self._admit(settings, [job for job in jobs[:count] if job.settings == settings])
        return count

    def _count_with_room(self, jobs: Sequence[Job[Key]]) -> int:
        if not self.can_admit:
            return 0
        tokens = self.tokens
        for count, job in enumerate(jobs):
            tokens += job.tokens
            is_other = self.backend.decoder.join is None and job.settings != jobs[0].settings
            if is_other or (tokens > self.limit and (count or self.jobs)):
                return count
        return len(jobs)

    def _admit(self, settings: SearchConfig, jobs: Sequence[Job[Key]]) -> None:
        """Let a beam admit the jobs, or half by half where that fails."""
        is_possible = self.can_admit if self.jobs else self._lock()
        if not is_possible:  # after the first half, or another search has the model
            self.step_after.returned += jobs
            return
        try:
            self._start(settings, jobs)
            return
        except Exception as problem:
            failure = problem.with_traceback(None)  # a traceback keeps the tensors of its frames in memory
        self._release_if_empty()
        if len(jobs) > 1:
            middle = len(jobs) // 2
            self._admit(settings, jobs[:middle])
            self._admit(settings, jobs[middle:])
        elif self.jobs and is_out_of_memory(failure):
            self.step_after.returned += jobs
            self._lower_limit(self.tokens)
        else:
            self.step_after.failures[jobs[0].key] = failure

    def _start(self, settings: SearchConfig, jobs: Sequence[Job[Key]]) -> None:
        """Encode the jobs, and let a beam admit them."""
        sources, constraint = [job.source for job in jobs], _constraint(jobs)
        request = self.backend.request(sources, settings, constraint)
        with self.backend.computing():
            state = self.backend.start(sources, constraint)
            decoder = self.backend.decoder
            if request.avoids_repetition:
                decoder, state = self.backend.watched(state, sources, settings)
            group = self.groups.get(settings) or _Group(self.backend.beam_of(decoder, request))
            numbers = group.beam.admit(state, request, [job.n_best for job in jobs])
        self.groups[settings] = group
        group.keys.update(zip(numbers, (job.key for job in jobs), strict=True))
        self.jobs |= {job.key: job for job in jobs}

    # ---- a step --------------------------------------------------------------------------------------------------

    def step(self) -> SearchStep[Key]:
        """Make the outputs of all sentences one token longer, and return what ends."""
        step, self.step_after = self.step_after, SearchStep()
        self.groups = {settings: group for settings, group in self.groups.items() if group.keys}
        for group in self.groups.values():
            self._step(group, step)
        self.limit = min(self.most_tokens, self.limit + self.limit // RECOVERY + 1)
        self._release_if_empty()
        return step

    def _step(self, group: _Group[Key], step: SearchStep[Key]) -> None:
        """Make a step of a group. Where the decoder fails on some of its sentences, the others continue."""
        try:
            with self.backend.computing():
                outcomes = group.beam.step()
        except Exception as problem:
            failure = problem.with_traceback(None)
        else:
            for number, outcome in outcomes.items():
                key = group.keys.pop(number)
                del self.jobs[key]
                if isinstance(outcome, FloatingPointError):
                    step.failures[key] = outcome
                else:
                    step.outputs[key] = outcome
            return
        if is_out_of_memory(failure):
            self._halve(group, failure, step)
        else:
            self._search_one_by_one(group, step)

    def _halve(self, group: _Group[Key], failure: Exception, step: SearchStep[Key]) -> None:
        """Stop the younger half of a group whose step ran out of memory; a single sentence fails."""
        self._lower_limit(self.tokens // 2)
        jobs = [self.jobs[key] for key in group.keys.values()]
        younger = jobs[len(jobs) // 2 :]
        self.drop([job.key for job in younger])
        if len(jobs) == 1 and not self.jobs:
            step.failures[jobs[0].key] = failure
        else:
            step.returned += younger

    def _search_one_by_one(self, group: _Group[Key], step: SearchStep[Key]) -> None:
        """Search the sentences of a group from their beginning, each by itself: on one of them the decoder fails."""
        jobs = [self.jobs[key] for key in group.keys.values()]
        self.drop([job.key for job in jobs])
        for job in jobs:
            settings = {"n_best": job.n_best, "constraint": job.constraint}
            try:
                outputs = search_all(self.backend, [job.source], job.settings, **settings)
            except Exception as problem:
                step.failures[job.key] = problem.with_traceback(None)
            else:
                step.outputs[job.key] = outputs[0]

    # ---- removal -------------------------------------------------------------------------------------------------

    def drop(self, keys: Collection[Hashable]) -> None:
        """Stop searching sentences. Keys of others have no effect."""
        keys = {key for key in keys if key in self.jobs}
        if not keys:
            return
        with self.backend.computing():
            for group in self.groups.values():
                numbers = [number for number, key in group.keys.items() if key in keys]
                group.beam.drop(numbers)
                for number in numbers:
                    del self.jobs[group.keys.pop(number)]
        self._release_if_empty()

    def _lower_limit(self, tokens: int) -> None:
        self.limit = max(1, min(self.limit, tokens))

    def _lock(self) -> bool:
        """Take the models that only one search at a time may use. Return False if another one has them."""
        for lock in self.backend.locks:
            if not lock.acquire(timeout=LOCK_SECONDS):
                self.close()
                return False
            self.locks.callback(lock.release)
        return True

    def close(self) -> None:
        """Let other searches have the models that only one at a time may use."""
        self.locks.close()

    def _release_if_empty(self) -> None:
        if not self.jobs:
            self.close()


def _constraint(jobs: Sequence[Job[Any]]) -> Constraint | None:
    """Return the constraint of several jobs."""
    constraint = None
    for i, job in enumerate(jobs):
        constraint = joined(constraint, i, job.constraint, 1)
    return constraint
