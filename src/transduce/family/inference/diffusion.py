"""The sampling loop of LLaDA (Nie et al. 2025, section 2.4): masks become tokens in steps.

In each step the model predicts all masks. The loop keeps a part of the predictions, and the others become masks again.

    logits l of a mask -> token: argmax of exp(l) / (-log u)^T, u ~ U(0,1) of each token    T: the temperature
                          confidence: softmax(l) of this token, without the noise; or a number from U(0,1)
    the predictions with the highest confidence are kept

With T = 1 a token is drawn from softmax(l), by Gumbel's noise -log(-log u). With T = 0 it is the most likely one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from transduce.config.schema import use_python_numbers
from transduce.config.validation import field_problems, refuse
from transduce.decoding.batched_search import in_batches
from transduce.errors import NotFiniteError, UserError
from transduce.family.inference.text_encoder import PLACES, batches_of_one_length, cost_of_attention, in_rows
from transduce.family.llada import Llada
from transduce.model.cpu_backend import faster_products
from transduce.model.devices import in_float64

MOST_STEPS = 1 << 20


@dataclass(frozen=True)
class Filling:
    """How masks become tokens.

    steps: number of steps for a line; None: one for each mask; more do not help. block: number of masks, from the left,
    that are filled before the next ones; None: all at once. temperature: temperature of a draw; 0: no draw. remasking:
    predictions that stay masks: predictions of low confidence, or random ones. seed: seed of the draws. Raises
    UserError for a value of a wrong type or out of range.
    """

    steps: int | None = None
    block: int | None = None
    temperature: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    seed: int = 1

    def __post_init__(self) -> None:
        use_python_numbers(self)
        refuse(field_problems(self))
        for name, value in (("steps", self.steps), ("block", self.block)):
            if value is not None and not 1 <= value <= MOST_STEPS:
                raise UserError(f"{name}={value}: expected 1 to {MOST_STEPS:,}")
        if not 0 <= self.temperature <= 100:
            raise UserError(f"temperature={self.temperature}: expected a number from 0 to 100")
        if not 0 <= self.seed < 1 << 63:
            raise UserError(f"seed={self.seed}: expected at least 0, below 2^63")


def schedule(n: int, steps: int | None, block: int | None) -> list[tuple[int, int]]:
    """Return the steps that fill n masks: (end, count) says that `count` of the first `end` masks are filled.

    The steps are shared by the blocks, at least one for each. The steps of a block share its masks equally; the first
    ones fill one more where that is not possible.
    """
    size = min(block or n, n)
    starts = range(0, n, max(size, 1))
    plan = list[tuple[int, int]]()
    for start in starts:
        end = min(start + size, n)
        n_steps = end - start if steps is None else min(max(steps // len(starts), 1), end - start)
        base, rest = divmod(end - start, n_steps)
        plan += [(end, base + (i < rest)) for i in range(n_steps)]
    return plan


def predictions(logits: Tensor, settings: Filling, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a token for each mask, (P,), and its confidence, (P,), from the logits (P,V) of the masks of a line."""
    scores = logits
    if settings.temperature:
        scores = in_float64(logits)
        uniform = torch.rand(logits.shape, dtype=torch.float64, generator=generator).to(scores.device)
        scores = scores - settings.temperature * (-uniform.log()).log()  # the logarithm of the definition
    tokens = scores.argmax(dim=-1).to(logits.device)
    if settings.remasking == "random":
        return tokens, torch.rand(len(tokens), generator=generator).to(logits.device)
    return tokens, logits.softmax(dim=-1).gather(1, tokens[:, None])[:, 0]


@dataclass(frozen=True)
class _MaskedLine:
    """A line on its way: its ids, the places of its masks at first, its steps, and the generator of its draws."""

    ids: list[int]
    places: list[int]
    plan: list[tuple[int, int]]
    generator: torch.Generator

    def masks(self, step: int, mask: int) -> list[int]:
        """Return the places that a step may fill."""
        return [place for place in self.places[: self.plan[step][0]] if self.ids[place] == mask]


@torch.inference_mode()
def fill_ids(
    model: Llada,
    rows: Sequence[Sequence[int]],
    mask: int,
    barred: Sequence[int] = (),
    settings: Filling = Filling(),  # noqa: B008
    seeds: Sequence[int] | None = None,
) -> list[list[int]]:
    """Return each row of ids with a token for each `mask`. The other ids stay.

    barred: ids that no mask becomes; `mask` is one anyway. seeds: of the draws for each row; None: the one of
    `settings` for each. Rows of one length are a batch, without padding. On a CPU, what a row becomes does not depend
    on the other rows. Raises NotFiniteError if a logit is not finite.
    """
    of_rows = [settings.seed] * len(rows) if seeds is None else seeds
    results, never = [[*row] for row in rows], [*{mask, *barred}]
    n_steps = [len(schedule(row.count(mask), settings.steps, settings.block)) for row in rows]
    lengths = {i: len(rows[i]) for i in sorted(range(len(rows)), key=lambda i: n_steps[i]) if n_steps[i]}

    def filled(members: Sequence[int]) -> list[list[int]]:
        lines = [_line([*rows[i]], mask, settings, of_rows[i]) for i in members]
        for step in range(max(n_steps[i] for i in members)):
            active = [line for line in lines if step < len(line.plan)]
            _fill_step(model, active, step, settings, mask, never)
        return [line.ids for line in lines]

    with faster_products(model.output.weight.device):
        for members, of_batch in in_batches(filled, batches_of_one_length(lengths)):
            for i, ids in zip(members, of_batch, strict=True):
                results[i] = ids
    return results


def _line(ids: list[int], mask: int, settings: Filling, seed: int) -> _MaskedLine:
    places = [place for place, one in enumerate(ids) if one == mask]
    plan = schedule(len(places), settings.steps, settings.block)
    return _MaskedLine(ids, places, plan, torch.Generator().manual_seed(seed))


def _fill_step(
    model: Llada, lines: Sequence[_MaskedLine], step: int, settings: Filling, mask: int, never: Sequence[int]
) -> None:
    """Fill as many masks of each line as its step says."""
    ids = torch.tensor([line.ids for line in lines], device=model.output.weight.device)
    cost = cost_of_attention(ids.size(1), model.output.in_features)
    states = in_rows(lambda x: model.states(x, torch.ones_like(x, dtype=torch.bool)), ids, ids.size(1), cost)
    for line, of_line in zip(lines, states, strict=True):
        places = line.masks(step, mask)
        logits = torch.cat([in_rows(model.output, part) for part in of_line[places].split(PLACES)]).float()
        if not logits.isfinite().all():
            raise NotFiniteError("the model: expected logits that are finite numbers; use another copy")
        logits[:, never] = -math.inf
        tokens, confidence = predictions(logits, settings, line.generator)
        best = confidence.sort(descending=True, stable=True).indices[: line.plan[step][1]]
        for i in best.tolist():
            line.ids[places[i]] = int(tokens[i])
