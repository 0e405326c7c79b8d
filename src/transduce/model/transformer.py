"""The Transformer, section 3 of "Attention Is All You Need" (Vaswani et al., 2017).

Sections 3.2 and 3.5 are in attention.py and positions.py.

Letters in shape comments: B batch, S source length, T target length, N rows of a decoding step, D d_model, H heads,
K d_k, W d_v, V vocabulary. A mask is True where a position is real and may be attended to; "causal" is the
mask in which each position attends to itself and to the positions before it.

The model takes tensors and returns tensors: it knows no text, no loss and no search. It returns caches and stores none.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.config.schema import ModelConfig
from transduce.config.validation import refuse_impossible
from transduce.model.attention import Attention, Mask, MultiHeadAttention, fast_attention, source_mask
from transduce.model.dropout import Dropout
from transduce.model.fused_layers import activated, narrow, norm_of_sum, products_dtype
from transduce.model.initialisation import initialise
from transduce.model.positions import LearnedPositions, SinusoidalPositions

# ---- 3.3 Position-wise feed-forward networks -----------------------------------------------------------------------


class FeedForward(nn.Module):
    """The network activation(x W_1 + b_1) W_2 + b_2, eq. 2 with ReLU. dropout: probability, on activation(...)."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: Callable[[Tensor], Tensor] = F.relu,
        *,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff, bias=bias)
        self.w_2 = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,D)."""
        return self.w_2(self.dropout(activated(x, self.w_1, self.activation)))


# ---- 3.1 Encoder and decoder stacks --------------------------------------------------------------------------------


class Residual(nn.Module):
    """Residual connection, dropout and layer normalisation around a sub-layer f (§3.1, §5.4).

    post: norm(x + dropout(f(x))), as in the paper; otherwise "pre": x + dropout(f(norm(x))).
    """

    def __init__(self, norm: nn.Module, dropout: float, *, post: bool) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.post = post

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B,T,D) -> (B,T,D). `sublayer` keeps the shape."""
        if self.post:
            return norm_of_sum(x, sublayer(narrow(x)), self.norm, self.dropout)
        return x + self.dropout(sublayer(narrow(self.norm(x))))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each within one of the two `residuals`. `encoder_layer` makes the paper's."""

    def __init__(self, attention: MultiHeadAttention, feed_forward: nn.Module, residuals: Iterable[Residual]) -> None:
        super().__init__()
        self.self_attention = attention
        self.feed_forward = feed_forward
        self.residuals = nn.ModuleList(residuals)

    def forward(self, x: Tensor, mask: Mask, attention: Attention = fast_attention) -> Tensor:
        """(B,S,D) with a mask broadcastable to (B,H,S,S), such as (B,1,1,S) of the source -> (B,S,D)."""
        own = self.self_attention
        x = self.residuals[0](x, lambda y: own.attend(*own.projections(y), mask, attention))
        return self.residuals[1](x, self.feed_forward)


