"""The folder of a run: its lock, the user's files in it, and checkpoints that somebody edited or renamed."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import random_checkpoint, stored_state
from support.toy_task import ROOT
from support.trainings import CONFIG, USES, Texts, assert_same, train, with_train

from transduce.data.corpora import Corpus, hidden_modes
from transduce.errors import UserError
from transduce.storage import model_folder
from transduce.storage.atomic_folder import encode_json, write_folder
from transduce.storage.checkpoints import checkpoint_path, load_checkpoint, newest_checkpoint, save_checkpoint
from transduce.storage.run_folder import exclusive

SHORT = with_train(CONFIG, max_steps=9)

# ---- the lock ----------------------------------------------------------------------------------------------------


def test_a_second_training_in_the_folder_is_refused(run_texts: Texts, tmp_path: Path) -> None:
    with exclusive(tmp_path / "run"), pytest.raises(UserError, match="run: expected a run that no other training"):
        train(SHORT, out=tmp_path / "run", **run_texts)
    train(SHORT, out=tmp_path / "run", **run_texts)


def test_a_refused_training_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "a" / "run"):
        _ = 1 / 0
    assert os.listdir(tmp_path) == []
    (tmp_path / "run").mkdir()
    with exclusive(tmp_path / "run"):
        pass
    assert os.listdir(tmp_path) == ["run"] and os.listdir(tmp_path / "run") == []


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from transduce.storage.run_folder import exclusive\n"
    code += "with exclusive(Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout and process.stdout.readline() == b"locked\n"
        with pytest.raises(UserError), exclusive(tmp_path / "run"):
            pass
        process.send_signal(signal.SIGKILL)
    with exclusive(tmp_path / "run"):
        pass


# ---- files of the user -------------------------------------------------------------------------------------------


def test_files_of_the_user_remain(run_texts: Texts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    mine = [out / ".tmp-precious" / "thesis", out / "data" / "train" / "mine.txt", out / "checkpoints" / ".tmp-notes"]
    for steps in (9, 10):
        config = with_train(CONFIG, max_steps=steps)
        train(config, out=out, resume=True, allow_change=["train.max_steps"], **run_texts)
        for path in mine:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        (out / ".tmp-report.html-77").touch()
    train(config, out=out, resume=True, **run_texts)
    assert all(path.exists() for path in mine)
    assert not (out / ".tmp-report.html-77").exists()


def test_a_folder_with_a_page_of_the_user_is_refused(run_texts: Texts, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="report.html exists there"):
        train(SHORT, out=tmp_path, **run_texts)
    assert os.listdir(tmp_path) == ["report.html"]


def test_the_text_of_a_run_is_as_private_as_its_source(run_texts: Texts, tmp_path: Path) -> None:
    text = Path(shutil.copy(run_texts["train"][0], tmp_path / "text"))
    modes = {}
    for mode in (0o600, 0o640, 0o644):
        text.chmod(mode)
        modes[mode] = 0o755 & ~hidden_modes([Corpus(text, run_texts["train"][1])])
    assert modes == {0o600: 0o700, 0o640: 0o750, 0o644: 0o755}
    text.chmod(0o600)
    train(SHORT, out=tmp_path / "run", train=(text, run_texts["train"][1]), valid=run_texts["valid"])
    assert stat.S_IMODE((tmp_path / "run" / "data" / "train").stat().st_mode) == 0o700


# ---- edited checkpoints ------------------------------------------------------------------------------------------


def edited(state: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the state with another value; None removes it. key: "step", or "data.index" for an inner value."""
    outer, _, inner = key.partition(".")
    if inner:
        return {**state, outer: edited(state[outer], inner, value)}
    return {name: old for name, old in {**state, key: value}.items() if name != key or value is not None}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", -1), ("step", 2**60), ("step", "4"), ("step", 4.5), ("step", None),
        ("data.epoch", -1), ("data.index", "x"), ("data.index", None), ("data", None),
        ("texts", None), ("texts.valid", None), ("made_of", [1]), ("made_with", None), ("made_with.tokenizer", 3),
        ("best_score", "x"), ("best_step", -2), ("skipped", -1), ("seconds", "1"), ("since_report.tgt_tokens", "x"),
    ],
)  # fmt: skip
def test_a_checkpoint_with_an_odd_value_is_damaged(key: str, value: Any, tmp_path: Path) -> None:
    old = save_checkpoint(tmp_path, random_checkpoint(3))
    new = save_checkpoint(tmp_path, random_checkpoint(4))
    files = {path.name: path.read_bytes() for path in new.iterdir() if path.name != "manifest.json"}
    files["state.json"] = encode_json(edited(stored_state(4), key, value))
    write_folder(new, {name: [content] for name, content in files.items()})
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest[0] == old and "state.json: expected the state of a run (" in newest[1][0]
    with pytest.raises(UserError, match=r"state\.json: expected the state of a run"):
        load_checkpoint(new)


def test_a_checkpoint_of_this_program_has_a_valid_state(finished_runs: dict[str, Path]) -> None:
    for run in finished_runs.values():
        newest = newest_checkpoint(run)
        assert newest is not None and newest[1] == []


def test_a_renamed_checkpoint_is_damaged(tmp_path: Path) -> None:
    old = save_checkpoint(tmp_path, random_checkpoint(3))
    save_checkpoint(tmp_path, random_checkpoint(4)).rename(checkpoint_path(tmp_path, 900))
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest[0] == old
    assert "step-00000900: expected the name of step 4, which it holds; restore its name" in newest[1][0]


@pytest.mark.parametrize("kind", ["file", "link", "pipe"])
def test_a_file_named_as_a_checkpoint_does_not_stop_a_run(
    kind: str, finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path
) -> None:
    out = shutil.copytree(finished_runs["ema"], tmp_path / "run")
    newest = checkpoint_path(out, USES["ema"].train.max_steps)
    shutil.rmtree(newest)
    make: dict[str, Callable[[], object]] = {
        "file": newest.touch,
        "link": lambda: newest.symlink_to("nowhere"),
        "pipe": lambda: os.mkfifo(newest),
    }
    make[kind]()
    train(USES["ema"], out=out, resume=True, **run_texts)
    assert_same(out, finished_runs["ema"])


# ---- models that are replaced while they are read ----------------------------------------------------------------


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(
    finished_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copytree(finished_runs["ema"] / "model", tmp_path / "model"))
    config = model_folder.load_model(path).config
    listed_files = model_folder.listed_files

    def moved_before(folder: Path, **more: Any) -> list[str]:
        if not (tmp_path / "old").exists():  # the moment between the two renames
            path.rename(tmp_path / "old")
        return listed_files(folder, **more)

    monkeypatch.setattr(model_folder, "listed_files", moved_before)
    monkeypatch.setattr(model_folder.time, "sleep", lambda seconds: shutil.copytree(tmp_path / "old", path))
    assert model_folder.load_model(path).config == config
