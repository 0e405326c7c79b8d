"""CTC beside loops over all paths."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from transduce.family.sound.ctc import BLANK, ctc_losses, frames_needed, greedy, prefix_beam

Text = tuple[int, ...]


def random_log_probs(seed: int, frames: int = 5, tokens: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(frames, tokens, generator=generator)).log_softmax(dim=1)


def text_of(path: Text) -> Text:
    """Return a path without repetitions of neighbours, and then without blanks."""
    kept = [token for i, token in enumerate(path) if i == 0 or token != path[i - 1]]
    return tuple(token for token in kept if token != BLANK)


def probabilities(log_probs: Tensor) -> dict[Text, float]:
    """Return the probability of each text: the sum over its paths."""
    sums = dict[Text, float]()
    for path in itertools.product(range(log_probs.size(1)), repeat=len(log_probs)):
        log_prob = sum(float(log_probs[frame, token]) for frame, token in enumerate(path))
        sums[text_of(path)] = sums.get(text_of(path), 0.0) + math.exp(log_prob)
    return sums


@pytest.mark.parametrize("text", [(), (1,), (2, 3), (1, 1), (3, 3, 3), (1, 2, 1, 2)])
def test_the_loss_is_the_sum_over_all_paths(text: Text) -> None:
    log_probs = random_log_probs(1)
    padded = torch.cat([log_probs, torch.zeros(2, 4)])[None]  # two frames of padding
    target = torch.tensor([[*text, 3, 3]])  # and two tokens
    (loss,) = ctc_losses(padded, torch.tensor([5]), target, torch.tensor([len(text)]))
    assert math.exp(-loss) == pytest.approx(probabilities(log_probs)[text], rel=1e-4)


def test_a_text_with_too_many_tokens_has_no_path() -> None:
    log_probs = random_log_probs(2, frames=3)
    for text in ((1, 1), (1, 2, 3), (1, 1, 2), (2, 2, 2)):
        (loss,) = ctc_losses(log_probs[None], torch.tensor([3]), torch.tensor([text]), torch.tensor([len(text)]))
        needed = frames_needed(torch.tensor([[*text, 1, 1]]), torch.tensor([len(text)])).item()
        assert (needed > 3) == bool(loss.isinf()) == (text not in probabilities(log_probs))


@pytest.mark.parametrize("seed", range(20))
def test_the_beam_finds_the_most_likely_text(seed: int) -> None:
    """A beam as wide as all beginnings is exact, and adds up the paths of each."""
    log_probs = random_log_probs(seed)
    sums = probabilities(log_probs)
    assert prefix_beam(log_probs.numpy(), beam_size=1_000, n_tokens=None) == [*max(sums, key=lambda text: sums[text])]


def test_greedy_is_the_text_of_the_most_likely_path() -> None:
    log_probs = random_log_probs(3, frames=30)
    assert greedy(log_probs.numpy()) == [*text_of(tuple(log_probs.argmax(1).tolist()))]


def test_a_text_of_many_paths_wins_over_the_most_likely_path() -> None:
    """Graves et al. 2006, figure 2: two frames, of which each prefers the blank, still say the token."""
    log_probs = np.log([[0.6, 0.4], [0.6, 0.4]])
    assert greedy(log_probs) == [] and prefix_beam(log_probs) == [1]  # 0.36, and 0.4 * 0.4 + 2 * 0.24


def test_equal_frames_need_a_blank_between_equal_tokens() -> None:
    sure = np.full((3, 3), -20.0)
    for frame, token in enumerate((1, BLANK, 1)):
        sure[frame, token] = 0.0
    assert greedy(sure) == prefix_beam(sure) == [1, 1]
    sure[1] = sure[0]
    assert greedy(sure) == prefix_beam(sure) == [1]


def test_a_long_sound_does_not_lose_its_probability() -> None:
    log_probs = random_log_probs(4, frames=3_000, tokens=40)
    text = prefix_beam(log_probs.numpy(), beam_size=2, n_tokens=2)
    assert len(text) > 1_000
