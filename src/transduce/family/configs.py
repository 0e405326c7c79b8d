"""The configurations of members that the training loop trains, as kinds of model (`config/kinds.py`). No torch here."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeVar

from transduce.config.schema import use_python_numbers

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PlainConfig = TypeVar("PlainConfig", bound="DataclassInstance")

UNLIMITED = 1 << 20  # tokens of a text of a recurrence that was trained elsewhere, which has no limit


@dataclass(frozen=True)
class GPT2Sizes:
    """The sizes of a GPT-2 of any kind. The defaults make the smallest public one, except the vocabulary."""

    kind: str
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    multi_query: bool = False  # all heads of queries share one head of keys and values, as in StarCoder
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 1_024  # rows of the table of positions: maximum number of tokens of a text
    dropout: float = 0.1  # of the embedding, the attention weights and the residuals

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return width_problems(self.d_model, self.n_heads)


@dataclass(frozen=True)
class GPT2Config(GPT2Sizes):
    """A GPT-2."""

    kind: Literal["gpt2"] = "gpt2"


@dataclass(frozen=True)
class RewardConfig(GPT2Sizes):
    """A GPT-2 with a scalar head. A run takes the sizes from the language model that it starts from."""

    kind: Literal["gpt2_reward"] = "gpt2_reward"

    @property
    def gpt2(self) -> GPT2Config:
        """The language model."""
        return sizes_of(self, GPT2Config)


@dataclass(frozen=True)
class LlamaSizes:
    """The sizes of a Llama of any kind. It has no dropout."""

    kind: str
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    n_kv_heads: int | None = None  # heads of keys and values, which the heads of queries share; None: n_heads
    d_ff: int = 2_048  # inner width of the gated feed-forward layer, which has three matrices
    max_positions: int = 1_024  # maximum number of tokens of a text
    tied: bool = True  # the embedding is also the output matrix; not in the public Llama of 7 B and LLaDA of 8 B

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        lines = width_problems(self.d_model, self.n_heads)
        n_kv_heads = self.n_heads if self.n_kv_heads is None else self.n_kv_heads
        if n_kv_heads < 1 or self.n_heads % n_kv_heads:
            lines.append(f"model.n_kv_heads={n_kv_heads}: expected a divisor of model.n_heads={self.n_heads}")
        if not lines and self.d_model // self.n_heads % 2:
            lines.append(f"model.d_model={self.d_model}: expected heads of an even width, because RoPE rotates pairs")
        return lines


@dataclass(frozen=True)
class LlamaConfig(LlamaSizes):
    """A Llama."""

    kind: Literal["llama"] = "llama"


@dataclass(frozen=True)
class LladaConfig(LlamaSizes):
    """A LLaDA: a Llama, and a table with a probability of each length, up to `max_positions` tokens with both ends."""

    kind: Literal["llada"] = "llada"

    @property
    def llama(self) -> LlamaConfig:
        """The Llama."""
        return sizes_of(self, LlamaConfig)


@dataclass(frozen=True)
class MambaConfig:
    """The sizes of a Mamba. The defaults make the smallest public one, except the vocabulary. No dropout."""

    kind: Literal["mamba"] = "mamba"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every layer's output; the recurrence has twice as many channels
    n_layers: int = 24
    d_state: int = 16  # numbers in the state of a channel
    max_positions: int = 1_024  # maximum number of tokens of a text; no parameter depends on it

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line if the state has no size."""
        return size_problems(d_state=self.d_state)


