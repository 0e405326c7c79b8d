"""`transduce check`: report the statistics of a corpus and its suspicious lines. It changes no file.

It reads the text once (twice with a validation text), line by line. It keeps 35 bytes for each pair. At the peak, while
it searches for duplicates, it uses 130 bytes: 13 GB for 100 million pairs. It compares 64-bit hashes. For 100 million
pairs, the probability of one false duplicate is below 1 in 1,000.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transduce.cleaning.alignment import SharedAnchors, unrelated_pairs
from transduce.cleaning.corpus_report import CorpusReport, Findings, SideStatistics
from transduce.cleaning.line_checks import PieceCheck, check_line, check_pair, unusual_ratios
from transduce.cleaning.progress import tracked
from transduce.console import printable
from transduce.data import corpora, text
from transduce.data.compression import open_file, open_text
from transduce.data.corpora import Corpus
from transduce.data.overlap import ambiguous_lines, find_overlap, repeated_lines
from transduce.data.vocabulary import TokenizerLike
from transduce.errors import UserError

SIDES = ("src", "tgt")
MANY = 50  # different targets of one source; in a corpus under 500 pairs, a tenth of the pairs


def check(
    corpus: Corpus, valid: tuple[Path, Path] | None = None, *, tokenizer: TokenizerLike | None = None, first: int = 5
) -> CorpusReport:
    """Check a corpus and return the report. first: the number of example lines for each finding.

    In two text files, lines that are not UTF-8 and sides of unequal length are findings. Raises UserError for a file
    that cannot be read, for text in UTF-16, and for the first bad row of a table.
    """
    names = _side_names(corpus)
    valid_pairs = list(text.read_pairs(*valid)) if valid else []  # before the corpus: an error is raised early
    findings = Findings(first)
    examination = examine(corpus, findings, tokenizer)
    if valid:
        overlap = find_overlap(_readable_pairs(corpus), valid_pairs)
        findings.add_all("leak", "valid", ((number, "") for number in overlap.pairs))
        findings.add_all("leaked_source", "valid", ((number, "") for number in overlap.sources))
        if overlap.is_exchanged:
            findings.add_range("exchanged", "valid", 1, len(valid_pairs), f"to {len(valid_pairs)}")
    src, tgt = examination.sides
    return CorpusReport(
        pairs=examination.n_pairs,
        sides=(src.report(names[0]), tgt.report(names[1])),
        findings=findings.in_order(),
        suspects=findings.suspects,
        trainable=examination.has_pairs and not findings.has_fatal,
    )


@dataclass(frozen=True)
class Examination:
    """The pairs that were read. has_pairs: True if one of them has text on both sides."""

    n_pairs: int
    sides: tuple[SideStatistics, SideStatistics]
    has_pairs: bool


def examine(corpus: Corpus, findings: Findings, tokenizer: TokenizerLike | None = None) -> Examination:
    """Read a corpus, and add all that looks wrong in it to `findings`. Raises UserError for a corpus without a line."""
    piece_check = PieceCheck(tokenizer) if tokenizer else None
    statistics = SideStatistics(), SideStatistics()
    pair_hashes = array("q")
    anchors = SharedAnchors()
    for number, pair in enumerate(_with_progress(corpus, findings), start=1):
        for side, line, statistic in zip(SIDES, pair, statistics, strict=True):
            statistic.add(line)
            if line:
                _check_line(line, side, number, findings, piece_check)
        pair_hashes.append(hash(pair))
        _check_pair(*pair, number, findings, anchors)
    if not pair_hashes and not findings.has_fatal:
        raise text.empty(*_side_names(corpus))
    usable = np.logical_and(*(np.asarray(statistic.lengths) > 0 for statistic in statistics))
    _check_repeats(pair_hashes, statistics, usable, findings)
    _check_lengths(statistics, anchors, usable, findings)
    for side, statistic in zip(SIDES, statistics, strict=True):
        findings.add_all("script", side, statistic.lines_in_rare_scripts())
    return Examination(len(pair_hashes), statistics, bool(usable.any()))


def _check_line(line: str, side: str, number: int, findings: Findings, piece_check: PieceCheck | None) -> None:
    for kind, evidence in check_line(line):
        findings.add(kind, side, number, evidence)
    if piece_check and (characters := piece_check(line)):
        findings.add("bytes", side, number, characters)


def _check_pair(src: str | None, tgt: str | None, number: int, findings: Findings, anchors: SharedAnchors) -> None:
    if src and tgt:
        anchors.add(src, tgt)
        for kind, evidence in check_pair(src, tgt):
            findings.add(kind, "pair", number, evidence)
    elif src is not None and tgt is not None:
        findings.add("blank", "pair", number, "target" if src else "source" if tgt else "both")


def _check_repeats(
    pair_hashes: Sequence[int],
    statistics: tuple[SideStatistics, SideStatistics],
    usable: NDArray[np.bool_],
    findings: Findings,
) -> None:
    """Add repeated pairs and sides, and sides with very many different translations.

    usable: False for pairs with a side that is blank or not UTF-8.
    """
    src, tgt = statistics
    hashes = {"repeated": pair_hashes, "repeated_src": src.hashes, "repeated_tgt": tgt.hashes}
    for kind, number, earlier in repeated_lines(hashes, usable):
        findings.add(kind, "pair", number, f"line {earlier}")
    limit = min(MANY, max(10, len(pair_hashes) // 10))
    for kind, side, others in (("many_targets", src, "targets"), ("many_sources", tgt, "sources")):
        for number, count in ambiguous_lines(pair_hashes, side.hashes, usable, limit):
            findings.add(kind, "pair", number, f"{count:,} {others}")


def _check_lengths(
    statistics: tuple[SideStatistics, SideStatistics],
    anchors: SharedAnchors,
    usable: NDArray[np.bool_],
    findings: Findings,
) -> None:
    """Add pairs of unusual lengths, and blocks of pairs whose sides hardly belong together."""
    numbers = np.flatnonzero(usable) + 1
    src_lengths, tgt_lengths = (np.asarray(side.lengths)[usable] for side in statistics)
    for index, evidence in unusual_ratios(src_lengths, tgt_lengths):
        findings.add("ratio", "pair", int(numbers[index]), evidence)
        src_lengths[index] = 0  # a separate finding, which does not count below
    for start, end, evidence in unrelated_pairs(src_lengths, tgt_lengths, anchors):
        first, last = int(numbers[start]), int(numbers[end])
        findings.add_range("unrelated", "pair", first, last, f"to {last}, {evidence}")


# ---- reading -----------------------------------------------------------------------------------------------------


def _side_names(corpus: Corpus) -> tuple[str, str]:
    src, tgt = (corpus.src, corpus.tgt) if corpus.tgt else (f"{corpus.src} (source)", f"{corpus.src} (target)")
    return printable(src), printable(tgt)


def _with_progress(corpus: Corpus, findings: Findings) -> Iterable[tuple[str | None, str | None]]:
    """Return the pairs, and show the progress."""
    total = None if corpus.tgt is None else text.count_lines(corpus.src)
    return tracked(read_decoded(corpus, findings), "checking", total)


def read_decoded(corpus: Corpus, findings: Findings) -> Iterator[tuple[str | None, str | None]]:
    """Yield the pairs without the white space around lines. A line that is not UTF-8 is None, and a finding."""
    if corpus.tgt is None:
        yield from ((_trim(src), _trim(tgt)) for src, tgt in corpora.read_pairs(corpus))
        return
    for path in (corpus.src, corpus.tgt):
        open_file(path).close()  # it refuses a pipe, because the search for the overlap reads the text again
    with open_text(corpus.src) as src_file, open_text(corpus.tgt) as tgt_file:
        sides = text.raw_lines(src_file, f"{corpus.src}"), text.raw_lines(tgt_file, f"{corpus.tgt}")
        for number, (src, tgt) in enumerate(zip_longest(*sides), start=1):
            if src is None or tgt is None:
                rest = 1 + text.lines_of(src_file if tgt is None else tgt_file)
                findings.add("unequal", "src" if src is None else "tgt", number, f"the other has {rest:,} more")
                return
            yield (
                _decode(src, f"{corpus.src}", number, "src", findings),
                _decode(tgt, f"{corpus.tgt}", number, "tgt", findings),
            )


def refuse_unequal(corpus: Corpus, findings: Findings) -> None:
    """Raise UserError if one of two text files has ended before the other."""
    if corpus.tgt is not None and findings.lines("unequal"):
        counts = text.count_lines(corpus.src), text.count_lines(corpus.tgt)
        raise text.unequal((f"{corpus.src}", f"{corpus.tgt}"), counts)


def _trim(line: str) -> str:
    """Return a line without the white space around it; "" if nothing in it is visible."""
    return "" if text.is_blank(line) else line.strip()


def _decode(raw: bytes, where: str, number: int, side: str, findings: Findings) -> str | None:
    """Return a line without the white space around it. If it is not UTF-8, add a finding and return None.

    Raises UserError, which names `where`, if the whole text is in UTF-16.
    """
    try:
        return _trim(text.decode_line(raw, where, number))
    except UserError as error:
        cause = error.__cause__
        if not isinstance(cause, UnicodeDecodeError):
            raise
        findings.add("not_utf8", side, number, f"byte {cause.start + 1} is 0x{cause.object[cause.start]:02x}")
        return None


def _readable_pairs(corpus: Corpus) -> Iterator[tuple[str, str]]:
    return ((src, tgt) for src, tgt in read_decoded(corpus, Findings(0)) if src is not None and tgt is not None)
