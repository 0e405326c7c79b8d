"""A decoder whose parts are arguments: GPT-2's layers with other positions, a sparse pattern, or experts.

    Decoder(4_000, 128, 4, 4, Alibi(4))
    Decoder(4_000, 128, 4, 4, Rotary(32), pattern=restricted(64))
    Decoder(4_000, 128, 4, 4, Rotary(32), feed_forward=lambda: experts(Switch(128, 8), 512))

It is the model on which these pieces are compared. Its methods are those of GPT-2, so the search continues text by it.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from transduce.family.around import NO_PAST, Past, with_cache
from transduce.family.gpt2 import gelu
from transduce.family.initialisation import initialise
from transduce.family.patterns import Pattern, both
from transduce.family.positions import Positions
from transduce.model.attention import MultiHeadAttention
from transduce.model.dropout import Dropout
from transduce.model.transformer import EncoderLayer, FeedForward, KeysValues, Residual


class Decoder(nn.Module):
    """A stack of pre-norm layers under the causal mask.

    pattern: of the keys that a query sees, by a mask; None: all before it. feed_forward: makes the part of a layer that
    keeps the shape (N,T,D); None: GPT-2's, of width d_ff. n_positions: the longest text that a search may reach.
    dropout: of the embedding, attention weights and residuals.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        n_heads: int,
        positions: Positions,
        *,
        pattern: Pattern | None = None,
        feed_forward: Callable[[], nn.Module] | None = None,
        d_ff: int | None = None,
        n_positions: int = 1_024,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.n_positions, self.pattern = n_positions, pattern

        def layer() -> EncoderLayer:
            residuals = [Residual(nn.LayerNorm(d_model), dropout, post=False) for _ in range(2)]
            network = feed_forward() if feed_forward else FeedForward(d_model, d_ff or 4 * d_model, gelu)
            return EncoderLayer(MultiHeadAttention(d_model, n_heads, dropout=dropout), network, residuals)

        self.embedding, self.positions = nn.Embedding(vocab_size, d_model), positions
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layer() for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)
        self.output = nn.Linear(d_model, vocab_size, bias=False)
        self.output.weight = self.embedding.weight
        initialise(self.named_parameters(), n_residuals=2 * n_layers)

    def states(self, ids: Tensor, past: Past = NO_PAST) -> tuple[Tensor, Past]:
        """Return what `output` makes logits of, (N,T,D), for new ids (N,T), and the past with them."""
        positions, mask = past.places(ids)
        if self.pattern:
            keys = torch.arange(past.length + ids.size(1), device=ids.device)
            mask = both(mask, self.pattern(keys[past.length :, None], keys[None]))
        x = self.dropout(self.positions.add_to(self.embedding(ids), positions))
        so_far: list[KeysValues] = []
        for i, layer in enumerate(self.layers):
            cache = partial(with_cache, past.of_layer(i), so_far)
            x = layer(x, mask, self.positions.around(i, cache, positions, past.length + ids.size(1)))
        return self.norm(x), Past(so_far, past.padding)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (N,T,V) of the id after each of `ids` (N,T)."""
        return self.output(self.states(ids)[0])
