"""The settings of a run, as four frozen dataclasses. Every default is here and nowhere else.

A recipe is a Python function that returns a `Config` (see `transduce.config.recipes`). Nothing here imports torch.
"""

import dataclasses
import numbers
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from transduce.errors import UserError

ModelKind = Literal["transformer", "recurrent", "convolutional"]
Norm = Literal["post", "pre"]
PositionLayout = Literal["interleaved", "halves", "tensor2tensor", "learned"]
Activation = Literal["relu", "swish"]
LengthPenalty = Literal["gnmt", "power", "none"]
NoiseKind = Literal["capitals", "lower", "titles", "punctuation", "typos", "spaces", "emoji", "urls", "masks"]


def use_python_numbers(settings: Any) -> None:
    """Replace numbers of other libraries, such as NumPy's, in a new dataclass: files and checks know only Python's.

    A list, as JSON has it, becomes a tuple where the default is a tuple.
    """
    for f in dataclasses.fields(settings):
        value = getattr(settings, f.name)
        if isinstance(value, numbers.Real) and type(value) not in (bool, int, float):
            number = int(value) if isinstance(value, numbers.Integral) else float(value)
            object.__setattr__(settings, f.name, number)
        elif isinstance(value, list) and isinstance(f.default, tuple):
            object.__setattr__(settings, f.name, tuple(cast(list[object], value)))


@dataclass(frozen=True)
class ModelConfig:
    """The architecture (paper, section 3). The defaults are the paper's base model.

    The rivals of Table 2 use only the keys in `KEYS_OF_RIVALS`. Their other keys must keep the default.
    """

    kind: ModelKind = "transformer"  # or a rival of Table 2: an LSTM, or gated convolutions, with attention
    vocab_size: int | None = 37_000  # rows of the embedding (§5.1); None: filled from the tokenizer
    tgt_vocab_size: int | None = None  # rows of the target embedding and of the output, if the target has fewer ids
    d_model: int = 512  # width of every sub-layer's output (§3.1)
    n_layers: int = 6  # N: layers in the encoder, and the same number in the decoder (§3.1)
    n_encoder_layers: int | None = None  # another number for the encoder; None: n_layers
    n_decoder_layers: int | None = None  # another number for the decoder; None: n_layers
    n_heads: int = 8  # h (§3.2.2)
    d_k: int | None = None  # width of a head's queries and keys; None: d_model // n_heads
    d_v: int | None = None  # width of a head's values; None: d_model // n_heads
    d_ff: int = 2048  # inner width of the feed-forward layer (§3.3)
    activation: Activation = "relu"  # between the two projections of the feed-forward layer (§3.3); "swish" is Marian's
    dropout: float = 0.1  # P_drop: on each sub-layer's output and on the embedding sums (§5.4)
    attention_dropout: float = 0.0  # on the attention weights; not in the paper's translation models
    ffn_dropout: float = 0.0  # on the feed-forward layer's inner activations; not in the paper
    norm: Norm = "post"  # LayerNorm(x + f(x)) (§3.1); pre: x + f(LayerNorm(x)), and one more norm after each stack
    norm_eps: float = 1e-6  # added to the variance in LayerNorm (the 2017 code's value)
    attention_bias: bool = True  # biases in the four projections of attention (the 2017 code has them)
    positions: PositionLayout = "interleaved"  # sinusoid layout (§3.5), or "learned" (Table 3, row E)
    max_positions: int | None = None  # rows of the learned table; None with sinusoids, which have no limit
    tie_src_tgt: bool = True  # one embedding matrix for both languages (§3.4)
    tie_output: bool = True  # the target embedding is also the pre-softmax projection (§3.4)
    output_bias: bool = False  # a bias in the pre-softmax projection; not in the paper

    __post_init__ = use_python_numbers

    @property
    def depths(self) -> tuple[int, int]:
        """The layers of the encoder, and of the decoder."""
        own = self.n_encoder_layers, self.n_decoder_layers
        encoder, decoder = (self.n_layers if depth is None else depth for depth in own)
        return encoder, decoder

    @property
    def output_size(self) -> int | None:
        """V: the rows of the target embedding and of the pre-softmax projection."""
        return self.vocab_size if self.tgt_vocab_size is None else self.tgt_vocab_size

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        if self.kind != "transformer":
            return self._rival_problems()
        lines = []
        if (self.d_k is None or self.d_v is None) and self.n_heads > 0 and self.d_model % self.n_heads:
            lines.append(
                f"model.d_model={self.d_model}: expected a multiple of model.n_heads={self.n_heads}; "
                "change one of them, or give model.d_k and model.d_v"
            )
        if self.positions == "learned" and self.max_positions is None:
            lines.append(
                "model.max_positions=None: expected the maximum length of a sequence with model.positions='learned'"
            )
        if self.positions != "learned" and self.max_positions is not None:
            lines.append(
                f"model.max_positions={self.max_positions}: expected null with model.positions={self.positions!r}, "
                "since sinusoids have no limit"
            )
        if self.positions != "learned" and self.d_model % 2:
            lines.append(f"model.d_model={self.d_model}: expected an even number, since sinusoids come in pairs")
        if self.positions == "tensor2tensor" and self.d_model < 4:
            lines.append(f"model.d_model={self.d_model}: expected at least 4 with model.positions='tensor2tensor'")
        return lines

    def _rival_problems(self) -> list[str]:
        lines = []
        for key, default in dataclasses.asdict(ModelConfig()).items():
            value = getattr(self, key)
            if key not in ("kind", *KEYS_OF_RIVALS[self.kind]) and value != default:
                lines.append(
                    f"model.{key}={value!r}: expected the default, {default!r}, with model.kind={self.kind!r}, "
                    "where it has no effect"
                )
        if self.positions == "learned" and self.kind == "convolutional":
            lines.append("model.positions='learned': expected sinusoids with model.kind='convolutional'")
        if self.d_model % 2:
            halves = self.kind == "recurrent"
            cause = "each direction of the encoder has half of this width" if halves else "sinusoids come in pairs"
            lines.append(f"model.d_model={self.d_model}: expected an even number, since {cause}")
        return lines


