"""Log-mel features beside Hugging Face transformers, and beside sounds whose spectrum is known."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from transduce.family.sound.log_mel import RATE, log_mel, mel_filters


def sound(kind: str, n: int) -> torch.Tensor:
    time = torch.arange(n) / RATE
    noise = torch.randn(n, generator=torch.Generator().manual_seed(1))
    kinds = {
        "noise": 0.1 * noise,
        "tone": torch.sin(2 * math.pi * 440 * time),
        "silence": torch.zeros(n),
        "speech-like": torch.sin(2 * math.pi * (200 + 50 * time) * time) * (time % 0.5 < 0.3) + 1e-3 * noise,
    }
    return kinds[kind]


@pytest.mark.parametrize("kind", ["noise", "tone", "silence", "speech-like"])
@pytest.mark.parametrize("n_mels", [80, 128])
def test_features_are_those_of_hugging_face(kind: str, n_mels: int) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    extractor: Any = transformers.WhisperFeatureExtractor(feature_size=n_mels)
    samples = sound(kind, 5 * RATE + 77)
    longer = torch.cat([samples, torch.zeros(30 * RATE - len(samples))])
    expected = extractor(samples.numpy(), sampling_rate=RATE, return_tensors="np").input_features[0]
    features = log_mel(longer, n_mels)
    assert features.shape == expected.shape == (n_mels, 3_000)
    assert np.abs(features.numpy() - expected).max() < 1e-5
    # A sound of any length, as in a long transcription
    expected = extractor(
        samples.numpy(), sampling_rate=RATE, return_tensors="np", padding="longest", truncation=False
    ).input_features[0]
    assert np.abs(log_mel(samples, n_mels).numpy() - expected).max() < 1e-5


def test_a_tone_is_loudest_in_its_band() -> None:
    middles = mel_filters(80).argmax(dim=1) * 40  # Hz
    for hertz in (400, 1_000, 4_000):
        tone = torch.sin(2 * math.pi * hertz * torch.arange(RATE) / RATE)
        band = int(log_mel(tone)[:, 50].argmax())
        assert abs(int(middles[band]) - hertz) <= 100


def test_blocks_do_not_change_features(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = sound("noise", 2 * RATE)
    whole = log_mel(samples)
    monkeypatch.setattr("transduce.family.sound.log_mel.BLOCK", 7)
    assert torch.allclose(log_mel(samples), whole, atol=1e-6)
