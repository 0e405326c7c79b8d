"""Overrides of a configuration: `--set section.key=value`, typed by the field, and what a run inherits by `--from`."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_type_hints

import msgspec

from transduce.config.schema import SECTIONS, Config, keys, value_of, with_value
from transduce.config.validation import problems, refuse, type_name
from transduce.errors import nearest


def override(config: Config, settings: Sequence[str]) -> Config:
    """`config` with each `section.key=value` of `settings` applied, the value typed by the field.

    Raises UserError with every problem at once: those of `overridden`, and whatever `problems` refuses.
    """
    config, found = overridden(config, settings)
    refuse([*found, *problems(config)])
    return config


def overridden(config: Config, settings: Sequence[str]) -> tuple[Config, list[str]]:
    """`config` with those of `settings` that can be applied, and what is wrong with the others, one line each.

    Wrong are unknown keys (the line names the nearest known one), values of a wrong type, and settings without effect.
    """
    found: list[str] = []
    names = [setting.partition("=")[0] for setting in settings]
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            found.append(f"--set {setting}: expected section.key=value, such as --set train.warmup_steps=4000")
        elif name not in keys():
            found.append(f"--set {setting}: unknown key {name!r}{nearest(name, _candidates(name))}")
        else:
            config = _set(config, name, text, found)
    if "train.average_checkpoints" in names and config.train.use != "average":
        found.append(f"--set train.average_checkpoints has no effect with train.use={config.train.use!r}")
    return config, found


def _set(config: Config, name: str, text: str, found: list[str]) -> Config:
    section, key = name.split(".")
    expected = get_type_hints(SECTIONS[section])[key]
    try:
        value = msgspec.convert(text, expected, strict=False)
    except msgspec.ValidationError:
        found.append(f"--set {name}={text}: expected {type_name(expected)}")
        return config
    return with_value(config, name, value)


def _candidates(name: str) -> list[str]:
    """The known keys that an unknown one may stand for: those of the same name in another section, or all."""
    return [key for key in keys() if key.split(".")[1] == name.split(".")[-1]] or keys()


# ---- going on from another model ----------------------------------------------------------------------------------

INHERITED = (
    *(name for name in keys() if name.startswith("model.") and not name.endswith("dropout")),
    "data.tokenizer",
    "data.vocab_size",
)


def inherit(config: Config, parent: Config) -> Config:
    """`config` with the architecture and the tokenizer of `parent`, which weights are bound to; dropout is its own."""
    for name in INHERITED:
        config = with_value(config, name, value_of(parent, name))
    return config


def without_effect(settings: Sequence[str], start_from: Path) -> list[str]:
    """Which of `settings` a run that inherits from the model `start_from` would ignore, one line each."""
    return [
        f"--set {setting} has no effect with --from {start_from}, whose model keeps its own; drop it"
        for setting in settings
        if setting.partition("=")[0] in INHERITED
    ]
