"""Labelled bracketing scores of trees, by the rules of EVALB with its parameter file COLLINS.prm.

A bracket is a label over a span of words. A bracket of the output is correct if the gold tree has it; each gold bracket
counts once. The outermost node, TOP, is no bracket, whatever a file calls it. Punctuation is deleted before spans are
counted, by the gold tags in both trees, so that a wrong tag does not shift the words. ADVP and PRT are the same label.
Sentences of all lengths count. The tags of the words that remain give the tagging accuracy.

An output with other words than the gold tree, or without a tree, counts as wrong here: its gold brackets and words stay
in the denominators. EVALB leaves such sentences out, which makes its scores better, and counts an outermost ROOT.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.data.text import read_lines, unequal
from transduce.errors import UserError
from transduce.parsing.trees import Tree, read_trees, tree_of_line

PUNCTUATION = frozenset([",", ":", "``", "''", "."])
SAME_LABEL = {"PRT": "ADVP"}


@dataclass(frozen=True)
class LabelledScores:
    """The scores of a set of trees, in percent, and the counts behind them. valid: outputs that could be aligned."""

    sentences: int
    valid: int
    precision: float
    recall: float
    f1: float
    exact: float  # the share of sentences whose brackets equal the brackets of the gold tree
    tagging: float
    matched: int  # brackets, correct
    gold: int  # brackets of the gold trees
    output: int  # brackets of the outputs

    def __str__(self) -> str:
        """Return the scores as text to read."""
        unit = "sentences" if self.sentences > 1 else "sentence"
        brackets = (
            f"{self.matched:,} brackets correct, of {self.output:,} in the output and {self.gold:,} in the gold trees"
        )
        return "\n".join(
            [
                f"{self.sentences:,} {unit}, of which {self.valid:,} have a tree over the same words",
                "",
                f"labelled F1          {self.f1:7.2f}  EVALB, COLLINS.prm, all lengths; {brackets}",
                f"precision            {self.precision:7.2f}",
                f"recall               {self.recall:7.2f}",
                f"exact match          {self.exact:7.2f}  of all sentences",
                f"tagging accuracy     {self.tagging:7.2f}  without punctuation",
            ]
        )


def read_gold(path: Path) -> list[Tree]:
    """Return the gold trees of a file in brackets, which may span lines. Raises UserError if there is none."""
    trees = [*read_trees(path)]
    if not trees:
        raise UserError(f"{path}: expected at least 1 tree in brackets; give a treebank")
    return trees


def read_outputs(path: Path, gold: Path, n_trees: int) -> list[Tree | None]:
    """Return the tree of each line of a file; None for a line without a well-formed tree.

    gold: the file of the gold trees. n_trees: its number of trees. Raises UserError for another number of lines.
    """
    lines = [*read_lines(path)]
    if len(lines) != n_trees:
        raise unequal((f"{path}", f"{gold}"), (len(lines), n_trees))
    return [_tree_or_none(line) for line in lines]


def _tree_or_none(line: str) -> Tree | None:
    try:
        return tree_of_line(line, "output", 1)
    except UserError:
        return None


def labelled_scores(gold: Sequence[Tree], outputs: Sequence[Tree | None]) -> LabelledScores:
    """Return the scores of `outputs`, a tree or None for each gold tree."""
    counts = Counter[str]()
    for gold_tree, output in zip(gold, outputs, strict=True):
        counts.update(_counts(gold_tree, output))
    precision = _percent(counts["matched"], counts["output"])
    recall = _percent(counts["matched"], counts["gold"])
    return LabelledScores(
        sentences=len(gold),
        valid=counts["valid"],
        precision=precision,
        recall=recall,
        f1=round(2 * precision * recall / (precision + recall), 4) if counts["matched"] else 0.0,
        exact=_percent(counts["exact"], len(gold)),
        tagging=_percent(counts["tags"], counts["words"]),
        matched=counts["matched"],
        gold=counts["gold"],
        output=counts["output"],
    )


def _counts(gold: Tree, output: Tree | None) -> dict[str, int]:
    """Return what one sentence adds to each count."""
    mask = [tag not in PUNCTUATION for tag in gold.tags]
    gold_brackets = brackets(gold, mask)
    counts = {"words": sum(mask), "gold": gold_brackets.total()}
    if output is None or output.words != gold.words:
        return counts
    output_brackets = brackets(output, mask)
    tags = zip(gold.tags, output.tags, mask, strict=True)
    return counts | {
        "valid": 1,
        "output": output_brackets.total(),
        "matched": (gold_brackets & output_brackets).total(),
        "exact": int(gold_brackets == output_brackets),
        "tags": sum(is_kept and gold_tag == output_tag for gold_tag, output_tag, is_kept in tags),
    }


def brackets(tree: Tree, mask: Sequence[bool]) -> Counter[tuple[str, int, int]]:
    """Return the brackets of a tree and how often it has each. mask: False for the words that are deleted."""
    before = [0]  # words that are kept before each word
    for is_kept in mask:
        before.append(before[-1] + is_kept)
    spans = ((SAME_LABEL.get(p.label, p.label), before[p.begin], before[p.end]) for p in tree.phrases)
    return Counter(span for span in spans if span[1] < span[2])


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 4) if whole else 0.0
