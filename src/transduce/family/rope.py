"""Rotary positions (RoPE) for texts that are longer than in the training: ways to scale the frequencies.

Pair i of a head of K values is rotated at position p by the angle p f_i (Su et al. 2021, 3.2.2). With a factor s:

    f_i = theta^(-2i/K)               RoPE
    f_i / s                           linear: position interpolation (Chen et al. 2023, eq. 4)
    (theta s^(K/(K-2)))^(-2i/K)       NTK-aware: the fastest pair keeps its frequency, the slowest is divided by s
    the same, with s n / L - (s - 1)  dynamic: for a text of n > L tokens
    between f_i / s and f_i           YaRN (Peng et al. 2023, 3.2 to 3.4), and Llama 3.1

L is the longest text of the training. The names of the values are as in Hugging Face's `rope_parameters`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def ntk_theta(theta: float, factor: float, width: int) -> float:
    """Return the base of NTK-aware scaling for heads of `width` values: RoPE with this base, and nothing else."""
    return theta * factor ** (width / (width - 2))


@dataclass(frozen=True)
class Rope:
    """Rotary positions, not scaled. theta: the base. The classes below scale the frequencies."""

    theta: float = 10_000.0

    @property
    def amplitude(self) -> float:
        """The factor of rotated queries and of rotated keys."""
        return 1.0

    def frequencies(self, width: int, lengths: Tensor) -> Tensor:
        """Return f_i of a head of `width` values, (K/2,), or broadcastable to (N,T,K/2).

        lengths: numbers of tokens of the texts so far, (1,) or (N,1).
        """
        return _frequencies(self.theta, width, lengths.device)

    def angles(self, positions: Tensor, width: int) -> Tensor:
        """Return the angles at positions (T,) or (N,T): (T,K/2) or (N,1,T,K/2)."""
        frequencies = self.frequencies(width, positions.amax(dim=-1, keepdim=True) + 1)
        angles = positions[..., None].float() * frequencies
        return angles[:, None] if positions.dim() == 2 else angles


def _frequencies(theta: float | Tensor, width: int, device: torch.device) -> Tensor:
    return 1 / theta ** (torch.arange(0, width, 2, device=device).float() / width)


@dataclass(frozen=True)
class LinearRope(Rope):
    """Every position divided by `factor`."""

    factor: float = 1.0

    def frequencies(self, width: int, lengths: Tensor) -> Tensor:
        return super().frequencies(width, lengths) / self.factor


@dataclass(frozen=True)
class DynamicRope(Rope):
    """The NTK-aware base of a text of n tokens; up to `n_positions` RoPE as in training.

    A longer text has other angles at all its positions, but keys in a cache keep theirs. So beyond `n_positions` the
    output depends on how a text is cut into calls, here as in Hugging Face.
    """

    factor: float = 1.0
    n_positions: int = 2_048

    def frequencies(self, width: int, lengths: Tensor) -> Tensor:
        growth = self.factor * lengths.clamp(min=self.n_positions) / self.n_positions - (self.factor - 1)
        theta = self.theta * growth[..., None] ** (width / (width - 2))
        return _frequencies(theta, width, lengths.device)


@dataclass(frozen=True)
class YarnRope(Rope):
    """High frequencies stay, low ones are divided by `factor`, by their number of turns within the training length.

    n_positions: the longest text of the training, L. beta_fast, beta_slow: turns within L above which a frequency
    stays, and below which it is divided; between them is a ramp over i. attention_factor: the amplitude; None:
    0.1 ln s + 1. truncate: whether the ramp begins and ends at whole i.
    """

    factor: float = 1.0
    n_positions: int = 2_048
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def ramp(self, width: int) -> tuple[float, float]:
        """Return the i after which frequencies begin to be divided, and the i from which they are divided by s."""
        ends = [
            width * math.log(self.n_positions / (turns * 2 * math.pi)) / (2 * math.log(self.theta))
            for turns in (self.beta_fast, self.beta_slow)
        ]
        begin, end = (math.floor(ends[0]), math.ceil(ends[1])) if self.truncate else ends
        return max(begin, 0), min(end, width - 1)

    def frequencies(self, width: int, lengths: Tensor) -> Tensor:
        unscaled = super().frequencies(width, lengths)
        begin, end = self.ramp(width)
        places = torch.arange(width // 2, device=lengths.device).float()
        share = ((places - begin) / ((end - begin) or 0.001)).clamp(0, 1)
        return unscaled / self.factor * share + unscaled * (1 - share)


@dataclass(frozen=True)
class Llama3Rope(Rope):
    """The scaling of Llama 3.1: a frequency of at least `high_freq_factor` turns within L stays.

    One of at most `low_freq_factor` turns is divided by `factor`; between them the share is linear in the turns.
    n_positions: L.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    n_positions: int = 8_192

    def frequencies(self, width: int, lengths: Tensor) -> Tensor:
        unscaled = super().frequencies(width, lengths)
        turns = self.n_positions * unscaled / (2 * math.pi)
        share = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return unscaled / self.factor * (1 - share) + unscaled * share


UNSCALED = Rope()
