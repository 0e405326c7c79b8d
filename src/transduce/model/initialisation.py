"""Initialisation as in the authors' code of June 2017. The paper does not describe it."""

import math
from collections.abc import Iterable

from torch import Tensor, nn

from transduce.model.attention import MultiHeadAttention
from transduce.model.positions import LearnedPositions


def initialise(model: nn.Module, d_model: int, tables: Iterable[Tensor]) -> None:
    """Draw every parameter again from torch's global generator.

    tables: the embeddings and the untied output matrix, each once, in the order in which they are drawn.

    | parameter                      | values                                                            |
    |--------------------------------|-------------------------------------------------------------------|
    | matrices                       | Glorot uniform: U(-a, a), a = sqrt(6 / (fan_in + fan_out))        |
    | Q, K, V of self-attention      | the same, as one matrix of joint fan_out 2 h d_k + h d_v          |
    | K, V of cross-attention        | the same, as one matrix of joint fan_out h d_k + h d_v            |
    | embeddings, untied output      | N(0, 1/d_model)                                                   |
    | learned positions              | N(0, 1/d_model)                                                   |
    | biases; LayerNorm              | 0; gain 1 and bias 0                                              |

    The joint fan_out equals the fan_out of the fused projections in that code. Compared with separate Glorot matrices,
    Q, K and V of the base model start 1/sqrt(2) times as large in self-attention, and K and V 0.816 times in
    cross-attention. This keeps post-norm training stable.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            _glorot([module])
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, LearnedPositions):
            nn.init.normal_(module.table, std=d_model**-0.5)
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            queries = [] if name.endswith("cross_attention") else [module.w_q]
            _glorot([*queries, module.w_k, module.w_v])
    for table in tables:
        nn.init.normal_(table, std=d_model**-0.5)


def _glorot(layers: list[nn.Linear]) -> None:
    """Draw the weights of `layers` by Glorot's uniform rule, as one matrix with their outputs side by side."""
    bound = math.sqrt(6 / (layers[0].in_features + sum(layer.out_features for layer in layers)))
    for layer in layers:
        nn.init.uniform_(layer.weight, -bound, bound)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
