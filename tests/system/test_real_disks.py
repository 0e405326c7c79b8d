"""Small, read-only and limited disks: the earlier checkpoint stays, and the command says what is missing."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support.calls import fork_transduce
from support.checkpoints import stored_state, whole_checkpoint
from support.small_runs import AVERAGE, Texts, train_on
from support.toy_task import ROOT

from transduce.storage.atomic_folder import check_folder
from transduce.storage.checkpoints import (
    checkpoints,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
    step_of,
)


def train_command(texts: Texts, folder: Path, out: Path, *more: str) -> list[str]:
    recipe = folder / "recipe.py"
    recipe.write_text(
        "from support.small_runs import AVERAGE\n\n\ndef recipe():\n    return AVERAGE\n", encoding="utf-8"
    )
    parts = ["train", "--recipe", f"{recipe}:recipe", "--train", *map(str, texts["train"])]
    return [*parts, "--valid", *map(str, texts["valid"]), "--out", str(out), *more]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 10 MB. Needs root."""
    path = tmp_path / "disk"
    path.mkdir()
    can_mount = shutil.which("mount") and os.geteuid() == 0
    if not can_mount or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", path]).returncode:
        pytest.skip("needs the right to mount a file system")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


class Plenty(NamedTuple):
    """A result of `disk_usage` with more free bytes than the disk has."""

    free: int = 1 << 40


def leave_free(disk: Path, size: int) -> Path:
    """Fill a file system until `size` bytes are free, and return the file that fills it."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - size)
    return ballast


@pytest.mark.parametrize("free", [0, 1 << 12, 1 << 16, 1 << 19, 1_200_000])
def test_a_full_disk_leaves_the_earlier_checkpoint(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """Other programs may use the free bytes between the check and the write."""
    first = save_checkpoint(small_disk, whole_checkpoint(5))
    big = replace(whole_checkpoint(10), weights={"w": torch.zeros(300_000)})  # 1.2 MB
    ballast = leave_free(small_disk, free)
    with pytest.raises(OSError, match=r"No space left on device: 1,80[0-9],[0-9]{3} bytes needed, [0-9,]+ free"):
        save_checkpoint(small_disk, big)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: Plenty())
        with pytest.raises(OSError, match="No space left on device") as caught:
            save_checkpoint(small_disk, big)
    assert caught.value.errno == errno.ENOSPC and str(small_disk) in str(caught.value.filename)
    assert newest_checkpoint(small_disk) == (first, []) and load_checkpoint(first).state == stored_state(5)
    ballast.unlink()
    second = save_checkpoint(small_disk, big)
    assert newest_checkpoint(small_disk) == (second, [])


def test_a_read_only_disk_leaves_the_earlier_checkpoint(small_disk: Path, texts: Texts, tmp_path: Path) -> None:
    out = small_disk / "run"
    config = replace(AVERAGE, train=replace(AVERAGE.train, max_steps=6))
    train_on(texts, out, config)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(OSError, match="Read-only file system") as caught:
        save_checkpoint(out, whole_checkpoint(9))
    assert str(out) in str(caught.value.filename)
    result = fork_transduce(*train_command(texts, tmp_path, out, "--resume", "--allow-change", "train.max_steps"))
    assert result.code == 3 and f"transduce: {out}" in result.err and "Read-only file system" in result.err, result.err
    assert newest_checkpoint(out) == (out / "checkpoints" / "step-00000006", [])


def test_a_disk_that_fills_up_ends_the_command_with_3_and_the_run_resumes(
    small_disk: Path, texts: Texts, tmp_path: Path
) -> None:
    """A checkpoint has about 180 kB, and three fit on the disk."""
    out = small_disk / "run"
    ballast = leave_free(small_disk, 700_000)
    result = fork_transduce(*train_command(texts, tmp_path, out, "--set", "train.keep_checkpoints=9"))
    assert result.code == 3, result.err
    warnings = [line for line in result.err.splitlines() if line.startswith("not saved at step")]
    last = result.err.splitlines()[-1]
    assert len(warnings) == 2 and last.startswith(f"transduce: {out}/checkpoints/step-"), result.err
    assert re.search(r"No space left on device: [0-9,]+ bytes needed, [0-9,]+ free; make room there", last)
    newest = newest_checkpoint(out)
    assert newest is not None and newest[1] == [] and load_checkpoint(newest[0]).state["step"] == step_of(newest[0])
    ballast.unlink()
    result = fork_transduce(*train_command(texts, tmp_path, out, "--set", "train.keep_checkpoints=9", "--resume"))
    assert result.code == 0, result.err
    check_folder(out / "model")


def test_a_limit_on_the_file_size_ends_the_command_with_3(texts: Texts, tmp_path: Path) -> None:
    """With `ulimit -f 40`, a file of more than 40 kB fails with EFBIG, such as the second moments."""
    out = tmp_path / "run"
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    words = [sys.executable, "-m", "transduce", *train_command(texts, tmp_path, out)]
    shell = ["bash", "-c", 'ulimit -f 40 && exec "$@"', "bash", *words]
    result = subprocess.run(shell, capture_output=True, env={**os.environ, "PYTHONPATH": paths}, text=True, timeout=120)
    assert result.returncode == 3, result.stderr
    last = result.stderr.splitlines()[-1]
    assert re.search(r"/checkpoints/\S*\.safetensors: File too large, writing [0-9,]+ bytes", last), result.stderr
    assert checkpoints(out) == [] and not [*(out / "checkpoints").iterdir()]
