"""Validation of a configuration: all problems together, before the run reads any text."""

import dataclasses
import functools
import re
import reprlib
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from transduce.config.kinds import KINDS, TASKS, ModelSettings, config_class, is_kind, kinds_of, unknown_kind
from transduce.config.schema import (
    Config,
    DataConfig,
    NoiseKind,
    SearchConfig,
    TrainConfig,
    keys,
    sections,
    value_of,
    value_or_none,
)
from transduce.errors import UserError


def validate(config: Config) -> None:
    """Raise UserError with every problem of `config`."""
    refuse(problems(config))


def problems(config: Config) -> list[str]:
    """Return a line for each problem of `config`; empty if there is none."""
    lines = value_problems(config)
    if _type_problems(config):
        return lines
    wrong = [line[: line.index("=") + 1] for line in lines]  # a combination with a wrong value is not reported as well
    combinations = [*config.model.problems(), *_combination_problems(config)]
    return [*lines, *(line for line in combinations if not any(name in line for name in wrong))]


def value_problems(config: Config) -> list[str]:
    """Return a line for each single value of `config` that has a wrong type or is out of range."""
    return [*_type_problems(config), *_range_problems(config)]


def _type_problems(config: Config) -> list[str]:
    lines = [f"{name}.{line}" for name in sections(config) for line in field_problems(getattr(config, name))]
    return lines or _kind_problems(config.model)


def field_problems(settings: Any) -> list[str]:
    """Return a line for each field of a dataclass that has a value of another type."""
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    types = _field_types(type(settings))
    return [
        f"{name}={value!r}: expected {type_name(types[name])}"
        for name, value in values.items()
        if not _has_type(value, types[name])
    ]


@functools.cache
def _field_types(settings: type) -> Mapping[str, Any]:
    return get_type_hints(settings)


def _has_type(value: object, expected: Any) -> bool:
    try:
        converted = msgspec.convert(value, expected)
    except msgspec.ValidationError:
        return False
    return converted is value or converted == value  # 1 is a number; a dict with the keys of a dataclass is none


def _kind_problems(model: ModelSettings) -> list[str]:
    """Return a line if `model` names an unknown kind, or a kind of another configuration class."""
    if not is_kind(model.kind):
        return [unknown_kind(model.kind)]
    expected = config_class(model.kind)
    if not isinstance(model, expected):
        return [f"model.kind={model.kind!r}: expected a {expected.__name__}, not a {type(model).__name__}"]
    return []


# The expectation in words, its test, and its keys. The bounds of sizes are far above any size that fits into memory.
# Larger values make torch and tokenizers end with an overflow instead of a message.
RANGES: list[tuple[str, Callable[[float], bool], str]] = [
    (
        "1 to 1,000,000",
        lambda x: 1 <= x <= 1_000_000,
        "model.vocab_size model.tgt_vocab_size model.d_model model.d_k model.d_v model.d_ff model.max_positions "
        "model.n_segments data.vocab_size data.sentences_per_line",
    ),
    (
        "1 to 10,000",
        lambda x: 1 <= x <= 10_000,
        "model.n_layers model.n_encoder_layers model.n_decoder_layers model.n_heads train.accumulate train.lora_rank",
    ),
    # A tiny model on one core translates 8 tokens in 7 s with a beam of 300, and in 153 s with one of 1,000.
    ("1 to 500", lambda x: 1 <= x <= 500, "search.beam_size"),
    # The same model writes 50 tokens in 0.4 s, and 1,000 in 17 s. The time of an output grows as its square.
    ("1 to 1,000", lambda x: 1 <= x <= 1_000, "search.max_extra_tokens"),
    ("at least 2 (the end of the sentence counts), below 2^63", lambda x: 2 <= x < 1 << 63, "data.max_tokens"),
    (
        "at least 1, below 2^63",
        lambda x: 1 <= x < 1 << 63,
        "data.batch_tokens train.max_steps train.warmup_steps train.log_every_steps train.evaluate_every_steps "
        "train.checkpoint_every_steps train.keep_checkpoints train.average_checkpoints train.patience search.lookahead "
        "search.max_length",
    ),
    ("at least 0, below 2^63", lambda x: 0 <= x < 1 << 63, "train.seed"),
    ("at least 0", lambda x: x >= 0, "train.decay_steps search.min_tokens search.no_repeat_ngram"),
    ("a number above 0, below 2^63", lambda x: 0 < x < 1 << 63, "model.norm_eps train.lr_factor train.dpo_beta"),
    ("a number from 0 to 10", lambda x: 0 <= x <= 10, "search.alpha"),
    ("a number from 1 to 100", lambda x: 1 <= x <= 100, "search.repetition_penalty"),
    ("a number from 0 to 100", lambda x: 0 <= x <= 100, "train.rdrop"),
    (
        "a number from 0 to below 1",
        lambda x: 0 <= x < 1,
        "model.dropout model.attention_dropout model.ffn_dropout data.bpe_dropout data.fill_middle "
        "train.label_smoothing train.adam_beta2 train.ema_decay",
    ),
]


