"""DALL-E on scikit-learn's digits: it draws the digit that a caption names, and a classifier judges the drawings.

    pip install scikit-learn
    python benchmarks/digits_drawn.py [--steps 2000] [--seed 1]

A discrete autoencoder of 32 codes makes 4 x 4 codes of 8 x 8 pixels. A decoder learns the caption, one of ten
tokens, and the codes. Both have random weights at the start, and see 1,437 images; 360 are held out. The classifier,
support vectors, learned the same images, and also judges the held-out ones and what the autoencoder makes of them.
"""

import argparse
import statistics
from typing import Any

import torch
from digits import HELD_OUT, as_images, library
from shapes import train
from torch import Tensor

from transduce.family.images.configs import DallEConfig
from transduce.family.images.dalle import DallE, DiscreteAutoencoder

CONFIG = DallEConfig(
    n_text_ids=11, n_text=2, n_codes=32, side=4, d_model=64, n_layers=4, n_heads=4, n_channels=1, d_pixels=64
)
START = 10  # id before a caption
BATCH = 64
DRAWINGS = 100  # of each digit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    digits = library("datasets").load_digits()
    x, x_held, y, y_held = library("model_selection").train_test_split(
        digits.data / 16.0, digits.target, test_size=HELD_OUT, stratify=digits.target, random_state=0
    )
    judge = library("svm").SVC().fit(x, y)
    autoencoder = train_autoencoder(as_images(x), args.steps)
    model = train_decoder(captions(torch.tensor(y)), autoencoder.codes(as_images(x)), args.steps)
    digits_to_draw = torch.arange(10).repeat(DRAWINGS)
    with torch.inference_mode():
        again = pixels(autoencoder.decode(autoencoder.codes(as_images(x_held))))
        drawn = pixels(autoencoder.decode(model.draw(captions(digits_to_draw))))
    print("| images | named as they should be, in % | median distance to the nearest training image |\n|---|---|---|")
    rows = {
        "held out": (x_held, y_held),
        "held out, through the codes": (again, y_held),
        "drawn": (drawn, digits_to_draw.numpy()),
    }
    for name, (images, truth) in rows.items():
        right = 100 * (judge.predict(images) == truth).mean()
        print(f"| {name} | {right:.1f} | {distance(images, x):.2f} |")


def train_autoencoder(images: Tensor, steps: int) -> DiscreteAutoencoder:
    """Train the autoencoder, at a temperature that falls from 1 to 1/8 in the first half of the steps."""
    model, step = DiscreteAutoencoder(CONFIG), 0

    def loss() -> Tensor:
        nonlocal step
        step += 1
        temperature = max(1 / 8, 1 - 2 * step / steps)
        return model.loss(images[torch.randint(len(images), (BATCH,))], temperature, beta=1e-4)

    train(model, loss, steps)
    return model.eval()


def train_decoder(texts: Tensor, codes: Tensor, steps: int) -> DallE:
    """Train the decoder of captions and codes."""
    model = DallE(CONFIG)

    def loss() -> Tensor:
        rows = torch.randint(len(codes), (BATCH,))
        return model.loss(texts[rows], codes[rows])

    train(model, loss, steps)
    return model.eval()


def captions(digits: Tensor) -> Tensor:
    """Return the ids (B,2) of captions."""
    return torch.stack([torch.full_like(digits, START), digits], dim=1)


def pixels(images: Tensor) -> Any:
    """Return images (B,1,8,8) in [-1, 1] as pixels (B,64) in [0, 1], the inverse of `as_images`."""
    return ((images.flatten(1) + 1) / 2).clamp(0, 1).numpy()


def distance(images: Any, others: Any) -> float:
    """Return the median distance of an image to the nearest of the others."""
    nearest = torch.cdist(torch.tensor(images).double(), torch.tensor(others).double()).min(dim=1).values
    return statistics.median(nearest.tolist())


if __name__ == "__main__":
    main()
