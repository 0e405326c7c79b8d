"""Small images and sizes for the members that see images."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transduce

SIZES = {
    "image_size": 12,
    "patch_size": 4,
    "num_channels": 2,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 60,
}


def random_images(height: int = 12, width: int = 12, count: int = 3, channels: int = 2) -> Tensor:
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(2))


def classify_alike(theirs: Any, folder: Path, size: int = 12) -> None:
    """Check that the folder of `theirs` classifies as they do, each image as if it was alone, also after a copy."""
    theirs.save_pretrained(folder / "theirs")
    transduce.family.load(folder / "theirs").save(folder / "ours")
    again, info = type(theirs).from_pretrained(folder / "ours", output_loading_info=True)
    assert not any(info.values())
    images = random_images(size, size)
    for path in folder / "theirs", folder / "ours":
        classifier = transduce.family.load(path)
        answers = classifier.classify(images)
        for answer, logits in zip(answers, again.eval()(images).logits, strict=True):
            expected = {f"LABEL_{i}": p for i, p in enumerate(logits.softmax(0).tolist())}
            assert answer == pytest.approx(expected, abs=1e-5)
        assert [classifier.classify(image[None])[0] for image in images] == answers
