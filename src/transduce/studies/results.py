"""OUT/results.json: the figures of a study. It is written after each training or measurement, whole or not at all.

    study      the name of a `Study`
    asked      the settings that all entries share, such as hashes of the texts; other settings are refused
    sessions   one for each time that the study ran: command, versions, commit, machine, date
    cells      the entries by name (table1: layers). `status` is "done", "failed" or "not run"; each study adds its
               own figures. A cell of Tables 2 to 4 has the configuration that made it, as `config`

A study resumes from only this file. An entry that is done is not computed again, even if the folder of its run is
gone. All figures of a report are from this file.

The file may come from an earlier version, or from an editor. `read_results` therefore accepts only values from which a
report can be written. Keys that are not in the types of a study may have any value.
"""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from transduce.config.files import changed_values, from_json, to_json
from transduce.config.schema import Config, value_of, with_value
from transduce.console import printable
from transduce.data.tokenize_corpus import cores
from transduce.errors import UserError
from transduce.storage.atomic_folder import decode_json, encode_json, folder_problems, write_file

FORMAT_VERSION = 1

# ---- types -------------------------------------------------------------------------------------------------------

# Figures, with the values from which a report can be written.
PositiveInt = Annotated[int, Meta(ge=1, le=1 << 62)]
Cost = Annotated[float, Meta(gt=0, le=1e30)]  # seconds, bytes or FLOPs of something that was measured
Duration = Annotated[float, Meta(ge=0, le=1e30)]
Exponent = Annotated[float, Meta(ge=-100, le=100)]
Loss = Annotated[float, Meta(gt=0, le=1e3)]  # in nats for each token
Percent = Annotated[float, Meta(ge=0, le=100)]
Perplexity = Annotated[float, Meta(ge=1, le=1e100)]

Figures = Mapping[str, Any]  # by name: values of JSON
JsonObject = dict[str, Any]  # of results.json

# The figures of several studies, wherever they stand in an entry.
FIGURES: Mapping[str, Any] = {
    "row": str,
    "seed": int,
    "n": PositiveInt,
    "step": PositiveInt,
    "steps": PositiveInt,
    "parameters": PositiveInt,
    "seconds": Duration,
    "cpu_seconds": Duration,
    "perplexity": Perplexity,
    "bleu": Percent,
    "f1": Percent,
}


def figures_type(*names: str, optional: Mapping[str, Any] | None = None, **others: Any) -> type[msgspec.Struct]:
    """Return the type of a JSON object with these keys, for `Study`. It may have more keys.

    names: of `FIGURES`. others: types by key. optional: the same, of keys that may be missing.
    """
    needed = {**{name: FIGURES[name] for name in names}, **others}
    fields = [(name, kind | UnsetType, UNSET) for name, kind in (optional or {}).items()]
    return msgspec.defstruct("Figures", [*needed.items(), *fields], kw_only=True)


def settings_type(sizes: type) -> type[msgspec.Struct]:
    """Return the type of a dataclass of sizes in JSON. No size may be missing, also one that has a default."""
    return figures_type(**get_type_hints(sizes, include_extras=True))


def list_type(kind: Any) -> Any:
    """Return the type of a list with at least one value."""
    return Annotated[list[kind], Meta(min_length=1)]


SESSION = figures_type(
    command=str,
    versions=dict[str, str],
    commit=str | None,
    machine=figures_type(processor=str, cores=PositiveInt, gpus=list[str]),
    started_at=str,
)
STATE = figures_type(status=Literal["done", "failed", "not run"])
FAILURE = figures_type(why=str, optional={"diverged": bool})  # diverged: its numbers were not finite any more


@dataclass(frozen=True)
class Study:
    """A study in results.json: its name, and the types of its content.

    entry_types: returns the types of an entry that is done, from its name and the settings; all of them must hold.
    settings: the type of the settings. key: of the entries in the file.
    """

    name: str
    entry_types: Callable[[str, Figures], Sequence[type]]
    settings: type = JsonObject
    key: str = "cells"

    def open(self, out: Path, settings: Figures) -> "Results":
        """Return the results in `out`, or new ones that are not on disk yet. settings: values of JSON, or dataclasses.

        Raises UserError if they are damaged, or of another study or other settings, or if `out` cannot be a folder.
        """
        path = out / "results.json"
        settings = msgspec.json.decode(msgspec.json.encode(settings))
        if problems := folder_problems(out):
            raise UserError(*problems)
        if not path.exists():
            if (out / "checkpoints").is_dir():
                raise UserError(f"--out={out}: expected the folder of a study, not of a training; give another name")
            return Results(path, self, settings)
        results = read_results(path, self)
        keys = sorted({*settings, *results.settings})
        other = [key for key in keys if settings.get(key) != results.settings.get(key)]
        if other:
            raise UserError(
                f"{path}: expected results with the same {' and the same '.join(other)}, so that the figures can be "
                "compared; use the earlier settings, or give another --out"
            )
        return results


# ---- the file ----------------------------------------------------------------------------------------------------


