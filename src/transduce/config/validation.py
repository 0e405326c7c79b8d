"""Validation: every problem of a configuration at once, before anything is read."""

import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from transduce.config.kinds import ModelSettings, config_class, is_kind, unknown_kind
from transduce.config.schema import Config, keys, sections, value_of
from transduce.errors import UserError


def validate(config: Config) -> None:
    """Raise UserError naming every problem of `config`, before anything is read."""
    refuse(problems(config))


def problems(config: Config) -> list[str]:
    """Everything that is wrong with `config`, one line each; empty when all is well."""
    found = value_problems(config)
    if _type_problems(config):
        return found
    blamed = [line[: line.index("=") + 1] for line in found]  # a combination with a wrong value is no further problem
    combinations = [*config.model.problems(), *_combination_problems(config)]
    return [*found, *(line for line in combinations if not any(name in line for name in blamed))]


def value_problems(config: Config) -> list[str]:
    """What is wrong with single values of `config`, whatever the others are."""
    return [*_type_problems(config), *_range_problems(config)]


def _type_problems(config: Config) -> list[str]:
    found = []
    for name, section in sections(config).items():
        for key, expected in get_type_hints(section).items():
            value = getattr(getattr(config, name), key)
            try:
                msgspec.convert(value, expected)
            except msgspec.ValidationError:
                found.append(f"{name}.{key}={value!r}: expected {type_name(expected)}")
    return found or _kind_problems(config.model)


def _kind_problems(model: ModelSettings) -> list[str]:
    """Return a line if `model` names no kind, or one that another class configures."""
    if not is_kind(model.kind):
        return [unknown_kind(model.kind)]
    expected = config_class(model.kind)
    if not isinstance(model, expected):
        return [f"model.kind={model.kind!r}: expected a {expected.__name__}, not a {type(model).__name__}"]
    return []


# What is expected, whether a value is that, and of which keys. The bounds of sizes are far above what memory holds;
# above them torch and tokenizers end with an overflow instead of a message.
RANGES: list[tuple[str, Callable[[float], bool], str]] = [
    (
        "1 to 1,000,000",
        lambda x: 1 <= x <= 1_000_000,
        "model.vocab_size model.d_model model.d_k model.d_v model.d_ff model.max_positions data.vocab_size "
        "search.max_extra_tokens",
    ),
    ("1 to 10,000", lambda x: 1 <= x <= 10_000, "model.n_layers model.n_heads train.accumulate search.beam_size"),
    ("at least 2, for the end of sentence counts, below 2^63", lambda x: 2 <= x < 1 << 63, "data.max_tokens"),
    (
        "at least 1, below 2^63",
        lambda x: 1 <= x < 1 << 63,
        "data.batch_tokens train.max_steps train.warmup_steps train.log_every_steps train.evaluate_every_steps "
        "train.checkpoint_every_steps train.keep_checkpoints train.average_checkpoints train.patience search.lookahead",
    ),
    ("0 or more, below 2^63", lambda x: 0 <= x < 1 << 63, "train.seed"),
    ("0 or more", lambda x: x >= 0, "search.min_tokens"),
    ("a number above 0, below 2^63", lambda x: 0 < x < 1 << 63, "model.norm_eps train.lr_factor"),
    ("a number from 0 to 10", lambda x: 0 <= x <= 10, "search.alpha"),
    (
        "a number from 0 to below 1",
        lambda x: 0 <= x < 1,
        "model.dropout model.attention_dropout model.ffn_dropout data.bpe_dropout train.label_smoothing "
        "train.adam_beta2 train.ema_decay",
    ),
]


def _range_problems(config: Config) -> list[str]:
    found, known = [], keys(config)
    for expectation, holds, names in RANGES:
        for name in (name for name in names.split() if name in known):
            value = value_of(config, name)
            if isinstance(value, int | float) and not holds(value):
                found.append(f"{name}={value}: expected {expectation}")
    return found


FIXED_PIECES = {"bpe": 260, "wordpiece": 516, "sentencepiece": 4}  # of every tokenizer of a kind


def _combination_problems(config: Config) -> list[str]:
    model, data, train, search = config.model, config.data, config.train, config.search
    found = []
    if data.bpe_dropout and data.tokenizer != "bpe":
        found.append(f"data.bpe_dropout={data.bpe_dropout} needs data.tokenizer='bpe', not {data.tokenizer!r}")
    if 1 <= data.vocab_size <= FIXED_PIECES[data.tokenizer]:
        found.append(
            f"data.vocab_size={data.vocab_size}: expected more than {FIXED_PIECES[data.tokenizer]}, the control and "
            f"byte pieces that a tokenizer of kind {data.tokenizer!r} begins with"
        )
    if data.max_tokens > data.batch_tokens:
        found.append(
            f"data.max_tokens={data.max_tokens} is more than data.batch_tokens={data.batch_tokens}: "
            "a longest sentence would not fit into a batch"
        )
    max_positions = getattr(model, "max_positions", None)  # not a key of every kind
    if max_positions is not None and max_positions < data.max_tokens:
        found.append(f"model.max_positions={max_positions} is less than data.max_tokens={data.max_tokens}")
    if train.use == "ema" and train.ema_decay is None:
        found.append("train.use='ema' needs train.ema_decay, such as 0.999")
    if train.ema_decay is not None and train.use != "ema":
        found.append(f"train.ema_decay={train.ema_decay} has no effect with train.use={train.use!r}, only with 'ema'")
    if train.use == "average" and train.average_checkpoints > train.keep_checkpoints:
        found.append(
            f"train.average_checkpoints={train.average_checkpoints} is more than "
            f"train.keep_checkpoints={train.keep_checkpoints}: the older ones would be gone"
        )
    if search.min_tokens > search.max_extra_tokens:
        found.append(
            f"search.min_tokens={search.min_tokens}: expected at most search.max_extra_tokens="
            f"{search.max_extra_tokens}, or the output of a source of one token would be cut before it may end"
        )
    if search.length_penalty == "none" and search.alpha:
        found.append(f"search.alpha={search.alpha} has no effect with search.length_penalty='none'; set search.alpha=0")
    return found


def refuse_impossible(model: ModelSettings) -> None:
    """Raise UserError naming every reason why `model` cannot be built, an unknown number of tokens among them."""
    lines = model.problems()
    if model.vocab_size is None:
        lines.append("model.vocab_size is None: it must be known before a model can be built")
    if lines:
        raise UserError("cannot build the model: " + "; ".join(lines))


def type_name(expected: Any) -> str:
    """A field's type in words: 'an integer or null', \"one of 'post', 'pre'\"."""
    if get_origin(expected) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(expected))
    if get_origin(expected) is types.UnionType:
        return " or ".join(type_name(part) for part in get_args(expected))
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}
    return names.get(expected, str(expected))


def refuse(found: Sequence[str]) -> None:
    """Raise UserError with one message for each problem in `found`, if there are any."""
    if found:
        raise UserError(*found)
