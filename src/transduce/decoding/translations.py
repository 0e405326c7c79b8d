"""What follows a search: a second search of loops, ranking, and the translations of the lines. Without torch.

A model that reads text unlike its training text may write one phrase again and again until its output is cut. Such an
output is a loop. It is searched a second time, without repeated tokens (`repetition`).
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np

from transduce.config.schema import SearchConfig
from transduce.data.text import in_capitals, is_blank
from transduce.data.vocabulary import EOS, TokenizerLike
from transduce.decoding.constraint import Constraint
from transduce.decoding.hypothesis import AlignedWord, Alignment, Hypothesis, Outputs, Translation
from transduce.decoding.mbr import rank
from transduce.decoding.options import DecodingOptions, Loops
from transduce.decoding.phrases.matching import PhraseList
from transduce.decoding.segmentation import Segment

SegmentSearch = Callable[[Sequence[Sequence[int]], SearchConfig, Constraint | None], Outputs]

NO_PHRASES: Mapping[int, PhraseList] = {}
LEAST_REPEATS = 5  # of the same tokens one after the other; a loop also has twice as many as its source
NO_LOOPS = 3  # `search.no_repeat_ngram` of the second search
MOST_EXTRA = 20  # `search.max_extra_tokens` of the second search: many loops have no good end

# Of the pairs of three corpora, in both directions, 0 to 3 of 10,000 are short (benchmarks/short_pairs.py).
LEAST_SOURCE = 12  # pieces of a source whose output can be short
LEAST_SHARE = 0.3  # pieces of an output for each piece of its source


def is_short(source: Sequence[int], output: Sequence[int]) -> bool:
    """Return True for an output with so few ids that a part of its source is probably missing."""
    return len(source) >= LEAST_SOURCE and len(output) < LEAST_SHARE * len(source)


# ---- loops -----------------------------------------------------------------------------------------------------------


def n_repeats(ids: Sequence[int]) -> int:
    """Return how often the same tokens come one after the other, at most; 1 if nothing is repeated 5 times."""
    if max(Counter(ids).values(), default=0) < LEAST_REPEATS:
        return 1
    tokens = np.asarray(ids)
    most = 1
    for period in range(1, len(tokens) // LEAST_REPEATS + 1):
        differs = np.flatnonzero(tokens[period:] != tokens[:-period])
        runs = np.diff(differs, prepend=-1, append=len(tokens) - period) - 1
        most = max(most, 1 + int(runs.max()) // period)
    return most


def is_loop(source: Sequence[int], output: Sequence[int]) -> bool:
    """Return True for an output that repeats itself as its source does not."""
    count = n_repeats(output)
    return count >= LEAST_REPEATS and count >= 2 * n_repeats(source)


def without_loops(
    search: SegmentSearch,
    sources: Sequence[Sequence[int]],
    settings: SearchConfig,
    constraint: Constraint | None,
    loops: Loops,
) -> Outputs:
    """Return the outputs of a search. The outputs of a source have the mark `is_loop` if the best one is a loop.

    loops: "retry" searches these sources again, with `without_repetition`.
    """
    outputs = search(sources, settings, constraint)
    members = [i for i, source in enumerate(sources) if is_loop(source, outputs[i][0].ids)]
    again = [outputs[i] for i in members]
    if members and loops == "retry":
        of_members = None if constraint is None else constraint.select(members)
        again = search([sources[i] for i in members], without_repetition(settings), of_members)
    for i, of_source in zip(members, again, strict=True):
        outputs[i] = marked(of_source)
    return outputs


def without_repetition(settings: SearchConfig) -> SearchConfig:
    """Return the settings of the second search of a loop."""
    return dataclasses.replace(
        settings, no_repeat_ngram=NO_LOOPS, max_extra_tokens=min(settings.max_extra_tokens, MOST_EXTRA)
    )


def marked(outputs: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return the outputs of a loop with the mark `is_loop`."""
    return [dataclasses.replace(hypothesis, is_loop=True) for hypothesis in outputs]


# ---- outputs -> translations --------------------------------------------------------------------------------------


def nearest_first(
    candidates: Sequence[Sequence[Hypothesis]], tokenizer: TokenizerLike, options: DecodingOptions
) -> list[list[Hypothesis]]:
    """Return the candidates of each segment by their utility, the highest first, at most n_best (`mbr.rank`).

    Of candidates with the same text the first is returned.
    """
    results = []
    for hypotheses in candidates:
        ranking = rank([tokenizer.decode(h.ids) for h in hypotheses], options.mbr_metric or "chrf")
        best = ranking[: options.n_best]
        results.append([dataclasses.replace(hypotheses[i], utility=utility) for i, utility in best])
    return results


