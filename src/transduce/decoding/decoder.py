"""The interface between a search and a model: a `Decoder`, and several models as one."""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.config.schema import ModelConfig
from transduce.decoding.hypothesis import Hypothesis
from transduce.model.devices import in_float64

if TYPE_CHECKING:
    from transduce.decoding.compiled_kernels import PackedLinear


class DecoderState(Protocol):
    """The state of N rows between two steps of a decoder. The first state has one row for each sentence."""

    def select(self, rows: Tensor, sentences: Tensor) -> Self:
        """Return the state whose row i continues row rows[i] of this one (selected, repeated, permuted).

        rows: (N',) int64.
        sentences: (B',) int64, ascending: the sentences that stay, by their index in this state; each has N' / B' rows.
        A state that holds everything by row ignores `sentences`. A state that holds the encoded source once for the K
        rows of a sentence selects it by `sentences`. As many sentences as before are the same ones.
        """
        ...


class Scores(Protocol):
    """What a step returns of N rows: a tensor, or another object of their scores."""

    @property
    def device(self) -> torch.device:
        """The device of the scores."""
        ...

    def __getitem__(self, rows: Tensor, /) -> Self:
        """Return the scores of `rows`."""
        ...


State = TypeVar("State", bound=DecoderState)
Best = Callable[[Any, int, Sequence[int]], tuple[Tensor, Tensor]]  # see `Decoder`


@dataclass(frozen=True)
class Decoder(Generic[State]):
    """A model as the search uses it.

    step(last_ids, state) -> (scores, state)
        last_ids (N,) int64, the newest token of each row, at first BOS; scores (N, ...), for `log_probs` and `best`.
        A row whose hypothesis the search has given up gets any id, and its scores have no effect.
    device: where last_ids, rows and sentences are put.
    log_probs(scores) -> (N, V), none above 0; by default scores are that already.
    logits(scores) -> (N, V), which the softmax turns into log_probs. None: log_probs are logits too.
    join(state, new) -> state with the rows of both: the rows of `new`, before their first token, come last. The two are
        not used again. None: all rows of a state must have the same number of tokens.
    best(scores, count, barred) -> (log_probs, ids), both (N, count), on the CPU: the most likely tokens of each row
        without the `barred` ones, in order, of equals the lowest id first; -inf where no more are left. A row with a
        NaN gives NaN in the first place. None: the search finds them among all the `log_probs`, which takes longer.
    search(state, request, n_best) -> what `Rows.search` returns, for a plain request, in less time.
        None: the search is made of steps.
    """

    step: Callable[[Tensor, State], tuple[Any, State]]
    device: torch.device | str = "cpu"
    log_probs: Callable[[Any], Tensor] = lambda scores: scores
    best: Best | None = None
    join: Callable[[State, State], State] | None = None
    logits: Callable[[Any], Tensor] | None = None
    search: Callable[..., list[list[Hypothesis]]] | None = None


class Searchable(ABC):
    """A model as a backend uses it, often prepared for its device.

    has_own_precision: True if it is prepared for a precision, and does not compute in the one of the backend.
    is_compiled: True if a step is a call of compiled kernels, on one thread.
    lock: what a search must hold because it alone may use the model; None: any number of searches may.
    packed_output: the output matrix for the compiled kernels; None: it is not packed for them.
    """

    config: ModelConfig
    device: torch.device
    has_own_precision = True
    gains_by_threads = False  # see `SearchBackend`
    is_compiled = False
    lock: "threading.Lock | None" = None
    packed_output: "PackedLinear | None" = None

    @abstractmethod
    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Return the memory of token ids (B,S) with mask (B,S)."""

    @abstractmethod
    def start(self, memory: Tensor, src_mask: Tensor) -> DecoderState:
        """Return the state of a decoding of `memory` before its first token, with one row for each sentence."""

    @abstractmethod
    def as_decoder(self) -> Decoder[Any]:
        """Return a decoding step of the model as a decoder."""


def best_of_log_probs(
    log_probs: Callable[[Any], Tensor], scores: Scores, count: int, barred: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return `Decoder.best` of the scores by all their log-probabilities."""
    return most_likely(log_probs(scores), count, barred)


