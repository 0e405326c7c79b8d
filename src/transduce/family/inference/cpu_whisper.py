"""A Whisper on a CPU: the engine of translation, behind the convolutions.

`CpuWhisper` computes what `Whisper` computes: equal except for rounding in fp32, and approximately equal in bf16 and
int8. Weights are packed once, and the cache of the decoder is never copied. The encoder works in the threads of torch,
each on a part of the rows; a step of the decoder, of few rows, on one.

Letters as in `family/sound/whisper.py`; R = B S rows.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.kernels import Kernels
from transduce.family.sound.whisper import Whisper


class CpuWhisper(CpuTransformer):
    """A trained `model`, prepared to write down sound in `precision`. kernels: see `CpuTransformer`."""

    def __init__(self, model: Whisper, precision: Precision, kernels: Kernels | None = None) -> None:
        super().__init__(cast(Any, model), precision, kernels)
        self.whisper = model
        self.tgt_embedding = model.tgt_embedding.weight, 1.0

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Return the memory (R,D) of log-mel features (B,M,F). All of the tokens (B,S) of `src_mask` are heard."""
        x = self.whisper.embed(src)
        n_sounds, x = len(x), x.flatten(0, 1).contiguous()
        with _threads() as by_rows:
            for layer in self.encoder:
                projected = by_rows(lambda x, layer=layer: layer.project(layer.norms[0](x)), x)
                parts = projected.view(n_sounds, -1, 3, layer.n_heads, x.size(1) // layer.n_heads).unbind(dim=2)
                queries, keys, values = (part.transpose(1, 2) for part in parts)
                heads = F.scaled_dot_product_attention(queries, keys, values)  # (B,H,S,K)
                heads = heads.transpose(1, 2).flatten(2).flatten(0, 1)
                x = by_rows(lambda y, x, layer=layer: layer.feed_forward(layer.out(y, False, x)), heads, x)
            return by_rows(self.last_norms[0], x)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values (R, H*K + H*W) of `memory` (R,D) for the cross-attention of each layer."""
        with _threads() as by_rows:
            return tuple(by_rows(layer.cross_memory, memory) for layer in self.decoder)


@contextmanager
def _threads() -> Iterator[Callable[..., Tensor]]:
    """Yield a function that applies another one to the rows of tensors, in as many parts as torch has threads."""
    n_threads = torch.get_num_threads()
    if n_threads == 1:
        yield lambda work, *rows: work(*rows)
        return

    def by_rows(work: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        parts = pool.map(torch.inference_mode()(work), *(x.chunk(n_threads) for x in rows))
        return torch.cat([*parts])

    try:
        with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield by_rows
    finally:
        torch.set_num_threads(n_threads)