@dataclass(frozen=True)
class RWKVConfig:
    """The sizes of an RWKV-4. The defaults make the smallest public one, except the vocabulary. No dropout."""

    kind: Literal["rwkv"] = "rwkv"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    d_ff: int | None = None  # inner width of the feed-forward part; None: 4 * d_model
    max_positions: int = 1_024  # maximum number of tokens of a text; no parameter depends on it

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return no line: all values fit together."""
        return []


@dataclass(frozen=True)
class DecoderConfig:
    """A GPT-2 with other positions, a window in which a token sees others, or experts in place of the network."""

    kind: Literal["decoder"] = "decoder"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int | None = None  # inner width of a feed-forward network; None: 4 * d_model
    positions: Literal["none", "sinusoids", "learned", "rope", "alibi", "t5", "shaw", "skewed"] = "rope"
    rope: Literal["plain", "linear", "ntk", "yarn"] = "plain"  # how RoPE scales its frequencies
    rope_factor: float = 1.0  # s, the longest text divided by the longest one in the training
    rope_length: int | None = None  # L, the longest text in the training without scaling; for yarn
    window: int | None = None  # tokens before it that a token sees; None: all
    window_every: int = 1  # the window is in each layer of this number, and the others see all; 2 as in GPT-3
    n_experts: int | None = None  # feed-forward networks in a layer; None: one, and no router
    router: Literal["switch", "top_k", "noisy_top_k"] = "switch"  # of experts
    n_chosen: int = 2  # experts for a token; switch has one
    max_positions: int = 1_024  # maximum number of tokens of a text
    dropout: float = 0.1  # of the embedding, the attention weights and the residuals

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        lines = width_problems(self.d_model, self.n_heads)
        lines += size_problems(window=self.window, n_experts=self.n_experts, n_chosen=self.n_chosen)
        lines += size_problems(rope_length=self.rope_length, window_every=self.window_every)
        if self.window is None and self.window_every != 1:
            lines.append(f"model.window_every={self.window_every}: expected 1 without a window; set model.window")
        if not lines and self.positions == "rope" and self.d_model // self.n_heads % 2:
            lines.append(f"model.d_model={self.d_model}: expected heads of an even width, because RoPE rotates pairs")
        lines += self._rope_problems()
        if self.n_experts is not None and self.router != "switch" and not 2 <= self.n_chosen <= self.n_experts:
            expected = f"expected 2 to model.n_experts={self.n_experts}"
            why = "the only gate would be 1, and the router would learn nothing; for one expert set model.router=switch"
            lines.append(f"model.n_chosen={self.n_chosen}: {expected}" + (f"; {why}" if self.n_chosen == 1 else ""))
        return lines

    def _rope_problems(self) -> list[str]:
        lines = list[str]()
        if not 1 <= self.rope_factor <= 10_000:
            lines.append(f"model.rope_factor={self.rope_factor}: expected 1 to 10,000")
        if self.rope == "plain":
            return lines
        if self.positions != "rope":
            lines.append(f"model.rope={self.rope}: expected plain with model.positions={self.positions}")
        if self.rope == "yarn" and self.rope_length is None:
            lines.append(
                f"model.rope_length=null: expected the longest text of the training, for model.rope={self.rope}"
            )
        if self.rope == "ntk" and self.d_model < 4 * self.n_heads:
            lines.append(
                f"model.d_model={self.d_model}: expected heads of 4 values or more, for model.rope={self.rope}"
            )
        return lines


@dataclass(frozen=True)
class TransformerXLConfig:
    """The sizes of a Transformer-XL. In training, a text is one segment."""

    kind: Literal["transformer_xl"] = "transformer_xl"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    n_memory: int | None = None  # tokens before the new ones that a layer remembers; None: max_positions, all of them
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 1_024  # maximum number of tokens of a text; no parameter depends on it
    dropout: float = 0.1  # of the embedding, the distances, the attention weights and the residuals

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        lines = width_problems(self.d_model, self.n_heads) + size_problems(n_memory=self.n_memory)
        if self.d_model % 2:
            lines.append(
                f"model.d_model={self.d_model}: expected an even number, because a distance is sines and cosines"
            )
        return lines


@dataclass(frozen=True)
class HyenaConfig:
    """The sizes of a Hyena."""

    kind: Literal["hyena"] = "hyena"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    order: int = 2  # products in a layer, each with its own filter
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 1_024  # maximum number of tokens of a text, and the unit of the distances in filters
    dropout: float = 0.1  # of the embedding and the residuals

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line if there is no product."""
        return size_problems(order=self.order)


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT with a head for masked words. The defaults make BERT base, except the vocabulary."""

    kind: Literal["bert"] = "bert"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 512  # rows of the table of positions: maximum number of tokens of a text with both ends
    dropout: float = 0.1  # of the embedding, the attention weights and the residuals

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return width_problems(self.d_model, self.n_heads)


@dataclass(frozen=True)
class BertClassifierConfig:
    """The sizes of a BERT with a head for classes. A run takes them from the encoder that it starts from."""

    kind: Literal["bert_classifier"] = "bert_classifier"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    tgt_vocab_size: int = 2  # classes, which are the labels of the training text
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 512  # rows of the table of positions: maximum number of tokens of a text with both ends
    n_segments: int = 2  # rows of the table of segments, of which a sentence has the first
    norm_eps: float = 1e-12  # added to the variance in LayerNorm
    dropout: float = 0.1  # of the embedding, the attention weights, the residuals and the pooled states

    __post_init__ = use_python_numbers

    @property
    def bert(self) -> BertConfig:
        """The sizes of the encoder."""
        return sizes_of(self, BertConfig)

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return width_problems(self.d_model, self.n_heads)


SENTINELS = 100  # rows of a T5's embedding after the tokenizer's rows; sentinel i is row -1 - i


@dataclass(frozen=True)
class T5Config:
    """The sizes of a T5. The defaults make the smallest public one, except the vocabulary."""

    kind: Literal["t5"] = "t5"
    vocab_size: int | None = None  # rows of the embedding without the sentinels; None: from the tokenizer
    d_model: int = 512  # width of every sub-layer's output
    n_layers: int = 6  # of the encoder, and of the decoder
    n_heads: int = 8
    d_k: int | None = None  # width of a head; None: d_model / n_heads
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    gated: bool = False  # the gated feed-forward layer of version 1.1, which has three matrices
    tied: bool = True  # the embedding is also the output matrix; not in version 1.1
    dropout: float = 0.1  # of the embedding, the attention weights, the inner activations and the residuals

    __post_init__ = use_python_numbers
    max_positions = None  # its positions are relative, without a limit; no key of config.json

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return width_problems(self.d_model, self.n_heads) if self.d_k is None else []


@dataclass(frozen=True)
class WhisperConfig:
    """The sizes of a Whisper. The defaults make the smallest public one, except the vocabulary."""

    kind: Literal["whisper"] = "whisper"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 384  # width of every sub-layer's output
    n_layers: int = 4  # of the encoder, and of the decoder
    n_decoder_layers: int | None = None  # another number for the decoder; None: n_layers
    n_heads: int = 6
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    n_mels: int = 80  # bands of the log-mel features
    max_frames: int = 1_500  # rows of the encoder's table of positions, of 20 ms each: the longest sound
    max_positions: int = 448  # rows of the decoder's table of positions: maximum of a text and its prompt, in tokens
    dropout: float = 0.0  # of the embeddings, the attention weights and the residuals

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        lines = width_problems(self.d_model, self.n_heads) + size_problems(n_mels=self.n_mels)
        if self.d_model % 2 or self.d_model < 4:
            lines.append(f"model.d_model={self.d_model}: expected an even number of at least 4, for sines and cosines")
        return lines


@dataclass(frozen=True)
class DecisionTransformerConfig:
    """The sizes of a Decision Transformer. It has no kind: no task trains it."""

    n_states: int  # numbers that describe a state
    n_actions: int  # numbers of an action, or actions to choose from
    is_discrete: bool = False  # an action is chosen: a vector with a single 1, whose prediction is a score of each
    d_model: int = 128  # width of every sub-layer's output
    n_layers: int = 3
    n_heads: int = 1
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_steps: int = 4_096  # time steps of an episode: rows of their table
    dropout: float = 0.1  # of the input, the attention weights and the residuals

    @property
    def gpt2(self) -> GPT2Config:
        """The sizes of the layers."""
        return sizes_of(self, GPT2Config)


def width_problems(d_model: int, n_heads: int) -> list[str]:
    """Return a line if the heads cannot share the width of the model equally."""
    if n_heads > 0 and d_model % n_heads == 0:
        return []
    return [f"model.d_model={d_model}: expected a multiple of model.n_heads={n_heads}; change one of them"]


def size_problems(**sizes: int | None) -> list[str]:
    """Return a line for each size, by its key, that is none. Larger ones than 10,000 would end with an overflow."""
    return [
        f"model.{key}={value}: expected 1 to 10,000"
        for key, value in sizes.items()
        if value is not None and not 1 <= value <= 10_000
    ]


def sizes_of(config: "DataclassInstance", plain: type[PlainConfig]) -> PlainConfig:
    """Return the configuration of the class `plain` whose keys, except the kind, have the values of `config`."""
    names = {field.name for field in fields(plain)} & {field.name for field in fields(config)} - {"kind"}
    return plain(**{name: getattr(config, name) for name in names})
