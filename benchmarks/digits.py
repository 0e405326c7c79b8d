"""ViT on scikit-learn's digits, 1,797 images of 8 x 8 pixels, compared with classical classifiers of the same pixels.

    pip install scikit-learn
    python benchmarks/digits.py [--splits 3] [--epochs 100] [--out digits.json]

Each split holds out 360 images, the same share of each digit. The ViT sees patches of 2 x 2 pixels. The weights of
the last step count. One thread; times are processor time.
"""

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.family.images.configs import ViTConfig
from transduce.family.images.vit import ViT
from transduce.training.optimizer import adam, learning_rate

LABELS = tuple("0123456789")
HELD_OUT = 360
D_MODEL = 64
BATCH = 64
PEAK_RATE = 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    classifiers: dict[str, Callable[..., list[int]]] = {
        "ViT": lambda *data, seed: vit_predictions(*data, seed=seed, epochs=args.epochs),
        "linear: logistic regression": of_library("linear_model", "LogisticRegression", max_iter=5_000),
        "nearest neighbour": of_library("neighbors", "KNeighborsClassifier", n_neighbors=1),
        "support vectors, RBF": of_library("svm", "SVC"),
    }
    rows = measure(classifiers, args.splits)
    print(f"\n| classifier | right of {HELD_OUT}, in % | least and most of {args.splits} splits | seconds |")
    print("|---|---|---|---|")
    for name, row in rows.items():
        low, high = min(row["right"]), max(row["right"])
        mean, seconds = statistics.mean(row["right"]), statistics.median(row["seconds"])
        print(f"| {name} | {mean:.1f} | {low:.1f} to {high:.1f} | {seconds:.1f} |")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(classifiers: dict[str, Callable[..., list[int]]], splits: int) -> dict[str, dict[str, list[float]]]:
    """Return for each classifier the percentage right and the processor time, for each split."""
    digits = library("datasets").load_digits()
    pixels, digit = digits.data / 16.0, digits.target
    rows: dict[str, dict[str, list[float]]] = {name: {"right": [], "seconds": []} for name in classifiers}
    for split in range(splits):
        x, x_held, y, y_held = library("model_selection").train_test_split(
            pixels, digit, test_size=HELD_OUT, stratify=digit, random_state=split
        )
        for name, predict in classifiers.items():
            started_at = time.process_time()
            predicted = predict(x, y, x_held, seed=split)
            rows[name]["seconds"].append(time.process_time() - started_at)
            right = sum(a == b for a, b in zip(predicted, y_held.tolist(), strict=True))
            rows[name]["right"].append(100 * right / len(y_held))
            print(f"split {split + 1}, {name}: {rows[name]['right'][-1]:.1f} %", file=sys.stderr)
    return rows


def library(module: str) -> Any:
    """Return a module of scikit-learn, which is not a dependency."""
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError:
        sys.exit("digits.py: expected scikit-learn, which has the images: pip install scikit-learn")


def of_library(module: str, name: str, **settings: Any) -> Callable[..., list[int]]:
    """Return a function that trains a classifier of scikit-learn and predicts the held-out images."""

    def predict(x: Any, y: Any, x_held: Any, seed: int) -> list[int]:
        return getattr(library(module), name)(**settings).fit(x, y).predict(x_held).tolist()

    return predict


def vit_predictions(x: Any, y: Any, x_held: Any, *, seed: int, epochs: int) -> list[int]:
    """Train a ViT of 3 layers and 102,666 parameters from nothing, and predict the held-out images."""
    torch.manual_seed(seed)
    images = as_images(x)
    digits = torch.tensor(y)
    held = as_images(x_held)
    model = ViT(
        ViTConfig(
            image_size=8,
            patch_size=2,
            d_model=D_MODEL,
            n_layers=3,
            n_heads=4,
            n_channels=1,
            d_ff=2 * D_MODEL,
            dropout=0.1,
        ),
        LABELS,
    )
    optimizer = adam(model.parameters())
    steps = epochs * -(-len(images) // BATCH)
    warmup = max(1, steps // 10)
    factor = PEAK_RATE * (D_MODEL * warmup) ** 0.5
    schedule = {"d_model": D_MODEL, "warmup_steps": warmup, "lr_factor": factor}
    step = 0
    for _ in range(epochs):
        for places in torch.randperm(len(images)).split(BATCH):
            step += 1
            rate = learning_rate(step, **schedule, max_steps=steps, decay_steps=steps // 2)
            for group in optimizer.param_groups:
                group["lr"] = rate
            F.cross_entropy(model(images[places]), digits[places]).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.inference_mode():
        return model(held).argmax(1).tolist()


def as_images(pixels: Any) -> Tensor:
    """Return pixels (B,64) in [0, 1] as images (B,1,8,8) in [-1, 1]."""
    return (torch.tensor(pixels, dtype=torch.float32) * 2 - 1).view(-1, 1, 8, 8)


if __name__ == "__main__":
    main()
