"""What defines a run: four frozen dataclasses, typed overrides, and one validation pass.

A recipe is a Python function that returns a `Config` (see `transduce.recipes`); `--set section.key=value` is the
only override; what is written to disk is JSON. Every default is here and nowhere else. Nothing here imports torch.
"""

import dataclasses
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from transduce.errors import UserError, nearest

FORMAT_VERSION = 1

Kind = Literal["transformer", "recurrent", "convolutional"]
Norm = Literal["post", "pre"]
Positions = Literal["interleaved", "halves", "tensor2tensor", "learned"]
Activation = Literal["relu", "swish"]
LengthPenalty = Literal["gnmt", "power", "none"]


@dataclass(frozen=True)
class ModelConfig:
    """The architecture (paper, section 3). The defaults are the paper's base model.

    Table 2's rivals take only the keys that `KEYS_OF_RIVALS` names; another value of any other key is refused.
    """

    kind: Kind = "transformer"  # or one of its rivals in Table 2: an LSTM, or gated convolutions, with attention
    vocab_size: int | None = 37_000  # rows of the embedding (§5.1); None: filled from the tokenizer
    d_model: int = 512  # width of every sub-layer's output (§3.1)
    n_layers: int = 6  # N: layers in the encoder, and again in the decoder (§3.1)
    n_heads: int = 8  # h (§3.2.2)
    d_k: int | None = None  # width of a head's queries and keys; None: d_model // n_heads
    d_v: int | None = None  # width of a head's values; None: d_model // n_heads
    d_ff: int = 2048  # inner width of the feed-forward layer (§3.3)
    activation: Activation = "relu"  # between the two projections of the feed-forward layer (§3.3); "swish": Marian's
    dropout: float = 0.1  # P_drop: on each sub-layer's output and on the embedding sums (§5.4)
    attention_dropout: float = 0.0  # on the attention weights; not in the paper's translation models
    ffn_dropout: float = 0.0  # on the feed-forward layer's inner activations; not in the paper
    norm: Norm = "post"  # LayerNorm(x + f(x)) (§3.1), or x + f(LayerNorm(x)) with one more norm after each stack
    norm_eps: float = 1e-6  # added to the variance in LayerNorm (the 2017 code's value)
    attention_bias: bool = True  # biases in the four projections of attention (the 2017 code has them)
    positions: Positions = "interleaved"  # sinusoid layout (§3.5), or "learned" (Table 3, row E)
    max_positions: int | None = None  # rows of the learned table; None with sinusoids, which have no limit
    tie_src_tgt: bool = True  # one embedding matrix for both languages (§3.4)
    tie_output: bool = True  # the target embedding is also the pre-softmax projection (§3.4)
    output_bias: bool = False  # a bias in the pre-softmax projection; not in the paper


