"""The convolutional rival of Table 2: gated convolutions with attention in every layer (Gehring et al., 2017)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.config.schema import ModelConfig
from transduce.model.attention import Attention, fast_attention
from transduce.model.baseline import Baseline, BaselineCache, attend
from transduce.model.dropout import Dropout
from transduce.model.positions import SinusoidalPositions


class Gated(nn.Module):
    """A convolution of `kernel` positions with a gated linear unit: (B,kernel-1+T,D) -> (B,T,D)."""

    def __init__(self, config: ModelConfig, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.weights = nn.Linear(kernel * config.d_model, 2 * config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Compute one matrix product over all windows. On a CPU this is several times faster than torch's Conv1d."""
        length = x.size(1) - self.kernel + 1
        windows = torch.cat([x[:, i : i + length] for i in range(self.kernel)], dim=2)  # (B,T,kernel*D)
        return F.glu(self.weights(self.dropout(windows)), dim=2)


class Convolutional(Baseline):
    """Stacks of gated convolutions, `readers` and `writers`. Each decoder layer attends (Gehring et al., 2017).

    A convolution of the encoder covers one position on either side. A convolution of the decoder covers two earlier
    positions. A sum of two terms is scaled by sqrt(1/2). Positions are the Transformer's sinusoids, so that a sentence
    may have any length.
    """

    KERNEL = 3

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        layers = range(config.n_layers)
        self.positions = SinusoidalPositions(config.d_model, config.positions)
        self.readers = nn.ModuleList(Gated(config, self.KERNEL) for _ in layers)
        self.writers = nn.ModuleList(Gated(config, self.KERNEL) for _ in layers)
        self.queries = nn.ModuleList(nn.Linear(config.d_model, config.d_model) for _ in layers)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Return the memory (B,S,2D) of ids (B,S): the keys, then the values, which are keys plus embeddings."""
        real = src_mask[:, :, None]
        embedded = self.dropout(self._embed(self.src_embedding, src) + self.positions(0, src.size(1)))
        x = embedded * real
        for gated in self.readers:
            x = (x + gated(F.pad(x, (0, 0, 1, 1)))) * math.sqrt(0.5) * real
        return torch.cat([x, (x + embedded) * math.sqrt(0.5)], dim=2)

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the decoder's output (B,T,D) for ids (B,T) and memory (B,S,2D)."""
        embedded = self.dropout(self._embed(self.tgt_embedding, tgt_in) + self.positions(0, tgt_in.size(1)))
        x = embedded
        for layer in range(self.config.n_layers):
            x = self._write(layer, F.pad(x, (0, 0, self.KERNEL - 1, 0)), embedded, memory, src_mask, attention)
        return self.dropout(x)

    def start(self, memory: Tensor, src_mask: Tensor) -> BaselineCache:
        """Return the cache before the first token, with one row for each sentence."""
        earlier = memory.new_zeros(len(memory), self.config.n_layers, self.KERNEL - 1, self.config.d_model)
        return BaselineCache((earlier,), memory, src_mask)

    def decode_step(self, ids: Tensor, cache: BaselineCache) -> tuple[Tensor, BaselineCache]:
        """Return the logits (N,V) after one more token `ids` (N,) for each row, and the cache with this token."""
        position = self.positions(cache.length, cache.length + 1)
        embedded = self._embed(self.tgt_embedding, ids[:, None]) + position  # (N,1,D)
        x = embedded
        (earlier,) = cache.state
        windows = []
        for layer in range(self.config.n_layers):
            window = torch.cat([earlier[:, layer], x], dim=1)  # (N,KERNEL,D)
            windows.append(window[:, 1:])
            x = self._write(layer, window, embedded, cache.memory, cache.src_mask, fast_attention)
        state = (torch.stack(windows, dim=1),)
        return self.logits(x[:, 0]), BaselineCache(state, cache.memory, cache.src_mask, cache.length + 1)

    def _write(
        self,
        layer: int,
        windows: Tensor,
        embedded: Tensor,
        memory: Tensor,
        src_mask: Tensor,
        attention: Attention,
    ) -> Tensor:
        """Apply a decoder layer: (N,KERNEL-1+T,D) -> (N,T,D). N rows share the B sentences of `memory`."""
        x = windows[:, self.KERNEL - 1 :]
        output = self.writers[layer](windows)
        query = (self.queries[layer](output) + embedded) * math.sqrt(0.5)
        keys, values = memory.chunk(2, dim=2)
        by_sentence = query.reshape(len(memory), -1, query.size(2))
        context = attend(by_sentence, keys, values, src_mask, attention).view_as(query)
        output = (output + context) * math.sqrt(0.5)
        return (x + output) * math.sqrt(0.5)
