"""The floating-point operations of the products in a training step.

A multiplication and its addition are two operations. The count has the products of matrices, attention and the steps of
an LSTM, forward and backward, padding included. It has no elementwise work: softmax, normalisation, dropout, Adam.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from transduce.data.batches import Batch
from transduce.model.build import Model
from transduce.training.task import translation_loss


def step_flops(model: Model, micro_batches: Sequence[Batch], label_smoothing: float) -> int:
    """Run forward and backward passes of the loss over `micro_batches` on the CPU, and return their FLOPs.

    The .grad of the parameters does not change. The count depends neither on the weights nor on the precision.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    with FlopCounterMode(display=False, custom_mapping=ADDED_COUNTS) as counter:
        for batch in micro_batches:
            torch.autograd.grad(translation_loss(model, batch, label_smoothing), parameters)
    return counter.get_total_flops()


def flops_per_token(model: nn.Module, inputs: Tensor, targets: Tensor) -> int:
    """Return the FLOPs of a training step of a language model, for each token of a batch of ids (R,T).

    The gradients of the model are removed, and it is in evaluation mode afterwards.
    """
    model.train()
    with FlopCounterMode(display=False, custom_mapping=ADDED_COUNTS) as counter:
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    model.zero_grad()
    model.eval()
    return round(counter.get_total_flops() / inputs.numel())


# ---- operations without a count in torch -------------------------------------------------------------------------


def _lstm(x: torch.Size, w_x: torch.Size, w_h: torch.Size, *_: object, **__: object) -> int:
    """Count a layer in one direction over x (T,N,I): four gates (4H) a step, from the input and the last state."""
    return 2 * x[0] * x[1] * (w_x[0] * w_x[1] + w_h[0] * w_h[1])


def _lstm_backward(x: torch.Size, w_x: torch.Size, w_h: torch.Size, *_: object, **__: object) -> int:
    """Count two products for each product of the forward pass: the gradients of its input and of its weights."""
    return 2 * _lstm(x, w_x, w_h)


def _attention(queries: torch.Size, keys: torch.Size, values: torch.Size, *_: object, **__: object) -> int:
    return sdpa_flop_count(queries, keys, values)


def _attention_backward(
    gradient: torch.Size, queries: torch.Size, keys: torch.Size, values: torch.Size, *_: object, **__: object
) -> int:
    return sdpa_backward_flop_count(gradient, queries, keys, values)


ADDED_COUNTS = {
    torch.ops.aten.mkldnn_rnn_layer: _lstm,
    torch.ops.aten.mkldnn_rnn_layer_backward: _lstm_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
