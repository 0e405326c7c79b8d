"""The texts and the recipe file of a small study, and waiting for its processes."""

import fcntl
import time
from collections.abc import Callable
from pathlib import Path

from support.toy_task import write_pairs
from transduce.studies.texts import Texts

LINES = ["a b c d", "b c", "c d e f g", "a", "g f a b"] * 8


def write_study(folder: Path, recipe: str, *, has_test: bool = False) -> Texts:
    """Write recipe.py and the texts of a study to `folder`: 40 pairs to train on, 6 to validate, and 9 to test."""
    (folder / "recipe.py").write_text(recipe, encoding="utf-8")
    test = write_pairs(folder, "test", LINES[:9]) if has_test else None
    return Texts(write_pairs(folder, "train", LINES), write_pairs(folder, "valid", LINES[:6]), test)


def wait_for(is_true: Callable[[], bool], seconds: float = 600) -> None:
    """Wait until `is_true()`, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"not true after {seconds} s"
        time.sleep(0.02)


def is_locked(path: Path) -> bool:
    """Check whether a process has a lock on the file."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
