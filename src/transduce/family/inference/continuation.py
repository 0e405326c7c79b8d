"""Continuation of token ids: a search that starts from a prompt instead of a source (section 6.1).

A prompt is a state that waits for the first step. The token that the search feeds in that step, BOS of a translation,
stands for the prompt.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from transduce.config.schema import SearchConfig
from transduce.decoding.batched_search import BatchPlan, SearchBackend, length_batches
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.constraint import Constraint
from transduce.decoding.cpu_cache import CpuCache
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.decoder import Best, Decoder, Scores, best_of_log_probs
from transduce.decoding.hypothesis import Hypothesis, Request
from transduce.decoding.options import Sampling
from transduce.decoding.repetition import Watched, watch
from transduce.errors import UserError
from transduce.family.gpt2 import GPT2
from transduce.family.inference.cpu_language_model import CpuLanguageModel
from transduce.family.inference.hugging_face_beam import hugging_face_beam, search_or_sample
from transduce.family.llama import Llama
from transduce.family.text_model import TextModel
from transduce.model.attention import fast_attention
from transduce.model.transformer import EncoderLayer

BATCH_TOKENS = 8_192  # positions of a batch at its end, times the beam
GREEDY = SearchConfig(beam_size=1, length_penalty="none", alpha=0.0, max_extra_tokens=50)
NO_END = -1  # the id of an end that no token is

PreparedModel = TextModel | CpuLanguageModel


def has_kernels(model: nn.Module) -> TypeGuard[GPT2 | Llama]:
    """Check whether the kernels of translation can compute the model.

    They cannot for a model with another attention, which a subclass may have in its own `states`, or other layers.
    """
    if isinstance(model, GPT2):
        return type(model).states is GPT2.states and model.attention is fast_attention
    if not isinstance(model, Llama) or type(model).states is not Llama.states:
        return False
    return all(isinstance(layer, EncoderLayer) for layer in model.layers)


def prepare(model: TextModel, precision: Precision) -> PreparedModel:
    """Return the model, prepared to continue texts in `precision` on a CPU where that is faster or the only way.

    A model on a GPU, or without kernels, is searched as it is. Raises UserError where that is not possible in
    `precision`.
    """
    if not has_kernels(model) or model.embedding.weight.device.type != "cpu":
        if precision != "fp32":
            raise UserError(f"precision={precision!r}: expected fp32 for {type(model).__name__}; take fp32")
        return model
    return model if precision == "fp32" and compiled() is None else CpuLanguageModel(model, precision)


@dataclass(frozen=True)
class Prompted:
    """The state of N rows: their past, and before the first step the prompts too, each (T,)."""

    past: Any  # `TextModel.no_past` or a later past, or a `CpuCache`
    prompts: Sequence[Tensor] = ()

    def select(self, rows: Tensor, sentences: Tensor) -> "Prompted":
        """Return the state whose row i continues row rows[i] of this one."""
        prompts = [self.prompts[i] for i in rows.tolist()] if self.prompts else ()
        return Prompted(self.past.select(rows, sentences), prompts)


def _with_one_end(best: Best, ends: Sequence[int]) -> Best:
    """Return `Decoder.best`, which gives each end the id of the first one, and each its own probability."""
    end_ids = torch.tensor(ends, dtype=torch.int64)

    def best_with_one_end(scores: Scores, count: int, barred: Sequence[int]) -> tuple[Tensor, Tensor]:
        values, ids = best(scores, count, ends if barred else ())  # the first end is barred, and so all are
        if len(ends) > 1:
            ids[torch.isin(ids, end_ids)] = ends[0]
        return values, ids

    return best_with_one_end


def continue_ids(
    model: PreparedModel,
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    settings: SearchConfig = GREEDY,
    sampling: Sampling | None = None,
    seeds: Sequence[int] = (),
) -> list[Hypothesis]:
    """Return the continuation of each prompt: the output of `hugging_face_beam`, or a sample with a seed for each.

    A prompt needs no padding for its neighbours: a prepared model takes prompts of any length together, several
    batches at a time in the threads of torch; another model takes prompts of one length together.
    prompts: lists of at least one id, and fewer than the model has positions. ends: ids that end a text; without one,
    every continuation has settings.max_extra_tokens ids. A continuation also ends at the last position of the model.
    """
    for number, prompt in enumerate(prompts):
        if not 1 <= len(prompt) < model.n_positions:
            raise UserError(f"prompt {number + 1}: expected 1 to {model.n_positions - 1:,} ids, not {len(prompt):,}")
    ends = [*dict.fromkeys(ends)]
    if not ends:
        settings = replace(settings, min_tokens=0)  # nothing ends a text early
    is_prepared = isinstance(model, CpuLanguageModel)
    backend = _PreparedContinuation(model, ends) if is_prepared else _ModelContinuation(model, ends)
    return search_or_sample(backend, prompts, settings, sampling, seeds)


class _Continuation(SearchBackend[Prompted]):
    """A model that continues prompts, which are the sources of the search.

    ends: ids that end a text. Each is a separate token; the first one stands for all of them.
    """

    beam_of = staticmethod(hugging_face_beam)

    def __init__(self, model: PreparedModel, device: torch.device, best: Best, ends: Sequence[int]) -> None:
        super().__init__(Decoder(self.step, device, partial(_log_probs, model), _with_one_end(best, ends)))
        self.model = model
        self.ends = ends

    @abstractmethod
    def past(self, prompts: Sequence[Tensor]) -> Any:
        """Return the past of texts before their first token."""

    @abstractmethod
    def step(self, last_ids: Tensor, state: Prompted, /) -> tuple[Tensor, Prompted]:
        """Return the states (N,D) after the last ids, and after the prompts in the first step."""

    def start(self, sources: Sequence[Sequence[int]], constraint: Constraint | None = None) -> Prompted:
        """Return the state before the first token after each prompt."""
        prompts = [torch.tensor(prompt, device=self.device) for prompt in sources]
        return Prompted(self.past(prompts), prompts)

    def watched(
        self, state: Prompted, sources: Sequence[Sequence[int]], settings: SearchConfig
    ) -> tuple[Decoder[Watched[Prompted]], Watched[Prompted]]:
        """Return the decoder and the state of `start` as ones that avoid repeated tokens, as transformers does.

        The tokens of a prompt count. Without a beam, the penalty is on the logits.
        """
        logits = self.model.output if settings.beam_size == 1 else None
        decoder, watched = watch(self.decoder, state, len(sources), settings, sources, logits)
        best = partial(best_of_log_probs, decoder.log_probs)
        return replace(decoder, best=_with_one_end(best, self.ends)), watched

    def request(
        self, sources: Sequence[Sequence[int]], settings: SearchConfig, constraint: Constraint | None = None
    ) -> Request:
        """Return the request for continuations of `sources`."""
        most = [min(settings.max_extra_tokens, self.model.n_positions - len(prompt)) for prompt in sources]
        first, *others = self.ends or [NO_END]
        return Request(search=settings, max_lengths=most, bos=0, eos=first, other_ends=others, constraint=constraint)

    def lengths(self, sources: Sequence[Sequence[int]], settings: SearchConfig) -> list[int]:
        """Return the maximum length of each text with its prompt."""
        return [min(len(prompt) + settings.max_extra_tokens, self.model.n_positions) for prompt in sources]


class _ModelContinuation(_Continuation):
    """A model as it is, which takes prompts of one length together."""

    model: TextModel

    def __init__(self, model: TextModel, ends: Sequence[int]) -> None:
        best = partial(best_of_log_probs, partial(_log_probs, model))
        super().__init__(model, model.embedding.weight.device, best, ends)

    def past(self, prompts: Sequence[Tensor]) -> Any:
        return self.model.no_past

    def step(self, last_ids: Tensor, state: Prompted, /) -> tuple[Tensor, Prompted]:
        ids = torch.stack([*state.prompts]) if state.prompts else last_ids[:, None]
        states, past = self.model.states(ids, state.past)
        return states[:, -1], Prompted(past)

    def batches(self, sources: Sequence[Sequence[int]], settings: SearchConfig) -> BatchPlan:
        longest = max(self.lengths(sources, settings), default=0)
        return BatchPlan([*_even_batches(sources, longest * settings.beam_size)], 1)


class _PreparedContinuation(_Continuation):
    """A prepared model, which takes prompts of any length together, and several batches at a time."""

    model: CpuLanguageModel

    def __init__(self, model: CpuLanguageModel, ends: Sequence[int]) -> None:
        super().__init__(model, model.device, model.best, ends)

    def past(self, prompts: Sequence[Tensor]) -> CpuCache:
        return self.model.start(len(prompts), sum(map(len, prompts)))

    def step(self, last_ids: Tensor, state: Prompted, /) -> tuple[Tensor, Prompted]:
        prompts = state.prompts or last_ids[:, None]
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        states, past = self.model.states(torch.cat([*prompts]), lengths, state.past)
        return states, Prompted(past)

    def batches(self, sources: Sequence[Sequence[int]], settings: SearchConfig) -> BatchPlan:
        lengths, n_threads = self.lengths(sources, settings), torch.get_num_threads()
        return BatchPlan([*length_batches(lengths, settings.beam_size, BATCH_TOKENS, n_threads)], n_threads)


def _log_probs(model: PreparedModel, states: Tensor) -> Tensor:
    return model.output(states).log_softmax(dim=-1)


def _even_batches(prompts: Sequence[Sequence[int]], cost: int) -> Iterator[list[int]]:
    """Yield the indices of prompts in batches of one length. cost: maximum number of positions of a text, times the
    beam."""
    by_length, n_rows = defaultdict[int, list[int]](list), max(1, BATCH_TOKENS // max(cost, 1))
    for index, prompt in enumerate(prompts):
        by_length[len(prompt)].append(index)
    for _, members in sorted(by_length.items()):
        yield from (members[i : i + n_rows] for i in range(0, len(members), n_rows))
