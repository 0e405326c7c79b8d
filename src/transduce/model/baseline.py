"""The shared part of the rivals of Table 2, with the interface of the Transformer.

Training, search and scoring are the same for all three.

    Recurrent       lstm.py            LSTM encoder-decoder with attention, instead of GNMT (Wu et al., 2016)
    Convolutional   convolutional.py   gated convolutions with attention, instead of ConvS2S (Gehring et al., 2017)

Shape comments use the letters of transformer.py. Attention has one head.
"""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from transduce.config.schema import ModelConfig
from transduce.config.validation import refuse_impossible
from transduce.model.attention import Attention, fast_attention
from transduce.model.dropout import Dropout


class Baseline(nn.Module):
    """Embeddings and output, tied as in `config`, and teacher forcing. Subclasses add encoder and decoder."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        refuse_impossible(config)
        assert config.vocab_size is not None and config.output_size is not None
        self.config = config
        self.src_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.tgt_embedding = (
            self.src_embedding if config.tie_src_tgt else nn.Embedding(config.output_size, config.d_model)
        )
        self.output = nn.Linear(config.d_model, config.output_size, bias=False)
        for table in (self.src_embedding, self.tgt_embedding, self.output):
            nn.init.normal_(table.weight, std=config.d_model**-0.5)
        if config.tie_output:
            self.output.weight = self.tgt_embedding.weight
        self.dropout = Dropout(config.dropout)

    def logits(self, decoded: Tensor) -> Tensor:
        """Return the pre-softmax scores (..., V) of decoder outputs (..., D)."""
        return self.output(decoded)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the logits (B,T,V) of every target position, each from the positions before it."""
        return self.logits(self.decode(tgt_in, self.encode(src, src_mask), src_mask))

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Return the memory (B,S,...) of token ids (B,S) with mask (B,S)."""
        raise NotImplementedError

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the decoder's output (B,T,D) for `tgt_in` (B,T), BOS first."""
        raise NotImplementedError

    def start(self, memory: Tensor, src_mask: Tensor) -> "BaselineCache":
        """Return the cache before the first token, with one row for each sentence."""
        raise NotImplementedError

    def decode_step(self, ids: Tensor, cache: "BaselineCache") -> "tuple[Tensor, BaselineCache]":
        """Return the logits (N,V) after one more token `ids` (N,) for each row, and the cache with this token."""
        raise NotImplementedError

    def _embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        return embedding(ids) * math.sqrt(self.config.d_model)


@dataclass(frozen=True)
class BaselineCache:
    """The state of N decoder rows between two decoding steps, with K adjacent rows for each of B sentences.

    state: tensors whose first dimension is the N rows. memory: the encoder's output for the sentences, (B,S,...).
    src_mask: their mask, (B,S).
    """

    state: tuple[Tensor, ...]
    memory: Tensor
    src_mask: Tensor
    length: int = 0

    def select(self, rows: Tensor, sentences: Tensor) -> "BaselineCache":
        """Return the cache whose row i continues row rows[i] of this cache.

        sentences: the remaining ones, in ascending order.
        """
        memory, src_mask = self.memory, self.src_mask
        if len(sentences) < len(src_mask):
            memory, src_mask = memory[sentences], src_mask[sentences]
        return BaselineCache(tuple(tensor[rows] for tensor in self.state), memory, src_mask, self.length)


def attend(queries: Tensor, keys: Tensor, values: Tensor, src_mask: Tensor, attention: Attention) -> Tensor:
    """Attend with one head: queries (B,T,D), keys (B,S,D), values (B,S,D), mask (B,S) -> (B,T,D)."""
    return attention(queries[:, None], keys[:, None], values[:, None], src_mask[:, None, None, :], 0.0)[:, 0]
