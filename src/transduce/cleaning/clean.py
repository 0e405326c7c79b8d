"""`transduce clean`: find the pairs of a corpus that are no translations, and write the corpus without them.

A pair is dropped by rules, each with a name. Most are findings of `check`. These are added:

    near_test    nearly a line of a text for tests or validation
    swapped      both sides are in the language of the other
    language     a side is in another language than most lines of its side (with py3langid)
    repetition   words that one side repeats again and again, and the other does not
    misfit       a side that is no full translation of the other (`misfits`)
    unlikely     a source that a model of the other direction finds least likely (`unlikely`, if there is a model)

The text is read at most six times, line by line. Memory holds about 60 bytes for each pair, and 130 while repeated
pairs are searched, as `check` does.
"""

import functools
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from transduce.cleaning.check import examine, refuse_unequal
from transduce.cleaning.corpus_report import Findings
from transduce.cleaning.misfits import FOLDS, LEAST_PAIRS, SAMPLE_PAIRS, Misfits, learn_misfits
from transduce.cleaning.near_copies import NearCopies
from transduce.cleaning.progress import JobProgress, tracked
from transduce.data import text
from transduce.data.compression import open_text
from transduce.data.corpora import Corpus
from transduce.data.languages import Identifier, language_identifier
from transduce.data.text import LinePair
from transduce.data.tokenize_corpus import cores
from transduce.data.worker_pool import WorkerPool
from transduce.errors import UserError
from transduce.storage.atomic_folder import write_file

# In the order in which they are tried. The findings of `check` that are no rule, such as not_nfc, drop nothing.
RULES = (
    "not_utf8",
    "blank",
    "near_test",
    "copied",
    "mojibake",
    "control",
    "subwords",
    "markup",
    "script",
    "ratio",
    "numbers",
    "links",
    "repetition",
    "many_targets",
    "many_sources",
    "swapped",
    "language",
    "misfit",
    "repeated",
    "unlikely",
)
PORTION = 5_000  # pairs at a time
ENOUGH_LETTERS = 20  # in a line whose language is judged
JUDGED = ("swapped", "language", "misfit")  # the rules of which each pair needs a judgement, as bits in a file
SURE = 0.9  # probability of another language
MAIN_SHARE = 0.5  # of the lines of a side, in its language

Places = dict[str, NDArray[np.bool_]]  # by rule: True at the pairs to which it applies


@dataclass(frozen=True)
class Cleaning:
    """The rule of each pair, as its number in RULES; -1 for a pair that is kept. notes: what the user should know."""

    rules: NDArray[np.int8]
    notes: list[str]

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs that each rule drops, without the rules that drop none."""
        numbers = Counter(self.rules.tolist())
        return {rule: numbers[i] for i, rule in enumerate(RULES) if numbers[i]}

    @property
    def n_kept(self) -> int:
        """The number of pairs that stay."""
        return int(np.count_nonzero(self.rules < 0))


def find_faults(
    corpus: Corpus,
    tests: Sequence[tuple[Path, Path]] = (),
    without: Iterable[str] = (),
    say: Callable[[str], None] = lambda line: None,
    work: Path | None = None,
) -> Cleaning:
    """Find the pairs of two text files that the rules drop.

    tests: texts for tests and validation. without: names of rules that drop nothing. say: gets a line before each step.
    work: a folder that keeps the results of each step, for a later call with the same arguments.
    Raises UserError for files of different length, or without a line.
    """
    names = [rule for rule in RULES if rule not in {*without, "unlikely"}]
    by_rule = _results(work, "check", lambda: _check(corpus, names, say))
    n_pairs = len(by_rule[""])
    if tests and "near_test" in by_rule:
        say("near_test: lines of the test texts")
        by_rule |= _results(work, "near_test", lambda: {"near_test": _near_tests(corpus, tests, n_pairs)})
    is_good = ~functools.reduce(np.logical_or, by_rule.values())
    notes = list[str]()
    judge = _learn(corpus, is_good, names, notes, say)
    if judge is not None:
        say("language, misfit: all pairs")
        for rule, places in judge.places(corpus, is_good, work).items():
            if rule in by_rule:
                by_rule[rule] |= places
    rules = np.full(n_pairs, -1, np.int8)
    for rule in reversed(names):
        rules[by_rule[rule]] = RULES.index(rule)
    return Cleaning(rules, notes)


def _results(folder: Path | None, step: str, compute: Callable[[], Places]) -> Places:
    """Return the results of a step, which an earlier call may have computed and stored in the folder."""
    path = None if folder is None else folder / f"{step}.safetensors"
    if path is not None and path.exists():
        return load_file(path)
    results = compute()
    if path is not None:
        write_file(path, save(results))
    return results


@contextmanager
def results_file(folder: Path | None, step: str, size: int = 1) -> Iterator[BinaryIO]:
    """Open the file to which a step appends its results, at the first result of an earlier call.

    folder: None keeps nothing. size: bytes of a result; a part of a result is removed.
    """
    with open(os.devnull if folder is None else folder / step, "ab+") as file:
        if folder is not None:
            file.truncate(file.tell() // size * size)
        file.seek(0)
        yield file


def _check(corpus: Corpus, rules: Sequence[str], say: Callable[[str], None]) -> Places:
    """Return where `check` finds what the rules are about. The rule "" is nowhere."""
    say("check: lines and pairs")
    findings = Findings(0)
    n_pairs = examine(corpus, findings).n_pairs
    refuse_unequal(corpus, findings)
    return {rule: _places(findings.lines(rule), n_pairs) for rule in ("", *rules)}


def _places(numbers: Sequence[int], n_pairs: int) -> NDArray[np.bool_]:
    """Return True at the lines with these numbers, counted from 1."""
    places = np.zeros(n_pairs, bool)
    places[np.asarray(numbers, np.int64) - 1] = True
    return places


def _near_tests(corpus: Corpus, tests: Sequence[tuple[Path, Path]], n_pairs: int) -> NDArray[np.bool_]:
    """Return True at the pairs of which a side is nearly a line of the tests, or both sides are short lines of them."""
    sides = [NearCopies(line for paths in tests for line in text.read_lines(paths[side])) for side in (0, 1)]
    is_near = (
        any(copies.is_copy(line) for copies, line in zip(sides, pair, strict=True))
        or all(copies.is_short_copy(line) for copies, line in zip(sides, pair, strict=True))
        for pair in tracked(read_trimmed(corpus), "near_test", n_pairs)
    )
    return np.fromiter(is_near, bool, n_pairs)


def read_raw(corpus: Corpus) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of two text files as they are, with their line feeds."""
    assert corpus.tgt is not None
    with open_text(corpus.src) as src, open_text(corpus.tgt) as tgt:
        yield from zip(text.raw_lines(src, f"{corpus.src}"), text.raw_lines(tgt, f"{corpus.tgt}"), strict=True)