@dataclass
class Results:
    """The content of OUT/results.json. `start_session` and `record` save it; call `save` after other changes.

    settings: the key "asked" of the file. entries: by name. has_session: whether the last session is the one that runs
    now; not saved.
    """

    path: Path
    study: Study
    settings: Figures
    sessions: list[JsonObject] = field(default_factory=list)
    entries: dict[str, JsonObject] = field(default_factory=dict)
    has_session: bool = False

    def is_done(self, name: str) -> bool:
        """Check whether the entry `name` has its figures."""
        return self.entries.get(name, {}).get("status") == "done"

    def is_current(self, name: str, config: Config) -> bool:
        """Check whether the entry `name` has its figures, with the settings of `config`."""
        return self.is_done(name) and not changes_since(self.entries[name], config)

    def has_failed(self, name: str) -> bool:
        """Check whether the entry `name` has a reason instead of its figures."""
        return self.entries.get(name, {}).get("status") == "failed"

    def done(self, row: str | None = None) -> list[JsonObject]:
        """Return the entries that are done. row: only its entries, one for each seed; None: all entries."""
        done = [entry for entry in self.entries.values() if entry["status"] == "done"]
        return done if row is None else [entry for entry in done if entry.get("row") == row]

    def has_diverged(self, name: str) -> bool:
        """Check whether the training `name` failed because its numbers were not finite any more."""
        return self.entries.get(name, {}).get("diverged", False)

    def failures(self) -> list[str]:
        """Return one sentence that names the failed entries, each with its reason; nothing without failures."""
        failed = [f"{name}: {entry['why']}" for name, entry in self.entries.items() if entry["status"] == "failed"]
        return [f"Failed: {'; '.join(failed)}."] if failed else []

    def start_session(self, names: Sequence[str]) -> None:
        """Add a session unless one runs already, add missing entries of `names` as not run, and save."""
        if not self.has_session:
            self.sessions.append(provenance())
            self.has_session = True
        for name in names:
            self.entries.setdefault(name, {"status": "not run"})
        self.save()

    def record(self, name: str, status: str, **figures: object) -> None:
        """Set the entry `name`, and save."""
        self.entries[name] = {"status": status, **figures, "ended_at": now(), "session": len(self.sessions) - 1}
        self.save()

    def save(self) -> None:
        """Write results.json, whole or not at all."""
        content = {"format_version": FORMAT_VERSION, "study": self.study.name, "asked": self.settings}
        write_file(self.path, encode_json({**content, "sessions": self.sessions, self.study.key: self.entries}))


def read_results(path: Path, study: Study) -> Results:
    """Return the results of `study` in a file of `Results.save`. Raises UserError for any other content."""
    try:
        content = decode_json(path.read_bytes())
        version = content["format_version"]
        if version == FORMAT_VERSION:
            if content["study"] != study.name:
                raise UserError(f"{path}: expected results of {study.name}, not of {content['study']}; {ANOTHER_OUT}")
            results = Results(path, study, *(content[name] for name in ("asked", "sessions", study.key)))
            _check_content(results)
            return results
    except (ValueError, TypeError, KeyError) as problem:
        raise UserError(f"{path}: expected the results of a study ({problem}); restore it, or {ANOTHER_OUT}") from None
    raise UserError(f"{path}: expected format version {FORMAT_VERSION}, not {version}; update transduce")


ANOTHER_OUT = "give another --out"


def _check_content(results: Results) -> None:
    """Raise ValueError if a session or an entry has a key without which no report can be written."""
    _check("asked", results.settings, results.study.settings)
    _check("sessions", results.sessions, list[SESSION])
    _check("the entries", results.entries, dict[str, JsonObject])
    for name, entry in results.entries.items():
        _check(name, entry, STATE)
        if entry["status"] == "failed":
            _check(name, entry, FAILURE)
        if entry["status"] == "done":
            for entry_type in results.study.entry_types(name, results.settings):
                _check(name, entry, entry_type)
            try:
                config_of(entry)
            except UserError as problem:
                raise ValueError(f"{name}: {problem}") from None


def _check(name: str, value: object, expected: type) -> None:
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError as problem:
        raise ValueError(f"{name}: {problem}") from None


# ---- configurations ----------------------------------------------------------------------------------------------


def encode_config(config: Config) -> Figures:
    """Return a configuration as the key "config" of an entry: the content of config.json."""
    return json.loads(to_json(config))


def config_of(entry: JsonObject) -> Config | None:
    """Return the configuration that made an entry; None for entries of 0.1.0, which do not have it."""
    return from_json(json.dumps(entry["config"]), "config") if "config" in entry else None


# The keys that a run takes from its tokenizer and its text where the recipe has None. The precision is of the machine.
FILLED_IN = ("model.vocab_size", "model.tgt_vocab_size", "data.normalization", "data.sentences_per_line")


def changes_since(entry: JsonObject, config: Config) -> list[str]:
    """Return a line for each setting of an entry that differs from `config`; none if the entry has no configuration.

    config: from a recipe, where None or "auto" in a key that a run fills in means any value.
    """
    before = config_of(entry)
    if before is None:
        return []
    for name in (*FILLED_IN, "train.precision"):
        if value_of(config, name) in (None, "auto"):
            config = with_value(config, name, value_of(before, name))
    return [f"{name}={old!r} then, {new!r} now" for name, (old, new) in changed_values(before, config).items()]


# ---- provenance --------------------------------------------------------------------------------------------------


def provenance() -> JsonObject:
    """Return command, versions, commit (None outside of a checkout), machine and date."""
    from transduce import __version__

    return {
        "command": printable(shlex.join(["transduce", *sys.argv[1:]])),
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
