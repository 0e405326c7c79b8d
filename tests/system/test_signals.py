"""Ctrl-C and SIGTERM: noted once, obeyed the second time, and nobody else's handlers are lost."""

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


def own(number: int, frame: object) -> None:
    raise AssertionError("the handler of before was called")


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_is_a_wish_and_the_handlers_come_back(number: signal.Signals) -> None:
    before = {one: signal.getsignal(one) for one in BOTH}
    with StopSignal() as stop:
        assert not stop.wanted
        os.kill(os.getpid(), number)
        assert stop.wanted
        assert {one: signal.getsignal(one) for one in BOTH} == before  # so the next one is obeyed at once
    assert {one: signal.getsignal(one) for one in BOTH} == before


def test_without_a_signal_nothing_stays() -> None:
    before = [signal.getsignal(one) for one in BOTH]
    with pytest.raises(ZeroDivisionError), StopSignal():
        assert [signal.getsignal(one) for one in BOTH] != before
        _ = 1 / 0
    assert [signal.getsignal(one) for one in BOTH] == before


def test_the_second_signal_goes_to_whoever_had_it_before() -> None:
    before = signal.signal(signal.SIGTERM, own)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wanted
            with pytest.raises(AssertionError, match="the handler of before"):
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_leave_signals_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def use() -> None:
        with StopSignal() as stop:
            seen.append((stop.wanted, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


# ---- a training ----------------------------------------------------------------------------------------------------

SLOW_TO_LEARN = """
import time
from transduce.data import tokenizer as tokens

def slow(*given, **more):
    print("learning", flush=True)
    time.sleep(60)

tokens.Tokenizer.learn = slow
from transduce.cli.main import main
main()
"""
SLOW_TO_BEGIN = """
import time
from transduce import train
opening = train._opening

def slow(*given, **more):
    print("opening", flush=True)
    time.sleep(2)
    return opening(*given, **more)

train._opening = slow
from transduce.cli.main import main
main()
"""


def started(code: str, folder: Path) -> subprocess.Popen[str]:
    """A training as a process of its own, when it has printed its first line."""
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
def test_a_signal_while_the_text_is_read_ends_the_program(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = started(SLOW_TO_LEARN, tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == code and "Traceback" not in errors
    assert not (tmp_path / "run").exists()


def test_a_signal_before_the_first_step_is_granted_after_it(tmp_path: Path) -> None:
    process = started(SLOW_TO_BEGIN, tmp_path)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "interrupted at step 1 of 3,000" in errors and "--resume" in errors
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]
    assert (tmp_path / "run" / "model" / "manifest.json").exists()


def test_two_signals_end_the_program_at_once_and_leave_no_half_checkpoint(tmp_path: Path) -> None:
    process = started(SLOW_TO_BEGIN, tmp_path)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in errors
    assert not list((tmp_path / "run").glob("checkpoints/*")) and not (tmp_path / "run" / "model").exists()
