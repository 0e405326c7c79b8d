"""The recurrent rival of Table 2: an LSTM encoder-decoder with attention, instead of GNMT (Wu et al., 2016)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from transduce.config.schema import ModelConfig
from transduce.model.attention import Attention, fast_attention
from transduce.model.baseline import Baseline, BaselineCache, attend
from transduce.model.cpu_backend import has_fast_bf16


class Recurrent(Baseline):
    """A bidirectional LSTM encoder, `reader`, and an LSTM decoder, `writer`.

    The decoder attends with the state of its top layer (Luong et al., 2015). The context enters after the recurrence,
    not before it, so that torch's LSTM computes a whole target in one call. The decoder's first state is a projection
    of the mean of the encoder's outputs.
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
        """Return the memory (B,S,D) of ids (B,S). Padding is not encoded; a row without a token gives zeros."""
        x = self.dropout(self._embed(self.src_embedding, src))
        lengths = src_mask.sum(dim=1)
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        read, _ = pad_packed_sequence(run(self.reader, packed)[0], batch_first=True, total_length=src.size(1))
        return self.dropout(read * src_mask[:, :, None])

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the decoder's output (B,T,D) for ids (B,T) and memory (B,S,D)."""
        x = self.dropout(self._embed(self.tgt_embedding, tgt_in))
        outputs, _ = run(self.writer, x, self._first_state(memory, src_mask))
        return self._with_context(outputs, memory, src_mask, attention)

    def start(self, memory: Tensor, src_mask: Tensor) -> BaselineCache:
        """Return the cache before the first token, with one row for each sentence."""
        hidden, cell = self._first_state(memory, src_mask)
        return BaselineCache((hidden.transpose(0, 1), cell.transpose(0, 1)), memory, src_mask)

    def decode_step(self, ids: Tensor, cache: BaselineCache) -> tuple[Tensor, BaselineCache]:
        """Return the logits (N,V) after one more token `ids` (N,) for each row, and the cache with this token."""
        hidden, cell = (tensor.transpose(0, 1).contiguous() for tensor in cache.state)  # (L,N,D)
        x = self._embed(self.tgt_embedding, ids[:, None])
        outputs, (hidden, cell) = run(self.writer, x, (hidden, cell))  # (N,1,D)
        by_sentence = outputs.reshape(len(cache.memory), -1, outputs.size(2))  # (B,K,D)
        decoded = self._with_context(by_sentence, cache.memory, cache.src_mask, fast_attention).flatten(0, 1)
        state = (hidden.transpose(0, 1), cell.transpose(0, 1))
        return self.logits(decoded), BaselineCache(state, cache.memory, cache.src_mask, cache.length + 1)

    def _first_state(self, memory: Tensor, src_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden and the cell state before the first token, (L,B,D) each."""
        mean = memory.sum(dim=1) / src_mask.sum(dim=1, keepdim=True).clamp(min=1)
        states = torch.tanh(self.begin(mean)).unflatten(1, (2, self.config.n_layers, -1))  # (B,2,L,D)
        hidden, cell = states.permute(1, 2, 0, 3).contiguous()
        return hidden, cell

    def _with_context(self, outputs: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention) -> Tensor:
        """Return the decoder's output (B,T,D) from the LSTM's, `outputs` (B,T,D), and its context."""
        context = attend(self.w_q(outputs), memory, memory, src_mask, attention)
        return self.dropout(torch.tanh(self.combine(torch.cat([context, outputs], dim=2))))


def run(
    lstm: nn.LSTM, x: Tensor | PackedSequence, state: tuple[Tensor, Tensor] | None = None
) -> tuple[Any, tuple[Tensor, Tensor]]:
    """Return the outputs of `lstm`, packed as `x` is, and its last states (L,B,D).

    In bf16 oneDNN computes an LSTM only on processors that have instructions for it; the others compute it in fp32.
    """
    if not torch.is_autocast_enabled("cpu") or has_fast_bf16(torch.device("cpu")):
        return lstm(x, state)
    with torch.autocast("cpu", enabled=False):
        return lstm(x.float(), None if state is None else (state[0].float(), state[1].float()))
