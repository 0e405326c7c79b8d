"""OUT/results.json: what a study has found, written anew the moment a cell ends, whole or not at all.

    study      table1, table2 or table3
    asked      what all cells have in common, such as the hashes of the texts; a study of other things is refused
    sessions   one for each time that the study was at work: command, versions, commit, machine, date
    cells      by name (of table1: layers) what became of each. `status` is "done", "failed" or "not run"; what a cell
               holds beside it is the study's own

A study goes on from this file alone: a cell that is done is not run again, whether the folder of its run is still there
or not. No figure in it comes from elsewhere.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from transduce.errors import UserError
from transduce.storage.atomic_folder import decode_json, encode_json, write_file

FORMAT_VERSION = 1
CELLS = {"table1": "layers", "table2": "cells", "table3": "cells"}  # what each study calls its cells


@dataclass
class Results:
    """The content of OUT/results.json; `save` after every change."""

    path: Path
    study: str
    asked: dict[str, Any]
    sessions: list[dict[str, Any]] = field(default_factory=list)
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)

    def is_done(self, name: str) -> bool:
        """Whether the cell called `name` has its figures."""
        return self.cells.get(name, {}).get("status") == "done"

    def begin(self, names: list[str]) -> None:
        """A session begins: note how, and list the cells called `names`, those that are not done as not run."""
        self.sessions.append(provenance())
        for name in names:
            self.cells.setdefault(name, {"status": "not run"})
        self.save()

    def record(self, name: str, status: str, **figures: Any) -> None:
        """What became of a cell, at once on the disk."""
        self.cells[name] = {"status": status, **figures, "ended_at": now(), "session": len(self.sessions) - 1}
        self.save()

    def save(self) -> None:
        content = {"format_version": FORMAT_VERSION, "study": self.study, "asked": self.asked}
        write_file(self.path, encode_json({**content, "sessions": self.sessions, CELLS[self.study]: self.cells}))


def open_results(out: Path, study: str, asked: dict[str, Any]) -> Results:
    """The results in `out`, or none yet. Writes nothing.

    Raises UserError if they are damaged, or of another study, or of one that was asked other things.
    """
    path = out / "results.json"
    if not path.exists():
        return Results(path, study, asked)
    found = read_results(path)
    if found.study != study:
        raise UserError(f"{path} is of {found.study}, not of {study}; give another --out")
    other = [key for key in sorted({*asked, *found.asked}) if asked.get(key) != found.asked.get(key)]
    if other:
        raise UserError(
            f"{path} was begun with another {' and another '.join(other)}; "
            "its cells could not be compared with new ones: give what it was begun with, or another --out"
        )
    return found


def read_results(path: Path) -> Results:
    """What `Results.save` wrote. UserError if it is anything else."""
    try:
        content = decode_json(path.read_bytes())
        version = content["format_version"]
        if version == FORMAT_VERSION:
            names = ("study", "asked", "sessions", CELLS[content["study"]])
            return Results(path, *(content[name] for name in names))
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path} is not what a study writes; restore it, or give another --out") from None
    raise UserError(f"{path} has format version {version}, this program reads {FORMAT_VERSION}; update transduce")


# ---- how it was made ---------------------------------------------------------------------------------------------


def provenance() -> dict[str, Any]:
    """Command, versions, commit (None outside of a checkout), machine and date."""
    from transduce.version import __version__

    return {
        "command": shlex.join(["transduce", *sys.argv[1:]]),
        "versions": {
            "transduce": __version__,
            "torch": metadata.version("torch"),
            "python": platform.python_version(),
        },
        "commit": commit(),
        "machine": {
            "processor": _processor(),
            "cores": cores(),
            "gpus": gpus(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "started_at": now(),
    }


def now() -> str:
    """2026-11-21T10:40:00+00:00."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """Of the checkout that this package is in, with a "+" if files in it have changed since; None outside of one."""
    package = Path(__file__).resolve().parents[1]
    top = _output("git", "-C", str(package), "rev-parse", "--show-toplevel")
    if top is None or Path(top) / "src" / "transduce" != package:  # installed within somebody else's checkout
        return None
    found = _output("git", "-C", top, "rev-parse", "HEAD")
    changed = _output("git", "-C", top, "status", "--porcelain", "--untracked-files=no", "--", "src")
    return f"{found}+" if found and changed else found


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """The names of the GPUs of this machine; asked without torch, which takes seconds to load."""
    return (_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or "").splitlines()


def visible_gpus() -> list[str]:
    """Those that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name.strip() not in ("", "-1")]
    return [str(number) for number in range(len(gpus()))]


def _processor() -> str:
    """Its name, as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _output(*command: str) -> str | None:
    """What a command prints; None if it is not there or fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
