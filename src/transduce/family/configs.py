"""The configurations of members that the training loop trains, as kinds of model (`config/kinds.py`). No torch here."""

from dataclasses import asdict, dataclass
from typing import Literal

from transduce.config.schema import use_python_numbers


@dataclass(frozen=True)
class GPT2Config:
    """The sizes of a GPT-2. The defaults are those of the smallest public one, but for the vocabulary."""

    kind: Literal["gpt2"] = "gpt2"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 1_024  # rows of the learned table of positions: the most tokens of a text
    dropout: float = 0.1  # of the embedding, the attention weights and the residuals

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return width_problems(self.d_model, self.n_heads)

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values."""
        d, d_ff = self.d_model, self.d_ff or 4 * self.d_model
        layer = 4 * (d * d + d) + (2 * d * d_ff + d_ff + d) + 4 * d
        return (vocab_size + self.max_positions) * d + self.n_layers * layer + 2 * d


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama. It has no dropout."""

    kind: Literal["llama"] = "llama"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    n_kv_heads: int | None = None  # heads of keys and values, which the heads of queries share; None: n_heads
    d_ff: int = 2_048  # inner width of the gated feed-forward layer, which has three matrices
    max_positions: int = 1_024  # the most tokens of a text; no parameter depends on it
    tied: bool = True  # the embedding is also the output matrix; not in the Llama of 7 B

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

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values."""
        d, kv_width = self.d_model, self.d_model // self.n_heads * (self.n_kv_heads or self.n_heads)
        layer = 2 * d * d + 2 * d * kv_width + 3 * d * self.d_ff + 2 * d
        return (2 - self.tied) * vocab_size * d + self.n_layers * layer + d


@dataclass(frozen=True)
class LladaConfig:
    """The sizes of a LLaDA: those of a Llama, and a table of lengths."""

    kind: Literal["llada"] = "llada"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    n_kv_heads: int | None = None  # heads of keys and values, which the heads of queries share; None: n_heads
    d_ff: int = 2_048  # inner width of the gated feed-forward layer, which has three matrices
    max_positions: int = 1_024  # the most tokens of a text, both ends included; each length has a probability
    tied: bool = True  # the embedding is also the output matrix; not in the LLaDA of 8 B

    __post_init__ = use_python_numbers

    @property
    def llama(self) -> LlamaConfig:
        """The sizes of the Llama."""
        return LlamaConfig(**{**asdict(self), "kind": "llama"})

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return self.llama.problems()

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values."""
        return self.llama.parameter_count(vocab_size) + self.max_positions - 2


