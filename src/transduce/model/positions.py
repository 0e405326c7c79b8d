"""Positional encoding, section 3.5 of the paper: sinusoids, and the learned positions of Table 3, row E."""

import torch
from torch import Tensor, nn

from transduce.config.schema import PositionLayout
from transduce.errors import UserError


def sinusoids(n_positions: int, d_model: int, layout: PositionLayout = "interleaved") -> Tensor:
    """Return the table of sinusoids, (n_positions, d_model), in one of the three layouts in use.

    "interleaved", the paper's text: sin(pos / 10000^(2i/d)) at 2i, cos at 2i+1.
    "halves": the same values, all sines first, then all cosines (Hugging Face Marian, Sockeye).
    "tensor2tensor": sines first, with the exponent i / (d/2 - 1) (the authors' code, fairseq, Marian).
    Computed in float64 and rounded once.
    """
    half = d_model // 2
    steps = half - 1 if layout == "tensor2tensor" else half
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / steps)
    angles = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequencies  # (n_positions, d_model/2)
    if layout == "interleaved":
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class SinusoidalPositions(nn.Module):
    """The sinusoids of §3.5. They have no maximum length: a longer sequence makes the table grow."""

    def __init__(self, d_model: int, layout: PositionLayout = "interleaved") -> None:
        super().__init__()
        self.layout: PositionLayout = layout
        self.register_buffer("table", torch.empty(0, d_model), persistent=False)
        self.table: Tensor
        if self.table.device.type != "meta":
            self.table = sinusoids(256, d_model, layout)

    def forward(self, start: int, end: int) -> Tensor:
        """Return the rows `start` to `end`, (end - start, D)."""
        table = self.table  # read once: another thread may replace it by a table of another length
        if end > table.size(0):
            table = sinusoids(max(end, 2 * table.size(0)), table.size(1), self.layout).to(table)
            self.table = table
        return table[start:end]


class LearnedPositions(nn.Module):
    """A learned row for each position (Table 3, row E)."""

    def __init__(self, n_positions: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(n_positions, d_model))

    def forward(self, start: int, end: int) -> Tensor:
        """Return the rows `start` to `end`, (end - start, D). UserError if `end` is past the last row."""
        if end > self.table.size(0):
            raise UserError(
                f"a sequence of {end} tokens: expected at most model.max_positions={self.table.size(0)}, the learned "
                "positions; split the text, or train with more positions or with sinusoids"
            )
        return self.table[start:end]
