"""The sampling loop of LLaDA, against a plain loop over one line, and what each of its choices means."""

import math
from collections.abc import Sequence

import pytest
import torch
from support.little_memory import LittleMemory
from support.small_diffusion import small_llada

from transduce.errors import UserError
from transduce.family.inference.diffusion import Filling, fill_ids, predictions, schedule
from transduce.family.llada import Llada

MASK, BARRED, V = 3, [0, 1, 2], 20
M = MASK
ROWS = [[1, M, M, 9, M, M, M, 2], [1, 5, M, 7, 2], [1, M, M, M, M, M, M, 2], [1, 4, 5, 2], [1, M, 8, M, M, M, 9, 2]]
SETTINGS = [
    Filling(),
    Filling(steps=2),
    Filling(block=2),
    Filling(steps=3, block=4, temperature=0.7, seed=3),
    Filling(steps=2, remasking="random"),
    Filling(temperature=1.5, remasking="random", seed=2),
]


def filled_in_loops(model: Llada, row: Sequence[int], settings: Filling, seed: int) -> list[int]:
    """Return a filled line by the definition: the whole model in each step, and one number at a time."""
    ids, generator = [*row], torch.Generator().manual_seed(seed)
    masks = [i for i, one in enumerate(ids) if one == MASK]
    block = settings.block or max(len(masks), 1)
    blocks = [masks[i : i + block] for i in range(0, len(masks), block)]
    for of_block in blocks:
        n_steps = len(of_block) if settings.steps is None else min(max(settings.steps // len(blocks), 1), len(of_block))
        for step in range(n_steps):
            count = len(of_block) // n_steps + (step < len(of_block) % n_steps)
            with torch.no_grad():
                logits = model(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))[0].double()
            left = [place for place in of_block if ids[place] == MASK]
            noise = torch.rand(len(left), V, dtype=torch.float64, generator=generator) if settings.temperature else None
            tokens, confidences = [], []
            for i, place in enumerate(left):
                allowed = {token: math.exp(logits[place, token]) for token in range(V) if token not in (*BARRED, MASK)}
                scores = dict(allowed)
                if noise is not None:
                    for token in scores:
                        scores[token] /= (-math.log(noise[i, token])) ** settings.temperature
                tokens.append(max(scores, key=lambda token: scores[token]))
                confidences.append(allowed[tokens[-1]] / sum(allowed.values()))  # without the noise
            if settings.remasking == "random":
                confidences = torch.rand(len(left), generator=generator).tolist()
            best = sorted(range(len(left)), key=lambda i: -confidences[i])[:count]
            for i in best:
                ids[left[i]] = tokens[i]
    return ids


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_loop_equals_one_in_plain_python(settings: Filling) -> None:
    model, seeds = small_llada(), [7, 8, 9, 10, 11]
    expected = [filled_in_loops(model, row, settings, seed) for row, seed in zip(ROWS, seeds, strict=True)]
    assert fill_ids(model, ROWS, MASK, BARRED, settings, seeds) == expected
    for row, filled in zip(ROWS, expected, strict=True):
        assert all(new == old if old != MASK else new > MASK for old, new in zip(row, filled, strict=True))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_line_does_not_depend_on_the_others(settings: Filling) -> None:
    model = small_llada()
    together = fill_ids(model, [*ROWS, *ROWS[::-1]], MASK, BARRED, settings)
    assert together[:5] == together[:4:-1] == [fill_ids(model, [row], MASK, BARRED, settings)[0] for row in ROWS]


def test_lines_that_do_not_fit_into_memory_together_are_halved() -> None:
    model, rows, settings, seeds = small_llada(), ROWS * 10, Filling(temperature=1.0), range(50)
    expected = fill_ids(model, rows, MASK, BARRED, settings, seeds)
    with LittleMemory(12) as memory:
        assert fill_ids(model, rows, MASK, BARRED, settings, seeds) == expected
    assert max(memory.sizes) > 12


def test_greedy_filling_needs_no_seed_and_a_draw_repeats_with_it() -> None:
    model = small_llada()
    assert fill_ids(model, ROWS, MASK, seeds=[1] * 5) == fill_ids(model, ROWS, MASK, seeds=[2] * 5)
    draw = Filling(temperature=3.0)
    first, again, other = (fill_ids(model, ROWS, MASK, BARRED, draw, seeds=[seed] * 5) for seed in (1, 1, 2))
    assert first == again != other
    assert fill_ids(model, [], MASK) == []


@pytest.mark.parametrize(
    ("n", "steps", "block", "plan"),
    [
        (0, None, None, []),
        (3, None, None, [(3, 1)] * 3),
        (7, 3, None, [(7, 3), (7, 2), (7, 2)]),
        (3, 9, None, [(3, 1)] * 3),
        (6, 4, 3, [(3, 2), (3, 1), (6, 2), (6, 1)]),
        (5, None, 2, [(2, 1), (2, 1), (4, 1), (4, 1), (5, 1)]),
        (5, 1, 2, [(2, 2), (4, 2), (5, 1)]),  # a step for each block, at least
    ],
)
def test_the_steps_share_the_masks(n: int, steps: int | None, block: int | None, plan: list[tuple[int, int]]) -> None:
    assert schedule(n, steps, block) == plan
    assert sum(count for _, count in plan) == n


def test_with_temperature_one_a_token_has_the_probability_of_the_softmax() -> None:
    logits, n = torch.tensor([0.0, 2.0, -torch.inf, 1.0, -3.0]), 4_000
    tokens, confidence = predictions(logits.expand(n, -1), Filling(temperature=1.0), torch.Generator().manual_seed(1))
    shares = torch.bincount(tokens, minlength=5) / n
    torch.testing.assert_close(shares, logits.softmax(dim=0), rtol=0, atol=0.02)
    torch.testing.assert_close(confidence, logits.softmax(dim=0)[tokens])
    cold, _ = predictions(logits.expand(9, -1), Filling(), torch.Generator())
    assert cold.tolist() == [1] * 9


def test_settings_out_of_range_are_refused() -> None:
    for values in ({"steps": 0}, {"block": -1}, {"temperature": -0.1}, {"remasking": "none"}, {"seed": -1}):
        (name,) = values
        with pytest.raises(UserError, match=f"^{name}=.*: expected "):
            Filling(**values)