KeysValues = tuple[Tensor, Tensor]


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, then feed-forward. `decoder_layer` makes the paper's.

    attentions: self-attention and cross-attention; residuals: three, one around each part.
    """

    def __init__(
        self,
        attentions: tuple[MultiHeadAttention, MultiHeadAttention],
        feed_forward: nn.Module,
        residuals: Iterable[Residual],
    ) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = attentions
        self.feed_forward = feed_forward
        self.residuals = nn.ModuleList(residuals)

    def forward(
        self,
        x: Tensor,
        past: KeysValues | None,
        cross: KeysValues,
        masks: tuple[Mask, Mask],
        attentions: tuple[Attention, Attention] = (fast_attention, fast_attention),
    ) -> tuple[Tensor, KeysValues]:
        """Apply the layer to `x` (B,T,D), the positions after those in `past`.

        past: keys and values of the earlier positions, or None. cross: keys and values of the encoder's output.
        masks: for self-attention (T, past+T), or "causal", and for cross-attention (B,1,1,S).
        attentions: the functions of self-attention and cross-attention.
        During a search, x has several adjacent rows (a beam) for each row of `cross`, which they share.
        Returns the output (B,T,D), and the keys and values of all positions so far.
        """
        self_mask, cross_mask = masks
        self_function, cross_function = attentions
        so_far: list[Tensor] = []

        def attend_self(y: Tensor) -> Tensor:
            queries, new = self.self_attention.projections(y)
            so_far[:] = new if past is None else (torch.cat(pair, dim=2) for pair in zip(past, new, strict=True))
            return self.self_attention.attend(queries, so_far, self_mask, self_function)

        def attend_cross(y: Tensor) -> Tensor:
            by_source = y.reshape(len(cross[0]), -1, y.size(-1))
            return self.cross_attention(by_source, cross, cross_mask, cross_function).view_as(y)

        x = self.residuals[0](x, attend_self)
        x = self.residuals[1](x, attend_cross)
        keys, values = so_far
        return self.residuals[2](x, self.feed_forward), (keys, values)


def encoder_layer(config: ModelConfig) -> EncoderLayer:
    """Return an encoder layer of Figure 1 with the sizes of `config`."""
    return EncoderLayer(_attention(config), _feed_forward(config), [_residual(config) for _ in range(2)])


def decoder_layer(config: ModelConfig) -> DecoderLayer:
    """Return a decoder layer of Figure 1 with the sizes of `config`."""
    attentions = _attention(config), _attention(config)
    return DecoderLayer(attentions, _feed_forward(config), [_residual(config) for _ in range(3)])


def _attention(config: ModelConfig) -> MultiHeadAttention:
    widths = {"d_k": config.d_k, "d_v": config.d_v}
    dropout = config.attention_dropout
    return MultiHeadAttention(config.d_model, config.n_heads, **widths, bias=config.attention_bias, dropout=dropout)


def _feed_forward(config: ModelConfig) -> FeedForward:
    activation = F.relu if config.activation == "relu" else F.silu  # y sigmoid(y), "swish"
    return FeedForward(config.d_model, config.d_ff, activation, dropout=config.ffn_dropout)


def _residual(config: ModelConfig) -> Residual:
    norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
    return Residual(norm, config.dropout, post=config.norm == "post")


# ---- 3 The whole model ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cache:
    """The state of N decoder rows between two decoding steps, with K adjacent rows for each of B sentences.

    past: for each layer, keys (N,H,t,K) and values (N,H,t,W) of the t tokens so far; None before the first.
    cross: for each layer, keys (B,H,S,K) and values (B,H,S,W) of the encoder's output; src_mask: (B,1,1,S).
    """

    past: tuple[KeysValues, ...] | None
    cross: tuple[KeysValues, ...]
    src_mask: Tensor

    @property
    def length(self) -> int:
        """The number t of tokens decoded so far."""
        return 0 if self.past is None else self.past[0][0].size(2)

    def select(self, rows: Tensor, sentences: Tensor) -> "Cache":
        """Return the cache whose row i continues row rows[i] of this cache.

        rows: (M,), M/B' of them for each sentence. sentences: (B',), the remaining sentences in ascending order.
        """
        past = self.past
        cross = self.cross
        src_mask = self.src_mask
        if past is not None:
            past = tuple((keys[rows], values[rows]) for keys, values in past)
        if len(sentences) < len(src_mask):
            cross = tuple((keys[sentences], values[sentences]) for keys, values in cross)
            src_mask = src_mask[sentences]
        return Cache(past, cross, src_mask)


class Transformer(nn.Module):
    """The encoder-decoder of Figure 1.

    Raises UserError if `config` is impossible, or if its vocab_size is still None.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        refuse_impossible(config)
        assert config.vocab_size is not None and config.output_size is not None
        self.config = config
        self.src_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.tgt_embedding = (
            self.src_embedding if config.tie_src_tgt else nn.Embedding(config.output_size, config.d_model)
        )
        self.output = nn.Linear(config.d_model, config.output_size, bias=config.output_bias)  # pre-softmax (§3.4)
        if config.tie_output:
            self.output.weight = self.tgt_embedding.weight
        self.positions = _positions(config)
        self.dropout = Dropout(config.dropout)
        n_encoder_layers, n_decoder_layers = config.depths
        self.encoder = nn.ModuleList(encoder_layer(config) for _ in range(n_encoder_layers))
        self.decoder = nn.ModuleList(decoder_layer(config) for _ in range(n_decoder_layers))
        pre = config.norm == "pre"  # its stacks end in a sum without normalisation
        self.encoder_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps) if pre else nn.Identity()
        tables = [self.src_embedding.weight, self.tgt_embedding.weight, self.output.weight]
        initialise(self, config.d_model, dict.fromkeys(tables))  # a tied matrix once

    def encode(self, src: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the memory (B,S,D) of token ids (B,S) with mask (B,S)."""
        x = self._embed(self.src_embedding, src, 0)
        mask = source_mask(src_mask, products_dtype(x))
        for layer in self.encoder:
            x = layer(x, mask, attention)
        return self.encoder_norm(x)

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the decoder's output (B,T,D) for `tgt_in` (B,T), which is BOS and then the target.

        `logits` turns the output into scores. Position t attends to tgt_in up to and including t, so that padding at
        the end needs no mask.
        """
        x = self._embed(self.tgt_embedding, tgt_in, 0)
        masks: tuple[Mask, Mask] = ("causal", source_mask(src_mask, products_dtype(x)))
        for layer, cross in zip(self.decoder, self._cross(memory), strict=True):
            x, _ = layer(x, None, cross, masks, (attention, attention))
        return self.decoder_norm(x)

    def logits(self, decoded: Tensor) -> Tensor:
        """Return the pre-softmax scores (..., V) of decoder outputs (..., D)."""
        return self.output(decoded)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the logits (B,T,V) of every target position, each from the positions before it (teacher forcing)."""
        return self.logits(self.decode(tgt_in, self.encode(src, src_mask), src_mask))

    def start(self, memory: Tensor, src_mask: Tensor) -> Cache:
        """Return the cache for decoding `memory` (B,S,D) before the first token, with one row for each sentence."""
        return Cache(None, self._cross(memory), src_mask[:, None, None, :])

    def decode_step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Return the logits (N,V) after one more token `ids` (N,) for each row, and the cache with this token."""
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
        """Return the keys and values of the encoder's output for each layer of the decoder."""
        layers = cast(Iterable[DecoderLayer], self.decoder)
        memory = narrow(memory)
        return tuple(layer.cross_attention.keys_values(memory) for layer in layers)

    def _embed(self, embedding: nn.Embedding, ids: Tensor, start: int) -> Tensor:
        """Return embeddings times sqrt(d_model) plus positions from `start`, with dropout (§3.4, §3.5, §5.4)."""
        positions = self.positions(start, start + ids.size(1))
        return self.dropout(embedding(ids) * math.sqrt(self.config.d_model) + positions)


def _positions(config: ModelConfig) -> LearnedPositions | SinusoidalPositions:
    if config.positions == "learned":
        assert config.max_positions is not None
        return LearnedPositions(config.max_positions, config.d_model)
    return SinusoidalPositions(config.d_model, config.positions)


def parameter_count(model: nn.Module) -> int:
    """Return the number of trained values; a tied matrix counts once."""
    return sum(p.numel() for p in model.parameters())


def mixed_precision(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which a model computes in `precision`.

    "fp32" changes nothing. "bf16" computes matrix products in bf16; the weights stay fp32.
    """
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
