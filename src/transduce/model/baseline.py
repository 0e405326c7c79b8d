"""The rivals of Table 2, with the interface of the Transformer: one loop, one search and one scoring serve all three.

    Recurrent       LSTM encoder-decoder with attention, in the place of GNMT (Wu et al., 2016)
    Convolutional   gated convolutions with attention in every layer, in the place of ConvS2S (Gehring et al., 2017)

Letters in shape comments are those of model.py. `config.KEYS_OF_RIVALS` names what each takes from a `ModelConfig`;
what else it holds is the Transformer's alone. Attention has one head.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transduce.config.schema import ModelConfig
from transduce.model.dropout import Dropout
from transduce.model.transformer import Attention, SinusoidalPositions, Transformer, fast_attention, refuse_impossible

# ---- what both share ---------------------------------------------------------------------------------------------


class Baseline(nn.Module):
    """Embeddings and output, tied as `config` says, and teacher forcing."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        refuse_impossible(config)
        assert config.vocab_size is not None
        self.config = config
        self.src_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.tgt_embedding = (
            self.src_embedding if config.tie_src_tgt else nn.Embedding(config.vocab_size, config.d_model)
        )
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        for table in (self.src_embedding, self.tgt_embedding, self.output):
            nn.init.normal_(table.weight, std=config.d_model**-0.5)
        if config.tie_output:
            self.output.weight = self.tgt_embedding.weight
        self.dropout = Dropout(config.dropout)

    def logits(self, decoded: Tensor) -> Tensor:
        """Pre-softmax scores (..., V) of decoder outputs (..., D)."""
        return self.output(decoded)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """The logits (B,T,V) of every target position given the ones before it."""
        return self.logits(self.decode(tgt_in, self.encode(src, src_mask), src_mask))

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Token ids (B,S) with mask (B,S) -> memory, (B,S,...)."""
        raise NotImplementedError

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """The decoder's output (B,T,D) for `tgt_in` (B,T), BOS first."""
        raise NotImplementedError

    def start(self, memory: Tensor, src_mask: Tensor) -> "BaselineCache":
        """The cache before the first token: one row for each sentence."""
        raise NotImplementedError

    def decode_step(self, ids: Tensor, cache: "BaselineCache") -> "tuple[Tensor, BaselineCache]":
        """The logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it."""
        raise NotImplementedError

    def _embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        return embedding(ids) * math.sqrt(self.config.d_model)


@dataclass(frozen=True)
class BaselineCache:
    """What a decoding step needs of the steps before it, for N rows: K adjacent ones for each of B sentences.

    state: tensors whose first dimension is the N rows; memory (B,S,...) and src_mask (B,S) of the sentences.
    """

    state: tuple[Tensor, ...]
    memory: Tensor
    src_mask: Tensor
    length: int = 0

    def select(self, rows: Tensor, sentences: Tensor) -> "BaselineCache":
        """The cache whose row i goes on from row rows[i] of this one; sentences: those that stay, ascending."""
        memory, src_mask = self.memory, self.src_mask
        if len(sentences) < len(src_mask):
            memory, src_mask = memory[sentences], src_mask[sentences]
        return BaselineCache(tuple(part[rows] for part in self.state), memory, src_mask, self.length)


def attend(queries: Tensor, keys: Tensor, values: Tensor, src_mask: Tensor, attention: Attention) -> Tensor:
    """`attention` in one head: queries (B,T,D), keys (B,S,D), values (B,S,D), mask (B,S) -> (B,T,D)."""
    return attention(queries[:, None], keys[:, None], values[:, None], src_mask[:, None, None, :], 0.0)[:, 0]


# ---- recurrent ---------------------------------------------------------------------------------------------------


class Recurrent(Baseline):
    """A bidirectional LSTM reads; an LSTM writes, and attends with its top layer's state (Luong et al., 2015).

    The context enters after the recurrence, not before it, so that torch's own LSTM runs over a whole target at once.
    The writer starts from a projection of the mean of what was read.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        d_model, n_layers = config.d_model, config.n_layers
        between = config.dropout if n_layers > 1 else 0.0
        self.reader = nn.LSTM(d_model, d_model // 2, n_layers, batch_first=True, dropout=between, bidirectional=True)
        self.writer = nn.LSTM(d_model, d_model, n_layers, batch_first=True, dropout=between)
        self.begin = nn.Linear(d_model, 2 * n_layers * d_model)
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.combine = nn.Linear(2 * d_model, d_model)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """(B,S) -> (B,S,D). Each sentence is read up to its own end; a row without a token gives zeros."""
        x = self.dropout(self._embed(self.src_embedding, src))
        lengths = src_mask.sum(dim=1)
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        read, _ = pad_packed_sequence(self.reader(packed)[0], batch_first=True, total_length=src.size(1))
        return self.dropout(read * src_mask[:, :, None])

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """(B,T) with memory (B,S,D) -> (B,T,D)."""
        x = self.dropout(self._embed(self.tgt_embedding, tgt_in))
        written, _ = self.writer(x, self._first_state(memory, src_mask))
        return self._with_context(written, memory, src_mask, attention)

    def start(self, memory: Tensor, src_mask: Tensor) -> BaselineCache:
        """The cache before the first token: one row for each sentence."""
        hidden, cell = self._first_state(memory, src_mask)
        return BaselineCache((hidden.transpose(0, 1), cell.transpose(0, 1)), memory, src_mask)

    def decode_step(self, ids: Tensor, cache: BaselineCache) -> tuple[Tensor, BaselineCache]:
        """The logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it."""
        hidden, cell = (part.transpose(0, 1).contiguous() for part in cache.state)  # (L,N,D)
        x = self._embed(self.tgt_embedding, ids[:, None])
        written, (hidden, cell) = self.writer(x, (hidden, cell))  # (N,1,D)
        by_sentence = written.reshape(len(cache.memory), -1, written.size(2))  # (B,K,D)
        decoded = self._with_context(by_sentence, cache.memory, cache.src_mask, fast_attention).flatten(0, 1)
        state = (hidden.transpose(0, 1), cell.transpose(0, 1))
        return self.logits(decoded), BaselineCache(state, cache.memory, cache.src_mask, cache.length + 1)

    def _first_state(self, memory: Tensor, src_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden and cell state before the first token, (L,B,D) each."""
        mean = memory.sum(dim=1) / src_mask.sum(dim=1, keepdim=True).clamp(min=1)
        states = torch.tanh(self.begin(mean)).unflatten(1, (2, self.config.n_layers, -1))  # (B,2,L,D)
        hidden, cell = states.permute(1, 2, 0, 3).contiguous()
        return hidden, cell

    def _with_context(self, written: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention) -> Tensor:
        context = attend(self.w_q(written), memory, memory, src_mask, attention)
        return self.dropout(torch.tanh(self.combine(torch.cat([context, written], dim=2))))


