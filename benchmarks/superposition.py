"""Superposition in a toy model (Elhage et al. 2022): a few dimensions hold more features, if these are sparse.

    python benchmarks/superposition.py

The model squeezes n = 20 features into m = 5 dimensions and restores them: x' = relu(W^T W x + b). A feature is 0 with
the probability S, its sparsity, otherwise uniform in [0, 1]. The loss is the mean squared error, and all features are
equally important. One model is trained for each S, all together, by Adam with a learning rate that falls to 0.

Printed for each S, as means over 8 models with other first weights:

    represented   features i with |W_i|^2 > 0.5
    dimensions    of a feature, m / |W|^2 (section "The geometry of superposition")
    halves        of the represented features, those that share one dimension with an opposite one: 0.45 < D_i < 0.55
    loss          relative to a model that represents nothing

with D_i = |W_i|^2 / sum over j of (W_i W_j / |W_i|)^2, the share of a dimension that feature i has. 2 minutes of one
thread.
"""

import argparse

import torch
from torch import Tensor

FEATURES, DIMENSIONS, MODELS = 20, 5, 8
SPARSITIES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)
BATCH = 512


def train(sparsities: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return W (S,M,m,n), the losses (S,M) at the end, and of models that answer with the best constant (S,M)."""
    torch.manual_seed(1)
    shape = len(sparsities), MODELS
    weights = (torch.randn(*shape, DIMENSIONS, FEATURES) / FEATURES**0.5).requires_grad_()
    biases = torch.zeros(*shape, 1, FEATURES, requires_grad=True)
    optimizer = torch.optim.Adam([weights, biases], lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, steps)

    def squared_errors(rows: int) -> tuple[Tensor, Tensor]:
        is_there = torch.rand(*shape, rows, FEATURES) >= sparsities[:, None, None, None]
        features = torch.rand(*shape, rows, FEATURES) * is_there
        restored = torch.relu(features @ weights.mT @ weights + biases)
        constant = features.mean(-2, keepdim=True)
        return (restored - features).square().mean((-2, -1)), (constant - features).square().mean((-2, -1))

    for _ in range(steps):
        loss, _ = squared_errors(BATCH)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return weights.detach(), *squared_errors(20 * BATCH)


def dimensionalities(weights: Tensor) -> Tensor:
    """Return D_i of each feature, (...,n), for W (...,m,n)."""
    squares = weights.square().sum(-2)
    products = (weights.mT @ weights).square().sum(-1)  # of W_i with all W_j
    return squares.square() / products.clamp(min=1e-12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4_000)
    options = parser.parse_args()
    weights, losses, nothing = train(torch.tensor(SPARSITIES), options.steps)
    squares, shares = weights.square().sum(-2), dimensionalities(weights)
    is_there = squares > 0.5
    is_half = is_there & (shares > 0.45) & (shares < 0.55)
    print(f"{FEATURES} features in {DIMENSIONS} dimensions\n\n{'S':>5} {'represented':>12} {'dimensions':>11} ", end="")
    print(f"{'halves':>7} {'loss':>6}")
    for i, sparsity in enumerate(SPARSITIES):
        represented = is_there[i].sum(-1).float().mean()
        dimensions = (DIMENSIONS / squares[i].sum(-1)).mean()
        halves = is_half[i].sum() / is_there[i].sum().clamp(min=1)
        print(f"{sparsity:5} {represented:12.1f} {dimensions:11.2f} {halves:7.0%} {(losses / nothing)[i].mean():6.2f}")


if __name__ == "__main__":
    main()