@dataclass(frozen=True)
class DataConfig:
    """From text to batches (§5.1)."""

    tokenizer: Literal["bpe", "wordpiece", "sentencepiece"] = "bpe"  # learned on both sides; the last: imported
    vocab_size: int = 37_000  # asked of the tokenizer; a small corpus gives fewer pieces
    batch_tokens: int = 25_000  # at most so many tokens on either side in one optimizer step, EOS included
    max_tokens: int = 256  # a pair with a longer side is left out of training (and counted)
    bpe_dropout: float = 0.0  # probability that a merge is skipped, drawn anew each epoch (BPE only)


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation and what is kept of it (§5.2 to §5.4, §6.1)."""

    max_steps: int = 100_000  # optimizer steps (§5.2)
    warmup_steps: int = 4_000  # steps of linear growth of the learning rate (§5.3)
    lr_factor: float = 1.0  # multiplies the paper's learning rate (eq. 3)
    adam_beta2: float = 0.98  # second-moment decay of Adam (§5.3)
    label_smoothing: float = 0.1  # epsilon_ls: taken from the truth, spread evenly over all other tokens (§5.4)
    seed: int = 1  # of the initialisation, dropout, the order of the data and BPE-dropout
    precision: Literal["fp32", "bf16"] = "fp32"  # of the forward and backward pass; weights stay fp32
    accumulate: int = 1  # micro-batches a batch is cut into; changes memory, not the step
    log_every_steps: int = 100  # steps between two lines of log.jsonl
    evaluate_every_steps: int = 1_500  # steps between two evaluations on the validation text
    checkpoint_every_steps: int = 1_500  # steps between two checkpoints
    keep_checkpoints: int = 5  # newest checkpoints kept, beside the best one
    average_checkpoints: int = 5  # newest checkpoints whose mean is the final model when use="average" (§6.1)
    ema_decay: float | None = None  # exponential moving average of the weights; None: not computed
    use: Literal["average", "best", "ema", "last"] = "average"  # which weights become RUN/model
    best_by: Literal["loss", "bleu"] = "loss"  # what "best" and patience look at, every evaluate_every_steps
    patience: int | None = None  # evaluations without a new best before training stops; None: never stop early


@dataclass(frozen=True)
class SearchConfig:
    """Decoding (§6.1)."""

    beam_size: int = 4
    alpha: float = 0.6  # exponent of the length penalty
    length_penalty: LengthPenalty = "gnmt"  # ((5+|Y|)/6)^alpha, or |Y|^alpha, or 1; |Y| counts EOS
    max_extra_tokens: int = 50  # an output is at most this much longer than its own source, in tokens
    min_tokens: int = 0  # no end of sentence before so many tokens
    lookahead: int | None = None  # tokens within which an output must overtake the best found; None: no limit, exact


@dataclass(frozen=True)
class Config:
    """A whole run. Its model has as many rows as the tokenizer has pieces, unless told otherwise."""

    model: ModelConfig = field(default_factory=lambda: ModelConfig(vocab_size=None))
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    search: SearchConfig = field(default_factory=SearchConfig)


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "data": DataConfig,
    "train": TrainConfig,
    "search": SearchConfig,
}


def keys() -> list[str]:
    """Every configuration key, as `section.key`."""
    return [f"{name}.{f.name}" for name, section in SECTIONS.items() for f in dataclasses.fields(section)]


def _value(config: Config, name: str) -> Any:
    section, key = name.split(".")
    return getattr(getattr(config, section), key)


def _with(config: Config, name: str, value: Any) -> Config:
    section, key = name.split(".")
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{key: value})})


# ---- overrides ---------------------------------------------------------------------------------------------------


def override(config: Config, settings: Sequence[str]) -> Config:
    """`config` with each `section.key=value` of `settings` applied, the value typed by the field.

    Raises UserError with every problem at once: those of `overridden`, and whatever `problems` refuses.
    """
    config, found = overridden(config, settings)
    _refuse([*found, *problems(config)])
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
        found.append(f"--set {name}={text}: expected {_type_name(expected)}")
        return config
    return _with(config, name, value)


def _type_name(expected: Any) -> str:
    """A field's type in words: 'an integer or null', \"one of 'post', 'pre'\"."""
    if get_origin(expected) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(expected))
    if get_origin(expected) is types.UnionType:
        return " or ".join(_type_name(part) for part in get_args(expected))
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}
    return names[expected]


def _candidates(name: str) -> list[str]:
    """The known keys that an unknown one may stand for: those of the same name in another section, or all."""
    return [key for key in keys() if key.split(".")[1] == name.split(".")[-1]] or keys()


def _refuse(found: Sequence[str]) -> None:
    if found:
        raise UserError(*found)


# ---- going on from another model ----------------------------------------------------------------------------------

INHERITED = (
    *(name for name in keys() if name.startswith("model.") and not name.endswith("dropout")),
    "data.tokenizer",
    "data.vocab_size",
)


def inherit(config: Config, parent: Config) -> Config:
    """`config` with the architecture and the tokenizer of `parent`, which weights are bound to; dropout is its own."""
    for name in INHERITED:
        config = _with(config, name, _value(parent, name))
    return config


def without_effect(settings: Sequence[str], start_from: Path) -> list[str]:
    """Which of `settings` a run that inherits from the model `start_from` would ignore, one line each."""
    return [
        f"--set {setting} has no effect with --from {start_from}, whose model keeps its own; drop it"
        for setting in settings
        if setting.partition("=")[0] in INHERITED
    ]


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
    for name in keys():
        before, after = _value(old, name), _value(new, name)
        if before != after and name not in allowed:
            remedy = f" (--allow-change {name} lets it)" if name in CHANGEABLE else ""
            found.append(f"  {name}: {before!r} then, {after!r} now{remedy}")
    return found


# ---- validation --------------------------------------------------------------------------------------------------


def validate(config: Config) -> None:
    """Raise UserError naming every problem of `config`, before anything is read."""
    _refuse(problems(config))