@dataclass(frozen=True)
class MambaConfig:
    """The sizes of a Mamba. The defaults are those of the smallest public one, but for the vocabulary. No dropout."""

    kind: Literal["mamba"] = "mamba"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every layer's output; the recurrence has twice as many channels
    n_layers: int = 24
    d_state: int = 16  # numbers in the state of a channel
    max_positions: int = 1_024  # the most tokens of a text; no parameter depends on it

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line if the state has no size."""
        return size_problems(d_state=self.d_state)

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values."""
        d, d_inner, d_step = self.d_model, 2 * self.d_model, -(-self.d_model // 16)
        recurrence = d_inner * (5 + 2 * d_step + 3 * self.d_state + 2)
        return vocab_size * d + self.n_layers * (3 * d * d_inner + recurrence + d) + d


@dataclass(frozen=True)
class RWKVConfig:
    """The sizes of an RWKV-4. The defaults are those of the smallest public one, but for the vocabulary. No dropout."""

    kind: Literal["rwkv"] = "rwkv"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    d_ff: int | None = None  # inner width of the feed-forward part; None: 4 * d_model
    max_positions: int = 1_024  # the most tokens of a text; no parameter depends on it

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return no line: all values fit together."""
        return []

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values."""
        d, d_ff = self.d_model, self.d_ff or 4 * self.d_model
        layer = 5 * d * d + 2 * d * d_ff + 11 * d
        return 2 * vocab_size * d + self.n_layers * layer + 4 * d


@dataclass(frozen=True)
class DecoderConfig:
    """A GPT-2 with other positions, a window in which a token sees others, or experts in place of the network."""

    kind: Literal["decoder"] = "decoder"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int | None = None  # inner width of a feed-forward network; None: 4 * d_model
    positions: Literal["none", "sinusoids", "learned", "rope", "alibi", "t5", "shaw"] = "rope"
    rope: Literal["plain", "linear", "ntk", "yarn"] = "plain"  # how RoPE scales its frequencies
    rope_factor: float = 1.0  # s, the longest text over that of the training without scaling
    rope_length: int | None = None  # the longest text of that training, L; for yarn
    window: int | None = None  # tokens before it that a token sees; None: all
    n_experts: int | None = None  # feed-forward networks in a layer; None: one, and no router
    router: Literal["switch", "top_k", "noisy_top_k"] = "switch"  # of experts
    n_chosen: int = 2  # experts for a token; switch has one
    max_positions: int = 1_024  # the most tokens of a text
    dropout: float = 0.1  # of the embedding, the attention weights and the residuals

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        lines = width_problems(self.d_model, self.n_heads)
        lines += size_problems(window=self.window, n_experts=self.n_experts, n_chosen=self.n_chosen)
        lines += size_problems(rope_length=self.rope_length)
        if not lines and self.positions == "rope" and self.d_model // self.n_heads % 2:
            lines.append(f"model.d_model={self.d_model}: expected heads of an even width, because RoPE rotates pairs")
        lines += self._rope_problems()
        if self.n_experts is not None and self.router != "switch" and self.n_chosen > self.n_experts:
            lines.append(f"model.n_chosen={self.n_chosen}: expected at most model.n_experts={self.n_experts}")
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

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values."""
        d, d_ff, d_k = self.d_model, self.d_ff or 4 * self.d_model, self.d_model // self.n_heads
        feed_forward = 2 * d * d_ff + d_ff + d
        if self.n_experts is not None:
            routers = 2 if self.router == "noisy_top_k" else 1
            feed_forward = self.n_experts * (feed_forward + routers * d)
        layer = 4 * (d * d + d) + feed_forward + 4 * d
        tables = {"learned": self.max_positions * d, "t5": 32 * self.n_heads, "shaw": 2 * self.n_layers * 33 * d_k}
        return vocab_size * d + self.n_layers * layer + 2 * d + tables.get(self.positions, 0)


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
    max_positions: int = 1_024  # the most tokens of a text; no parameter depends on it
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

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values."""
        d, d_ff = self.d_model, self.d_ff or 4 * self.d_model
        layer = 5 * d * d + 2 * d + (2 * d * d_ff + d_ff + d) + 4 * d
        return vocab_size * (d + 1) + self.n_layers * layer


@dataclass(frozen=True)
class HyenaConfig:
    """The sizes of a Hyena."""

    kind: Literal["hyena"] = "hyena"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    order: int = 2  # products in a layer, each with a filter of its own
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 1_024  # the most tokens of a text, and the unit of the distances in filters
    dropout: float = 0.1  # of the embedding and the residuals

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line if there is no product."""
        return size_problems(order=self.order)

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values. Filters have networks of width 64, of 33 numbers for a distance."""
        d, d_ff, width = self.d_model, self.d_ff or 4 * self.d_model, 64
        channels = (self.order + 1) * d
        filters = (33 + 1) * width + 2 * (width + 1) * width + width + self.order * d * (width + 1)
        operator = (d + 1) * channels + (d + 1) * d + 4 * channels + filters
        return vocab_size * d + self.n_layers * (operator + 2 * d * d_ff + d_ff + d + 4 * d) + 2 * d


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT with a head for masked words. The defaults are those of BERT base, but for the vocabulary."""

    kind: Literal["bert"] = "bert"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 512  # rows of the learned table of positions: the most tokens of a text, both ends included
    dropout: float = 0.1  # of the embedding, the attention weights and the residuals

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return width_problems(self.d_model, self.n_heads)

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values."""
        d, d_ff = self.d_model, self.d_ff or 4 * self.d_model
        layer = 4 * (d * d + d) + (2 * d * d_ff + d_ff + d) + 4 * d
        tables = (vocab_size + self.max_positions + 2) * d + 2 * d  # two segments, and a norm
        return tables + self.n_layers * layer + (d * d + d) + 2 * d + vocab_size


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
    max_positions: int = 512  # rows of the learned table of positions: the most tokens of a text, both ends included
    n_segments: int = 2  # rows of the table of segments, of which a sentence has the first
    norm_eps: float = 1e-12  # added to the variance in LayerNorm
    dropout: float = 0.1  # of the embedding, the attention weights, the residuals and the pooled states

    __post_init__ = use_python_numbers

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return width_problems(self.d_model, self.n_heads)

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values."""
        d, d_ff = self.d_model, self.d_ff or 4 * self.d_model
        layer = 4 * (d * d + d) + (2 * d * d_ff + d_ff + d) + 4 * d
        tables = (vocab_size + self.max_positions + self.n_segments) * d + 2 * d  # and a norm
        return tables + self.n_layers * layer + (d * d + d) + self.tgt_vocab_size * (d + 1)


SENTINELS = 100  # rows of a T5's embedding after those of the tokenizer; sentinel i is row -1 - i


@dataclass(frozen=True)
class T5Config:
    """The sizes of a T5. The defaults are those of the smallest public one, but for the vocabulary."""

    kind: Literal["t5"] = "t5"
    vocab_size: int | None = None  # rows of the embedding without those of the sentinels; None: from the tokenizer
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

    def parameter_count(self, vocab_size: int) -> int:
        """Return the number of trained values."""
        d, d_ff = self.d_model, self.d_ff or 4 * self.d_model
        attention = 4 * d * self.n_heads * (self.d_k or d // self.n_heads)
        feed_forward = (2 + self.gated) * d * d_ff
        layers = self.n_layers * (3 * attention + 2 * feed_forward + 5 * d)
        return (2 - self.tied) * (vocab_size + SENTINELS) * d + layers + 2 * 32 * self.n_heads + 2 * d


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