def _range_problems(config: Config) -> list[str]:
    lines: list[str] = []
    known = keys(config)
    for expectation, is_valid, names in RANGES:
        for name in (name for name in names.split() if name in known):
            value = value_of(config, name)
            if isinstance(value, int | float) and not is_valid(value):
                lines.append(f"{name}={value}: expected {expectation}")
    return lines


# The number of control and byte pieces, which come before the learned pieces of a tokenizer.
FIXED_PIECES = {"bpe": 260, "wordpiece": 516, "sentencepiece": 4}


def _combination_problems(config: Config) -> list[str]:
    return [
        *_data_problems(config),
        *_noise_problems(config),
        *_train_problems(config.train),
        *_task_problems(config),
        *_rdrop_problems(config),
        *_search_problems(config.search),
    ]


def _data_problems(config: Config) -> list[str]:
    """Return a line for each problem of the tokenizer, and of the lengths of sentences."""
    model = config.model
    data = config.data
    tags = ",".join(data.tags)
    lines = []
    if data.bpe_dropout and data.tokenizer != "bpe":
        lines.append(f"data.bpe_dropout={data.bpe_dropout}: expected 0 with data.tokenizer={data.tokenizer!r}")
    if data.tags and data.tokenizer == "sentencepiece":
        lines.append(f"data.tags={tags}: must not be set with data.tokenizer='sentencepiece'")
    if not all(map(is_tag, data.tags)) or len({*data.tags}) < len(data.tags):
        lines.append(
            f"data.tags={tags}: expected different words of at most 32 ASCII characters, with a letter or digit and "
            "with another character but a comma, such as <2de>"
        )
    if data.source_tokens == "words":
        if data.target_tokens != "symbols":
            lines.append("data.source_tokens='words': expected 'subwords' without data.target_tokens='symbols'")
        if data.tags:
            lines.append("data.source_tokens='words': expected 'subwords' with data.tags")
    if data.target_tokens == "symbols" and data.tokenizer == "sentencepiece":
        lines.append("data.target_tokens='symbols': expected 'subwords' with data.tokenizer='sentencepiece'")
    if data.target_tokens == "symbols" and value_or_none(config, "model.tie_src_tgt"):
        lines.append("model.tie_src_tgt=True: expected false with data.target_tokens='symbols'")
    fixed = FIXED_PIECES[data.tokenizer] + len(data.tags)
    if 1 <= data.vocab_size <= fixed:
        lines.append(
            f"data.vocab_size={data.vocab_size}: expected more than {fixed}, the number of control and byte pieces"
            f"{' and tags' if data.tags else ''} of a tokenizer of kind {data.tokenizer!r}"
        )
    if data.max_tokens > data.batch_tokens:
        lines.append(
            f"data.max_tokens={data.max_tokens}: expected at most data.batch_tokens={data.batch_tokens}, "
            "so that the longest sentence fits into a batch"
        )
    if model.max_positions is not None and model.max_positions < data.max_tokens:
        lines.append(f"model.max_positions={model.max_positions}: expected at least data.max_tokens={data.max_tokens}")
    return lines


def _noise_problems(config: Config) -> list[str]:
    """Return a line for each problem of the noise."""
    data = config.data
    try:
        noise = data.noise_probabilities
        is_valid = len(noise) == len(data.noise) and all(0 < p <= 1 for p in noise.values())
    except ValueError:
        is_valid, noise = False, {}
    if not is_valid or not {*noise} <= {*get_args(NoiseKind)}:
        kinds = ", ".join(get_args(NoiseKind))
        expected = f"expected kind:probability with each of {kinds} at most once, such as typos:0.1,capitals:0.05"
        return [f"data.noise={','.join(data.noise)}: {expected}"]
    if noise and (config.train.task != "translation" or data.target_tokens != "subwords"):
        return [
            f"data.noise={','.join(data.noise)}: must not be set except for translation into subwords; leave it out"
        ]
    return []


