"""The constraints and terms of a call -> the constraint of each segment -> the constraint of the search.

A line with `must` is one segment, because a phrase does not say to which part of a line it belongs. A line with a
prefix or terms is split like any other: the first segment has the prefix, and each one requires the terms in it.
"""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from transduce.config.schema import Config, SearchConfig
from transduce.data.sentences import sentences
from transduce.data.vocabulary import EOS, TokenizerLike
from transduce.decoding.constraint import Both, Constraint, prefix_constraint
from transduce.decoding.hypothesis import Request
from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.line_constraint import LineConstraint, is_list, phrase_automaton
from transduce.decoding.phrases.matching import PhraseList
from transduce.decoding.phrases.phrase_constraint import PhraseConstraint, PhraseState
from transduce.decoding.phrases.terms import Terms
from transduce.decoding.segmentation import Segment, check_lines, is_copied, segments_of
from transduce.errors import LineError, UserError

FREE = LineConstraint()
ConstraintLike = LineConstraint | Mapping[str, Any] | None


def line_constraints(
    n_lines: int, constraints: Sequence[ConstraintLike] | None, prefixes: Sequence[str] | None
) -> list[LineConstraint]:
    """Return the constraint of each line. Raises UserError for another number, and for values that are none."""
    if prefixes is not None:
        check_lines(prefixes=prefixes)
        if constraints is not None:
            raise UserError("prefixes: must not be set with constraints; give each constraint its prefix")
        if len(prefixes) != n_lines:
            raise UserError(f"{len(prefixes)} prefixes for {n_lines} lines: expected one for each line, '' for none")
        return [LineConstraint(prefix=prefix) if prefix else FREE for prefix in prefixes]
    if constraints is None:
        return [FREE] * n_lines
    if not is_list(constraints):
        raise UserError("constraints: expected a list with one for each line, None for none; write [constraints]")
    if len(constraints) != n_lines:
        raise UserError(
            f"{len(constraints)} constraints for {n_lines} lines: expected one for each line, None for none"
        )
    checked = list[LineConstraint]()
    for i, constraint in enumerate(constraints):
        try:
            checked.append(LineConstraint.of(constraint))
        except UserError as error:
            raise UserError(f"constraints[{i}]: {error}") from None
    return checked


def stays_whole(line: str, constraint: LineConstraint, options: DecodingOptions) -> bool:
    """Return True for a line that must be one segment. line: without its tag.

    It has a phrase, or a prefix that is not the beginning of its first segment.
    """
    if constraint.must or not constraint.prefix:
        return bool(constraint.must)
    first, _ = next(sentences(next(iter(line.splitlines()), "")))
    is_first_copied = line[:1].isspace() or is_copied(first, options)
    return is_first_copied or len([*sentences(constraint.prefix)]) > 1


@dataclass(frozen=True)
class SegmentConstraints:
    """The constraints of the segments of lines.

    segments: one for each; none if all are free. phrases: of each line that has any, by its number.
    """

    segments: Sequence[LineConstraint]
    phrases: Mapping[int, PhraseList]

    @classmethod
    def of(
        cls,
        lines: Sequence[str],
        segments: Sequence[Segment],
        constraints: Sequence[LineConstraint],
        terms: Terms,
        tokenizer: TokenizerLike,
    ) -> "SegmentConstraints":
        """Return the constraints of segments. segments: of all lines. tokenizer: of the source language."""
        if not any(constraints) and not terms:
            return UNCONSTRAINED
        members: list[list[int]] = [[] for _ in lines]
        for i, segment in enumerate(segments):
            members[segment.line].append(i)
        of_segments, phrases = [FREE] * len(segments), dict[int, PhraseList]()
        for number, (line, constraint) in enumerate(zip(lines, constraints, strict=True)):
            texts = [tokenizer.split_tag(segments[i].text)[1] for i in members[number]]
            of_line, parts = _with_terms(tokenizer.split_tag(line)[1], texts, constraint, terms, tokenizer)
            if of_line.texts:
                phrases[number] = of_line
            for i, part in zip(members[number], parts, strict=True):
                of_segments[i] = part
        return cls(of_segments, phrases)


UNCONSTRAINED = SegmentConstraints((), {})