def read_trimmed(corpus: Corpus) -> Iterator[LinePair]:
    """Yield the pairs as text without white space around it. Bytes that are not UTF-8 are replaced."""
    for pair in read_raw(corpus):
        src, tgt = (raw.decode("utf-8", "replace").strip() for raw in pair)
        yield src, tgt


# ---- what a sample teaches ---------------------------------------------------------------------------------------


def _learn(
    corpus: Corpus, is_good: NDArray[np.bool_], names: Sequence[str], notes: list[str], say: Callable[[str], None]
) -> "_Judge | None":
    """Return what a sample of the good pairs teaches; None if no rule needs it. Add to the notes what is left out."""
    step = max(1, math.ceil(np.count_nonzero(is_good) / SAMPLE_PAIRS))
    in_sample = np.zeros(len(is_good), bool)
    in_sample[np.flatnonzero(is_good)[::step]] = True
    sample = [pair for pair, is_in in zip(read_trimmed(corpus), in_sample.tolist(), strict=True) if is_in]
    languages, misfits = None, None
    if {"language", "swapped"} & {*names}:
        try:
            languages = main_languages(sample)
        except UserError as reason:
            notes.append(f"language, swapped: not used: {reason}")
    if "misfit" in names and len(sample) < LEAST_PAIRS:
        notes.append(f"misfit: not used: it learns from at least {LEAST_PAIRS:,} pairs, and {len(sample):,} remain")
    elif "misfit" in names:
        say(f"misfit: learning from {len(sample):,} pairs")
        misfits = learn_misfits(sample)
        notes.append(f"misfit: about {misfits.share:.1%} of the pairs that the other rules leave")
    folds = np.full(len(is_good), -1, np.int8)
    folds[in_sample] = np.arange(len(sample)) % FOLDS
    return _Judge(languages, misfits, folds) if languages or misfits else None


def main_languages(sample: Sequence[LinePair]) -> tuple[str, str]:
    """Return the language of most lines of each side. Raises UserError, with the reason, if there is none."""
    identify = language_identifier()
    if identify is None:
        raise UserError("needs the package py3langid; pip install 'transduce[detect]'")
    languages = []
    for side in ("source", "target"):
        lines = (pair[side == "target"] for pair in sample)
        of_lines = [identify(line)[0] for line in islice((line for line in lines if _has_letters(line)), 1_000)]
        language, n = Counter(of_lines).most_common(1)[0] if of_lines else ("", 0)
        if n <= MAIN_SHARE * len(of_lines):
            raise UserError(f"no language has most lines of the {side}")
        languages.append(language)
    if languages[0] == languages[1]:
        raise UserError(f"both sides are in one language ({languages[0]})")
    return languages[0], languages[1]


