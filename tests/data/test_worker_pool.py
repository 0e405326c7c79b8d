"""The processes of a pool end with the program, however it ends, and print nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transduce.data.worker_pool import WorkerPool

# Two processes print their numbers and work for a minute, and more work waits.
PROGRAM = """
import os, time
from transduce.data.worker_pool import WorkerPool

def work(text):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)

if __name__ == "__main__":
    with WorkerPool(2, int) as pool:
        for future in [pool.submit(work, "a" * 1_000_000) for _ in range(6)]:
            future.result()
"""


def is_running(number: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_processes_end_with_the_program(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM, encoding="utf-8")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, script], stdout=pipe, stderr=pipe, text=True, process_group=0) as process:
        assert process.stdout and process.stderr
        workers = [int(process.stdout.readline()) for _ in range(2)]
        assert all(map(is_running, workers))
        start = time.monotonic()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # a Ctrl-C reaches all processes of a terminal
        else:
            process.send_signal(number)
        process.wait(30)
        while any(map(is_running, workers)) and time.monotonic() - start < 30:
            time.sleep(0.05)
        errors = process.stderr.read()
    assert not any(map(is_running, workers))
    assert process.returncode == -number and time.monotonic() - start < 30
    assert errors.count("Traceback") == (number == signal.SIGINT), errors  # of the program itself


def test_ctrl_c_does_not_reach_a_process_that_starts() -> None:
    before = dict(os.environ)
    with WorkerPool(1, int) as pool:
        assert signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert os.environ == before


def test_a_process_that_is_killed_is_a_lack_of_the_machine() -> None:
    with pytest.raises(OSError, match="a worker process was killed"), WorkerPool(1, int) as pool:
        pool.submit(os._exit, 9).result()