def constrained_segments(
    lines: Sequence[str],
    tokenizer: TokenizerLike,
    config: Config,
    options: DecodingOptions,
    constraints: Sequence[LineConstraint],
    terms: Terms,
) -> tuple[list[Segment], dict[int, str], SegmentConstraints]:
    """Return the segments and the problems of lines, as `segments_of` does, and the constraints of the segments.

    constraints: one for each line.
    """
    texts = [tokenizer.split_tag(line)[1] for line in lines]
    whole = {i for i, text in enumerate(texts) if stays_whole(text, constraints[i], options)}
    segments, problems = segments_of(lines, tokenizer, config, options, whole)
    return segments, problems, SegmentConstraints.of(lines, segments, constraints, terms, tokenizer)


def _with_terms(
    line: str, segments: Sequence[str], constraint: LineConstraint, terms: Terms, tokenizer: TokenizerLike
) -> tuple[PhraseList, list[LineConstraint]]:
    """Return the phrases of a line and of its terms, and the constraint of each of its segments.

    The first one gets the prefix. Each gets the terms that are in it, and the first one those that the end of a segment
    divides. A term that is too many, that the line forbids, or that the vocabulary cannot write, is not searched for:
    if the text lacks it, it is unmet.
    """
    targets = [target for target in terms.targets_in(line) if target not in constraint.required]
    of_segments = [[target for target in terms.targets_in(text) if target in targets] for text in segments]
    divided = [target for target in targets if all(target not in of_segment for of_segment in of_segments)]
    for of_segment in of_segments[:1]:
        of_segment += divided
    others = constraint.without_prefix() if len(segments) > 1 else constraint
    phrases = PhraseList([*constraint.required, *targets], constraint.phrases().forbidden)
    constraints = [constraint, *[others] * len(segments)]
    return phrases, [_with_possible(*pair, tokenizer) for pair in zip(constraints, of_segments, strict=False)]


def _with_possible(
    constraint: LineConstraint, targets: Sequence[Sequence[str]], tokenizer: TokenizerLike
) -> LineConstraint:
    """Return the constraint with the first of the targets that it can have, in number and in tokens."""
    for alternatives in targets:
        with suppress(UserError):
            more = constraint.with_required(alternatives)
            phrase_automaton(more, tokenizer)
            constraint = more
    return constraint


def check_search(options: DecodingOptions, settings: SearchConfig) -> None:
    """Raise UserError for options with which no search meets phrases."""
    remedy, phrases = "leave the phrases out, or search with a beam", "must, must_not, terms or placeholders"
    if options.mbr is not None and options.draws is not None:
        raise UserError(f"mbr={options.mbr}: expected candidates of a beam with {phrases}; add a beam size")
    if options.draws is not None:
        raise UserError(f"sampling: must not be set with {phrases}, which only a search can meet; {remedy}")
    if settings.beam_size == 1:
        raise UserError(f"beam_size=1: expected at least 2 with {phrases}; {remedy}")


def search_constraint(
    constraints: Sequence[LineConstraint],
    numbers: Sequence[int],
    tokenizer: TokenizerLike,
    request_of: Callable[[Constraint | None], Request],
) -> Constraint | None:
    """Return the constraint of a search with one row for each line; None if all are free.

    numbers: of the lines, from 1, for messages. tokenizer: of the source language. request_of: returns the request
    with a constraint, which raises the maximum lengths. Raises LineError for what no search can meet.
    """
    states, prefixes = list[PhraseState | None](), [list[int]()] * len(constraints)
    for i, (constraint, number) in enumerate(zip(constraints, numbers, strict=True)):
        try:
            states.append(phrase_automaton(constraint, tokenizer).start if constraint.has_phrases else None)
        except UserError as error:
            raise LineError(number, str(error)) from None
        if constraint.prefix:
            prefixes[i] = tokenizer.target.encode(constraint.prefix)
    phrases = PhraseConstraint(states) if any(states) else None
    if phrases is None and not any(prefixes):
        return None
    longest = request_of(phrases).max_lengths
    for number, constraint, ids, most, state in zip(numbers, constraints, prefixes, longest, states, strict=True):
        if len(ids) > most:
            place = f"prefix={reprlib.repr(constraint.prefix)}"
            raise LineError(number, f"{place}: expected at most {most} tokens, not {len(ids)}; shorten it")
        if state and state.automaton.n_tokens + len(ids) >= most:
            n = state.automaton.n_tokens + len(ids)
            expected = f"expected phrases of fewer than {most} tokens, with the prefix, not {n}"
            raise LineError(number, f"{expected}; require fewer")
    prefix = prefix_constraint(prefixes, longest, EOS)
    return Both(prefix, phrases) if prefix is not None and phrases is not None else prefix or phrases
