"""A search that reads the whole text again in each step: what a search with a cache or a state must equal."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.decoding.decoder import Decoder
from transduce.decoding.hypothesis import Request
from transduce.family.inference.hugging_face_beam import hugging_face_beam


@dataclass(frozen=True)
class WholeText:
    """All tokens (N,T) of each row so far."""

    ids: Tensor
    is_start: bool = False

    def select(self, rows: Tensor, sentences: Tensor) -> "WholeText":
        return replace(self, ids=self.ids[rows])


@torch.inference_mode()
def continuation_without_states(model: Any, prompt: list[int], end: int, settings: SearchConfig) -> list[int]:
    """Return the ids of the continuation of a prompt, by the logits of the whole text in each step."""

    def step(last_ids: Tensor, state: WholeText) -> tuple[Tensor, WholeText]:
        ids = state.ids if state.is_start else torch.cat([state.ids, last_ids[:, None]], dim=1)
        return model(ids)[:, -1].log_softmax(dim=-1), WholeText(ids)

    request = Request(search=settings, max_lengths=[settings.max_extra_tokens], bos=0, eos=end)
    rows = hugging_face_beam(Decoder(step), request)
    ((best, *_),) = rows.search(WholeText(torch.tensor([prompt]), is_start=True), request, n_best=1)
    return best.ids
