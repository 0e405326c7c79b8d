"""Continuous batching of lines: `RunningSearch` from text to text, for a service."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

from transduce.config.schema import Config, SearchConfig
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.backends import Backend
from transduce.decoding.batched_search import BATCH_TOKENS
from transduce.decoding.confidence import Calibration, with_confidence
from transduce.decoding.constraint import Constraint
from transduce.decoding.hypothesis import Hypothesis, Translation
from transduce.decoding.options import DEFAULTS, DecodingOptions
from transduce.decoding.phrases.line_constraint import LineConstraint
from transduce.decoding.phrases.matching import PhraseList
from transduce.decoding.phrases.placeholders import KeptLine, kept_lines, with_placeholders
from transduce.decoding.phrases.segment_constraints import (
    FREE,
    check_search,
    constrained_segments,
    search_constraint,
)
from transduce.decoding.phrases.terms import NO_TERMS, Terms
from transduce.decoding.running_search import Job, Key, RunningSearch
from transduce.decoding.segmentation import Segment, in_small_letters, with_tag, without_tag
from transduce.decoding.translations import (
    is_loop,
    marked,
    nearest_first,
    translations_of,
    without_repetition,
)
from transduce.errors import LineError, UserError

Align = Callable[[Sequence[Segment], Sequence[Sequence[Hypothesis]]], list[list[Hypothesis]]]

MOST_SEGMENTS = 64  # that are searched at a time; with more a step takes longer, and hardly more is done in a second
MOST_WAITING = 8  # lines of which segments wait for room, before no further line is taken


@dataclass
class _Line:
    """A line that is being translated. waiting: segments that are not searched yet. outputs: of finished segments.

    loops: segments whose output was a loop; they are searched again, or keep it. kept: its placeholders that stay.
    """

    text: str
    options: DecodingOptions
    settings: SearchConfig
    segments: Sequence[Segment]
    problems: Mapping[int, str]
    constraints: Sequence[Constraint | None]  # of each segment
    phrases: Mapping[int, PhraseList]
    kept: KeptLine | None
    waiting: deque[int]
    outputs: dict[int, list[Hypothesis]] = field(default_factory=dict)
    loops: set[int] = field(default_factory=set[int])


class RunningTranslation(Generic[Key]):
    """A translation that admits lines before any step, and returns each at the step at which its last segment ends.

    One thread calls it. A translation equals the one of `Translator.translate`, whatever else is translated. The
    caller knows a line by its key. The segments of lines that wait for room take turns.

    backend_of: returns the backend for a line's options. Lines that are translated at a time share one. align: returns
    the outputs for segments with their alignments. calibration: of the
    confidence of a translation; None gives none.
    """

    def __init__(
        self,
        backend_of: Callable[[DecodingOptions], Backend],
        tokenizer: TokenizerLike,
        config: Config,
        align: Align,
        calibration: Calibration | None = None,
    ) -> None:
        self.backend_of = backend_of
        self.align = align
        self.calibration = calibration
        self.search, self.has_shortlists = (
            _search(backend_of(DEFAULTS)),
            False,
        )  # a job is a segment, by line and number
        self.tokenizer = tokenizer
        self.config = config
        self.lines: dict[Key, _Line] = {}  # the oldest first
        self.beam_size = config.search.beam_size  # of the newest line

    def __len__(self) -> int:
        """Return the number of lines that are not done."""
        return len(self.lines)

    @property
    def room(self) -> tuple[int, int]:
        """The number of lines, and of source tokens, that the next step can admit; at least 1 when empty."""
        waiting = [len(line.waiting) for line in self.lines.values() if line.waiting]
        if len(waiting) >= MOST_WAITING or not self.search.can_admit:
            return 0, 0
        n_lines = MOST_SEGMENTS - len(self.search) - sum(waiting)
        n_tokens = max(0, self.search.limit - self.search.tokens) // self.beam_size
        return max(0, n_lines), n_tokens if self.lines else max(1, n_tokens)  # a single line may exceed the limit

    @property
    def is_blocked(self) -> bool:
        """True while another search has the model, if only one at a time may use it. A step then translates nothing."""
        return self.search.is_blocked

    def close(self) -> None:
        """Let other searches have the model."""
        self.search.close()

    def admit(
        self,
        key: Key,
        text: str,
        options: DecodingOptions,
        constraint: LineConstraint = FREE,
        terms: Terms = NO_TERMS,
    ) -> None:
        """Admit a line. Raises UserError for what cannot be met, and for sampling."""
        if options.draws is not None:
            raise UserError("sampling: must not be set here, because continuous batching only searches; leave it out")
        settings = options.resolve(self.config.search)
        self._take_backend(options)
        kept = None
        if options.placeholders:
            check_search(options, settings)
            (text,), (kept,) = kept_lines([text], self.tokenizer, self.config.data)
            terms = with_placeholders(terms, [kept])
        (text,) = with_tag([text], options.tag, self.tokenizer)
        given = (self.tokenizer, self.config, options, [constraint], terms)
        segments, problems, of_segments = constrained_segments([text], *given)
        if of_segments.phrases:
            check_search(options, settings)
        constraints = list[Constraint | None]([None] * len(segments))
        for i, of_segment in enumerate(of_segments.segments):
            constraints[i] = self._constraint(segments[i], of_segment, settings)
        segments = in_small_letters(segments, self.tokenizer, self.config, options, constraints)
        given = options, settings, segments, problems, constraints, of_segments.phrases, kept
        self.lines[key] = _Line(text, *given, deque(range(len(segments))))
        self.beam_size = settings.beam_size

    def _take_backend(self, options: DecodingOptions) -> None:
        """Let the search have the shortlists or not, as the options say. Only an empty search can change this."""
        if options.shortlist == self.has_shortlists:
            return
        if self.lines:
            raise UserError(
                f"shortlist={options.shortlist}: expected the value of the lines that are being translated; "
                "wait until they are done"
            )
        self.search, self.has_shortlists = _search(self.backend_of(options)), options.shortlist

    def _constraint(self, segment: Segment, constraint: LineConstraint, settings: SearchConfig) -> Constraint | None:
        request_of = partial(self.search.backend.request, [segment.ids], settings)
        try:
            return search_constraint([constraint], [1], self.tokenizer, request_of)
        except LineError as error:
            raise UserError(error.problem) from None  # without the number: there is one line

    def step(self) -> dict[Key, Translation | Exception]:
        """Make all outputs one token longer; return the lines that end here, by key.

        A line for which the search fails ends with the error of its first segment that failed.
        """
        self._admit_segments()
        step = self.search.step()
        done: dict[Key, Translation | Exception] = {}
        for (key, number), outputs in step.outputs.items():
            try:
                self._take(self.lines[key], number, outputs)
            except Exception as problem:
                done[key] = problem.with_traceback(None)
        for (key, _), failure in step.failures.items():
            done.setdefault(key, failure)
        for key, number in reversed([job.key for job in step.returned]):
            self.lines[key].waiting.appendleft(number)
        self.drop(done)
        for key, line in list(self.lines.items()):
            if len(line.outputs) == len(line.segments):
                done[key] = self._translation(line)
                del self.lines[key]
        return done

    def _take(self, line: _Line, number: int, outputs: list[Hypothesis]) -> None:
        """Take the outputs of a segment with their alignments, or let a loop wait for its second search.

        The segments of a line are aligned one by one, for a step in which many are aligned delays all other lines.
        """
        if number not in line.loops and is_loop(line.segments[number].ids, outputs[0].ids):
            line.loops.add(number)
            if line.options.loops == "retry":
                line.waiting.append(number)
                return
        if line.options.alignment:
            (outputs,) = self.align(without_tag([line.segments[number]], line.options.tag), [outputs])
        line.outputs[number] = marked(outputs) if number in line.loops else outputs

    def drop(self, keys: Collection[Key]) -> None:
        """Stop translating lines. Keys of others have no effect."""
        lines = {key: self.lines.pop(key) for key in keys if key in self.lines}
        self.search.drop([(key, number) for key, line in lines.items() for number in range(len(line.segments))])

    def _admit_segments(self) -> None:
        """Let the search admit waiting segments, one of each line in turn."""
        waiting = [(turn, key, number) for key, line in self.lines.items() for turn, number in enumerate(line.waiting)]
        waiting.sort(key=lambda place: place[0])
        room = max(0, MOST_SEGMENTS - len(self.search))
        jobs = [self._job(key, number) for _, key, number in waiting[:room]]
        for job in jobs[: self.search.admit(jobs)]:
            self.lines[job.key[0]].waiting.popleft()

    def _job(self, key: Key, number: int) -> Job[tuple[Key, int]]:
        line = self.lines[key]
        n_best, constraint = line.options.n_candidates, line.constraints[number]
        settings = without_repetition(line.settings) if number in line.loops else line.settings
        return Job((key, number), line.segments[number].ids, settings, n_best, constraint)

    def _translation(self, line: _Line) -> Translation | Exception:
        """Return the translation of a line whose segments are done."""
        hypotheses: Sequence[Sequence[Hypothesis]] = [line.outputs[number] for number in range(len(line.segments))]
        try:
            if line.options.mbr is not None:
                hypotheses = nearest_first(hypotheses, self.tokenizer, line.options)
            parts = line.segments, hypotheses, line.problems, self.tokenizer, line.phrases
            translations = translations_of([line.text], *parts)
            if self.calibration is not None:
                source = self.tokenizer.split_tag(line.text)[1]
                translations = with_confidence(self.calibration, [source], translations)
            (translation,) = translations
            return translation if line.kept is None else line.kept.restore(translation)
        except Exception as problem:
            return problem.with_traceback(None)


def _search(backend: Backend) -> RunningSearch:
    """Return an empty search."""
    return RunningSearch(backend, BATCH_TOKENS[backend.device.type] // 2)  # a service has two searches in a thread
