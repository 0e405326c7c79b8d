"""A decoder-only model whose parts are settings: GPT-2's layers with other positions, a window, or experts.

    sizes = DecoderConfig(vocab_size=4_000, d_model=128, n_layers=4, n_heads=4)
    DecoderOnly(replace(sizes, positions="alibi"))
    DecoderOnly(replace(sizes, window=64))
    DecoderOnly(replace(sizes, positions="learned", window=64, window_every=2))    # GPT-3
    DecoderOnly(replace(sizes, n_experts=8))

A part that has no setting is an argument: DecoderOnly(sizes, pattern=strided(8)). It is the model on which these pieces
are compared. Its methods are the methods of GPT-2, so the search continues text by it.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from transduce.family.attention_patterns import Pattern, both, restricted
from transduce.family.attention_wrappers import NO_PAST, Past, with_cache
from transduce.family.configs import DecoderConfig
from transduce.family.experts import NoisyTopK, Switch, TopK, experts
from transduce.family.gpt2 import gelu
from transduce.family.initialisation import initialise
from transduce.family.layers import layer_around
from transduce.family.positions import Alibi, Bucketed, Learned, Positions, Rotary, Shaw, Sinusoids, Skewed
from transduce.family.rope import LinearRope, Rope, YarnRope, ntk_theta
from transduce.family.text_model import TextModel
from transduce.model.dropout import Dropout
from transduce.model.transformer import EncoderLayer, FeedForward, KeysValues


class DecoderOnly(TextModel):
    """A stack of pre-norm layers under the causal mask.

    An argument replaces the part that the configuration names. positions: how the model knows the order of tokens.
    pattern: the keys that a query sees, by a mask, where `config.window_every` has a window. feed_forward: makes the
    part of a layer that keeps the shape (N,T,D).
    """

    no_past = NO_PAST

    def __init__(
        self,
        config: DecoderConfig,
        *,
        positions: Positions | None = None,
        pattern: Pattern | None = None,
        feed_forward: Callable[[], nn.Module] | None = None,
    ) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model = config.d_model
        dropout = config.dropout
        n_layers = config.n_layers
        positions = positions or positions_of(config)
        window = None if config.window is None else restricted(config.window)
        self.n_positions = config.max_positions
        self.pattern = pattern or window
        self.window_every = config.window_every

        def layer() -> EncoderLayer:
            network = feed_forward() if feed_forward else feed_forward_of(config)
            return layer_around(network, d_model, config.n_heads, dropout=dropout)

        self.embedding, self.positions = nn.Embedding(config.vocab_size, d_model), positions
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layer() for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)
        self.output = nn.Linear(d_model, config.vocab_size, bias=False)
        self.output.weight = self.embedding.weight
        initialise(self.named_parameters(), n_residuals=2 * n_layers)

    def states(self, ids: Tensor, past: Past = NO_PAST) -> tuple[Tensor, Past]:
        """Return what `output` makes logits of, (N,T,D), for new ids (N,T), and the past with them."""
        positions, mask = past.places(ids)
        masks = [mask] * self.window_every
        if self.pattern:
            keys = torch.arange(past.length + ids.size(1), device=ids.device)
            masks[-1] = both(mask, self.pattern(keys[past.length :, None], keys[None]))
        x = self.dropout(self.positions.add_to(self.embedding(ids), positions))
        so_far: list[KeysValues] = []
        for i, layer in enumerate(self.layers):
            cache = partial(with_cache, past.of_layer(i), so_far)
            attention = self.positions.attention_of(i, cache, positions, past.length + ids.size(1))
            x = layer(x, masks[i % self.window_every], attention)
        return self.norm(x), Past(so_far, past.padding)


# ---- the parts that a configuration names -----------------------------------------------------------------------


def positions_of(config: DecoderConfig) -> Positions:
    """Return the positions that a configuration names."""
    d_k = config.d_model // config.n_heads
    match config.positions:
        case "none":
            return Positions()
        case "sinusoids":
            return Sinusoids(config.d_model)
        case "learned":
            return Learned(config.max_positions, config.d_model)
        case "rope":
            return Rotary(d_k, rope_of(config, d_k))
        case "alibi":
            return Alibi(config.n_heads)
        case "t5":
            return Bucketed(config.n_heads)
        case "shaw":
            return Shaw(config.n_layers, d_k)
        case "skewed":
            return Skewed(config.n_layers, config.n_heads, config.max_positions, d_k)


def rope_of(config: DecoderConfig, d_k: int) -> Rope:
    """Return RoPE with the scaling that a configuration names."""
    factor = config.rope_factor
    match config.rope:
        case "plain":
            return Rope()
        case "linear":
            return LinearRope(factor=factor)
        case "ntk":
            return Rope(ntk_theta(Rope().theta, factor, d_k))
        case "yarn":
            assert config.rope_length is not None
            return YarnRope(factor=factor, n_positions=config.rope_length)


def feed_forward_of(config: DecoderConfig) -> nn.Module:
    """Return the network of one layer: the network of GPT-2, or experts with their router."""
    d_model = config.d_model
    d_ff = config.d_ff or 4 * d_model
    if config.n_experts is None:
        return FeedForward(d_model, d_ff, gelu)
    match config.router:
        case "switch":
            return experts(Switch(d_model, config.n_experts), d_ff)
        case "top_k":
            return experts(TopK(d_model, config.n_experts, config.n_chosen), d_ff)
        case "noisy_top_k":
            return experts(NoisyTopK(d_model, config.n_experts, config.n_chosen), d_ff)
