"""Continuation of token ids: the search of translation (section 6.1), started from a prompt instead of a source.

A prompt is a state that waits for the first step. The token that the search feeds in that step, BOS of a translation,
stands for the prompt.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.decoding.decoder import Decoder
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.options import Sampling
from transduce.decoding.request import Request
from transduce.decoding.search import beam_search, sample
from transduce.errors import UserError
from transduce.family.around import NO_PAST, Past
from transduce.family.gpt2 import GPT2
from transduce.family.llama import Llama

BATCH_TOKENS = 8_192  # positions of a batch at its end, times the beam
GREEDY = SearchConfig(beam_size=1, length_penalty="none", alpha=0.0, max_extra_tokens=50)
NO_END = -1  # the id of an end that no token is


@dataclass(frozen=True)
class Prompted:
    """The state of N rows: their past, and before the first step the prompts (N,T) too."""

    past: Past
    prompt: Tensor | None = None

    def select(self, rows: Tensor, sentences: Tensor) -> "Prompted":
        """Return the state whose row i continues row rows[i] of this one."""
        return Prompted(self.past.select(rows), None if self.prompt is None else self.prompt[rows])


def decoder_of(model: GPT2 | Llama, ends: Sequence[int]) -> Decoder[Prompted]:
    """Return a decoding step of the model. ends: the ids that end a text; the first one stands for the likeliest."""

    def step(last_ids: Tensor, state: Prompted) -> tuple[Tensor, Prompted]:
        ids = last_ids[:, None] if state.prompt is None else state.prompt
        states, past = model.states(ids, state.past)
        log_probs = model.output(states[:, -1]).log_softmax(dim=-1)
        if len(ends) > 1:
            best = log_probs[:, ends].amax(dim=1)
            log_probs[:, ends] = -torch.inf
            log_probs[:, ends[0]] = best
        return log_probs, Prompted(past)

    return Decoder(step, model.embedding.weight.device)


@torch.inference_mode()
def continue_ids(
    model: GPT2 | Llama,
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    settings: SearchConfig = GREEDY,
    sampling: Sampling | None = None,
    seeds: Sequence[int] = (),
) -> list[Hypothesis]:
    """Return the continuation of each prompt: the best one of a search, or a sample with a seed for each prompt.

    Prompts of one length are searched together, so that a prompt needs no padding for its neighbours.
    prompts: at least one id each, and fewer than the model has positions. ends: the ids that end a text; none: every
    continuation has settings.max_extra_tokens ids. A continuation also ends at the last position of the model.
    """
    decoder, outputs = decoder_of(model, ends), dict[int, Hypothesis]()
    for number, prompt in enumerate(prompts):
        if not 1 <= len(prompt) < model.n_positions:
            raise UserError(f"prompt {number + 1}: expected 1 to {model.n_positions - 1:,} ids, not {len(prompt):,}")
    for members in _batches([len(prompt) for prompt in prompts], settings):
        ids = torch.tensor([[*prompts[i]] for i in members], device=decoder.device)
        most = min(settings.max_extra_tokens, model.n_positions - ids.size(1))
        end = ends[0] if ends else NO_END
        request = Request(search=settings, max_lengths=[most] * len(members), bos=0, eos=end)
        state = Prompted(NO_PAST, ids)
        if sampling is None:
            of_batch = [best for best, *_ in beam_search(decoder, state, request)]
        else:
            of_batch = sample(decoder, state, request, sampling=sampling, seeds=[seeds[i] for i in members])
        outputs.update(zip(members, of_batch, strict=True))
    return [outputs[i] for i in range(len(prompts))]


def _batches(lengths: Sequence[int], settings: SearchConfig) -> Iterator[list[int]]:
    """Yield the numbers of prompts in batches of one length."""
    by_length = defaultdict[int, list[int]](list)
    for number, length in enumerate(lengths):
        by_length[length].append(number)
    for length, numbers in sorted(by_length.items()):
        n_rows = max(1, BATCH_TOKENS // ((length + settings.max_extra_tokens) * settings.beam_size))
        yield from (numbers[i : i + n_rows] for i in range(0, len(numbers), n_rows))
