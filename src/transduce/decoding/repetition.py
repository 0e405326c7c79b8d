"""A search that avoids repeated tokens: `search.no_repeat_ngram` and `search.repetition_penalty`.

By default no search has them, as in the paper; it then enters no function of this file except `watch`.

Letters: N rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.decoding.decoder import Decoder, State, send

BARRED = -1e4  # log-probability of a token that a constraint may still need; -inf would leave it none


def watch(decoder: Decoder[Any], state: Any, n_rows: int, settings: SearchConfig) -> tuple[Decoder[Any], Any]:
    """Return the decoder and its first state, or ones that avoid repeated tokens if the settings of the search say so.

    Where an output has tokens that the settings bar or make less likely, their log-probabilities are lower.
    """
    if settings.no_repeat_ngram == 0 and settings.repetition_penalty == 1:
        return decoder, state
    return _watched(decoder, settings), _State(state, [()] * n_rows)


@dataclass(frozen=True)
class _State(Generic[State]):
    """The state of a decoder, and the tokens of each row so far, with BOS."""

    state: State
    outputs: Sequence[tuple[int, ...]]

    def select(self, rows: Tensor, sentences: Tensor) -> "_State[State]":
        return _State(self.state.select(rows, sentences), [self.outputs[row] for row in rows.tolist()])


def _watched(decoder: Decoder[Any], settings: SearchConfig) -> Decoder[_State[Any]]:
    """Return a decoder that knows the tokens of each row. Its scores are log-probabilities (N, V)."""

    def step(last_ids: Tensor, state: _State[Any]) -> tuple[Tensor, _State[Any]]:
        outputs = [(*output, token) for output, token in zip(state.outputs, last_ids.tolist(), strict=True)]
        scores, after = decoder.step(last_ids, state.state)
        return _lowered(decoder.log_probs(scores), [output[1:] for output in outputs], settings), _State(after, outputs)

    def join(state: _State[Any], new: _State[Any]) -> _State[Any]:
        assert decoder.join is not None
        return _State(decoder.join(state.state, new.state), [*state.outputs, *new.outputs])

    return Decoder(step, decoder.device, join=join if decoder.join else None)


def _lowered(log_probs: Tensor, outputs: Sequence[Sequence[int]], settings: SearchConfig) -> Tensor:
    """Return log-probabilities (N, V) that the settings lower for tokens of the outputs (N) so far."""
    if settings.repetition_penalty != 1:
        index = _index([{*output} for output in outputs], log_probs.device)
        log_probs = log_probs.index_put(index, log_probs[index] * settings.repetition_penalty)
    if settings.no_repeat_ngram:
        index = _index([_repeating(output, settings.no_repeat_ngram) for output in outputs], log_probs.device)
        log_probs = log_probs.index_put(index, torch.tensor(BARRED, device=log_probs.device))
    return log_probs


def _repeating(output: Sequence[int], n: int) -> set[int]:
    """Return the tokens that would end a sequence of `n` tokens that the output has already."""
    last = output[len(output) - n + 1 :]
    return {output[i + n - 1] for i in range(len(output) - n + 1) if output[i : i + n - 1] == last}


def _index(ids: Sequence[set[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the places of the ids of each row in a tensor (N, V)."""
    rows = torch.arange(len(ids)).repeat_interleave(torch.tensor([len(of_row) for of_row in ids], dtype=torch.int64))
    columns = torch.tensor([token for of_row in ids for token in of_row], dtype=torch.int64)
    return send(rows, device), send(columns, device)
