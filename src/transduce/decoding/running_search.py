"""The search of a service: sentences of many requests, each with its settings, in one search that never ends."""

import contextlib
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from transduce.config.schema import SearchConfig
from transduce.data.vocabulary import EOS
from transduce.decoding.backends import Backend, max_lengths
from transduce.decoding.batched_search import BATCH_TOKENS
from transduce.decoding.beam import Beam, beam_of
from transduce.decoding.constraint import prefix_constraint
from transduce.decoding.hypothesis import Hypothesis
from transduce.errors import is_out_of_memory

RECOVERY = 256  # steps in which the limit grows again by as much as it is, after memory ran out


@dataclass(frozen=True)
class Job:
    """A sentence to search.

    key: by which the caller knows the sentence. source: ids without EOS. prefix: ids with which the outputs begin.
    """

    key: Hashable
    source: Sequence[int]
    settings: SearchConfig
    n_best: int = 1
    prefix: Sequence[int] = ()

    @property
    def tokens(self) -> int:
        """The size of the job: tokens of the source, with EOS, times the beam."""
        return (len(self.source) + 1) * self.settings.beam_size


@dataclass
class Step:
    """The sentences that a step ends. All other ones are still searched.

    outputs: the n_best outputs by key, best first.
    failures: FloatingPointError for a sentence for which the model gives NaN, and the error of the machine for a
    sentence that needs more memory than there is.
    returned: sentences that were stopped because memory ran out, the oldest first, to be admitted again.
    """

    outputs: dict[Hashable, list[Hypothesis]] = field(default_factory=dict)
    failures: dict[Hashable, Exception] = field(default_factory=dict)
    returned: list[Job] = field(default_factory=list)


class RunningSearch:
    """A search that takes sentences in before any step, and lets each go at the step at which it ends.

    One thread calls it. An output is that of `batched_search.search_all`, whatever else is searched at the time.
    Sentences with the same settings share the steps of one beam. Where the decoder of the backend cannot join states,
    only an empty search takes sentences in, all with the settings of the first.

    limit: most tokens of all jobs together; a larger job runs alone. None: as in a batch of a file.
    """

    def __init__(self, backend: Backend, limit: int | None = None) -> None:
        self.backend = backend
        self.most_tokens = limit or BATCH_TOKENS[backend.device.type]
        self.limit = self.most_tokens  # lower for a while after memory ran out
        self.jobs: dict[Hashable, Job] = {}  # the oldest first
        self.beams: dict[SearchConfig, Beam] = {}
        self.running: dict[SearchConfig, dict[int, Hashable]] = {}  # of each beam the keys, by number
        self.step_after = Step()  # what the next step reports of an admission
        self.locks = contextlib.ExitStack()

    def __len__(self) -> int:
        """Return the number of sentences that are searched."""
        return len(self.jobs)

    @property
    def tokens(self) -> int:
        """Tokens of all jobs that run."""
        return sum(job.tokens for job in self.jobs.values())

    def admit(self, jobs: Sequence[Job]) -> int:
        """Take in the first jobs for which there is room, and return how many.

        Where memory runs out, the next `step` fails or returns these jobs. Raises UserError for a prefix that is longer
        than the outputs may be.
        """
        count = self._count_with_room(jobs)
        for settings in dict.fromkeys(job.settings for job in jobs[:count]):
            self._admit(settings, [job for job in jobs[:count] if job.settings == settings])
        return count

    def _count_with_room(self, jobs: Sequence[Job]) -> int:
        if self.jobs and self.backend.decoder.join is None:
            return 0
        tokens = self.tokens
        for count, job in enumerate(jobs):
            tokens += job.tokens
            is_other = self.backend.decoder.join is None and job.settings != jobs[0].settings
            if is_other or (tokens > self.limit and (count or self.jobs)):
                return count
        return len(jobs)

    def _admit(self, settings: SearchConfig, jobs: list[Job]) -> None:
        """Encode the jobs and let a beam take them in."""
        sources = [job.source for job in jobs]
        longest = max_lengths(self.backend, sources, settings)
        constraint = prefix_constraint([job.prefix for job in jobs], longest, EOS)
        request = self.backend.request(sources, settings, constraint)
        if not self.jobs:
            for lock in self.backend.locks:
                self.locks.enter_context(lock)
        try:
            with self.backend.computing():
                state = self.backend.start(sources)
                beam = self.beams.setdefault(settings, beam_of(self.backend.decoder, request))
                numbers = beam.admit(state, request, [job.n_best for job in jobs])
        except (MemoryError, RuntimeError) as problem:
            self._release_if_empty()
            if not is_out_of_memory(problem):
                raise
            failure = problem.with_traceback(None)  # a traceback keeps the tensors of its frames in memory
        else:
            self.running.setdefault(settings, {}).update(zip(numbers, (job.key for job in jobs), strict=True))
            self.jobs |= {job.key: job for job in jobs}
            return
        if len(jobs) == 1 and not self.jobs:
            self.step_after.failures[jobs[0].key] = failure
        else:
            self._lower_limit((self.tokens + sum(job.tokens for job in jobs)) // 2)
            self.step_after.returned += jobs

    def step(self) -> Step:
        """Make the outputs of all sentences one token longer, and return what ends."""
        step, self.step_after = self.step_after, Step()
        for settings, beam in list(self.beams.items()):
            if not len(beam):
                del self.beams[settings], self.running[settings]
                continue
            try:
                with self.backend.computing():
                    outcomes = beam.step()
            except (MemoryError, RuntimeError) as problem:
                if not is_out_of_memory(problem):
                    raise
                failure = problem.with_traceback(None)
            else:
                for number, outcome in outcomes.items():
                    key = self.running[settings].pop(number)
                    del self.jobs[key]
                    if isinstance(outcome, FloatingPointError):
                        step.failures[key] = outcome
                    else:
                        step.outputs[key] = outcome
                continue
            self._halve(settings, failure, step)
        self.limit = min(self.most_tokens, self.limit + self.limit // RECOVERY + 1)
        self._release_if_empty()
        return step

    def drop(self, keys: Collection[Hashable]) -> None:
        """Stop searching sentences. Keys of others have no effect."""
        with self.backend.computing():
            for settings, running in self.running.items():
                numbers = [number for number, key in running.items() if key in keys]
                self.beams[settings].drop(numbers)
                for number in numbers:
                    del self.jobs[running.pop(number)]
        self._release_if_empty()

    def _halve(self, settings: SearchConfig, failure: Exception, step: Step) -> None:
        """Stop the younger half of a beam whose step ran out of memory; a sentence alone fails."""
        keys = list(self.running[settings].values())
        younger = [self.jobs[key] for key in keys[len(keys) // 2 :]]
        self.drop([job.key for job in younger])
        if len(keys) == 1 and not self.jobs:
            step.failures[keys[0]] = failure
        else:
            step.returned += younger
        self._lower_limit(self.tokens)

    def _lower_limit(self, tokens: int) -> None:
        self.limit = max(1, min(self.limit, tokens))

    def _release_if_empty(self) -> None:
        """Let other searches have the models that only one at a time may use."""
        if not self.jobs:
            self.locks.close()
