"""results.json: results of another study or of other settings, and damaged ones, are refused."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.toy_task import ROOT

from transduce.errors import UserError
from transduce.studies import table2, table3
from transduce.studies.results import Results, commit


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    Results(tmp_path / "results.json", table3.STUDY, {"scale": "small", "training text": "1"}).save()
    with pytest.raises(UserError, match="expected results of table2, not of table3"):
        table2.STUDY.open(tmp_path, {})
    with pytest.raises(UserError, match="expected results with the same training text, "):
        table3.STUDY.open(tmp_path, {"scale": "small", "training text": "2"})
    assert table3.STUDY.open(tmp_path, {"scale": "small", "training text": "1"}).entries == {}


def test_the_folder_of_a_training_is_refused(tmp_path: Path) -> None:
    """A study would replace its report.html."""
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match=r"^--out=.*: expected the folder of a study, not of a training; give another"):
        table3.STUDY.open(tmp_path, {})


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"format_version": 1}', b'{\n  "format_version": 1,\n  "study": "table3"\n}', b"\xff"],
)
def test_damaged_results_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(UserError, match="results.json: expected the results of a study"):
        table3.STUDY.open(tmp_path, {})


def test_results_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(b'{\n  "format_version": 2\n}')
    with pytest.raises(UserError, match="expected format version 1, not 2; update"):
        table3.STUDY.open(tmp_path, {})


def test_a_run_of_a_study_is_one_session(tmp_path: Path) -> None:
    for run in range(2):
        results = table2.STUDY.open(tmp_path, {})
        results.start_session(["a"])  # the measurements of a study, and then its trainings
        results.record("a", "failed", why="x")
        results.start_session(["a", "b"])
        results.record("b", "failed", why="x")
        saved = table2.STUDY.open(tmp_path, {})
        assert len(saved.sessions) == run + 1
        assert [saved.entries[name]["session"] for name in "ab"] == [run, run]


def test_a_command_with_a_name_that_is_not_utf_8_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["transduce", "study", "--out", "v\udce4"])
    results = table2.STUDY.open(tmp_path, {})
    results.start_session(["a"])
    assert table2.STUDY.open(tmp_path, {}).sessions[0]["command"] == "transduce study --out 'v\\xe4'"


def test_the_commit_is_that_of_the_checkout() -> None:
    git = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    if git.returncode:
        pytest.skip("not a checkout")
    assert (commit() or "").rstrip("+") == git.stdout.strip()
