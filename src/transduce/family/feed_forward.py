"""The gated feed-forward network, which Llama, version 1.1 of T5 and the largest DINOv2 have."""

from collections.abc import Callable

from torch import Tensor, nn

from transduce.model.dropout import Dropout


class GatedFeedForward(nn.Module):
    """The network W_2 (activation(W_1 x) * W_3 x) (Shazeer 2020).

    bias: True if the matrices have biases. dropout: on the product.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: Callable[[Tensor], Tensor],
        *,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff, bias=bias)
        self.w_2 = nn.Linear(d_ff, d_model, bias=bias)
        self.w_3 = nn.Linear(d_model, d_ff, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,D)."""
        return self.w_2(self.dropout(self.activation(self.w_1(x)) * self.w_3(x)))
