"""SIGINT, SIGTERM and SIGHUP: the first sets a flag, the second ends the program, and earlier handlers are restored."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.toy_task import ROOT, toy_lines, write_pairs

from transduce.training.signals import StopSignal

BOTH = [signal.SIGINT, signal.SIGTERM]


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in BOTH]


def earlier_handler(number: int, frame: object) -> None:
    raise AssertionError("the earlier handler was called")


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_sets_the_flag_and_restores_the_handlers(number: signal.Signals) -> None:
    before = handlers()
    with StopSignal() as stop:
        assert not stop.is_requested
        os.kill(os.getpid(), number)
        assert stop.is_requested
        assert handlers() == before  # the next signal ends the program
    assert handlers() == before


def test_an_exception_restores_the_handlers() -> None:
    before = handlers()
    with pytest.raises(ZeroDivisionError), StopSignal():
        assert handlers() != before
        _ = 1 / 0
    assert handlers() == before


def test_the_second_signal_calls_the_earlier_handler() -> None:
    before = signal.signal(signal.SIGTERM, earlier_handler)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.is_requested
            with pytest.raises(AssertionError, match="the earlier handler"):
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_closed_terminal_sets_the_flag_each_time_and_never_ends_the_program() -> None:
    """Its signal comes twice, and a shutdown sends it after SIGTERM."""
    before = signal.signal(signal.SIGHUP, earlier_handler)
    ending = signal.signal(signal.SIGTERM, earlier_handler)
    try:
        for first in (signal.SIGHUP, signal.SIGTERM):
            with StopSignal() as stop:
                os.kill(os.getpid(), first)
                os.kill(os.getpid(), signal.SIGHUP)
                assert stop.is_requested
        assert signal.getsignal(signal.SIGHUP) == earlier_handler
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGTERM, ending)


def test_a_closed_terminal_stays_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_do_not_change_handlers() -> None:
    before = signal.getsignal(signal.SIGINT)
    states = []

    def use() -> None:
        with StopSignal() as stop:
            states.append((stop.is_requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert states == [(False, before)]


# ---- a training ----------------------------------------------------------------------------------------------------

SLOW_TO_LEARN = """
import time
from transduce.data import tokenizer as tokens

def slow(*_, **__):
    print("learning", flush=True)
    time.sleep(60)

tokens.Tokenizer.learn = slow
from transduce.cli.main import main
main()
"""
SLOW_BEFORE_THE_FIRST_STEP = """
import time
from transduce import train
loop = train.loop

def slow(*arguments):
    print("before the loop", flush=True)
    time.sleep(2)
    loop(*arguments)

train.loop = slow
from transduce.cli.main import main
main()
"""


def start_training(code: str, folder: Path) -> subprocess.Popen[str]:
    """Start a training in another process, and return when it has printed its first line."""
    train, valid = (write_pairs(folder, name, toy_lines(1, 50)) for name in ("train", "valid"))
    settings = "model.d_model=16 model.n_layers=1 model.n_heads=2 model.d_ff=16 train.max_steps=3000".split()
    words = ["train", "--recipe", "demo", "--train", *train, "--valid", *valid, "--out", folder / "run"]
    words += [word for setting in settings for word in ("--set", setting)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", code, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stdout.readline()
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_during_preparation_ends_the_program(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = start_training(SLOW_TO_LEARN, tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == code and "Traceback" not in errors
    assert not [*tmp_path.glob("run/*")]  # SIGTERM may leave the empty folder


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_before_the_first_step_stops_after_it(number: signal.Signals, tmp_path: Path) -> None:
    process = start_training(SLOW_BEFORE_THE_FIRST_STEP, tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "interrupted at step 1 of 3,000" in errors and "--resume" in errors
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]
    assert (tmp_path / "run" / "model" / "manifest.json").exists()


def test_two_signals_end_the_program_at_once_without_a_checkpoint(tmp_path: Path) -> None:
    process = start_training(SLOW_BEFORE_THE_FIRST_STEP, tmp_path)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in errors
    assert not list((tmp_path / "run").glob("checkpoints/*")) and not (tmp_path / "run" / "model").exists()
