"""Text for a person: printable names, and standard streams that are broken or missing."""

import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from support.toy_task import ROOT, needs_dev_full
from support.trainings import CONFIG, Texts, train, with_train

from transduce.cli.messages import describe_lack
from transduce.console import best_effort_stderr, printable, repeat_lost_interrupt
from transduce.training.progress import TrainingProgress


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Königin, 王妃", "Königin, 王妃"),
        ("v\udce4l.en", "v\\xe4l.en"),
        ("\ud800", "\\ud800"),
        ("\x1b[31mred\n", "\\x1b[31mred\\n"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        (Path("a\tb"), "a\\tb"),
    ],
)
def test_printable_text_has_no_character_that_a_terminal_obeys(text: Any, expected: str) -> None:
    assert printable(text) == expected
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


class Broken:
    """A stream that fails as a terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def flush(self) -> None:
        self.write("")

    def isatty(self) -> bool:
        return False


def test_a_training_continues_when_its_progress_cannot_be_written(run_texts: Texts, tmp_path: Path) -> None:
    with redirect_stderr(Broken()):  # pyright: ignore[reportArgumentType]
        train(with_train(CONFIG, max_steps=9), out=tmp_path / "run", **run_texts)
    assert (tmp_path / "run" / "model" / "manifest.json").exists()


def test_progress_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    TrainingProgress(1, 0).print_lines(["a \x1b[31m name"])
    assert capsys.readouterr().err == "a \\x1b[31m name\n"


def test_standard_error_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    stream = best_effort_stderr()
    assert stream.write("text") == 4 and not stream.isatty()


def exit_code(arguments: str) -> int:
    """Run the command line through a shell, and return its exit code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(f"{sys.executable} -m transduce {arguments}", shell=True, env=environment).returncode


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_closed_stream_changes_no_exit_code(closed: str) -> None:
    assert exit_code(f"recipes mixture {closed}") == 0


def test_a_mistake_exits_with_2_without_standard_error() -> None:
    assert exit_code("recipes smal 2>&-") == 2


@needs_dev_full
def test_a_mistake_exits_with_2_when_its_message_cannot_be_written() -> None:
    assert exit_code("recipes smal 2>/dev/full") == 2


def test_a_missing_thread_is_a_lack_of_the_machine() -> None:
    assert "can't start new thread: no process or" in (describe_lack(RuntimeError("can't start new thread")) or "")
    assert describe_lack(RuntimeError("a bug")) is None


class InterruptedFinalizer:
    """An object whose finalizer gets a Ctrl-C."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_within_a_finalizer_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", repeat_lost_interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            InterruptedFinalizer()
            time.sleep(60)  # which only a signal ends
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == ""
