"""Translation: text -> tokens -> encode -> search -> text."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from transduce import search as searching
from transduce.batches import pad
from transduce.config import SearchConfig
from transduce.model import Cache, Transformer
from transduce.search import Decoder, Hypothesis, Request
from transduce.tokens import BOS, EOS, PAD, UNK


def decoder(model: Transformer) -> Decoder[Cache]:
    """The model as the search sees it."""

    def step(last_ids: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        logits, cache = model.decode_step(last_ids, cache)
        return logits.float().log_softmax(dim=-1), cache

    return Decoder(step, Cache.select, model.output.weight.device)


@torch.inference_mode()
def search(
    models: Sequence[Transformer], sources: Sequence[Sequence[int]], ask: SearchConfig, *, n_best: int = 1
) -> list[list[Hypothesis]]:
    """The n_best outputs for each source (ids without EOS), best first, in the order given.

    Several models are an ensemble. An output is at most ask.max_extra_tokens longer than its own source (§6.1).
    """
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for members in _by_length(sources, ask.beam_size):
        chosen = [sources[i] for i in members]
        request = Request(
            max_lengths=[len(ids) + ask.max_extra_tokens for ids in chosen],
            bos=BOS,
            eos=EOS,
            length_penalty=ask.length_penalty,
            alpha=ask.alpha,
            banned=(PAD, BOS, UNK),
            min_length=ask.min_tokens,
        )
        src, src_mask = pad([np.append(np.asarray(ids, np.int64), EOS) for ids in chosen])
        device = models[0].output.weight.device
        src, src_mask = src.to(device), src_mask.to(device)
        states = tuple(model.start(model.encode(src, src_mask), src_mask) for model in models)
        together = searching.ensemble([decoder(model) for model in models])
        found = searching.beam_search(together, states, request, beam_size=ask.beam_size, n_best=n_best)
        for i, hypotheses in zip(members, found, strict=True):
            results[i] = hypotheses
    return results


BATCH_ROWS_TOKENS = 8_192  # source tokens times beam, padding included, searched together


def _by_length(sources: Sequence[Sequence[int]], beam_size: int) -> Iterator[list[int]]:
    """The numbers of the sources in batches of like length, the longest first."""
    members: list[int] = []
    for i in sorted(range(len(sources)), key=lambda i: -len(sources[i])):
        if members and (len(members) + 1) * (len(sources[members[0]]) + 1) * beam_size > BATCH_ROWS_TOKENS:
            yield members
            members = []
        members.append(i)
    if members:
        yield members
