# pyright: reportPrivateImportUsage=false
# (torch's functions for lists of tensors)
"""The weights of attention and feed-forward networks in bf16, for training on a GPU.

Autocast casts each weight once in a micro-batch, and its gradient back: 384 kernels for the base model. Here a copy of
the model holds these weights in bf16. One pass over all of them writes them, once a step, and another adds their
gradients after each micro-batch. The numbers are the same.

    fp32 weights -> write -> copy of the model -> forward and backward -> bf16 gradients -> add -> .grad in fp32
"""

import copy

import torch
from torch import Tensor, nn

from transduce.config.schema import TrainConfig
from transduce.model.attention import MultiHeadAttention
from transduce.model.transformer import FeedForward
from transduce.training import sharding


class Bf16Weights:
    """A copy of `model`, to compute gradients with. It has all other parameters in common with `model`."""

    def __init__(self, model: nn.Module) -> None:
        self.weights: list[Tensor] = [*weights_of_products(model)]
        self.copies: list[Tensor] = [nn.Parameter(w.detach().bfloat16(), w.requires_grad) for w in self.weights]
        common = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        own = {id(weight): twin for weight, twin in zip(self.weights, self.copies, strict=True)}
        self.model = copy.deepcopy(model, common | own)

    @torch.no_grad()
    def write(self) -> None:
        """Write the weights of the model to the copy."""
        torch._foreach_copy_(self.copies, self.weights)

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Move the gradients of the copy to the weights of the model."""
        everything = zip(self.weights, self.copies, strict=True)
        pairs = [(weight, twin.grad) for weight, twin in everything if twin.grad is not None]
        if not pairs:
            return
        gradients = [torch.empty_like(weight) for weight, _ in pairs]
        torch._foreach_copy_(gradients, [gradient for _, gradient in pairs])
        sums: list[tuple[Tensor, Tensor]] = []
        for (weight, _), gradient in zip(pairs, gradients, strict=True):
            if weight.grad is None:
                weight.grad = gradient
            else:
                sums.append((weight.grad, gradient))
        if sums:
            torch._foreach_add_([total for total, _ in sums], [gradient for _, gradient in sums])
        for twin in self.copies:
            twin.grad = None


def bf16_weights(model: nn.Module, config: TrainConfig, device: torch.device) -> Bf16Weights | None:
    """Return the weights in bf16; None on a CPU, in fp32, for a model in shards, or without such weights."""
    if device.type != "cuda" or config.precision != "bf16" or any(map(sharding.is_sharded, model.parameters())):
        return None
    return Bf16Weights(model) if weights_of_products(model) else None


def weights_of_products(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the linear layers of attention and feed-forward networks."""
    networks = [module for module in model.modules() if isinstance(module, (MultiHeadAttention, FeedForward))]
    layers = [layer for network in networks for layer in network.modules() if isinstance(layer, nn.Linear)]
    return [*dict.fromkeys(parameter for layer in layers for parameter in layer.parameters())]
