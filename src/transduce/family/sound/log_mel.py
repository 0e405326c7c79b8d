"""Log-mel features: how strong each band of a sound is in each moment (Radford et al. 2022, section 2.2).

A frame is 25 ms of the sound, and frames begin every 10 ms. Its spectrum has 201 frequencies up to 8 kHz. Bands are
triangles of equal width on the mel scale, on which distances are as the ear hears them, and of equal area.

Letters: N samples, F frames, M bands.
"""

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

RATE = 16_000  # samples per second
WIDTH, STEP = 400, 160  # samples of a frame, and from the start of a frame to the next one
N_FREQUENCIES = WIDTH // 2 + 1
QUIET = 1e-10  # power that counts as silence
RANGE = 8.0  # powers of ten below the strongest band of the sound, under which all is equally quiet
BLOCK = 3_000  # frames whose spectra are in memory at a time


def log_mel(samples: Tensor, n_mels: int = 80) -> Tensor:
    """Return the features (M,F) of a sound (N,) of `RATE` samples per second, with F = N // 160.

    The sound has more than 200 samples. It is continued at both ends by its mirror image. A feature is log_10 of the
    power in a band, at least `RANGE` below the largest one, plus 4, over 4: between -1 and 1.5 in most sounds.
    """
    padded = F.pad(samples[None], (WIDTH // 2, WIDTH // 2), mode="reflect")[0]
    frames = padded.unfold(0, WIDTH, STEP)[: len(samples) // STEP]  # (F, WIDTH)
    window = torch.hann_window(WIDTH, device=samples.device)
    filters = mel_filters(n_mels).to(samples.device)
    powers = [torch.fft.rfft(block * window).abs().square() @ filters.T for block in frames.split(BLOCK)]
    features = torch.cat(powers).clamp(min=QUIET).log10().T.contiguous()
    return (features.clamp(min=features.max() - RANGE) + 4) / 4


@functools.lru_cache(maxsize=4)
def mel_filters(n_mels: int) -> Tensor:
    """Return the weight of each frequency in each band, (M, N_FREQUENCIES)."""
    edges = _hertz(
        torch.linspace(0, _mel(RATE / 2), n_mels + 2, dtype=torch.float64)
    )  # a band ends where two others do
    frequencies = torch.linspace(0, RATE / 2, N_FREQUENCIES, dtype=torch.float64)
    lower, middle, upper = (edges[i : i + n_mels, None] for i in range(3))
    rising, falling = (frequencies - lower) / (middle - lower), (upper - frequencies) / (upper - middle)
    return (torch.minimum(rising, falling).clamp(min=0) * 2 / (upper - lower)).float()


# ---- the mel scale of Slaney 1998: linear up to 1 kHz, then logarithmic -------------------------------------------

LINEAR = 1_000.0  # Hz
MELS_PER_HERTZ = 3 / 200
MELS_PER_E = 27 / math.log(6.4)  # mels from a frequency to e times as much


def _mel(hertz: float) -> float:
    """Return the place on the mel scale of a frequency above `LINEAR`."""
    return LINEAR * MELS_PER_HERTZ + math.log(hertz / LINEAR) * MELS_PER_E


def _hertz(mels: Tensor) -> Tensor:
    """Return the frequencies of places on the mel scale."""
    linear = mels / MELS_PER_HERTZ
    return torch.where(linear < LINEAR, linear, LINEAR * ((mels - LINEAR * MELS_PER_HERTZ) / MELS_PER_E).exp())