KEYS_OF_RIVALS = {
    "recurrent": ("vocab_size", "tgt_vocab_size", "d_model", "n_layers", "dropout", "tie_src_tgt", "tie_output"),
    "convolutional": (
        "vocab_size",
        "tgt_vocab_size",
        "d_model",
        "n_layers",
        "dropout",
        "positions",
        "tie_src_tgt",
        "tie_output",
    ),
}


@dataclass(frozen=True)
class DataConfig:
    """From text to batches (§5.1)."""

    tokenizer: Literal["bpe", "wordpiece", "sentencepiece"] = "bpe"  # sentencepiece: imported
    vocab_size: int = 37_000  # pieces to learn; a small corpus can give fewer
    batch_tokens: int = 25_000  # maximum number of tokens of an optimizer step on each side, EOS included
    max_tokens: int = 256  # pairs with a longer side are skipped, and counted
    bpe_dropout: float = 0.0  # probability, in each epoch, that a BPE merge is skipped, or that a word gets its class
    noise: tuple[
        str, ...
    ] = ()  # kind:probability, such as typos:0.1: changes of a pair, in each epoch (`data/noise.py`)
    fill_middle: float = 0.0  # probability, in each epoch, that the middle of a line is last (`data/fill_in_middle.py`)
    source_tokens: Literal["subwords", "words"] = "subwords"  # words: each word of the source text is one token
    # symbols: each word of the target text is one token; labels: each of its lines
    target_tokens: Literal["subwords", "symbols", "labels"] = "subwords"
    tags: tuple[str, ...] = ()  # words such as <2de>, each one token at the beginning of a source line
    # spaces: white space, invisible characters and accents that look the same are the same; None: set by the tokenizer
    normalization: Literal["none", "spaces"] | None = None
    # sentences that 2 % of the training lines have at least; a longer text is split; None: counted when a run starts
    sentences_per_line: int | None = None

    __post_init__ = use_python_numbers

    @property
    def noise_probabilities(self) -> dict[NoiseKind, float]:
        """The probability of each kind of noise. Raises ValueError for a text of another form."""
        words = (word.partition(":") for word in self.noise)
        return {cast(NoiseKind, name): float(probability) for name, _, probability in words}


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation (§5.2 to §5.4), checkpoints, and the weights of the final model (§6.1)."""

    # what the model learns
    task: Literal[
        "translation",
        "parsing",
        "language_model",
        "masked_words",
        "spans",
        "diffusion",
        "classes",
        "preferences",
        "rewards",
        "speech",
        "ctc",
    ] = "translation"
    max_steps: int = 100_000  # optimizer steps (§5.2)
    warmup_steps: int = 4_000  # steps of linear growth of the learning rate (§5.3)
    lr_factor: float = 1.0  # multiplies the paper's learning rate (eq. 3)
    decay_steps: int = 0  # last steps, in which a factor takes the learning rate linearly towards 0; 0: only eq. 3
    optimizer: Literal["adam", "muon"] = "adam"  # muon: for the matrices of the layers, and Adam for the rest
    adam_beta2: float = 0.98  # second-moment decay of Adam (§5.3)
    label_smoothing: float = 0.1  # epsilon_ls: probability of the true token that all others share equally (§5.4)
    rdrop: float = 0.0  # alpha of R-Drop: weight of the divergence of two passes with other dropout; 0: one pass
    dpo_beta: float = 0.1  # beta of the task preferences: the larger, the nearer the model stays to the one of --from
    seed: int = 1  # for the initialisation, dropout, the order of the data and BPE-dropout
    # of the forward and backward pass; weights stay fp32; auto: bf16 on a GPU with instructions for it, otherwise fp32
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    freeze: tuple[str, ...] = ()  # with --from: names of parameters that stay as they are; * is any text
    lora_rank: int | None = None  # with --from: rank of the changes of the layers' matrices, all that is trained then
    accumulate: int = 1  # micro-batches that a batch is split into; changes the memory, not the result
    log_every_steps: int = 100  # steps between two lines of log.jsonl
    evaluate_every_steps: int = 1_500  # steps between two evaluations on the validation text
    checkpoint_every_steps: int = 1_500  # steps between two checkpoints
    keep_checkpoints: int = 5  # newest checkpoints that stay on disk, in addition to the best one
    average_checkpoints: int = 5  # newest checkpoints whose mean is the final model when use="average" (§6.1)
    ema_decay: float | None = None  # exponential moving average of the weights; None: not computed
    # which weights become RUN/model; a checkpoint in the average replaces it if it is better on the validation text
    use: Literal["average", "best", "ema", "last"] = "average"
    # the score that "best" and patience use, every evaluate_every_steps
    best_by: Literal["loss", "bleu", "chrf", "f1", "accuracy", "macro_f1"] = "loss"
    patience: int | None = None  # evaluations without a new best before training stops; None: never stop early

    __post_init__ = use_python_numbers


@dataclass(frozen=True)
class SearchConfig:
    """Decoding (§6.1)."""

    beam_size: int = 4
    alpha: float = 0.6  # exponent of the length penalty
    length_penalty: LengthPenalty = "gnmt"  # ((5+|Y|)/6)^alpha, or |Y|^alpha, or 1; |Y| counts EOS
    max_extra_tokens: int = 50  # maximum number of tokens of an output beyond the length of its source
    min_tokens: int = 0  # minimum number of tokens before the end of a sentence
    max_length: int | None = None  # maximum number of tokens of any output; None: no further limit
    no_repeat_ngram: int = 0  # no output has the same N tokens in a row twice; 0: not in the paper
    repetition_penalty: float = 1.0  # multiplies the log-probability of tokens that the output has; 1: not in the paper
    lookahead: int | None = None  # stop if no output can win within this number of tokens; None: no limit, exact

    __post_init__ = use_python_numbers


@dataclass(frozen=True)
class Config:
    """A whole run. By default, the tokenizer sets the number of rows of the embedding.

    Raises UserError for a section of another class.
    """

    # Any: a kind with its own keys (`config/kinds.py`) has another class here.
    model: ModelConfig | Any = field(default_factory=lambda: ModelConfig(vocab_size=None))
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    @property
    def translation_model(self) -> ModelConfig | None:
        """The settings of a model that translates: the paper's, or a rival of Table 2; None for another kind."""
        return self.model if isinstance(self.model, ModelConfig) else None

    def __post_init__(self) -> None:
        for name, section in SECTIONS.items():
            value = getattr(self, name)
            is_config = dataclasses.is_dataclass(value) and not isinstance(value, type)
            if not is_config or (name != "model" and not isinstance(value, section)):
                raise UserError(f"{name}={value!r}: expected a {section.__name__}")


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "data": DataConfig,
    "train": TrainConfig,
    "search": SearchConfig,
}


