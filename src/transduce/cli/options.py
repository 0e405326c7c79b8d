"""Options that several commands share, with their help."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

OF_THE_MODEL = "the model's setting"

Flag = Annotated[bool, Parameter(show_default=False)]

Models = Annotated[
    Path, Parameter(required=True, help="Model folders, such as run/model. Several models form an ensemble.")
]

BeamSize = Annotated[
    int | None,
    Parameter(help="Hypotheses that the beam search keeps. 1 is greedy search.", show_default=OF_THE_MODEL),
]
Alpha = Annotated[
    float | None,
    Parameter(help="Exponent of the length penalty.", show_default=OF_THE_MODEL),
]
Lookahead = Annotated[
    int | None,
    Parameter(
        help="Stop the beam search when no hypothesis can win within this many more tokens. A large value, such as "
        "10000, is exact and slower. Not for CTranslate2.",
        show_default=f"{OF_THE_MODEL}, usually exact",
    ),
]
Precision = Annotated[str, Parameter(help="fp32 or bf16.")]
Language = Annotated[
    str, Parameter(help="Language of the target text, such as de. It selects the rules of the Moses tokenizer.")
]
Jobs = Annotated[
    int | None,
    Parameter(help="Number of trainings that run at the same time.", show_default="one per GPU, or one without a GPU"),
]