# Tokenizers cut text between letters, digits and other characters. So no piece but a fixed one can be such a word. A
# comma separates tags in --set.
TAG = re.compile(r"(?!<(pad|s|/s|unk|fim_\w+|0x[0-9A-F]{2})>$)(?=.*[A-Za-z0-9])(?=.*[^A-Za-z0-9])(?!.*,)[!-~]{2,32}")


def is_tag(word: str) -> bool:
    """Return True if a tokenizer can have `word` as a tag: no other piece is equal to it."""
    return TAG.fullmatch(word) is not None


def _train_problems(train: TrainConfig) -> list[str]:
    """Return a line for each problem of the schedule, and of the weights that become the model."""
    lines = []
    if train.decay_steps > train.max_steps:
        lines.append(
            f"train.decay_steps={train.decay_steps}: expected at most train.max_steps={train.max_steps}; set fewer"
        )
    if train.use == "ema" and train.ema_decay is None:
        lines.append("train.ema_decay=None: expected a number with train.use='ema', such as 0.999")
    if train.ema_decay is not None and train.use not in ("ema", "best"):
        lines.append(
            f"train.ema_decay={train.ema_decay}: expected null with train.use={train.use!r}; set it to null, or use "
            "'ema' or 'best'"
        )
    if train.use == "average" and train.average_checkpoints > train.keep_checkpoints:
        lines.append(
            f"train.average_checkpoints={train.average_checkpoints}: expected at most "
            f"train.keep_checkpoints={train.keep_checkpoints}, since older checkpoints are deleted"
        )
    return lines


def _task_problems(config: Config) -> list[str]:
    """Return a line for each setting that does not fit the task."""
    task = config.train.task
    best_by = config.train.best_by
    lines = []
    if task not in KINDS[config.model.kind].tasks:
        expected = " or ".join(map(repr, kinds_of(task)))
        lines.append(
            f"model.kind={config.model.kind!r}: expected {expected} with train.task={task!r}; use a recipe of this task"
        )
    scores = ("loss", *TASKS[task].scores)
    if best_by not in scores:
        lines.append(f"train.best_by={best_by!r}: expected {' or '.join(map(repr, scores))} with train.task={task!r}")
    if config.train.optimizer == "muon" and config.model.kind != "transformer":
        lines.append(f"train.optimizer='muon': expected 'adam' with model.kind={config.model.kind!r}")
    if config.train.lora_rank is not None and config.model.kind != "transformer":
        lines.append(f"train.lora_rank={config.train.lora_rank}: expected null with model.kind={config.model.kind!r}")
    if task == "parsing" and config.data.target_tokens != "symbols":
        lines.append("data.target_tokens='subwords': expected 'symbols' with train.task='parsing'")
    if task == "classes":
        lines += _label_problems(config.data)
    elif config.data.target_tokens == "labels":
        lines.append(f"data.target_tokens='labels': expected 'subwords' or 'symbols' with train.task={task!r}")
    elif TASKS[task].is_of_one_text or TASKS[task].is_of_sound:
        lines += _one_text_problems(config.data, task)
    if config.data.fill_middle and task != "language_model":
        lines.append(f"data.fill_middle={config.data.fill_middle}: expected 0 with train.task={task!r}; leave it out")
    if config.data.fill_middle and config.data.bpe_dropout:
        lines.append(f"data.bpe_dropout={config.data.bpe_dropout}: expected 0 with data.fill_middle; set it to 0")
    if task in ("preferences", "rewards", "ctc"):
        values = {"label_smoothing": config.train.label_smoothing, "rdrop": config.train.rdrop}
        lines += [
            f"train.{name}={v}: expected 0 with train.task={task!r}; set it to 0" for name, v in values.items() if v
        ]
    max_positions = config.model.max_positions
    max_tokens = config.data.max_tokens
    if task in ("masked_words", "diffusion") and max_positions == max_tokens:  # see _data_problems
        lines.append(f"model.max_positions={max_positions}: expected more than data.max_tokens={max_tokens}, for <s>")
    return lines


