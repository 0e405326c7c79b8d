"""What the encoder-decoders of the family share: the methods of `model.transformer.Transformer` that a search uses."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from transduce.model.attention import Attention, fast_attention
from transduce.model.transformer import Cache, DecoderLayer


class EncoderDecoder(nn.Module, ABC):
    """An encoder-decoder that a search takes. Letters as in `model/transformer.py`.

    decoder: layers. output: the matrix that makes logits of the decoder's output.
    """

    decoder: nn.ModuleList
    output: nn.Linear

    @abstractmethod
    def encode(self, src: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the memory (B,S,D) of a source. src_mask: which of the S positions are real, (B,S)."""
        ...

    @abstractmethod
    def decode_after(self, ids: Tensor, cache: Cache, attention: Attention = fast_attention) -> tuple[Tensor, Cache]:
        """Return the states (N,T,D) of `ids` (N,T), the tokens after those in the cache, and the cache with them."""
        ...

    def start(self, memory: Tensor, src_mask: Tensor) -> Cache:
        """Return the cache for decoding `memory` (B,S,D) before the first token, with one row for each source."""
        cross = tuple(layer.cross_attention.keys_values(memory) for layer in cast(Iterable[DecoderLayer], self.decoder))
        return Cache(None, cross, src_mask[:, None, None, :])

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the decoder's output (B,T,D) for `tgt_in` (B,T): the tokens before a target, and then the target."""
        return self.decode_after(tgt_in, self.start(memory, src_mask), attention)[0]

    def logits(self, decoded: Tensor) -> Tensor:
        """Return the pre-softmax scores (...,V) of decoder outputs (...,D)."""
        return self.output(decoded)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the logits (B,T,V) of every target position, each from the positions before it (teacher forcing)."""
        return self.logits(self.decode(tgt_in, self.encode(src, src_mask), src_mask))

    def decode_step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Return the logits (N,V) after one more token `ids` (N,) for each row, and the cache with this token."""
        states, cache = self.decode_after(ids[:, None], cache)
        return self.logits(states[:, 0]), cache
