"""config.json: a configuration on disk, and which keys may change when a run resumes."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from transduce.config.kinds import config_class, is_kind, unknown_kind
from transduce.config.schema import SECTIONS, Config, keys, value_of
from transduce.config.validation import problems
from transduce.errors import UserError, nearest

FORMAT_VERSION = 1


def to_json(config: Config) -> str:
    """The whole of `config` as JSON text with a format version."""
    content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(config)}
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


# What a key means in the files of versions that did not have it: what the program did at the time, which need not be
# today's default. A change that cannot be told in this way is a new FORMAT_VERSION.
ADDED_LATER: dict[str, Any] = {
    "model.kind": "transformer",
    "model.activation": "relu",
    "model.output_bias": False,
    "search.lookahead": None,
}


def from_json(text: str | bytes, where: Path | str) -> Config:
    """Read what `to_json` wrote. `where` names the file in messages.

    Raises UserError on anything unknown: another version, a missing or unknown key, a value of a wrong type.
    Only the keys of `ADDED_LATER` may be missing.
    """
    try:
        content = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{where} is not valid JSON ({problem}); the file is damaged, use another copy") from None
    if not isinstance(content, dict):
        raise UserError(f"{where} is not a transduce configuration: expected a JSON object")
    if "format_version" not in content:
        raise UserError(f"{where} is not a transduce configuration: it has no format_version")
    version = content.pop("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{where} has format version {version}, this program reads version {FORMAT_VERSION}; "
            "use the version of transduce that wrote it, or a newer one"
        )
    classes = _classes(content, where)
    for name, value in ADDED_LATER.items():
        section, key = name.split(".")
        if isinstance(content.get(section), dict) and key in _names(classes[section]):
            content[section].setdefault(key, value)
    found = _key_problems(content, classes)
    if found:
        raise UserError("\n".join([f"{where} is not a configuration this program knows:", *found]))
    config = Config(**{name: section(**content[name]) for name, section in classes.items()})
    found = problems(config)
    if found:
        raise UserError("\n".join([f"{where} holds an impossible configuration:", *(f"  {line}" for line in found)]))
    return config


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError if it says something twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return content


def _classes(content: Mapping[str, Any], where: Path | str) -> dict[str, type]:
    """Return the class of each section of a file. UserError if its model is of an unknown kind."""
    model = content.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    if not isinstance(kind, str):  # a file of a version before kinds, or a damaged one
        return SECTIONS
    if not is_kind(kind):
        raise UserError(f"{where} is not a configuration this program knows:\n  {unknown_kind(kind)}")
    return {**SECTIONS, "model": config_class(kind)}


def _names(section: type) -> list[str]:
    return [f.name for f in dataclasses.fields(section)]


def _key_problems(content: Mapping[str, Any], classes: Mapping[str, type]) -> list[str]:
    found = [f"  unknown section {name!r}" for name in content if name not in classes]
    for name, section in classes.items():
        given = content.get(name)
        if not isinstance(given, dict):
            found.append(f"  section {name!r} is {'missing' if name not in content else 'not an object'}")
            continue
        known = _names(section)
        found += [f"  unknown key '{name}.{key}'{nearest(key, known)}" for key in given if key not in known]
        found += [f"  key '{name}.{key}' is missing" for key in known if key not in given]
    return found


# ---- going on with a run -----------------------------------------------------------------------------------------

# What a step does hangs on none of these, only how many there are, how they are cut, and what is kept and told of them.
CHANGEABLE = (
    "train.max_steps",
    "train.accumulate",
    "train.log_every_steps",
    "train.keep_checkpoints",
    "train.patience",
)


def permission_problems(allowed: Sequence[str]) -> list[str]:
    """Which of the keys `allowed` may not change within a run, one line each."""
    return [
        f"--allow-change {name}: another value would make another run; expected {', '.join(CHANGEABLE)}"
        for name in allowed
        if name not in CHANGEABLE
    ]


def differences(old: Config, new: Config, allowed: Sequence[str] = ()) -> list[str]:
    """The keys, but for those `allowed`, in which a run's configuration differs from what is asked now, a line each."""
    found = []
    for name in dict.fromkeys([*keys(old), *keys(new)]):
        before, after = _value_or_none(old, name), _value_or_none(new, name)
        if before != after and name not in allowed:
            remedy = f" (--allow-change {name} lets it)" if name in CHANGEABLE else ""
            found.append(f"  {name}: {before!r} then, {after!r} now{remedy}")
    return found


def _value_or_none(config: Config, name: str) -> Any:
    """Return the value of the key `name`; None if the model of `config` is of a kind without this key."""
    return value_of(config, name) if name in keys(config) else None
