"""The rows of a study in several processes: signals, and processes that are killed."""

import time
from pathlib import Path

import pytest
from support.study_rows import interrupting, killed

from transduce.errors import UserError
from transduce.studies.results import Results
from transduce.studies.rows import run_rows
from transduce.studies.segments import Sizes

SIZES = Sizes(320, segment=8, rows=4, lengths=(8,))


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    text = tmp_path / "text.txt"
    text.write_text("a dog sees the cat .\n" * 40)
    return text, text


def test_a_training_that_is_killed_ends_the_study_in_words(texts: tuple[Path, Path], tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json", "experts", {})
    with pytest.raises(UserError, match="the process of a training was killed.* run the same command again"):
        run_rows(["large", "small"], texts, SIZES, results, killed, jobs=2)
    assert not results.is_done("large-1")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_signal_ends_the_trainings(texts: tuple[Path, Path], tmp_path: Path, jobs: int) -> None:
    results, start = Results(tmp_path / "results.json", "experts", {}), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_rows(["row"], texts, SIZES, results, interrupting, jobs=jobs)
    assert time.monotonic() - start < 50
    assert not any(map(results.is_done, results.entries))
