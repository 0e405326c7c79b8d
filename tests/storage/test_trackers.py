"""The trackers of a run: they get its numbers, continue with it, and are imported only if they are used."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transduce.errors import UserError
from transduce.storage.run_log import RunLog
from transduce.storage.trackers import tracker_problems


def module(name: str, **names: Any) -> Any:
    made = type(sys)(name)
    made.__dict__.update(names)
    return made


@pytest.mark.parametrize("name", ["tensorboard", "trackio"])
def test_a_tracker_is_imported_only_if_it_is_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.storage.trackers.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "trackio", None)
    log = RunLog(tmp_path, 0)
    log.report(1, {"loss": 1.0})
    log.close()
    assert not (tmp_path / "tensorboard").exists()
    assert tracker_problems(name) == [f"--tracker={name}: expected the package {name}; pip install 'transduce[log]'"]


def test_tensorboard_gets_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            calls.append((folder, purge_step))

        def add_scalar(self, *arguments: Any) -> None:
            calls.append(arguments)

        def flush(self) -> None: ...

        def close(self) -> None:
            calls.append(("closed",))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module("torch.utils.tensorboard", SummaryWriter=Writer))
    log = RunLog(tmp_path, 40, tracker="tensorboard")
    log.report(50, {"loss": 1.5, "epoch": 2, "name": "x", "absent": None})
    log.close()
    assert calls == [(str(tmp_path / "tensorboard"), 41), ("loss", 1.5, 50), ("epoch", 2, 50), ("closed",)]


SESSIONS = """
import os
import subprocess
import sys
from pathlib import Path
from transduce.storage.run_log import RunLog

run = Path(sys.argv[1])
for after_step, step in ((-1, 10), (10, 20)):
    log = RunLog(run, after_step, tracker="trackio")
    log.report(step, {"loss": step / 4, "name": "x"})
    log.close()

from trackio.sqlite_storage import SQLiteStorage
(record,) = SQLiteStorage.get_run_records("transduce")
logs = SQLiteStorage.get_logs("transduce", record["name"], run_id=record["id"])
print(record["name"], [(log["step"], log["loss"]) for log in logs])
"""


def test_trackio_continues_a_resumed_run(tmp_path: Path) -> None:
    """Two sessions of a run are one run in its database, with the numbers of both."""
    pytest.importorskip("trackio", reason="needs transduce[log]")
    (tmp_path / "config.json").write_text('{"model": {"d_model": 16}}', encoding="utf-8")
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "database")}
    command = [sys.executable, "-c", SESSIONS, str(tmp_path)]
    sessions = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert sessions.stdout == f"{tmp_path} [(10, 2.5), (20, 5.0)]\n", sessions.stderr


def test_a_folder_that_trackio_cannot_write_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setitem(sys.modules, "trackio", module("trackio", init=init))
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="--tracker=trackio: expected a database that trackio can write .*TRACKIO_DIR"):
        RunLog(tmp_path, 0, tracker="trackio")