def most_likely(log_probs: Tensor, count: int, barred: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Return `Decoder.best` of log_probs (N, V); but where equals straddle the end of a row, torch.topk picks."""
    if count == 1:  # the first of equals; NaN wins
        index = send(torch.tensor(barred, dtype=torch.int64), log_probs.device)
        return _fetch(*log_probs.index_fill(1, index, -math.inf).max(dim=1, keepdim=True))
    return reordered(*log_probs.topk(min(count + len(barred), log_probs.size(1)), dim=1), count, barred)


def reordered(log_probs: Tensor, ids: Tensor, count: int, barred: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the `count` best of a few tokens of each row, both (N, C), in any order, as `Decoder.best` describes.

    To take a few too many and strike some out is cheaper than to write into (N, V).
    """
    for token in barred:
        log_probs = log_probs.masked_fill(ids == token, -math.inf)
    log_probs, ids = in_order(log_probs, ids)
    return padded(*_fetch(log_probs[:, :count], ids[:, :count]), count)


def in_order(log_probs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens of each row, both (N, C), the most likely first, of equals the lowest id."""
    ids, order = ids.sort(dim=1)
    log_probs, order = log_probs.gather(1, order).sort(dim=1, descending=True, stable=True)
    return log_probs, ids.gather(1, order)


def padded(log_probs: Tensor, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the best tokens of each row, both (N, count), with -inf where the vocabulary has fewer."""
    n_missing = count - ids.size(1)
    return (
        (F.pad(log_probs, (0, n_missing), value=-math.inf), F.pad(ids, (0, n_missing)))
        if n_missing
        else (log_probs, ids)
    )


def send(values: Tensor, device: torch.device | str) -> Tensor:
    """Copy `values` to `device` without blocking."""
    return values.to(device, non_blocking=True)


def _fetch(log_probs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return both on the CPU, in their types. float64 holds any id and float32, so a GPU copies both in one go."""
    if log_probs.device.type == "cpu":
        return log_probs, ids
    both = torch.stack([in_float64(log_probs), in_float64(ids)]).cpu()
    return both[0].to(log_probs.dtype), both[1].long()


class EnsembleState(tuple[DecoderState, ...]):
    """The states of several decoders."""

    def select(self, rows: Tensor, sentences: Tensor) -> "EnsembleState":
        """Select the rows of each state."""
        return EnsembleState(state.select(rows, sentences) for state in self)


def ensemble(decoders: Sequence[Decoder[Any]]) -> Decoder[EnsembleState]:
    """Return a decoder of the mean of the probabilities of `decoders`, which share a vocabulary and a device.

    Its state is an `EnsembleState` of their states. Its device is the CPU if all of theirs are.
    """
    device = next((of.device for of in decoders if torch.device(of.device).type != "cpu"), decoders[0].device)

    def step(last_ids: Tensor, states: EnsembleState) -> tuple[Tensor, EnsembleState]:
        steps = [decoder.step(last_ids, state) for decoder, state in zip(decoders, states, strict=True)]
        log_probs = [decoder.log_probs(scores) for decoder, (scores, _) in zip(decoders, steps, strict=True)]
        total = reduce(torch.logaddexp, log_probs)
        return (total - math.log(len(steps))).clamp(max=0), EnsembleState(state for _, state in steps)

    def join(states: EnsembleState, new: EnsembleState) -> EnsembleState:
        pairs = zip(decoders, states, new, strict=True)
        return EnsembleState(decoder.join(*both) for decoder, *both in pairs if decoder.join)

    can_join = all(decoder.join for decoder in decoders)
    return Decoder(step, device, join=join if can_join else None)
