"""The four kinds of layer that Table 1 compares, as real layers: (B,n,D) -> (B,n,D), in the paper's order.

    kind                        | operations | sequential | longest path
    ----------------------------|------------|------------|-------------
    self-attention              | n^2 d      | 1          | 1
    recurrent                   | n d^2      | n          | n
    convolutional               | k n d^2    | 1          | log_k n
    self-attention (restricted) | r n d      | 1          | n / r

The attention layers omit the projections of section 3.2.2 (4 n d^2 operations), as the table does. The four kinds
differ in the sums and products between positions.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    """softmax(x x^T / sqrt(d)) x: every position attends to every other (eq. 1), in one head."""

    def forward(self, x: Tensor) -> Tensor:
        """(B,n,D) -> (B,n,D)."""
        weights = (x @ x.transpose(1, 2) / math.sqrt(x.size(2))).softmax(dim=2)  # (B,n,n)
        return weights @ x


class RestrictedSelfAttention(nn.Module):
    """Each position attends to `window` positions: itself, and half of the rest on either side (section 4)."""

    def __init__(self, window: int) -> None:
        super().__init__()
        if window % 2 == 0:
            raise ValueError(f"window={window}: expected an odd number, with equally many positions on both sides")
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        """(B,n,D) -> (B,n,D), without an n x n matrix: blocks of queries attend to their blocks of keys."""
        n, reach = x.size(1), self.window // 2
        block = max(reach, 1)
        padding = -n % block
        padded = F.pad(x, (0, 0, reach, reach + padding))  # (B,reach+n+padding+reach,D)
        queries = F.pad(x, (0, 0, 0, padding)).unflatten(1, (-1, block))  # (B,N,block,D)
        keys = padded.unfold(1, block + 2 * reach, block).transpose(2, 3)  # (B,N,block+2*reach,D)
        scores = queries @ keys.transpose(2, 3) / math.sqrt(x.size(2))  # (B,N,block,block+2*reach)
        weights = scores.masked_fill(~self._mask(n, block, x.device), -math.inf).softmax(dim=3)
        return (weights @ keys).flatten(1, 2)[:, :n]

    def _mask(self, n: int, block: int, device: torch.device) -> Tensor:
        """Return the mask (N,block,block+2*reach) of the keys that each query may see."""
        reach = self.window // 2
        query = torch.arange(n + -n % block, device=device).unflatten(0, (-1, block))[:, :, None]
        first = torch.arange(0, n, block, device=device)[:, None, None] - reach  # position of each block's first key
        key = first + torch.arange(block + 2 * reach, device=device)
        is_inside = (key >= 0) & (key < n) | (query >= n)  # a padding query sees some keys, or it would give NaN
        return is_inside & ((key - query).abs() <= reach)


class Recurrent(nn.Module):
    """h_t = tanh(W x_t + U h_(t-1) + b), by torch's own kernel; `steps` computes the same step by step."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(d_model, d_model, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(B,n,D) -> (B,n,D)."""
        return self.rnn(x)[0]

    def steps(self, x: Tensor) -> Tensor:
        """Compute `forward` by a loop over positions, whose graph has every step."""
        w, u, w_bias, u_bias = self.rnn.all_weights[0]
        hidden, outputs = x.new_zeros(x.size(0), x.size(2)), []
        for t in range(x.size(1)):
            hidden = torch.tanh(F.linear(x[:, t], w, w_bias) + F.linear(hidden, u, u_bias))
            outputs.append(hidden)
        return torch.stack(outputs, dim=1)


class Convolutional(nn.Module):
    """A convolution of each position with `kernel` - 1 earlier ones, at distances of `dilation`.

    A stack of layers with dilations 1, k, k^2, ... sees k, k^2, k^3, ... positions: log_k n layers for n.
    """

    def __init__(self, d_model: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.kernel, self.dilation = kernel, dilation
        self.weights = nn.Linear(kernel * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B,n,D) -> (B,n,D), as one matrix product: on a CPU several times faster than torch's own Conv1d."""
        n = x.size(1)
        padded = F.pad(x, (0, 0, (self.kernel - 1) * self.dilation, 0))
        window = [padded[:, i * self.dilation :][:, :n] for i in range(self.kernel)]  # earliest position first
        return self.weights(torch.cat(window, dim=2))
