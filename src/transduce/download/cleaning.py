"""Cleaning: drop the pairs of a corpus that cannot be translations, or that occur twice, and count them.

A pair has the first outcome that fits:

    not_utf8   a side has bytes that are not UTF-8
    blank      a side has no visible character
    long       a side has more than MAX_WORDS words; the paper's recipes skip pairs of over 256 tokens in any case
    copied     both sides are the same text, of COPIED_LETTERS letters or more
    ratio      the lengths do not fit each other (`line_checks.unusual_ratios`, over the pairs of one part)
    repeated   an earlier pair, of any part, is the same
    kept       all others

The text of a line does not change, except for white space around it. The text is read twice. Memory holds 17 bytes for
each pair, and four times as much during the search for repeated pairs, which compares 64-bit hashes.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transduce.cleaning.check import read_decoded, refuse_unequal
from transduce.cleaning.corpus_report import Findings
from transduce.cleaning.line_checks import is_copied, unusual_ratios
from transduce.data.corpora import Corpus
from transduce.data.disk import synced_file
from transduce.data.overlap import repeated_lines
from transduce.storage.atomic_folder import replacement

OUTCOMES = ("not_utf8", "blank", "long", "copied", "ratio", "repeated", "kept")
RATIO, REPEATED, KEPT = (OUTCOMES.index(name) for name in ("ratio", "repeated", "kept"))
MAX_WORDS = 250

Paths = tuple[Path, Path]  # a source text and its target text, which correspond line by line


def clean(
    parts: Mapping[str, Paths], out: Paths, report: Callable[[str], None] = lambda line: None
) -> dict[str, dict[str, int]]:
    """Write the kept pairs of all parts, in order, to the two files `out`. Return the number of pairs by outcome.

    The numbers have an entry for each part. report: gets a line before each long step.
    Raises UserError if the sides of a part have different numbers of lines.
    """
    hashes = array("q")
    outcomes = {}
    for name, paths in parts.items():
        report(f"reading {name}")
        outcomes[name] = _outcomes(paths, hashes)
    report("searching repeated pairs")
    _mark_repeated(list(outcomes.values()), hashes)
    with ExitStack() as stack:
        buildings = [stack.enter_context(replacement(path)) for path in out]
        src_file, tgt_file = (stack.enter_context(synced_file(building)) for building in buildings)
        for name, paths in parts.items():
            report(f"writing the kept pairs of {name}")
            pairs = read_decoded(Corpus(*paths), Findings(0))
            for (src, tgt), outcome in zip(pairs, outcomes[name].tolist(), strict=True):
                if outcome == KEPT:
                    src_file.write(f"{src}\n".encode())
                    tgt_file.write(f"{tgt}\n".encode())
    return {name: _counts(values) for name, values in outcomes.items()}


def _outcomes(paths: Paths, hashes: "array[int]") -> NDArray[np.uint8]:
    """Return the outcome of each pair of a part, without `repeated`, and append a hash of each pair to `hashes`."""
    outcomes = bytearray()
    lengths = (array("I"), array("I"))
    corpus, findings = Corpus(*paths), Findings(0)
    for pair in read_decoded(corpus, findings):
        outcomes.append(OUTCOMES.index(_outcome(*pair)))
        hashes.append(hash(pair))
        for side, line in zip(lengths, pair, strict=True):
            side.append(len(line or ""))
    refuse_unequal(corpus, findings)
    result = np.frombuffer(outcomes, np.uint8)
    indices = np.flatnonzero(result == KEPT)
    src_lengths, tgt_lengths = (np.asarray(side)[indices] for side in lengths)
    for index, _ in unusual_ratios(src_lengths, tgt_lengths):
        result[indices[index]] = RATIO
    return result


def _outcome(src: str | None, tgt: str | None) -> str:
    """Return the outcome that follows from a single pair. None: a side that is not UTF-8."""
    if src is None or tgt is None:
        return "not_utf8"
    if not src or not tgt:
        return "blank"
    if max(len(src.split()), len(tgt.split())) > MAX_WORDS:
        return "long"
    return "copied" if is_copied(src, tgt) else "kept"


def _mark_repeated(parts: Sequence[NDArray[np.uint8]], hashes: Sequence[int]) -> None:
    outcomes = np.concatenate(parts)
    for _, number, _ in repeated_lines({"repeated": hashes}, outcomes == KEPT):
        outcomes[number - 1] = REPEATED
    start = 0
    for part in parts:
        part[:] = outcomes[start : start + len(part)]
        start += len(part)


def _counts(outcomes: NDArray[np.uint8]) -> dict[str, int]:
    return dict(zip(OUTCOMES, np.bincount(outcomes, minlength=len(OUTCOMES)).tolist(), strict=True))
