"""The treebanks of a study of parsing, and the texts that its trainings learn from.

    treebank -> OUT/runs/texts/train.words, train.symbols        all training trees
                               train-20.words, train-20.symbols  a part of them
                               train.top-down.symbols            all of them, in the top-down form

The models are evaluated on the trees themselves, not on symbols.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from transduce.data.text import file_sha256
from transduce.parsing.labelled_f1 import read_gold
from transduce.parsing.linearize import TreeForm, linearize
from transduce.parsing.trees import Tree, sentence_of
from transduce.storage.atomic_folder import write_file
from transduce.studies.texts import FilePair


@dataclass(frozen=True)
class Treebanks:
    """Files with brackets of the Penn Treebank. test: None if the study has no test trees."""

    train: Path
    valid: Path
    test: Path | None = None

    def read(self) -> tuple[dict[str, Any], dict[str, list[Tree]]]:
        """Return the settings of a study that identify the treebanks, and the trees of each, by "train" and so on.

        Raises UserError for a file that cannot be read, or that is no treebank.
        """
        paths = {"train": self.train, **self.gold()}
        trees = {name: read_gold(path) for name, path in paths.items()}
        hashes = {f"{name} trees": file_sha256(path) for name, path in paths.items()}
        return {**hashes, "number of training trees": len(trees["train"])}, trees

    def gold(self) -> dict[str, Path]:
        """Return the files of the trees that models are evaluated on."""
        return {"valid": self.valid, **({"test": self.test} if self.test else {})}


@dataclass(frozen=True)
class Variant:
    """The training text of a row: a part of the treebank, in a linear form of its trees."""

    percent: int = 100
    form: TreeForm = "by-word"

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


def write_tree_texts(
    trees: Mapping[str, Sequence[Tree]], variant: Variant, gold: Mapping[str, Path], folder: Path
) -> TreeTexts:
    """Write the texts of a variant to `folder`, and return them. trees: from `Treebanks.read`. gold: of `TreeTexts`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "train" if variant.percent == 100 else f"train-{variant.percent}"
    train = _write(folder / name, variant.part_of(trees["train"]), variant.form)
    return TreeTexts(train, _write(folder / "valid", trees["valid"], variant.form), gold)


def _write(path: Path, trees: Sequence[Tree], form: TreeForm) -> FilePair:
    """Write words and symbols of the trees to files whose names begin with `path`."""
    ending = "symbols" if form == "by-word" else f"{form}.symbols"
    words, symbols = Path(f"{path}.words"), Path(f"{path}.{ending}")
    write_file(words, "".join(f"{sentence_of(tree.words)}\n" for tree in trees).encode())
    write_file(symbols, "".join(f"{' '.join(linearize(tree, form))}\n" for tree in trees).encode())
    return words, symbols
