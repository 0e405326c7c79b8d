"""Members of the family compared with the models of Hugging Face transformers with the same random weights."""

import copy
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.hugging_face.folder import read_member

TOLERANCE = 1e-5  # of the largest value


def disturb(model: nn.Module) -> nn.Module:
    """Give each parameter a random part, also biases and norms."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def member_of(theirs: Any, folder: Path) -> Any:
    """Return our model with the weights that `theirs` writes to `folder`."""
    theirs.save_pretrained(folder)
    return read_member(folder).model


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, over the largest value."""
    return float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())


def gradient_difference(ours: Any, theirs: Any, ids: Tensor) -> float:
    """Return the largest difference of the gradients of the mean loss of next tokens, of all parameters."""
    logits = ours(ids), theirs(ids).logits
    losses = [F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) for scores in logits]
    return gradient_difference_of(ours, theirs, losses)


def gradient_difference_of(ours: Any, theirs: Any, losses: Sequence[Tensor]) -> float:
    """Return the largest difference of the gradients of two losses, of ours and of theirs, of all parameters."""
    for loss in losses:
        loss.backward()
    gradients = copy.deepcopy(theirs)
    for new, parameter in zip(gradients.parameters(), theirs.parameters(), strict=True):
        new.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    with TemporaryDirectory() as folder:
        expected = dict(member_of(gradients, Path(folder)).named_parameters())
    # softmax cancels what a key's bias adds to all scores: its gradient is 0 except for rounding
    pairs = [
        (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad, expected[name])
        for name, parameter in ours.named_parameters()
        if not name.endswith("w_k.bias")
    ]
    differences = [difference(*pair) for pair in pairs if any(gradient.any() for gradient in pair)]
    return float(torch.tensor(differences).max())  # NaN if one is; `max` keeps only a NaN that is the first
