"""A language model of the family on a CPU: weights packed once, no padding, and a cache that is never copied.

`CpuLanguageModel` computes what `GPT2` or `Llama` computes, by the layers of translation: equal except rounding in
fp32, and approximately equal in bf16 and int8. The tokens of all texts are rows of one matrix, whatever the lengths of
the texts. Attention finds its keys and values by an index, so no row depends on another one.

Letters as in `model/transformer.py`; R rows of new tokens, N texts, G heads of keys and values.
"""

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.cpu_cache import CpuCache, Tables
from transduce.decoding.cpu_layers import CpuLayer, Precision, best_of, norm_of, pack_linear
from transduce.decoding.kernels import PLAIN, Kernels, Visible
from transduce.family.attention_wrappers import rotation
from transduce.family.feed_forward import GatedFeedForward
from transduce.family.gpt2 import GPT2
from transduce.family.llama import Llama
from transduce.model.transformer import EncoderLayer

CHUNK = 1_024  # maximum number of new tokens of a single text in one pass: each has an index of all tokens before it
ROOM = 64  # new tokens of each text that the first tables have room for


class CpuLanguageModel:
    """A trained `model`, prepared to continue texts in `precision` on a CPU.

    kernels: None takes the compiled ones if they are installed, else those in torch.
    """

    def __init__(self, model: GPT2 | Llama, precision: Precision, kernels: Kernels | None = None) -> None:
        self.kernels = kernels or compiled() or PLAIN
        self.model = model
        self.device = torch.device("cpu")
        self.n_positions = model.n_positions
        self.layers = [_layer(cast(EncoderLayer, layer), precision, self.kernels) for layer in model.layers]
        self.norm = norm_of(model.norm, self.kernels)
        self.output = pack_linear([model.output], precision, self.kernels)  # states (N,D) -> logits (N,V)
        self.best = best_of(self.output, self.kernels)  # see `Decoder`, by the states

    def start(self, n_texts: int, n_tokens: int) -> CpuCache:
        """Return the cache of N texts before their first token. n_tokens: number of tokens of all their prompts."""
        none, zeros = torch.empty(n_texts, 0, dtype=torch.int32), torch.zeros(n_texts, dtype=torch.int32)
        free = torch.arange(n_tokens + ROOM * n_texts, dtype=torch.int32)
        tables = Tables([torch.empty(len(free), sum(layer.widths[1:])) for layer in self.layers])
        return CpuCache(tables, free, 0, none, zeros, 0, Tables(()), Visible(none, zeros, zeros))

    def states(self, ids: Tensor, lengths: Tensor, cache: CpuCache) -> tuple[Tensor, CpuCache]:
        """Return the state (N,D) after the last token of each of N texts, and the cache with the new tokens.

        ids: new tokens, text after text, (R,). lengths: number of new tokens of each text, (N,) int64, at least 1.
        """
        while len(lengths) == 1 and len(ids) > CHUNK:
            _, cache = self.states(ids[:CHUNK], torch.tensor([CHUNK]), cache)
            ids, lengths = ids[CHUNK:], lengths - CHUNK
        n_rows, cache = len(ids), cache.with_room(len(ids)).gathered()
        texts, ends = torch.arange(len(lengths)).repeat_interleave(lengths), lengths.cumsum(0)
        ages, added = cache.ages + lengths, cache.free[cache.written : cache.written + n_rows]
        positions = torch.arange(n_rows) - (ends - ages)[texts]
        past = F.pad(cache.past, (0, int(ages.max()) - cache.past.size(1)))
        past[texts, positions] = added
        visible = Visible(past[texts], positions.int() + 1, torch.arange(n_rows, dtype=torch.int32))
        x, rotate = self.model.embedding(ids), None
        if isinstance(self.model, GPT2):
            x = x + self.model.positions(positions)
        else:
            rope, d_k = self.model.rope, self.model.d_k
            angles = positions[:, None] * rope.frequencies(d_k, ages[texts])
            rotate = rotation(angles[:, None], rope.amplitude)
        added = added.long()
        for layer, table in zip(self.layers, cache.tables.layers, strict=True):
            x = layer.feed_forward(layer.attend_self(x, visible, table, added, rotate))
        cache = cache._replace(written=cache.written + n_rows, past=past, ages=ages.int(), length=past.size(1))
        return self.norm(x[ends - 1]), cache


def _layer(layer: EncoderLayer, precision: Precision, kernels: Kernels) -> CpuLayer:
    network = layer.feed_forward
    return CpuLayer(layer, precision, kernels, network.w_3 if isinstance(network, GatedFeedForward) else None)
