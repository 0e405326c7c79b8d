"""How many floating-point operations a training step takes: counted on the products it makes, not assumed.

A multiplication and its addition are two. Counted are products of matrices, attention and the steps of an LSTM, forward
and backward, padding included; what is done value by value (softmax, normalisation, dropout, Adam) is not.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from transduce.data.batches import Batch
from transduce.model.build import Model
from transduce.training.gradients import batch_loss

Shape = Sequence[int]


def step_flops(model: Model, micro_batches: Sequence[Batch], label_smoothing: float) -> int:
    """The FLOPs of a forward and a backward pass of the loss over `micro_batches`, which are run for it, on the CPU.

    Gradients are left as they are. The count does not depend on the values of the weights, nor on the precision.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    with FlopCounterMode(display=False, custom_mapping=UNKNOWN_TO_TORCH) as counter:
        for batch in micro_batches:
            torch.autograd.grad(batch_loss(model, batch, label_smoothing), parameters)
    return counter.get_total_flops()


# ---- operations that torch's counter does not know ---------------------------------------------------------------


def _lstm(x: Shape, w_x: Shape, w_h: Shape, *_: Any, **__: Any) -> int:
    """A layer in one direction over x (T,N,I): the four gates (4H) of each step, from its input and the last state."""
    return 2 * x[0] * x[1] * (w_x[0] * w_x[1] + w_h[0] * w_h[1])


def _lstm_backward(x: Shape, w_x: Shape, w_h: Shape, *_: Any, **__: Any) -> int:
    """Each product of the forward pass gives two: the gradients of its input and of its weights."""
    return 2 * _lstm(x, w_x, w_h)


def _attention(queries: Shape, keys: Shape, values: Shape, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(queries, keys, values)


def _attention_backward(gradient: Shape, queries: Shape, keys: Shape, values: Shape, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient, queries, keys, values)


UNKNOWN_TO_TORCH = {
    torch.ops.aten.mkldnn_rnn_layer: _lstm,
    torch.ops.aten.mkldnn_rnn_layer_backward: _lstm_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
