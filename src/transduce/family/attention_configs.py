"""The configurations of members with another attention, as kinds of model: sizes of `configs.py`, and a number more."""

from dataclasses import dataclass, replace
from typing import Literal

from transduce.config.schema import use_python_numbers
from transduce.family.configs import BertConfig, GPT2Config, LlamaConfig, size_problems, sizes_of


@dataclass(frozen=True)
class T6Config:
    """The sizes of a T6: the sizes of a Llama, and the ranks of tensor product attention. It has no dropout."""

    kind: Literal["t6"] = "t6"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    q_rank: int = 6  # products that a query is the sum of
    kv_rank: int = 2  # the same of a key, and of a value: the size of the cache
    d_ff: int = 2_048  # inner width of the gated feed-forward layer, which has three matrices
    max_positions: int = 1_024  # maximum number of tokens of a text; no parameter depends on it
    tied: bool = True  # the embedding is also the output matrix

    __post_init__ = use_python_numbers

    @property
    def llama(self) -> LlamaConfig:
        """The sizes of the Llama."""
        return sizes_of(self, LlamaConfig)

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return self.llama.problems() + size_problems(q_rank=self.q_rank, kv_rank=self.kv_rank)


@dataclass(frozen=True)
class PalmConfig:
    """The sizes of a PaLM: the sizes of a Llama with one head of keys, and a tied output. It has no dropout."""

    kind: Literal["palm"] = "palm"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    d_k: int | None = None  # width of a head, an even number; None: d_model / n_heads
    d_ff: int | None = None  # inner width of the gated feed-forward layer, with three matrices; None: 4 * d_model
    max_positions: int = 1_024  # maximum number of tokens of a text; no parameter depends on it

    __post_init__ = use_python_numbers

    @property
    def llama(self) -> LlamaConfig:
        """The sizes of the Llama."""
        return replace(sizes_of(self, LlamaConfig), n_kv_heads=1, d_ff=self.d_ff or 4 * self.d_model)

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        if self.d_k is not None and self.d_k % 2:
            return [f"model.d_k={self.d_k}: expected an even number, because RoPE rotates pairs"]
        return self.llama.problems() if self.d_k is None else []


@dataclass(frozen=True)
class SynthesizerConfig:
    """The sizes of a GPT-2 with the attention of Synthesizer."""

    kind: Literal["synthesizer"] = "synthesizer"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    scores: Literal["dense", "random", "factorised_dense", "factorised_random"] = "dense"  # where they come from
    rank: int = 8  # of the two matrices of factorised_random
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 1_024  # maximum number of tokens of a text: positions with scores of their own
    dropout: float = 0.1  # of the embedding, the attention weights and the residuals

    __post_init__ = use_python_numbers

    @property
    def gpt2(self) -> GPT2Config:
        """The sizes of the GPT-2."""
        return sizes_of(self, GPT2Config)

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return self.gpt2.problems() + size_problems(rank=self.rank)


@dataclass(frozen=True)
class PerformerConfig:
    """The sizes of a GPT-2 with the attention of Performer."""

    kind: Literal["performer"] = "performer"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    n_features: int = 256  # random features of a query and of a key: more are nearer to exact attention
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 1_024  # rows of the table of positions: maximum number of tokens of a text
    dropout: float = 0.1  # of the embedding and the residuals; there are no attention weights

    __post_init__ = use_python_numbers

    @property
    def gpt2(self) -> GPT2Config:
        """The sizes of the GPT-2."""
        return sizes_of(self, GPT2Config)

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return self.gpt2.problems() + size_problems(n_features=self.n_features)


@dataclass(frozen=True)
class LongformerConfig:
    """The sizes of a BERT with the attention of Longformer. BOS is the one global position."""

    kind: Literal["longformer"] = "longformer"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    reach: int = 256  # tokens on either side that a token sees: half of the paper's window
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 4_096  # rows of the table of positions: maximum number of tokens of a text with both ends
    dropout: float = 0.1  # of the embedding, the attention weights and the residuals

    __post_init__ = use_python_numbers

    @property
    def bert(self) -> BertConfig:
        """The sizes of the BERT."""
        return sizes_of(self, BertConfig)

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return self.bert.problems() + size_problems(reach=self.reach)


@dataclass(frozen=True)
class LinformerConfig:
    """The sizes of a BERT with the attention of Linformer, whose mixtures all heads and layers share."""

    kind: Literal["linformer"] = "linformer"
    vocab_size: int | None = None  # rows of the embedding; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    rank: int = 128  # mixtures of positions that a token sees
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 512  # maximum number of tokens of a text with both ends: positions that a mixture is of
    dropout: float = 0.1  # of the embedding, the attention weights and the residuals

    __post_init__ = use_python_numbers

    @property
    def bert(self) -> BertConfig:
        """The sizes of the BERT."""
        return sizes_of(self, BertConfig)

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        return self.bert.problems() + size_problems(rank=self.rank)
