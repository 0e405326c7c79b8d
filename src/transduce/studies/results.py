"""OUT/results.json: the figures of a study. It is written after each training or measurement, whole or not at all.

    study      a key of `ENTRIES`
    asked      the settings that all entries share, such as hashes of the texts; other settings are refused
    sessions   one for each time that the study ran: command, versions, commit, machine, date
    cells      the entries by name (table1: layers). `status` is "done", "failed" or "not run"; each study adds its
               own figures. A cell of Tables 2 to 4 has the configuration that made it, as `config`

A study resumes from this file alone. An entry that is done is not computed again, even if the folder of its run is
gone. All figures of a report are from this file.
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
from transduce.storage.atomic_folder import decode_json, encode_json, folder_problems, write_file
from transduce.studies.entries import check_entries

FORMAT_VERSION = 1
# The key of the entries in the file.
ENTRIES = {"table1": "layers"} | dict.fromkeys(
    ("table2", "table2-search", "table3", "table4", "claims", "attention", "positions", "experts", "scaling"), "cells"
)


@dataclass
class Results:
    """The content of OUT/results.json. `start_session` and `record` save it; call `save` after other changes.

    settings: the key "asked" of the file. entries: by name, the key "cells" or "layers".
    has_session: whether the last session is the one that runs now; not saved.
    """

    path: Path
    study: str
    settings: dict[str, Any]
    sessions: list[dict[str, Any]] = field(default_factory=list)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    has_session: bool = False

    def is_done(self, name: str) -> bool:
        """Check whether the entry `name` has its figures."""
        return self.entries.get(name, {}).get("status") == "done"

    def failures(self) -> list[str]:
        """Return one sentence that names the failed entries, each with its reason; nothing without failures."""
        failed = [f"{name}: {entry['why']}" for name, entry in self.entries.items() if entry["status"] == "failed"]
        return [f"Failed: {'; '.join(failed)}."] if failed else []

    def start_session(self, names: list[str]) -> None:
        """Add a session unless one runs already, add missing entries of `names` as not run, and save."""
        if not self.has_session:
            self.sessions.append(provenance())
            self.has_session = True
        for name in names:
            self.entries.setdefault(name, {"status": "not run"})
        self.save()

    def record(self, name: str, status: str, **figures: Any) -> None:
        """Set the entry `name`, and save."""
        self.entries[name] = {"status": status, **figures, "ended_at": now(), "session": len(self.sessions) - 1}
        self.save()

    def save(self) -> None:
        """Write results.json, whole or not at all."""
        content = {"format_version": FORMAT_VERSION, "study": self.study, "asked": self.settings}
        write_file(self.path, encode_json({**content, "sessions": self.sessions, ENTRIES[self.study]: self.entries}))


def open_results(out: Path, study: str, settings: dict[str, Any]) -> Results:
    """Return the results in `out`, or new ones that are not on disk yet.

    Raises UserError if they are damaged, or of another study or other settings, or if `out` cannot be a folder.
    """
    path = out / "results.json"
    if problems := folder_problems(out):
        raise UserError(*problems)
    if not path.exists():
        return Results(path, study, settings)
    results = read_results(path)
    if results.study != study:
        raise UserError(f"{path}: expected results of {study}, not of {results.study}; give another --out")
    keys = sorted({*settings, *results.settings})
    other = [key for key in keys if settings.get(key) != results.settings.get(key)]
    if other:
        raise UserError(
            f"{path}: expected results with the same {' and the same '.join(other)}, so that the figures can be "
            "compared; use the earlier settings, or give another --out"
        )
    return results


def read_results(path: Path) -> Results:
    """Return the results in a file of `Results.save`. Raises UserError for any other content."""
    try:
        content = decode_json(path.read_bytes())
        version = content["format_version"]
        if version == FORMAT_VERSION:
            names = ("study", "asked", "sessions", ENTRIES[content["study"]])
            results = Results(path, *(content[name] for name in names))
            check_entries(results.study, results.settings, results.sessions, results.entries)
            return results
    except (ValueError, TypeError, KeyError) as problem:
        raise UserError(
            f"{path}: expected the results of a study ({problem}); restore it, or give another --out"
        ) from None
    raise UserError(f"{path}: expected format version {FORMAT_VERSION}, not {version}; update transduce")


# ---- provenance --------------------------------------------------------------------------------------------------


def provenance() -> dict[str, Any]:
    """Return command, versions, commit (None outside of a checkout), machine and date."""
    from transduce import __version__

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
    """Return the time as 2026-11-21T10:40:00+00:00."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """Return the commit of this package's checkout, with a "+" if src has changes; None outside of a checkout."""
    package = Path(__file__).resolve().parents[1]
    top = _output("git", "-C", str(package), "rev-parse", "--show-toplevel")
    if top is None or Path(top) / "src" / "transduce" != package:  # installed inside another project's checkout
        return None
    head = _output("git", "-C", top, "rev-parse", "HEAD")
    changes = _output("git", "-C", top, "status", "--porcelain", "--untracked-files=no", "--", "src")
    return f"{head}+" if head and changes else head


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """Return the names of the GPUs of this machine, without torch, whose import takes seconds."""
    return (_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or "").splitlines()


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, with their names in CUDA_VISIBLE_DEVICES."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is not None:
        return [name for name in names.split(",") if name.strip() not in ("", "-1")]
    return [str(number) for number in range(len(gpus()))]


def _processor() -> str:
    """Return the name of the processor, or its architecture if the system does not give the name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _output(*command: str) -> str | None:
    """Return the output of a command; None if it is not installed or fails."""
    if shutil.which(command[0]) is None:
        return None
    process = subprocess.run(command, capture_output=True, text=True)
    return process.stdout.strip() if process.returncode == 0 else None
