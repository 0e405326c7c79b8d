"""A search that avoids repeated tokens: `search.no_repeat_ngram` and `search.repetition_penalty`.

By default no search has them, as in the paper; it then enters no function of this file. Compiled kernels have
`no_repeat_ngram` of their own (native/search.h), with equal results.

Letters: N rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic

import torch
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.decoding.decoder import Best, Decoder, State, in_order, send

ScoreChange = Callable[[Tensor, Sequence[tuple[int, ...]]], Tensor]  # see `with_change`
BARRED = -1e4  # log-probability of a token that a constraint may still need; -inf would leave it none


@dataclass(frozen=True)
class Watched(Generic[State]):
    """The state of a decoder, the prompt of each row, and its tokens so far, with BOS."""

    state: State
    prompts: Sequence[tuple[int, ...]]
    outputs: Sequence[tuple[int, ...]]

    def select(self, rows: Tensor, sentences: Tensor) -> "Watched[State]":
        of_rows = ([tokens[row] for row in rows.tolist()] for tokens in (self.prompts, self.outputs))
        return Watched(self.state.select(rows, sentences), *of_rows)


@dataclass(frozen=True)
class _WatchedScores:
    """The scores of N rows, and the tokens of each so far."""

    scores: Any
    tokens: Sequence[tuple[int, ...]]

    def __getitem__(self, rows: Tensor) -> "_WatchedScores":
        """Return the scores of `rows`."""
        return _WatchedScores(self.scores[rows], [self.tokens[row] for row in rows.tolist()])

    @property
    def device(self) -> torch.device:
        """The device of the scores."""
        return self.scores.device


def watch(
    decoder: Decoder[State],
    state: State,
    n_rows: int,
    settings: SearchConfig,
    prompts: Sequence[Sequence[int]] | None = None,
    logits: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Decoder[Watched[State]], Watched[State]]:
    """Return the decoder and its first state as ones that avoid repeated tokens, as the settings of the search say.

    Where an output has tokens that the settings bar or make less likely, their log-probabilities are lower.
    prompts: tokens of each row before its output, which count as its own. logits: returns the logits (N, V) of scores;
    they are then lowered before the softmax.
    """
    watched, first = with_change(decoder, state, n_rows, partial(_lowered, settings=settings), prompts, logits)
    if decoder.search is None or decoder.best is None or settings.repetition_penalty != 1:
        return watched, first
    return replace(watched, best=partial(_best, decoder.best, settings.no_repeat_ngram)), first  # rounds as `search`


def with_change(
    decoder: Decoder[State],
    state: State,
    n_rows: int,
    change: ScoreChange,
    prompts: Sequence[Sequence[int]] | None = None,
    logits: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Decoder[Watched[State]], Watched[State]]:
    """Return the decoder and its first state as ones whose log-probabilities `change` changes.

    change: takes log-probabilities (N, V), or with `logits` these, and the tokens of each row so far. prompts, logits:
    as for `watch`.
    """
    tokens = [()] * n_rows if prompts is None else [(*prompt,) for prompt in prompts]
    return _watched(decoder, change, logits), Watched(state, tokens, [()] * n_rows)


def _watched(
    decoder: Decoder[State], change: ScoreChange, logits: Callable[[Tensor], Tensor] | None
) -> Decoder[Watched[State]]:
    """Return a decoder that knows the tokens of each row."""

    def step(last_ids: Tensor, state: Watched[State]) -> tuple[_WatchedScores, Watched[State]]:
        outputs = [(*output, token) for output, token in zip(state.outputs, last_ids.tolist(), strict=True)]
        scores, after = decoder.step(last_ids, state.state)
        tokens = [(*prompt, *output[1:]) for prompt, output in zip(state.prompts, outputs, strict=True)]
        return _WatchedScores(scores, tokens), Watched(after, state.prompts, outputs)

    def log_probs(scores: _WatchedScores) -> Tensor:
        if logits is None:
            return change(decoder.log_probs(scores.scores), scores.tokens)
        return change(logits(scores.scores), scores.tokens).log_softmax(dim=-1)

    def join(state: Watched[State], new: Watched[State]) -> Watched[State]:
        assert decoder.join is not None
        both = [*state.prompts, *new.prompts], [*state.outputs, *new.outputs]
        return Watched(decoder.join(state.state, new.state), *both)

    return Decoder(step, decoder.device, log_probs, join=join if decoder.join else None)


def _best(best: Best, n: int, scores: _WatchedScores, count: int, barred: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return `Decoder.best` of log-probabilities in which tokens that would repeat a sequence of `n` are lower.

    So many more are found that enough others are among them.
    """
    repeating = [_repeating(tokens, n) for tokens in scores.tokens]
    most = max(map(len, repeating))
    log_probs, ids = best(scores.scores, count + most, barred)
    if most == 0:
        return log_probs, ids
    of_rows = torch.tensor([[*tokens, *[-1] * (most - len(tokens))] for tokens in repeating])
    is_repeating = (ids[:, :, None] == of_rows[:, None]).any(dim=2) & (log_probs > BARRED)
    log_probs, ids = in_order(log_probs.masked_fill(is_repeating, BARRED), ids)
    return log_probs[:, :count], ids[:, :count]


def _lowered(log_probs: Tensor, outputs: Sequence[Sequence[int]], settings: SearchConfig) -> Tensor:
    """Return log-probabilities or logits (N, V) that the settings lower for tokens of the outputs (N) so far."""
    if settings.repetition_penalty != 1:
        index = _index([{*output} for output in outputs], log_probs.device)
        values, penalty = log_probs[index], settings.repetition_penalty
        log_probs = log_probs.index_put(index, torch.where(values < 0, values * penalty, values / penalty))
    if settings.no_repeat_ngram:
        index = _index([_repeating(output, settings.no_repeat_ngram) for output in outputs], log_probs.device)
        log_probs = log_probs.index_put(index, log_probs.new_full((), BARRED))
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
