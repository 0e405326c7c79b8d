"""The other programs of the comparisons: environments with their packages, and worker processes that take turns.

A side of a comparison is a process that prepares itself, prints "ready", and then answers each command on its standard
input with one line. The script that compares lets the sides take turns, so that noise of the machine meets all of them.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / "benchmarks" / "peers"
RESULTS = ROOT / "benchmarks" / "results"


def install(
    name: str, packages: Sequence[str], *, without_dependencies: Sequence[str] = (), is_constrained: bool = True
) -> str:
    """Return the interpreter of the environment `name`, with `packages` installed on the first call.

    is_constrained: False for a peer that needs other versions than constraints.txt has.
    """
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    key = "\n".join([*packages, *without_dependencies])
    stamp = folder / "installed.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != key:
        pip = [str(python), "-m", "pip", "install", "-q"]
        constraints = ["-c", str(ROOT / "constraints.txt")] if is_constrained else []
        subprocess.run([*pip, *constraints, *packages], check=True)
        if without_dependencies:
            subprocess.run([*pip, "--no-deps", *without_dependencies], check=True)
        stamp.write_text(key, encoding="utf-8")
    return str(python)


def environment(threads: int, checkout: Path = ROOT) -> dict[str, str]:
    """Return the environment of a side: the package of a checkout, `threads` threads, no network."""
    path = os.pathsep.join([str(checkout.resolve() / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}


def run(command: Sequence[str], threads: int, cwd: Path | None = None) -> str:
    """Return the output of the command. RuntimeError with the end of the output if it failed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.run(command, cwd=cwd, env=environment(threads), text=True, **pipes)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{process.stdout[-3_000:]}")
    return process.stdout


def export(model: Path, to: str, folder: Path) -> Path:
    """Return the folder with `model` in the form of a peer."""
    out = folder / to
    command = [sys.executable, "-m", "transduce", "export", str(model), "--to", to, "--out", str(out)]
    subprocess.run(command, check=True, env=environment(2))
    if not (out / "tokenizer.json").exists():
        (out / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    return out


class Worker:
    """A side: a process of `command` that is ready, and answers one command at a time. It imports from `checkout`."""

    def __init__(self, name: str, command: Sequence[str], threads: int, checkout: Path = ROOT) -> None:
        self.name = name
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment(threads, checkout), text=True, **pipes)
        self._wait_for("ready")

    def ask(self, command: str) -> str:
        """Return the answer to `command`. RuntimeError if the process has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._wait_for()

    def _wait_for(self, expected: str = "") -> str:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline().strip():
            if not expected or line == expected:
                return line
        raise RuntimeError(f"{self.name} ended; its message is above")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def processor() -> str:
    """Return the name of this machine's processor."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = {line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")}
    return ", ".join(sorted(names)) or platform.processor()


def in_turn(sides: Sequence[Any], round_number: int) -> Sequence[Any]:
    """Return the sides in the order of this round. Every second round is reversed, so that no side is always first."""
    return [*sides] if round_number % 2 == 0 else [*reversed(sides)]


def command_line() -> str:
    """Return the command of this process, without folders, for a file of results."""
    return " ".join(Path(word).name for word in sys.argv)


def read_results(path: Path) -> dict[str, Any]:
    """Return the results in a file, or none if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
