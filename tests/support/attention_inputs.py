"""Random inputs of attention functions, and the comparison of two functions, gradients included."""

import torch
from torch import Tensor

from transduce.model.attention import Attention, Mask

B = 2
H = 3
K = 8
W = 6


def random_inputs(n: int, n_queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (B,H,T,K), keys (B,H,n,K) and values (B,H,n,W)."""
    generator = torch.Generator().manual_seed(n)
    sizes = ((n_queries or n, K), (n, K), (n, W))
    queries, keys, values = (torch.randn(B, H, *size, generator=generator) for size in sizes)
    return queries, keys, values


def real(n: int) -> Tensor:
    """Return the mask (B,1,1,n) of a row of n positions and one of 2/3 n."""
    return (torch.arange(n) < torch.tensor([[n], [max(1, 2 * n // 3)]]))[:, None, None]


def compare(attention: Attention, expected: Attention, mask: Mask, n: int, *, tolerance: float = 1e-5) -> None:
    """Check the outputs at real positions of random inputs, and the gradients of those outputs."""
    visible = mask.mT if isinstance(mask, Tensor) and mask.size(-2) == 1 else torch.ones(n, 1)
    figures = []
    for function in (attention, expected):
        inputs = [x.requires_grad_() for x in random_inputs(n)]
        output = function(*inputs, mask, 0.0) * visible
        weights = torch.linspace(-1, 1, output.numel()).view_as(output)
        figures.append([output, *torch.autograd.grad((output * weights).sum(), inputs)])
    for ours, theirs in zip(*figures, strict=True):
        assert (ours - theirs).abs().max() <= tolerance * max(1, theirs.abs().max())
