"""The sizes of `transduce study attention`: of its forms, of their measurement, and of the trainings.

All of them are settings in results.json, so that no study continues one of other sizes. The report prints those.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from transduce.studies.quantities import Cost, Count


@dataclass(frozen=True)
class Sizes:
    """The sizes of a study. There are no defaults, so that results without a size are refused.

    Measurements. lengths: n of each, in ascending order. rounds: of each length. longest_square: above it, a form whose
    memory grows with n^2 is not measured. cost_heads, cost_width: of the heads.

    Forms. reach: of the windows. n_global: global positions. stride: the square root of n; per_summary: positions of
    a stride for each summary of the pattern "fixed". features: of Performer. rank: of Linformer. block, n_random: of
    BigBird. ranks: of queries, keys and values in tensor product attention.

    Trainings. length: tokens of a text. batch: texts. rate: the largest learning rate, after `warmup` steps; then it
    falls to 0. valid_texts: at most, of the validation text. mask_share: of the tokens, where they are masked.
    """

    lengths: tuple[Count, ...]
    rounds: tuple[Count, ...]
    longest_square: Count
    cost_heads: Count
    cost_width: Count
    reach: Count
    n_global: Count
    per_summary: Count
    features: Count
    rank: Count
    block: Count
    n_random: Count
    ranks: tuple[Count, Count, Count]
    length: Count
    d_model: Count
    n_layers: Count
    n_heads: Count
    vocab_size: Count
    steps: Count
    batch: Count
    rate: Cost
    warmup: Count
    largest_gradient: Cost
    valid_texts: Count
    mask_share: Cost

    def as_settings(self) -> dict[str, Any]:
        """Return the sizes as results.json has them."""
        return {name: [*value] if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def sizes_of(settings: Mapping[str, Any]) -> Sizes:
    """Return the sizes of the settings in results.json."""
    return msgspec.convert(settings["sizes"], Sizes)


SIZES = Sizes(
    lengths=(256, 1_024, 4_096, 16_384),
    rounds=(7, 5, 3, 2),
    longest_square=4_096,
    cost_heads=8,
    cost_width=64,
    reach=64,
    n_global=1,
    per_summary=8,
    features=256,
    rank=64,
    block=32,
    n_random=3,
    ranks=(6, 2, 2),
    length=512,
    d_model=128,
    n_layers=3,
    n_heads=4,
    vocab_size=4_000,
    steps=400,
    batch=8,
    rate=1e-3,
    warmup=40,
    largest_gradient=1.0,
    valid_texts=32,
    mask_share=0.15,
)
