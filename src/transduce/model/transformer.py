"""The Transformer, section 3 of "Attention Is All You Need" (Vaswani et al., 2017), in the paper's order.

Letters in shape comments: B batch, S source length, T target length, N rows of a decoding step, D d_model, H heads,
K d_k, W d_v, V vocabulary. A mask is True where a position is real and may be attended to; "causal" stands for the
one in which each position attends to itself and to those before it.

The model takes tensors and returns tensors: it knows no text, no loss and no search. Caches are returned, not kept.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.config.schema import ModelConfig, Positions
from transduce.config.validation import model_problems
from transduce.errors import UserError
from transduce.model.dropout import Dropout

# ---- 3.2.1 Scaled dot-product attention --------------------------------------------------------------------------

Mask = Tensor | Literal["causal"]

# (queries (B,H,T,K), keys (B,H,S,K), values (B,H,S,W), mask broadcastable to (B,H,T,S), dropout) -> (B,H,T,W)
Attention = Callable[[Tensor, Tensor, Tensor, Mask, float], Tensor]


def attention_weights(queries: Tensor, keys: Tensor, mask: Mask) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)), the weights of eq. 1: (B,H,T,K), (B,H,S,K) -> (B,H,T,S).

    Masked positions get the lowest finite score instead of -inf, so that a row that may attend to nothing gets
    finite (and meaningless) weights, never NaN.
    """
    scores = (queries / math.sqrt(queries.size(-1))) @ keys.transpose(-2, -1)  # (B,H,T,S)
    if isinstance(mask, str):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    lowest = torch.finfo(scores.dtype).min
    return torch.where(mask, scores, lowest).softmax(dim=-1)


def reference_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
    """Attention(Q, K, V) of eq. 1, step by step."""
    weights = attention_weights(queries, keys, mask)
    if dropout:
        weights = F.dropout(weights, dropout)
    return weights @ values


LONG = 256  # keys from which the fused kernel is used on a CPU (benchmarks/attention.py, docs/log.md)


def fast_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
    """The same as `reference_attention`, by whichever way is faster for the device and the length.

    Only a row that may attend to nothing differs: it is finite both ways, but not the same. The fused kernel of a CPU
    never holds weights of (T,S), but where there is dropout, or K is not W, torch has none.
    """
    if queries.is_cuda or keys.size(-2) >= LONG:
        causal = isinstance(mask, str)
        given = None if causal else mask
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=given, dropout_p=dropout, is_causal=causal
        )
    return reference_attention(queries, keys, values, mask, dropout)


# ---- 3.2.2 Multi-head attention ----------------------------------------------------------------------------------


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O. d_k and d_v are free of d_model / n_heads (Table 3, rows B)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        d_k = config.d_k or config.d_model // config.n_heads
        d_v = config.d_v or config.d_model // config.n_heads
        self.w_q = nn.Linear(config.d_model, self.n_heads * d_k, bias=config.attention_bias)
        self.w_k = nn.Linear(config.d_model, self.n_heads * d_k, bias=config.attention_bias)
        self.w_v = nn.Linear(config.d_model, self.n_heads * d_v, bias=config.attention_bias)
        self.w_o = nn.Linear(self.n_heads * d_v, config.d_model, bias=config.attention_bias)
        self.dropout = config.attention_dropout

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The keys (B,H,S,K) and values (B,H,S,W) of `memory` (B,S,D)."""
        return self._split(self.w_k(memory)), self._split(self.w_v(memory))

    def forward(
        self, x: Tensor, keys_values: Sequence[Tensor], mask: Mask, attention: Attention = fast_attention
    ) -> Tensor:
        """Queries from `x` (B,T,D) attend where `mask`, broadcastable to (B,H,T,S), is True -> (B,T,D)."""
        keys, values = keys_values
        heads = attention(self._split(self.w_q(x)), keys, values, mask, self.dropout if self.training else 0.0)
        return self.w_o(heads.transpose(1, 2).flatten(2))  # (B,H,T,W) -> (B,T,H*W) -> (B,T,D)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B,S,H*K) -> (B,H,S,K)


# ---- 3.3 Position-wise feed-forward networks ---------------------------------------------------------------------


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2 (eq. 2), or with y sigmoid(y), "swish", in the place of max(0, y)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w_1 = nn.Linear(config.d_model, config.d_ff)
        self.w_2 = nn.Linear(config.d_ff, config.d_model)
        self.activation = F.relu if config.activation == "relu" else F.silu
        self.dropout = Dropout(config.ffn_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,D)."""
        return self.w_2(self.dropout(self.activation(self.w_1(x))))


