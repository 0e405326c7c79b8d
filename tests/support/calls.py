"""The command line in a forked process: quick like a call, but it may crash, hang, or run out of memory.

A server process imports torch and the program once. Each call is a fork of it, which takes milliseconds.
"""

import faulthandler
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.toy_task import CommandResult

PACKAGES = ("torch._dynamo", "tokenizers", "sacrebleu", "sacremoses", "pyarrow.parquet", "ctranslate2", "rich.live")
TEST_PACKAGES = ("pytest",)  # these modules import it, in 0.1 s; the program does not
SERVER = multiprocessing.get_context("forkserver")
PROGRAMS = ("cli.main", "check", "evaluate", "train", "interop.marian", "interop.ctranslate2_export", "studies.table3")
SERVER.set_forkserver_preload([*(f"transduce.{name}" for name in PROGRAMS), *PACKAGES, *TEST_PACKAGES])

HANG = "Timeout ("  # faulthandler's first word about a call that took too long
INTERRUPT_SECONDS = 8  # between two Ctrl-C; the first lets a training save its state
MEMORY_BYTES = 3 << 30  # that a call may add to the address space of the server


def call(
    words: Sequence[str],
    folder: Path,
    *,
    stdin: Path = Path("/dev/null"),
    environment: Mapping[str, str] | None = None,
    seconds: float = 20,
    interrupt_after: float | None = None,
) -> CommandResult:
    """Run `transduce WORDS` in `folder`, and return how it ended; the code is negative for a signal.

    seconds: after this time the call is a hang: it ends with `HANG` and the place on standard error.
    interrupt_after: seconds until a Ctrl-C, which is repeated until the call ends; None: no Ctrl-C.
    """
    with tempfile.TemporaryDirectory() as outputs:
        arguments = ([*words], folder, stdin, Path(outputs), dict(environment or {}), seconds)
        process = SERVER.Process(target=_run, args=arguments)
        process.start()
        process.join(interrupt_after if interrupt_after is not None else seconds + 5)
        deadline = time.monotonic() + seconds + 5
        while interrupt_after is not None and process.pid and process.exitcode is None and time.monotonic() < deadline:
            os.kill(process.pid, signal.SIGINT)
            process.join(INTERRUPT_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
        out, err = ((Path(outputs) / name).read_bytes() for name in ("out", "err"))
        code = process.exitcode
        assert code is not None
        process.close()
    return CommandResult(code, out, err.decode(errors="replace"))


def fork_transduce(*arguments: object, stdin: bytes = b"", seconds: float = 120) -> CommandResult:
    """Run `transduce ARGUMENTS` like `run_transduce`, but without the 2 s that a new process takes to import torch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stdin"
        path.write_bytes(stdin)
        return call([*map(str, arguments)], Path.cwd(), stdin=path, seconds=seconds)


def _run(
    words: list[str], folder: Path, stdin: Path, outputs: Path, environment: dict[str, str], seconds: float
) -> None:
    """Become the process `transduce WORDS`: its folder, environment, streams, signals and limits."""
    from transduce.cli.main import main

    os.chdir(folder)
    os.environ.update(environment)
    for number, path in enumerate((stdin, outputs / "out", outputs / "err")):
        descriptor = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))
    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds, exit=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    size = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, resource.RLIM_INFINITY))
    sys.argv = ["transduce", *words]
    code = 1
    try:
        main()
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.exit(code)
