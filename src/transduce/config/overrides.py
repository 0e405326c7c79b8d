"""Overrides of a configuration: `--set section.key=value`, typed by the field, and the keys that `--from` inherits."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import get_origin, get_type_hints

import msgspec

from transduce.config.kinds import is_kind
from transduce.config.schema import Config, keys, sections, value_of, with_value
from transduce.config.validation import problems, refuse, type_name
from transduce.errors import UserError, nearest


def override(config: Config, settings: Sequence[str]) -> Config:
    """Return `config` with each `section.key=value` of `settings` applied. The field gives the type of the value.

    Raises UserError with all problems together, from `overridden` and from `problems`.
    """
    config, lines = overridden(config, settings)
    refuse([*lines, *problems(config)])
    return config


def overridden(config: Config, settings: Sequence[str]) -> tuple[Config, list[str]]:
    """Return `config` with the valid settings applied, and a line for each problem of the other settings.

    Problems are unknown keys (the line names the nearest known one), values of a wrong type, and settings without
    effect.
    """
    lines: list[str] = []
    names = [setting.partition("=")[0] for setting in settings]
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            lines.append(f"--set {setting}: expected section.key=value, such as --set train.warmup_steps=4000")
        elif name not in keys(config):
            lines.append(f"--set {setting}: expected a known key{nearest(name, _candidates(config, name))}")
        else:
            config = _set(config, name, text, lines)
    if "train.average_checkpoints" in names and config.train.use != "average":
        lines.append(
            f"--set train.average_checkpoints: must not be set with train.use={config.train.use!r}; leave it out"
        )
    if "model.n_layers" in names:
        config = _set_both_depths(config, names, lines)
    return config, lines


def _set_both_depths(config: Config, names: Sequence[str], lines: list[str]) -> Config:
    """Return `config` in which only a stack in `names` has its own number of layers, and the other has model.n_layers.

    Adds a line to `lines` if both have their own.
    """
    depths = [name for name in ("model.n_encoder_layers", "model.n_decoder_layers") if name in keys(config)]
    for name in depths:
        if name not in names:
            config = with_value(config, name, None)
    own = [f"{name}={value_of(config, name)}" for name in depths if value_of(config, name) is not None]
    if len(own) == 2:
        lines.append(f"--set model.n_layers: must not be set with {' and '.join(own)}; leave it out")
    return config


def _set(config: Config, name: str, text: str, lines: list[str]) -> Config:
    """Return `config` with the key `name` set, or unchanged with one more line in `lines`."""
    section, key = name.split(".")
    expected = get_type_hints(sections(config)[section])[key]
    try:
        words = [word for word in text.split(",") if word]
        value = msgspec.convert(words if get_origin(expected) is tuple else text, expected, strict=False)
    except msgspec.ValidationError:
        other = name == "model.kind" and is_kind(text)
        remedy = "; use a recipe of this kind, which has its own keys" if other else ""
        lines.append(f"--set {name}={text}: expected {type_name(expected)}{remedy}")
        return config
    return with_value(config, name, value)


def format_value(value: object) -> str:
    """Return the value of a setting as `--set` reads it."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _candidates(config: Config, name: str) -> list[str]:
    """Return the known keys with the name of an unknown key in another section, or all keys if there are none."""
    return [key for key in keys(config) if key.split(".")[1] == name.split(".")[-1]] or keys(config)


# ---- --from: start from another model ----------------------------------------------------------------------------

# Keys of section `data`.
OF_THE_TOKENIZER = ("tokenizer", "vocab_size", "source_tokens", "target_tokens", "tags", "normalization")
DEPTHS = ("model.n_layers", "model.n_encoder_layers", "model.n_decoder_layers")


def inherit(config: Config, parent: Config, settings: Sequence[str] = ()) -> Config:
    """Return `config` with the architecture and the tokenizer of `parent`, which its weights need.

    The dropout probabilities do not change. settings: those of the run, which may set other numbers of layers. Raises
    UserError if they do and `parent` is no Transformer.
    """
    depths = [setting for setting in settings if setting.partition("=")[0] in DEPTHS]
    if depths and parent.model.kind != "transformer":
        raise UserError(
            f"--set {depths[0]}: must not be set with --from and a model of model.kind={parent.model.kind!r}; leave it "
            "out"
        )
    dropouts = [f.name for f in dataclasses.fields(parent.model) if not _is_inherited(f"model.{f.name}")]
    probabilities = {key: value_of(config, f"model.{key}") for key in dropouts if f"model.{key}" in keys(config)}
    data = dataclasses.replace(config.data, **{key: getattr(parent.data, key) for key in OF_THE_TOKENIZER})
    config = dataclasses.replace(config, model=dataclasses.replace(parent.model, **probabilities), data=data)
    return overridden(config, depths)[0]


_REMEDIES = {
    "data.tags": "for more tags, start from the model that transduce add-tags writes",
    "data.vocab_size": "for more pieces, train without --from",
}


def without_effect(settings: Sequence[str], start_from: Path, config: Config | None = None) -> list[str]:
    """Return a line for each of `settings` that a run which inherits from the model `start_from` would ignore.

    config: the configuration of the run, which has the keys; None: one with the model of the paper.
    """
    known = keys(config)
    free = DEPTHS if config is None or config.translation_model else ()
    names = {setting: setting.partition("=")[0] for setting in settings}
    return [
        f"--set {setting}: must not be set with --from {start_from}, which sets it; "
        + _REMEDIES.get(name, "leave it out")
        for setting, name in names.items()
        if name in known and name not in free and _is_inherited(name)
    ]


def _is_inherited(name: str) -> bool:
    """Check whether a run takes the key `name` from the model that it starts from."""
    if name.startswith("model."):
        return not name.endswith("dropout")
    return name in {f"data.{key}" for key in OF_THE_TOKENIZER}
