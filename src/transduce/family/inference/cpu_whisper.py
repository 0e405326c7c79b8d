"""A Whisper on a CPU: the engine of translation, behind the convolutions.

`CpuWhisper` computes what `Whisper` computes: equal except for rounding in fp32, and approximately equal in bf16 and
int8. Weights are packed once, and the cache of the decoder is never copied. The encoder's self-attention, over 1,500
tokens in public models, is torch's fused one, which uses several threads.

Letters as in `family/sound/whisper.py`; R = B S rows.
"""

from typing import Any, cast

from torch import Tensor
from torch.nn import functional as F

from transduce.decoding.cpu_layers import CpuLayer, Precision
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
        for layer in self.encoder:
            x = layer.out(self._attended(layer, x, n_sounds), False, x)
            x = layer.feed_forward(x)
        return self.last_norms[0](x)

    @staticmethod
    def _attended(layer: CpuLayer, x: Tensor, n_sounds: int) -> Tensor:
        """Return the heads (R,D) of the self-attention of rows x (R,D)."""
        projected = layer.project(layer.norms[0](x)).view(n_sounds, -1, 3, layer.n_heads, x.size(1) // layer.n_heads)
        queries, keys, values = (part.transpose(1, 2) for part in projected.unbind(dim=2))
        return F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2).flatten(0, 1)