def problems(config: Config) -> list[str]:
    """Everything that is wrong with `config`, one line each; empty when all is well."""
    found = value_problems(config)
    if _type_problems(config):
        return found
    blamed = [line[: line.index("=") + 1] for line in found]  # a combination with a wrong value is no further problem
    combinations = [*model_problems(config.model), *_combination_problems(config)]
    return [*found, *(line for line in combinations if not any(name in line for name in blamed))]


def value_problems(config: Config) -> list[str]:
    """What is wrong with single values of `config`, whatever the others are."""
    return [*_type_problems(config), *_range_problems(config)]


def _type_problems(config: Config) -> list[str]:
    found = []
    for name, section in SECTIONS.items():
        for key, expected in get_type_hints(section).items():
            value = getattr(getattr(config, name), key)
            try:
                msgspec.convert(value, expected)
            except msgspec.ValidationError:
                found.append(f"{name}.{key}={value!r}: expected {_type_name(expected)}")
    return found


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
    found = []
    for expectation, holds, names in RANGES:
        for name in names.split():
            value = _value(config, name)
            if isinstance(value, int | float) and not holds(value):
                found.append(f"{name}={value}: expected {expectation}")
    return found


KEYS_OF_RIVALS = {
    "recurrent": ("vocab_size", "d_model", "n_layers", "dropout", "tie_src_tgt", "tie_output"),
    "convolutional": ("vocab_size", "d_model", "n_layers", "dropout", "positions", "tie_src_tgt", "tie_output"),
}


def model_problems(model: ModelConfig) -> list[str]:
    """What keeps `model` from being built, beyond the range of single values."""
    if model.kind != "transformer":
        return _rival_problems(model)
    found = []
    if (model.d_k is None or model.d_v is None) and model.n_heads > 0 and model.d_model % model.n_heads:
        found.append(
            f"model.d_model={model.d_model} is not a multiple of model.n_heads={model.n_heads}; "
            "change one of them or give model.d_k and model.d_v"
        )
    if model.positions == "learned" and model.max_positions is None:
        found.append("model.positions='learned' needs model.max_positions, the longest sequence it can hold")
    if model.positions != "learned" and model.max_positions is not None:
        found.append(f"model.max_positions={model.max_positions} has no effect with sinusoids, which have no limit")
    if model.positions != "learned" and model.d_model % 2:
        found.append(f"model.d_model={model.d_model}: sinusoids come in pairs, so expected an even number")
    if model.positions == "tensor2tensor" and model.d_model < 4:
        found.append(f"model.d_model={model.d_model}: model.positions='tensor2tensor' needs at least 4")
    return found


def _rival_problems(model: ModelConfig) -> list[str]:
    found = []
    for key, default in dataclasses.asdict(ModelConfig()).items():
        value = getattr(model, key)
        if key not in ("kind", *KEYS_OF_RIVALS[model.kind]) and value != default:
            found.append(
                f"model.{key}={value!r} has no effect with model.kind={model.kind!r}; expected the default, {default!r}"
            )
    if model.positions == "learned" and model.kind == "convolutional":
        found.append("model.positions='learned': expected sinusoids with model.kind='convolutional'")
    if model.d_model % 2:
        what = "each direction of the reader has half of it" if model.kind == "recurrent" else "sinusoids come in pairs"
        found.append(f"model.d_model={model.d_model}: {what}, so expected an even number")
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
    if model.max_positions is not None and model.max_positions < data.max_tokens:
        found.append(f"model.max_positions={model.max_positions} is less than data.max_tokens={data.max_tokens}")
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


# ---- on disk -----------------------------------------------------------------------------------------------------


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
    for name, value in ADDED_LATER.items():
        section, key = name.split(".")
        if isinstance(content.get(section), dict):
            content[section].setdefault(key, value)
    found = _key_problems(content)
    if found:
        raise UserError("\n".join([f"{where} is not a configuration this program knows:", *found]))
    config = Config(**{name: section(**content[name]) for name, section in SECTIONS.items()})
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


def _key_problems(content: Mapping[str, Any]) -> list[str]:
    found = [f"  unknown section {name!r}" for name in content if name not in SECTIONS]
    for name, section in SECTIONS.items():
        given = content.get(name)
        if not isinstance(given, dict):
            found.append(f"  section {name!r} is {'missing' if name not in content else 'not an object'}")
            continue
        known = [f.name for f in dataclasses.fields(section)]
        found += [f"  unknown key '{name}.{key}'{nearest(key, known)}" for key in given if key not in known]
        found += [f"  key '{name}.{key}' is missing" for key in known if key not in given]
    return found
