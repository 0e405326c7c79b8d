"""Members of the family beside the models of Hugging Face transformers with the same random weights."""

import math
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.form import Form, set_parameters
from transduce.family.settings import Settings

TOLERANCE = 1e-5  # of the largest value


def disturb(model: nn.Module) -> nn.Module:
    """Give each parameter a random part, also biases and norms."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def member_of(form: Form, theirs: Any, folder: Path) -> Any:
    """Return our model with the weights that `theirs` writes to `folder`."""
    theirs.save_pretrained(folder)
    ours = form.build(Settings(theirs.config.to_dict(), "config.json"))
    set_parameters(
        form.entries(ours), ours, without_prefix(form, safetensors.torch.load_file(folder / "model.safetensors"))
    )
    return ours.eval()


def without_prefix(form: Form, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(form.prefix): values for name, values in tensors.items()}


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, over the largest value."""
    return float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())


def gradient_difference(form: Form, ours: Any, theirs: Any, ids: Tensor) -> float:
    """Return the largest difference of the gradients of the mean loss of next tokens, of all parameters."""
    for logits in (ours(ids), theirs(ids).logits):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    tied = {"lm_head.weight"} if theirs.config.tie_word_embeddings else set()
    of_theirs = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None and name not in tied}
    expected = form.build(Settings(theirs.config.to_dict(), "config.json"))
    set_parameters(form.entries(expected), expected, without_prefix(form, of_theirs))
    pairs = zip(ours.named_parameters(), expected.parameters(), strict=True)
    # softmax cancels what a key's bias adds to all scores: its gradient is 0 but for rounding
    return max(
        difference(p.grad if p.grad is not None else torch.full_like(p, math.nan), q)
        for (name, p), q in pairs
        if not name.endswith("w_k.bias")
    )