def sections(config: Config | None = None) -> dict[str, type]:
    """Return the class of each section of `config`. None: the configuration with the model of the paper."""
    return SECTIONS if config is None else {name: type(getattr(config, name)) for name in SECTIONS}


def keys(config: Config | None = None) -> list[str]:
    """Return every key of `config`, as `section.key`. None: the configuration with the model of the paper."""
    return [f"{name}.{f.name}" for name, section in sections(config).items() for f in dataclasses.fields(section)]


def value_of(config: Config, name: str) -> object:
    """Return the value of the key `name`, `section.key`."""
    section, key = name.split(".")
    return getattr(getattr(config, section), key)


def value_or_none(config: Config, name: str) -> object:
    """Return the value of the key `name`; None if the model of `config` is of a kind without this key."""
    return value_of(config, name) if name in keys(config) else None


def with_value(config: Config, name: str, new: object) -> Config:
    """Return a copy of `config` in which the key `name`, `section.key`, has the value `new`."""
    section, key = name.split(".")
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{key: new})})


def kind_in_words(config: Config) -> str:
    """Return the kind of the model for a text, as in "Transformer" or "gpt2"."""
    return config.model.kind.capitalize() if config.translation_model else config.model.kind


def architecture(config: Config) -> str:
    """Return the sizes of the model in words, as in "6 + 6 layers, d_model 512, d_ff 2048, 8 heads"."""
    model = config.translation_model
    if model is None:
        keys = [f.name for f in dataclasses.fields(config.model) if f.name not in ("kind", "vocab_size")]
        return ", ".join(f"{key} {getattr(config.model, key)}" for key in keys)
    encoder, decoder = model.depths
    sizes = f"{encoder} + {decoder} layers, d_model {model.d_model}"
    return sizes + (f", d_ff {model.d_ff}, {model.n_heads} heads" if model.kind == "transformer" else "")
