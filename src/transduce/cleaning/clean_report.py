"""What `transduce clean` writes: the kept lines, the list of the dropped pairs, and a report with examples."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from transduce.cleaning.clean import RULES, Cleaning, read_raw
from transduce.cleaning.corpus_report import KINDS
from transduce.console import counted
from transduce.data.corpora import Corpus
from transduce.evaluation.page import write_page
from transduce.evaluation.study_report import Report, Section, Table, html_page

MEANINGS = KINDS | {
    "near_test": "nearly a line of a test text",
    "swapped": "source and target in the wrong place",
    "language": "in another language than most lines of its side",
    "misfit": "no full translation of the other side",
    "unlikely": "a source that the model of the other direction finds least likely",
}
MOST_EXAMPLES = 5
LONGEST = 80  # characters of an example


@dataclass
class Examples:
    """The first dropped pairs of each rule, with their numbers from 1."""

    by_rule: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)

    @classmethod
    def write(cls, corpus: Corpus, cleaning: Cleaning, files: Sequence[BinaryIO], start: str = "") -> "Examples":
        """Write the kept lines and the dropped pairs to three files, or to none, and return examples.

        start: text to put before each kept source.
        A dropped pair is a JSON object with its line number, its rule, and both lines. Bytes that are not UTF-8 are
        escapes from \\udc80 on, as Python's surrogateescape writes them.
        """
        examples = cls()
        for number, (pair, rule) in enumerate(zip(read_raw(corpus), cleaning.rules.tolist(), strict=True), start=1):
            if rule < 0:
                for file, raw, before in zip(files, pair, (start.encode(), b""), strict=False):
                    file.write(before + (raw if raw.endswith(b"\n") else raw + b"\n"))
                continue
            src, tgt = (raw.removesuffix(b"\n").decode("utf-8", "surrogateescape") for raw in pair)
            if files:
                line = {"line": number, "rule": RULES[rule], "src": src, "tgt": tgt}
                files[2].write(json.dumps(line).encode() + b"\n")
            of_rule = examples.by_rule.setdefault(RULES[rule], [])
            if len(of_rule) < MOST_EXAMPLES:
                of_rule.append((number, src, tgt))
        return examples


def summary(cleaning: Cleaning) -> str:
    """Return the counts as text: all pairs, the kept ones, and what each rule drops."""
    n_pairs = len(cleaning.rules)
    lines = [f"{counted(n_pairs, 'pair')}: {cleaning.n_kept:,} kept, {n_pairs - cleaning.n_kept:,} dropped"]
    counts = cleaning.counts
    width = max((len(f"{n:,}") for n in counts.values()), default=0)
    lines += [f"{n:{width},}  {rule}: {MEANINGS[rule]}" for rule, n in counts.items()]
    return "\n".join([*lines, *cleaning.notes])


def write_report(path: Path, corpus: Corpus, cleaning: Cleaning, examples: Examples) -> None:
    """Write a page with the counts, and examples for each rule."""
    n_pairs = len(cleaning.rules)
    counts = [[rule, MEANINGS[rule], f"{n:,}", f"{n / n_pairs:.2%}"] for rule, n in cleaning.counts.items()]
    sections = [Section("Rules", [Table(["rule", "pairs", "number", "share"], counts, words=frozenset({0, 1}))])]
    for rule, of_rule in examples.by_rule.items():
        rows = [[f"{number:,}", *(_shown(line) for line in pair)] for number, *pair in of_rule]
        table = Table(["line", "source", "target"], rows, words=frozenset({1, 2}))
        sections.append(Section(f"{rule}: {MEANINGS[rule]}", [table]))
    lead = f"{counted(n_pairs, 'pair')}: {cleaning.n_kept:,} kept, {n_pairs - cleaning.n_kept:,} dropped. "
    title = f"What was cleaned: {corpus.src} and {corpus.tgt}"
    write_page(path, html_page(Report(title, lead + ". ".join(cleaning.notes), sections)))


def _shown(line: str) -> str:
    part = line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in part)