def _has_letters(line: str) -> bool:
    return sum(map(str.isalpha, line)) >= ENOUGH_LETTERS


@dataclass(frozen=True)
class _Judge:
    """Judges pairs one by one. folds: of each pair, the part of the sample that it belongs to; -1: none."""

    languages: tuple[str, str] | None
    misfits: Misfits | None
    folds: NDArray[np.int8]

    def places(self, corpus: Corpus, is_good: NDArray[np.bool_], work: Path | None) -> Places:
        """Return where the rules of JUDGED apply among the good pairs, on all cores. work: as in `find_faults`."""
        n_good = int(np.count_nonzero(is_good))
        with ExitStack() as stack:
            file = stack.enter_context(results_file(work, "judgements"))
            bits = bytearray(file.read())
            portions = self._portions(corpus, is_good, len(bits))
            if n_good - len(bits) > 4 * PORTION and cores() > 1:
                pool = stack.enter_context(WorkerPool(cores(), _set_judge, self.languages, self.misfits))
                results = _in_pool(pool, portions)
            else:
                _set_judge(self.languages, self.misfits)
                results = (_judge_pairs(*portion) for portion in portions)
            progress = stack.enter_context(JobProgress("language, misfit", n_good, len(bits)))
            for of_portion in results:
                file.write(of_portion)
                file.flush()
                bits += of_portion
                progress.advance(len(of_portion))
        judgements = np.zeros(len(is_good), np.uint8)
        judgements[is_good] = np.frombuffer(bits, np.uint8)
        return {rule: judgements >> bit & 1 == 1 for bit, rule in enumerate(JUDGED)}

    def _portions(self, corpus: Corpus, is_good: NDArray[np.bool_], n_done: int) -> Iterator["Portion"]:
        """Yield the good pairs after the first `n_done`."""
        pairs = islice(((i, pair) for i, pair in enumerate(read_trimmed(corpus)) if is_good[i]), n_done, None)
        while portion := [*islice(pairs, PORTION)]:
            places = np.array([i for i, _ in portion])
            yield [pair for _, pair in portion], self.folds[places]


Portion = tuple[list[LinePair], NDArray[np.int8]]  # some pairs and their folds

_judge: list[tuple[tuple[str, str] | None, Misfits | None]] = []  # in each process


def _set_judge(languages: tuple[str, str] | None, misfits: Misfits | None) -> None:
    _judge[:] = [(languages, misfits)]


def _in_pool(pool: WorkerPool, portions: Iterable[Portion]) -> Iterator[bytes]:
    """Yield the judgement of each portion, in order, with few portions in memory."""
    waiting = deque[Future[bytes]]()
    for portion in portions:
        waiting.append(pool.submit(_judge_pairs, *portion))
        if len(waiting) > 2 * cores():
            yield waiting.popleft().result()
    for future in waiting:
        yield future.result()


def _judge_pairs(pairs: Sequence[LinePair], folds: NDArray[np.int8]) -> bytes:
    """Return a byte for each pair, with a bit for each rule of JUDGED that applies. folds: as in `_Judge`."""
    languages, misfits = _judge[0]
    places = {rule: np.zeros(len(pairs), bool) for rule in JUDGED}
    identify = language_identifier() if languages else None
    if languages and identify:
        others = [[_other_language(line, main, identify) for line in side] for side, main in _sides(pairs, languages)]
        for i, (src, tgt) in enumerate(zip(*others, strict=True)):
            is_swapped = src == languages[1] and tgt == languages[0]
            places["swapped" if is_swapped else "language"][i] = bool(src or tgt)
    if misfits:
        for fold in {*folds.tolist()}:
            members = np.flatnonzero(folds == fold)
            scores = misfits.scores([pairs[i] for i in members.tolist()], max(fold, 0))
            places["misfit"][members] = scores >= misfits.least
    return np.packbits([places[rule] for rule in JUDGED], axis=0, bitorder="little").tobytes()


def _sides(pairs: Sequence[LinePair], languages: tuple[str, str]) -> Iterator[tuple[list[str], str]]:
    for side, language in enumerate(languages):
        yield [pair[side] for pair in pairs], language


def _other_language(line: str, main: str, identify: Identifier) -> str:
    """Return the language of a line if it is surely another one than `main`, else ""."""
    if not _has_letters(line):
        return ""
    language, probability = identify(line)
    return language if language != main and probability >= SURE else ""
