"""The texts and the recipe file of a small study, and waiting for its processes."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from support.toy_task import write_pairs
from transduce.data.system import locked
from transduce.errors import UserError
from transduce.studies.trainings import Texts

LINES = ["a b c d", "b c", "c d e f g", "a", "g f a b"] * 8


def write_study(folder: Path, recipe: str, *, has_test: bool = False) -> Texts:
    """Write recipe.py and the texts of a study to `folder`: 40 pairs to train on, 6 to validate, and 9 to test."""
    (folder / "recipe.py").write_text(recipe, encoding="utf-8")
    test = write_pairs(folder, "test", LINES[:9]) if has_test else None
    return Texts(write_pairs(folder, "train", LINES), write_pairs(folder, "valid", LINES[:6]), test)


def write_words(folder: Path) -> tuple[Path, Path]:
    """Write a training text and a validation text of random words to `folder`."""
    draws, paths = random.Random(1), (folder / "train.txt", folder / "valid.txt")
    for path in paths:
        lines = (" ".join(draws.choices(["a", "dog", "sees", "the", "cat", "."], k=9)) for _ in range(40))
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return paths


def rows_of(text: str, mark: str) -> list[list[str]]:
    """Return the cells of the first table at `mark`, or below it, in a report.md."""
    table = text[text.index("|", text.index(mark)) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]


def figures_of(text: str, mark: str) -> dict[str, list[str]]:
    """Return the rows of `rows_of` by their names."""
    return {row[0]: row[1:] for row in rows_of(text, mark)}


def wait_for(is_true: Callable[[], bool], seconds: float = 600) -> None:
    """Wait until `is_true()`, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"not true after {seconds} s"
        time.sleep(0.02)


def is_locked(folder: Path) -> bool:
    """Check whether a process has a lock on the folder."""
    try:
        with locked(folder, "locked"):
            return False
    except UserError:
        return True