def _label_problems(data: DataConfig) -> list[str]:
    """Return a line for each setting of the data that does not fit sentences and their labels."""
    lines = []
    if data.target_tokens != "labels":
        lines.append(f"data.target_tokens={data.target_tokens!r}: expected 'labels' with train.task='classes'")
    if data.bpe_dropout:
        lines.append(f"data.bpe_dropout={data.bpe_dropout}: expected 0 with train.task='classes'")
    if data.tags:
        lines.append(f"data.tags={','.join(data.tags)}: must not be set with train.task='classes'")
    return lines


def _one_text_problems(data: DataConfig, task: str) -> list[str]:
    """Return a line for each setting of the data that needs both a source and a target of text."""
    lines = []
    if data.target_tokens != "subwords":
        lines.append(f"data.target_tokens={data.target_tokens!r}: expected 'subwords' with train.task={task!r}")
    if data.tokenizer == "sentencepiece":
        lines.append(f"data.tokenizer='sentencepiece': expected 'bpe' or 'wordpiece' with train.task={task!r}")
    if data.tags:
        lines.append(f"data.tags={','.join(data.tags)}: must not be set with train.task={task!r}")
    return lines


def _rdrop_problems(config: Config) -> list[str]:
    """Return a line if both passes of R-Drop would be equal."""
    model = config.model
    rdrop = config.train.rdrop
    dropouts = [f.name for f in dataclasses.fields(model) if f.name.endswith("dropout")]
    if not rdrop or any(getattr(model, name) for name in dropouts):
        return []
    return [f"train.rdrop={rdrop}: expected 0 without dropout, where both passes are equal; set model.dropout"]


def _search_problems(search: SearchConfig) -> list[str]:
    """Return a line for each problem of the lengths of outputs, and of their penalty."""
    lines = []
    if search.min_tokens > search.max_extra_tokens:
        lines.append(
            f"search.min_tokens={search.min_tokens}: expected at most search.max_extra_tokens="
            f"{search.max_extra_tokens}, so that the output of a source of one token can end"
        )
    if search.max_length is not None and search.min_tokens > search.max_length:
        lines.append(f"search.min_tokens={search.min_tokens}: expected at most search.max_length={search.max_length}")
    if search.length_penalty == "none" and search.alpha:
        lines.append(f"search.alpha={search.alpha}: expected 0 with search.length_penalty='none'; set it to 0")
    return lines


def refuse_impossible(model: ModelSettings) -> None:
    """Raise UserError with every reason why `model` cannot be built, such as a vocab_size of None."""
    lines = model.problems()
    if model.vocab_size is None:
        lines.append("model.vocab_size=None: expected the number of pieces of the tokenizer")
    refuse(lines)


TEXT_FILE = "the path of a text file; write lines into a file, one sentence on each line, and give its path"


def as_path(name: str, value: object, expected: str = "a path") -> Path:
    """Return the argument `name` as a path. Raises UserError if its value is none. expected: the path, in words."""
    if not isinstance(value, str | Path):
        raise UserError(f"{name}={reprlib.repr(value)}: expected {expected}")
    return Path(value)


def as_text_files(name: str, value: object) -> list[Path]:
    """Return the argument `name`, one path or two, as a list. Raises UserError if its value is another one."""
    if isinstance(value, str | Path):
        return [Path(value)]
    if not isinstance(value, tuple | list) or len(value) != 2:
        value = reprlib.repr(value)
        raise UserError(f"{name}={value}: expected two paths, of source and target text, or one of a table with both")
    return [as_path(f"{name}[{i}]", path, TEXT_FILE) for i, path in enumerate(value)]


def type_name(expected: Any) -> str:
    """Return a field's type in words, such as "an integer or null" or "one of 'post', 'pre'"."""
    if get_origin(expected) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(expected))
    if get_origin(expected) is tuple:
        return "a list of words"
    if get_origin(expected) in (types.UnionType, Union):
        return " or ".join(type_name(part) for part in get_args(expected))
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}
    return names.get(expected, f"a {getattr(expected, '__name__', expected)}")


def refuse(lines: Sequence[str]) -> None:
    """Raise UserError with one message for each of `lines`, if there are any."""
    if lines:
        raise UserError(*lines)
