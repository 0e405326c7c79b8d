"""Windows and macOS, imitated: the commands in a process that lacks what these systems lack (see tests/support)."""

import json
import os
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest
from support.toy_task import ROOT, toy_lines, write_pairs

from transduce.data.corpora import columns_in

RECIPE = """
from transduce import Config, DataConfig, ModelConfig, TrainConfig

def tiny() -> Config:
    return Config(
        model=ModelConfig(vocab_size=None, d_model=16, n_layers=1, n_heads=2, d_ff=32),
        data=DataConfig(vocab_size=290, batch_tokens=256),
        train=TrainConfig(
            max_steps=1, warmup_steps=1, checkpoint_every_steps=1, evaluate_every_steps=1, average_checkpoints=1,
        ),
    )
"""
COMMANDS = """
import json, signal, sys
from transduce.cli.main import main
from transduce.serve import server

server.notify = lambda message: message == "READY=1" and signal.raise_signal(signal.SIGTERM)
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["transduce", *arguments]
    try:
        main()
    except SystemExit as ending:
        assert not ending.code, (arguments, ending.code)
"""
PROCESSES = """
import subprocess, sys, time
from pathlib import Path
from transduce.data.system import LOCK_FILE, ask_to_end, locked, processor_seconds, start_apart
from transduce.errors import UserError

CHILD = '''
import time
from transduce.training.signals import StopSignal
with StopSignal() as stop:
    print("ready", flush=True)
    while not stop.is_requested:
        time.sleep(0.01)
'''
folder = Path(sys.argv[1])
with locked(folder, "locked") as lock:
    try:
        with locked(folder, "locked"):
            raise AssertionError("two locks")
    except UserError:
        pass
    process = start_apart([sys.executable, "-c", CHILD], lock, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\\n" and processor_seconds(process) is None
    ask_to_end(process)
    while processor_seconds(process) is None:
        time.sleep(0.01)
    assert process.returncode == 0
assert not (folder / LOCK_FILE).exists()
with locked(folder, "locked"):
    pass
"""


def run_as_on(system: str, code: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run Python code in a process that lacks what `system` lacks."""
    paths = [str(ROOT / "tests" / "support" / system), str(ROOT / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, env=environment)
    assert process.returncode == 0, process.stderr.decode()
    return process


@pytest.mark.parametrize("system", ["windows", pytest.param("macos", marks=pytest.mark.slow)])
def test_a_model_is_trained_resumed_used_evaluated_and_served(tmp_path: Path, system: str) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE, encoding="utf-8")
    src, tgt = write_pairs(tmp_path, "valid", toy_lines(2, 4))
    texts = ["--train", *write_pairs(tmp_path, "train", toy_lines(1, 60)), "--valid", src, tgt]
    run, again = tmp_path / "run", ["--resume", "--set", "train.max_steps=2", "--allow-change", "train.max_steps"]
    training = ["train", "--recipe", f"{tmp_path / 'recipe.py'}:tiny", *texts, "--out", run]
    precisions = ("fp32", "int8", "bf16", "auto")
    commands = [
        training,
        [*training, *again],
        *(
            ["translate", run / "model", "--input", src, "--output", tmp_path / precision, "--precision", precision]
            for precision in precisions
        ),
        ["evaluate", run / "model", "--src", src, "--ref", tgt, "--language", "de"],
        ["serve", run / "model", "--from", "en", "--to", "de", "--port", 0],
    ]
    process = run_as_on(system, COMMANDS, json.dumps([[*map(str, command)] for command in commands]))
    assert b"serves en-de" in process.stderr
    assert all(len((tmp_path / precision).read_bytes().splitlines()) == 4 for precision in precisions)
    assert not (run / ".lock").exists()


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_a_folder_is_locked_and_a_process_ends_when_asked(tmp_path: Path, system: str) -> None:
    run_as_on(system, PROCESSES, str(tmp_path))


def test_the_colon_of_a_drive_begins_no_columns() -> None:
    assert columns_in(PureWindowsPath("C:\\corpus\\*.parquet")) == []
    assert columns_in(PureWindowsPath("C:\\corpus\\mix.tsv:2,4")) == ["2", "4"]
    assert columns_in(PureWindowsPath("hf:wmt/wmt14/de-en/train-*.parquet:de,en")) == ["de", "en"]
