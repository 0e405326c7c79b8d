"""config.json: a configuration on disk, and the keys that may change when a run resumes."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from transduce.config.kinds import config_class, is_kind, unknown_kind
from transduce.config.schema import SECTIONS, Config, SearchConfig, keys, value_or_none
from transduce.config.validation import problems
from transduce.errors import UserError, nearest

FORMAT_VERSION = 1


def to_json(config: Config) -> str:
    """Return all of `config` as JSON text with a format version."""
    content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(config)}
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


# The value of a key for files of versions without this key: the behaviour of those versions, which may differ from
# today's default. A change that no such value can express needs a new FORMAT_VERSION.
ADDED_LATER: dict[str, object] = {
    "model.kind": "transformer",
    "model.tgt_vocab_size": None,
    "model.n_encoder_layers": None,
    "model.n_decoder_layers": None,
    "model.activation": "relu",
    "model.output_bias": False,
    "model.multi_query": False,
    "model.window_every": 1,
    "data.source_tokens": "subwords",
    "data.target_tokens": "subwords",
    "data.tags": (),
    "data.noise": (),
    "data.fill_middle": 0.0,
    "data.normalization": "none",
    "data.sentences_per_line": None,
    "train.task": "translation",
    "train.rdrop": 0.0,
    "train.dpo_beta": 0.1,
    "train.decay_steps": 0,
    "train.optimizer": "adam",
    "train.freeze": (),
    "train.lora_rank": None,
    "search.lookahead": None,
    "search.max_length": None,
    "search.no_repeat_ngram": 0,
    "search.repetition_penalty": 1.0,
}


def from_json(text: str | bytes, where: Path | str) -> Config:
    """Return the configuration that `to_json` wrote as `text`. `where` is the path for messages.

    Raises UserError for another version, a missing or unknown key, or a value of a wrong type. Only the keys of
    `ADDED_LATER` may be missing.
    """
    try:
        content = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{where}: expected valid JSON ({problem}); use another copy") from None
    if not isinstance(content, dict):
        raise UserError(f"{where}: expected a transduce configuration, a JSON object; use another file")
    if "format_version" not in content:
        raise UserError(f"{where}: expected a transduce configuration, with a format_version; use another file")
    version = content.pop("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{where}: expected format version {FORMAT_VERSION}, not {version}; "
            "use the version of transduce that wrote it, or a newer one"
        )
    found = {name: values for name, values in content.items() if isinstance(values, dict)}
    classes = _classes(found, where)
    for name, value in ADDED_LATER.items():
        section, key = name.split(".")
        if section in found and key in _names(classes[section]):
            found[section].setdefault(key, value)
    lines = [f"  {name!r}: expected a known section{nearest(name, classes)}" for name in content if name not in classes]
    lines += _key_problems(found, classes)
    if lines:
        raise UserError("\n".join([f"{where}: expected the sections and keys of this version of transduce:", *lines]))
    config = Config(**{name: section(**content[name]) for name, section in classes.items()})
    lines = problems(config)
    if lines:
        raise UserError("\n".join([f"{where}: expected valid values:", *(f"  {line}" for line in lines)]))
    return config


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object as a dictionary. Raises ValueError if it has a key twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("an object has the same key twice")
    return content


def _classes(found: Mapping[str, Mapping[str, object]], where: Path | str) -> dict[str, type]:
    """Return the class of each section. found: those of a file. Raise UserError for a model of an unknown kind."""
    kind = found.get("model", {}).get("kind")
    if not isinstance(kind, str):  # a file of a version before kinds, or a damaged one
        return SECTIONS
    if not is_kind(kind):
        raise UserError(f"{where}: {unknown_kind(kind)}")
    return {**SECTIONS, "model": config_class(kind)}


def _names(section: type) -> list[str]:
    return [f.name for f in dataclasses.fields(section)]


def _key_problems(found: Mapping[str, Mapping[str, object]], classes: Mapping[str, type]) -> list[str]:
    lines: list[str] = []
    for name, section in classes.items():
        values = found.get(name)
        if values is None:
            lines.append(f"  {name}: expected a section, which is an object")
            continue
        known = _names(section)
        lines += [
            f"  {name + '.' + key!r}: expected a known key{nearest(key, known)}" for key in values if key not in known
        ]
        lines += [f"  {name}.{key}: expected a value" for key in known if key not in values]
    return lines


# ---- resume a run ------------------------------------------------------------------------------------------------

# None of these changes the weights of a step: only the number of steps, their memory, the files of the run, and the
# final model with its search.
CHANGEABLE = (
    "train.max_steps",
    "train.accumulate",
    "train.log_every_steps",
    "train.evaluate_every_steps",
    "train.checkpoint_every_steps",
    "train.keep_checkpoints",
    "train.average_checkpoints",
    "train.use",
    "train.best_by",
    "train.patience",
    *(f"search.{field.name}" for field in dataclasses.fields(SearchConfig)),
)


def permission_problems(allowed: Sequence[str]) -> list[str]:
    """Return a line for each of the keys `allowed` that may not change within a run."""
    return [
        f"--allow-change={name}: expected one of {', '.join(CHANGEABLE)}; for another value, start another run"
        for name in allowed
        if name not in CHANGEABLE
    ]


def differences(old: Config, new: Config, allowed: Sequence[str] = ()) -> list[str]:
    """Return a line for each key that differs between `old`, the run so far, and `new`, and is not in `allowed`."""
    lines = []
    for name, (before, after) in changed_values(old, new).items():
        if name not in allowed:
            remedy = f" (--allow-change {name} allows it)" if name in CHANGEABLE else ""
            lines.append(f"  {name}: {before!r} then, {after!r} now{remedy}")
    return lines


def changed_values(old: Config, new: Config) -> dict[str, tuple[object, object]]:
    """Return the values in `old` and in `new` of each key that differs."""
    names = dict.fromkeys([*keys(old), *keys(new)])
    values = {name: (value_or_none(old, name), value_or_none(new, name)) for name in names}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}