# ---- 3.1 Encoder and decoder stacks ------------------------------------------------------------------------------


class Residual(nn.Module):
    """Residual connection, dropout and layer normalisation around a sub-layer f (§3.1, §5.4).

    "post", the paper's: LayerNorm(x + dropout(f(x))); "pre": x + dropout(f(LayerNorm(x))).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)
        self.post = config.norm == "post"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B,T,D) -> (B,T,D), by way of `sublayer`, which keeps the shape."""
        if self.post:
            return self.norm(x + self.dropout(sublayer(_narrow(x))))
        return x + self.dropout(sublayer(_narrow(self.norm(x))))


def _narrow(x: Tensor) -> Tensor:
    """`x` in the type of matrix products under autocast, which would cast it anew for each of them."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Tensor, src_mask: Tensor, attention: Attention) -> Tensor:
        """(B,S,D) with src_mask (B,1,1,S) -> (B,S,D)."""
        attend = self.self_attention
        x = self.residuals[0](x, lambda y: attend(y, attend.keys_values(y), src_mask, attention))
        return self.residuals[1](x, self.feed_forward)


KeysValues = tuple[Tensor, Tensor]


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.cross_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self,
        x: Tensor,
        past: KeysValues | None,
        cross: KeysValues,
        masks: tuple[Mask, Mask],
        attention: Attention = fast_attention,
    ) -> tuple[Tensor, KeysValues]:
        """One layer over `x` (B,T,D), the positions that follow those in `past`.

        past: keys and values of the earlier positions, or None; cross: those of the encoder's output;
        masks: for self-attention (T, past+T), or "causal", and for cross-attention (B,1,1,S).
        While searching, x has several adjacent rows (a beam) for each row of `cross`, which they share.
        Returns the output (B,T,D) and the keys and values of all positions so far.
        """
        self_mask, cross_mask = masks
        so_far: list[Tensor] = []

        def attend_self(y: Tensor) -> Tensor:
            new = self.self_attention.keys_values(y)
            so_far[:] = new if past is None else (torch.cat(pair, dim=2) for pair in zip(past, new, strict=True))
            return self.self_attention(y, so_far, self_mask, attention)

        def attend_cross(y: Tensor) -> Tensor:
            by_source = y.reshape(len(cross[0]), -1, y.size(-1))
            return self.cross_attention(by_source, cross, cross_mask, attention).view_as(y)

        x = self.residuals[0](x, attend_self)
        x = self.residuals[1](x, attend_cross)
        keys, values = so_far
        return self.residuals[2](x, self.feed_forward), (keys, values)


# ---- 3.5 Positional encoding -------------------------------------------------------------------------------------


def sinusoids(n_positions: int, d_model: int, layout: Positions = "interleaved") -> Tensor:
    """The table of sinusoids, (n_positions, d_model), in one of the three layouts found in the wild.

    "interleaved", the paper's text: sin(pos / 10000^(2i/d)) at 2i, cos at 2i+1.
    "halves": the same values, all sines first, then all cosines (Hugging Face Marian, Sockeye).
    "tensor2tensor": sines first, with the exponent i / (d/2 - 1) (the authors' code, fairseq, Marian).
    Computed in float64 and rounded once.
    """
    half = d_model // 2
    steps = half - 1 if layout == "tensor2tensor" else half
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / steps)
    angles = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequencies  # (n_positions, d_model/2)
    if layout == "interleaved":
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class SinusoidalPositions(nn.Module):
    """The sinusoids of §3.5. They have no maximum length: the table grows when a longer sequence comes."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layout: Positions = config.positions
        self.register_buffer("table", sinusoids(256, config.d_model, self.layout), persistent=False)
        self.table: Tensor

    def forward(self, start: int, end: int) -> Tensor:
        """Rows `start` to `end`, (end - start, D)."""
        if end > self.table.size(0):
            longer = sinusoids(max(end, 2 * self.table.size(0)), self.table.size(1), self.layout)
            self.table = longer.to(self.table)
        return self.table[start:end]


class LearnedPositions(nn.Module):
    """A learned row for each position (Table 3, row E)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.max_positions is not None
        self.table = nn.Parameter(torch.empty(config.max_positions, config.d_model))

    def forward(self, start: int, end: int) -> Tensor:
        """Rows `start` to `end`, (end - start, D). UserError past the last one."""
        if end > self.table.size(0):
            raise UserError(
                f"a sequence of {end} tokens, but this model has learned positions for {self.table.size(0)} "
                "(model.max_positions); split the text, or train with more positions or with sinusoids"
            )
        return self.table[start:end]


# ---- 3 The whole model -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cache:
    """What a decoding step needs of the steps before it, for N rows: K adjacent ones for each of B sentences.

    past: for each layer, keys (N,H,t,K) and values (N,H,t,W) of the t tokens so far; None before the first.
    cross: for each layer, keys (B,H,S,K) and values (B,H,S,W) of the encoder's output; src_mask: (B,1,1,S).
    """

    past: tuple[KeysValues, ...] | None
    cross: tuple[KeysValues, ...]
    src_mask: Tensor

    @property
    def length(self) -> int:
        """t, the number of tokens decoded so far."""
        return 0 if self.past is None else self.past[0][0].size(2)

    def select(self, rows: Tensor, sentences: Tensor) -> "Cache":
        """The cache whose row i goes on from row rows[i] of this one.

        rows: (M,), M/B' of them for each sentence; sentences: (B',), the sentences that stay, in ascending order.
        """
        past, cross, src_mask = self.past, self.cross, self.src_mask
        if past is not None:
            past = tuple((keys[rows], values[rows]) for keys, values in past)
        if len(sentences) < len(src_mask):
            cross = tuple((keys[sentences], values[sentences]) for keys, values in cross)
            src_mask = src_mask[sentences]
        return Cache(past, cross, src_mask)


def refuse_impossible(config: ModelConfig) -> None:
    """UserError if no model can be built of `config`."""
    found = model_problems(config)
    if config.vocab_size is None:
        found.append("model.vocab_size is None: it must be known before a model can be built")
    if found:
        raise UserError("cannot build the model: " + "; ".join(found))


class Transformer(nn.Module):
    """The encoder-decoder of Figure 1.

    Raises UserError if `config` is impossible, or if its vocab_size is still None.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        refuse_impossible(config)
        assert config.vocab_size is not None
        self.config = config
        self.src_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.tgt_embedding = (
            self.src_embedding if config.tie_src_tgt else nn.Embedding(config.vocab_size, config.d_model)
        )
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)  # pre-softmax (§3.4)
        if config.tie_output:
            self.output.weight = self.tgt_embedding.weight
        learned = config.positions == "learned"
        self.positions = LearnedPositions(config) if learned else SinusoidalPositions(config)
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.n_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.n_layers))
        pre = config.norm == "pre"  # whose stacks end in a sum that nothing has normalised yet
        self.encoder_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps) if pre else nn.Identity()
        initialise(self)

    def encode(self, src: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Token ids (B,S) with mask (B,S) -> memory (B,S,D)."""
        x = self._embed(self.src_embedding, src, 0)
        mask = src_mask[:, None, None, :]  # (B,1,1,S)
        for layer in self.encoder:
            x = layer(x, mask, attention)
        return self.encoder_norm(x)

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """The decoder's output (B,T,D) for `tgt_in` (B,T): BOS and then the target, which `logits` turns into scores.

        Position t sees tgt_in up to and including t, so padding at the end needs no mask.
        """
        x = self._embed(self.tgt_embedding, tgt_in, 0)
        masks: tuple[Mask, Mask] = ("causal", src_mask[:, None, None, :])
        for layer, cross in zip(self.decoder, self._cross(memory), strict=True):
            x, _ = layer(x, None, cross, masks, attention)
        return self.decoder_norm(x)

    def logits(self, decoded: Tensor) -> Tensor:
        """Pre-softmax scores (..., V) of decoder outputs (..., D)."""
        return self.output(decoded)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """The logits (B,T,V) of every target position given the ones before it (teacher forcing)."""
        return self.logits(self.decode(tgt_in, self.encode(src, src_mask), src_mask))

    def start(self, memory: Tensor, src_mask: Tensor) -> Cache:
        """The cache of a decoding of `memory` (B,S,D) before its first token: one row for each sentence."""
        return Cache(None, self._cross(memory), src_mask[:, None, None, :])

    def decode_step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """The logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it."""
        start = cache.length
        x = self._embed(self.tgt_embedding, ids[:, None], start)  # (N,1,D)
        masks = (torch.ones(1, start + 1, dtype=torch.bool, device=ids.device), cache.src_mask)
        past = []
        for i, layer in enumerate(self.decoder):
            x, so_far = layer(x, cache.past[i] if cache.past else None, cache.cross[i], masks)
            past.append(so_far)
        logits = self.logits(self.decoder_norm(x))[:, 0]
        return logits, Cache(tuple(past), cache.cross, cache.src_mask)

    def _cross(self, memory: Tensor) -> tuple[KeysValues, ...]:
        """The keys and values of the encoder's output for each layer of the decoder."""
        layers, memory = cast(Iterable[DecoderLayer], self.decoder), _narrow(memory)
        return tuple(layer.cross_attention.keys_values(memory) for layer in layers)

    def _embed(self, embedding: nn.Embedding, ids: Tensor, start: int) -> Tensor:
        """Embeddings times sqrt(d_model), plus positions from `start`, with dropout on the sum (§3.4, §3.5, §5.4)."""
        positions = self.positions(start, start + ids.size(1))
        return self.dropout(embedding(ids) * math.sqrt(self.config.d_model) + positions)


# ---- Initialisation (not in the paper; the authors' code of June 2017) -------------------------------------------


def initialise(model: Transformer) -> None:
    """Fill every parameter anew from torch's global generator.

    | parameter                      | values                                                            |
    |--------------------------------|-------------------------------------------------------------------|
    | matrices                       | Glorot uniform: U(-a, a), a = sqrt(6 / (fan_in + fan_out))        |
    | Q, K, V of self-attention      | the same, as one matrix of joint fan_out 2 h d_k + h d_v          |
    | K, V of cross-attention        | the same, as one matrix of joint fan_out h d_k + h d_v            |
    | embeddings, untied output      | N(0, 1/d_model)                                                   |
    | learned positions              | N(0, 1/d_model)                                                   |
    | biases; LayerNorm              | 0; gain 1 and bias 0                                              |

    The joint fan_out is that code's fused projections. It starts Q, K and V of the base model 1/sqrt(2) (self) and K
    and V 0.816 (cross) times as large as separate Glorot matrices would, which keeps post-norm training stable.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            _glorot([module])
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, LearnedPositions):
            nn.init.normal_(module.table, std=model.config.d_model**-0.5)
    for module in model.modules():
        if isinstance(module, EncoderLayer | DecoderLayer):
            _glorot([module.self_attention.w_q, module.self_attention.w_k, module.self_attention.w_v])
        if isinstance(module, DecoderLayer):
            _glorot([module.cross_attention.w_k, module.cross_attention.w_v])
    tables = {model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight}
    for table in sorted(tables, key=lambda t: (t is not model.src_embedding.weight, t is model.output.weight)):
        nn.init.normal_(table, std=model.config.d_model**-0.5)


def _glorot(parts: list[nn.Linear]) -> None:
    """Glorot uniform for matrices that stand for one matrix with their outputs side by side."""
    bound = math.sqrt(6 / (parts[0].in_features + sum(part.out_features for part in parts)))
    for part in parts:
        nn.init.uniform_(part.weight, -bound, bound)
        if part.bias is not None:
            nn.init.zeros_(part.bias)


def parameter_count(model: nn.Module) -> int:
    """The number of trained values; a tied matrix counts once."""
    return sum(p.numel() for p in model.parameters())


def mixed_precision(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Where a model computes in `precision`: "fp32" as it is; "bf16" its matrix products in bf16, weights kept."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
