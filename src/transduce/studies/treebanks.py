"""The treebanks of a study of parsing, and the texts that its trainings learn from.

    treebank -> OUT/runs/texts/valid.trees                        what the models are evaluated on
                               train.words, train.symbols        all training trees
                               train-20.words, train-20.symbols  a part of them
                               train.in-order.symbols            all of them, in the in-order form

Trees of more words than a study allows are left out of all of them.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from transduce.data.text import file_sha256
from transduce.errors import UserError
from transduce.parsing.labelled_f1 import read_gold
from transduce.parsing.linearize import Form, linearize
from transduce.parsing.trees import Tree, sentence_of
from transduce.storage.atomic_folder import write_file
from transduce.studies.texts import FilePair


@dataclass(frozen=True)
class Treebanks:
    """Files with brackets of the Penn Treebank.

    test: None if the study has no test trees. max_words: trees of more words are left out.
    """

    train: Path
    valid: Path
    test: Path | None = None
    max_words: int = 20

    def read(self) -> tuple[dict[str, Any], dict[str, list[Tree]]]:
        """Return the settings of a study that identify the treebanks, and the trees of each, by "train" and so on.

        Raises UserError for a file that cannot be read, that is no treebank, or that has too long trees only.
        """
        paths = {"train": self.train, "valid": self.valid, **({"test": self.test} if self.test else {})}
        trees = {name: self._read(path) for name, path in paths.items()}
        hashes = {f"{name} trees": file_sha256(path) for name, path in paths.items()}
        return {**hashes, "maximum of words": self.max_words, "number of training trees": len(trees["train"])}, trees

    def _read(self, path: Path) -> list[Tree]:
        trees = [tree for tree in read_gold(path) if len(tree.words) <= self.max_words]
        if not trees:
            raise UserError(
                f"--max-words={self.max_words}: expected at least 1 tree of so many words in {path}; give more"
            )
        return trees


@dataclass(frozen=True)
class Variant:
    """The training text of a row: a part of the treebank, in a linear form of its trees."""

    percent: int = 100
    form: Form = "top-down"

    def part_of(self, trees: Sequence[Tree]) -> list[Tree]:
        """Return a random part of the trees, in their order. It is always the same, and contains smaller parts."""
        order = random.Random(1).sample(range(len(trees)), len(trees))
        return [trees[i] for i in sorted(order[: self.size(len(trees))])]

    def size(self, n_trees: int) -> int:
        """Return the number of trees in the part of `n_trees` trees: at least 1."""
        return max(1, round(n_trees * self.percent / 100))


@dataclass(frozen=True)
class TreeTexts:
    """The texts of a training: words and symbols. gold: the files of the trees that its model is evaluated on."""

    train: FilePair
    valid: FilePair
    gold: Mapping[str, Path]

    headline: ClassVar[Mapping[str, str]] = {"f1": "F1"}

    def evaluations(self) -> dict[str, list[str]]:
        """Return the arguments of `transduce evaluate MODEL` for the validation trees and the test trees."""
        return {name: ["--trees", str(path), "--json"] for name, path in self.gold.items()}

    def figures(self, output: dict[str, Any]) -> dict[str, Any]:
        """Return the scores and the counts behind them, which are the whole output of an evaluation."""
        return output


def write_tree_texts(trees: Mapping[str, Sequence[Tree]], variant: Variant, folder: Path) -> TreeTexts:
    """Write the texts of a variant to `folder`, and return them. trees: from `Treebanks.read`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "train" if variant.percent == 100 else f"train-{variant.percent}"
    train = _write(folder / name, variant.part_of(trees["train"]), variant.form)
    gold = {text: folder / f"{text}.trees" for text in trees if text != "train"}
    for text, path in gold.items():
        write_file(path, "".join(f"{tree}\n" for tree in trees[text]).encode())
    return TreeTexts(train, _write(folder / "valid", trees["valid"], variant.form), gold)


def _write(path: Path, trees: Sequence[Tree], form: Form) -> FilePair:
    """Write words and symbols of the trees to files whose names begin with `path`."""
    ending = "symbols" if form == "top-down" else f"{form}.symbols"
    words, symbols = Path(f"{path}.words"), Path(f"{path}.{ending}")
    write_file(words, "".join(f"{sentence_of(tree.words)}\n" for tree in trees).encode())
    write_file(symbols, "".join(f"{' '.join(linearize(tree, form))}\n" for tree in trees).encode())
    return words, symbols