# ---- convolutional -----------------------------------------------------------------------------------------------


class Gated(nn.Module):
    """A convolution of `kernel` positions with a gated linear unit: (B,kernel-1+T,D) -> (B,T,D)."""

    def __init__(self, config: ModelConfig, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.weights = nn.Linear(kernel * config.d_model, 2 * config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """One matrix product over all windows: on a CPU several times faster than torch's Conv1d."""
        length = x.size(1) - self.kernel + 1
        windows = torch.cat([x[:, i : i + length] for i in range(self.kernel)], dim=2)  # (B,T,kernel*D)
        return F.glu(self.weights(self.dropout(windows)), dim=2)


class Convolutional(Baseline):
    """Stacks of gated convolutions; each layer of the writer attends to what was read (Gehring et al., 2017).

    The reader's convolutions see one position on either side, the writer's two earlier ones; a sum of two is scaled by
    sqrt(1/2). Positions are the Transformer's sinusoids, so that there is no longest sentence.
    """

    KERNEL = 3

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        layers = range(config.n_layers)
        self.positions = SinusoidalPositions(config)
        self.readers = nn.ModuleList(Gated(config, self.KERNEL) for _ in layers)
        self.writers = nn.ModuleList(Gated(config, self.KERNEL) for _ in layers)
        self.queries = nn.ModuleList(nn.Linear(config.d_model, config.d_model) for _ in layers)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """(B,S) -> (B,S,2D): side by side, what attention compares with, and that plus the embedding, which it sums."""
        real = src_mask[:, :, None]
        embedded = self.dropout(self._embed(self.src_embedding, src) + self.positions(0, src.size(1)))
        x = embedded * real
        for gated in self.readers:
            x = (x + gated(F.pad(x, (0, 0, 1, 1)))) * math.sqrt(0.5) * real
        return torch.cat([x, (x + embedded) * math.sqrt(0.5)], dim=2)

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """(B,T) with memory (B,S,2D) -> (B,T,D)."""
        embedded = self.dropout(self._embed(self.tgt_embedding, tgt_in) + self.positions(0, tgt_in.size(1)))
        x = embedded
        for layer in range(self.config.n_layers):
            x = self._write(layer, F.pad(x, (0, 0, self.KERNEL - 1, 0)), embedded, memory, src_mask, attention)
        return self.dropout(x)

    def start(self, memory: Tensor, src_mask: Tensor) -> BaselineCache:
        """The cache before the first token: one row for each sentence."""
        earlier = memory.new_zeros(len(memory), self.config.n_layers, self.KERNEL - 1, self.config.d_model)
        return BaselineCache((earlier,), memory, src_mask)

    def decode_step(self, ids: Tensor, cache: BaselineCache) -> tuple[Tensor, BaselineCache]:
        """The logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it."""
        position = self.positions(cache.length, cache.length + 1)
        embedded = self._embed(self.tgt_embedding, ids[:, None]) + position  # (N,1,D)
        x, (earlier,), kept = embedded, cache.state, []
        for layer in range(self.config.n_layers):
            window = torch.cat([earlier[:, layer], x], dim=1)  # (N,KERNEL,D)
            kept.append(window[:, 1:])
            x = self._write(layer, window, embedded, cache.memory, cache.src_mask, fast_attention)
        state = (torch.stack(kept, dim=1),)
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
        """A layer of the writer: (N,KERNEL-1+T,D) -> (N,T,D); N rows share the B sentences of `memory`."""
        x = windows[:, self.KERNEL - 1 :]
        written = self.writers[layer](windows)
        query = (self.queries[layer](written) + embedded) * math.sqrt(0.5)
        keys, values = memory.chunk(2, dim=2)
        by_sentence = query.reshape(len(memory), -1, query.size(2))
        context = attend(by_sentence, keys, values, src_mask, attention).view_as(query)
        written = (written + context) * math.sqrt(0.5)
        return (x + written) * math.sqrt(0.5)


# ---- one of the three --------------------------------------------------------------------------------------------

Model = Transformer | Baseline


def build(config: ModelConfig) -> Model:
    """The untrained model that `config` describes. UserError if it is impossible, or its vocab_size still None."""
    if config.kind == "recurrent":
        return Recurrent(config)
    return Convolutional(config) if config.kind == "convolutional" else Transformer(config)