def translations_of(
    lines: Sequence[str],
    segments: Sequence[Segment],
    hypotheses: Sequence[Sequence[Hypothesis]],
    problems: Mapping[int, str],
    tokenizer: TokenizerLike,
    phrases: Mapping[int, PhraseList] = NO_PHRASES,
) -> list[Translation]:
    """Return the translation of each line, put together from the outputs for its segments.

    hypotheses: for each segment its n-best list. problems: as `segments_of` returns them. phrases: of lines, by number.
    A line with a problem has an empty translation. A line without segments is its own translation. Line breaks and
    text that is copied stay where they are. The outputs for a line of several segments are the best combinations of the
    outputs for its segments.
    """
    members: list[list[int]] = [[] for _ in lines]  # the segments of each line
    for i, segment in enumerate(segments):
        members[segment.line].append(i)
    translations = []
    for i, line in enumerate(lines):
        of_line = [segments[j] for j in members[i]]
        text = tokenizer.split_tag(line)[1]
        if not of_line:
            text = "" if i in problems else text
            unmet = phrases[i].unmet(text) if i in phrases else ()
            translations.append(Translation(text, problem=problems.get(i), unmet=unmet))
            continue
        n_best_lists = [hypotheses[j] for j in members[i]]
        has_choice = max(map(len, n_best_lists)) > 1
        combinations = _best_combinations(n_best_lists) if has_choice else zip(*n_best_lists, strict=True)
        before = line[len(line) - len(text) : of_line[0].start]
        best, *others = (_translation(before, of_line, chosen, tokenizer, phrases.get(i)) for chosen in combinations)
        translations.append(dataclasses.replace(best, alternatives=tuple(others)) if others else best)
    return translations


def _best_combinations(n_best_lists: Sequence[Sequence[Hypothesis]]) -> list[tuple[Hypothesis, ...]]:
    """Return the best choices of a hypothesis from each list, best first, at most as many as the longest list has.

    With utilities, the best has the highest mean of them. Otherwise unfinished hypotheses come after finished ones, and
    early ends rank lower, as in a list. The score of a choice is the sum of its scores.
    """
    count = max(map(len, n_best_lists))
    best: list[tuple[Hypothesis, ...]] = [()]
    for hypotheses in n_best_lists:
        choices = [(*choice, hypothesis) for choice in best for hypothesis in hypotheses]
        best = sorted(choices, key=_rank)[:count]
    return best


def _rank(hypotheses: Sequence[Hypothesis]) -> tuple[int, float]:
    if (utility := _utility(hypotheses)) is not None:
        return 0, -utility
    return sum(not h.finished for h in hypotheses), -sum(h.score - h.early_cost for h in hypotheses)


def _utility(hypotheses: Sequence[Hypothesis]) -> float | None:
    """Return the mean utility; None without minimum Bayes risk."""
    utilities = [h.utility for h in hypotheses if h.utility is not None]
    return fmean(utilities) if utilities else None


def _translation(
    before: str,
    segments: Sequence[Segment],
    hypotheses: Sequence[Hypothesis],
    tokenizer: TokenizerLike,
    phrases: PhraseList | None,
) -> Translation:
    """Return one translation of the outputs for the segments of a line. before: text before the first segment."""
    texts = [re.sub(r"[\r\n]", " ", tokenizer.decode(h.ids)) for h in hypotheses]
    texts = [in_capitals(text) if segment.in_capitals else text for segment, text in zip(segments, texts, strict=True)]
    parts = _parts([(text, segment.gap) for segment, text in zip(segments, texts, strict=True)])
    pieces = tokenizer.pieces([i for h in hypotheses for i in [*h.ids, *([EOS] if h.finished else [])]])
    text = before + "".join(parts)
    return Translation(
        text=text,
        score=sum(h.score for h in hypotheses),
        pieces=tuple(pieces),
        token_log_probs=tuple(p for h in hypotheses for p in h.token_log_probs),
        finished=all(h.finished for h in hypotheses),
        is_loop=any(h.is_loop for h in hypotheses),
        is_unsplit=segments[0].is_unsplit,
        is_short=any(
            is_blank(text) or is_short(segment.ids, h.ids)
            for text, segment, h in zip(texts, segments, hypotheses, strict=True)
        ),
        utility=None if hypotheses[0].utility is None else _utility(hypotheses),
        alignment=None if hypotheses[0].alignment is None else _alignment(hypotheses, parts, text),
        unmet=phrases.unmet(text) if phrases is not None else (),
    )


def _alignment(hypotheses: Sequence[Hypothesis], parts: Sequence[str], text: str) -> Alignment | None:
    """Return the alignment of a line; None if the alignment of a segment is unknown.

    parts: the end of `text`, by segment.
    """
    words: list[AlignedWord] = []
    start = len(text) - sum(map(len, parts))
    for hypothesis, part in zip(hypotheses, parts, strict=True):
        if hypothesis.alignment is None:
            return None
        for word in hypothesis.alignment:
            place = start + word.start
            words.append(dataclasses.replace(word, word=text[place : place + len(word.word)], start=place))
        start += len(part)
    return tuple(words)


_NARROW_END = re.compile(r"""[.!?…](?:["'’”“«)\]]|\s?»)*$""")
_WIDE_END = re.compile(r"""[。！？、，；]["'’”」』）]*$""")


def _parts(texts: Sequence[tuple[str, str]]) -> list[str]:
    """Return translations of segments, each with a gap. texts: each with the gap that followed its segment.

    A gap between sentences depends on their script: none after a Chinese or Japanese full stop, else a space. The last
    text has none, except what is copied.
    """
    *others, (last, last_gap) = texts
    return [*(text + _gap(text, gap) for text, gap in others), last + ("" if last_gap == " " else last_gap)]


def _gap(text: str, gap: str) -> str:
    if gap not in ("", " "):
        return gap
    if _WIDE_END.search(text):
        return ""
    return " " if _NARROW_END.search(text) else gap
