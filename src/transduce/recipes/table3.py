"""Every row of Table 3: variations on the base model, judged on newstest2013 without averaging checkpoints.

The paper fixes: what the row changes, everything else as base, and no averaging. The 2017 code does: the same settings,
as in vaswani2017. We chose: d_v = 64 in rows (B), 1,024 learned positions in row (E), the last checkpoint.

Named by what differs from base. The paper's development figures (perplexity per token, BLEU) stand beside each.
"""

from collections.abc import Callable
from dataclasses import replace

from transduce.config import Config, Positions
from transduce.recipes import vaswani2017


def variation(
    *,
    n_layers: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    n_heads: int = 8,
    d_k: int | None = None,
    d_v: int | None = None,
    dropout: float = 0.1,
    label_smoothing: float = 0.1,
    positions: Positions = "interleaved",
) -> Config:
    """The base model with the columns of Table 3 that a row changes; the last checkpoint, not a mean."""
    start = vaswani2017.base()
    model = replace(
        start.model,
        n_layers=n_layers,
        d_model=d_model,
        d_ff=d_ff,
        n_heads=n_heads,
        d_k=d_k,
        d_v=d_v,
        dropout=dropout,
        positions=positions,
        max_positions=1024 if positions == "learned" else None,
    )
    return replace(start, model=model, train=replace(start.train, label_smoothing=label_smoothing, use="last"))


def _big() -> Config:
    """The last row: big, judged by its last checkpoint."""
    start = vaswani2017.big()
    return replace(start, train=replace(start.train, use="last"))


ROWS: dict[str, Callable[[], Config]] = {
    "base": variation,  # 4.92, 25.8; 65 M parameters
    "h1": lambda: variation(n_heads=1),  # (A) 5.29, 24.9
    "h4": lambda: variation(n_heads=4),  # (A) 5.00, 25.5
    "h16": lambda: variation(n_heads=16),  # (A) 4.91, 25.8
    "h32": lambda: variation(n_heads=32),  # (A) 5.01, 25.4
    "dk16": lambda: variation(d_k=16, d_v=64),  # (B) 5.16, 25.1; 58 M
    "dk32": lambda: variation(d_k=32, d_v=64),  # (B) 5.01, 25.4; 60 M
    "n2": lambda: variation(n_layers=2),  # (C) 6.11, 23.7; 36 M
    "n4": lambda: variation(n_layers=4),  # (C) 5.19, 25.3; 50 M
    "n8": lambda: variation(n_layers=8),  # (C) 4.88, 25.5; 80 M
    "d256": lambda: variation(d_model=256),  # (C) 5.75, 24.5; 28 M; d_k = d_v = 32
    "d1024": lambda: variation(d_model=1024),  # (C) 4.66, 26.0; 168 M; d_k = d_v = 128
    "ff1024": lambda: variation(d_ff=1024),  # (C) 5.12, 25.4; 53 M
    "ff4096": lambda: variation(d_ff=4096),  # (C) 4.75, 26.2; 90 M
    "dropout0": lambda: variation(dropout=0.0),  # (D) 5.77, 24.6
    "dropout0.2": lambda: variation(dropout=0.2),  # (D) 4.95, 25.5
    "smoothing0": lambda: variation(label_smoothing=0.0),  # (D) 4.67, 25.3
    "smoothing0.2": lambda: variation(label_smoothing=0.2),  # (D) 5.47, 25.7
    "learned": lambda: variation(positions="learned"),  # (E) 4.92, 25.7
    "big": _big,  # 4.33, 26.4; 213 M
}
