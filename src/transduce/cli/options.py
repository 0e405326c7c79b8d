"""Options that several commands share, with their help."""

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import CoercionError, Parameter, Token

OF_THE_MODEL = "the model's setting"


def _integers(kind: object, tokens: Sequence[Token]) -> int | list[int] | tuple[int, ...]:
    """Return the integer of an option, or its integers if `kind` is list[int] or a tuple."""
    integers = []
    for token in tokens:
        try:
            integers.append(int(token.value))
        except ValueError:
            raise CoercionError(token=token, target_type=int) from None
    if kind == list[int]:
        return integers
    return tuple(integers) if len(integers) > 1 else integers[0]


Integer = Parameter(converter=_integers)  # of every option that is an integer: Cyclopts rounds 2.5

Flag = Annotated[bool, Parameter(show_default=False)]
JsonObjectOption = Annotated[Flag, Parameter(help="Print one JSON object.")]

ModelsArgument = Annotated[
    Path, Parameter(required=True, help="Model folders, such as run/model. Several models form an ensemble.")
]

InputOption = Annotated[Path | None, Parameter(help="File to read.", show_default="standard input")]
OutputOption = Annotated[Path | None, Parameter(help="File to write.", show_default="standard output")]
BeamSizeOption = Annotated[
    int | None,
    Integer,
    Parameter(
        help="Hypotheses that the beam search keeps, at most 500. 1 is greedy search.", show_default=OF_THE_MODEL
    ),
]
AlphaOption = Annotated[
    float | None,
    Parameter(help="Exponent of the length penalty.", show_default=OF_THE_MODEL),
]
LookaheadOption = Annotated[
    int | None,
    Integer,
    Parameter(
        help="Stop the beam search when no hypothesis can win within this many more tokens. A large value, such as "
        "10000, is exact and slower. Not for CTranslate2.",
        show_default=f"{OF_THE_MODEL}, usually exact",
    ),
]
TagOption = Annotated[
    str | None,
    Parameter(help="Tag of a model with several target languages, such as <2fr>. It is put before each source line."),
]
CapitalsOption = Annotated[
    Literal["keep", "lower"],
    Parameter(
        help="lower: translate a sentence in capitals in small letters, and write the output in capitals, which most "
        "models know little; keep: give the model the capitals."
    ),
]
PrecisionOption = Annotated[Literal["fp32", "bf16"], Parameter(help="Precision of the model.")]
DeviceOption = Annotated[
    str,
    Parameter(
        help="Device that computes: cpu, cuda, cuda:N (the GPU with number N, from 0), or mps (a GPU of Apple). auto "
        "takes the first that exists of cuda, mps and cpu."
    ),
]
LanguageOption = Annotated[
    str, Parameter(help="Language of the target text, such as de. It selects the rules of the Moses tokenizer.")
]
JobsOption = Annotated[
    int | None,
    Integer,
    Parameter(help="Number of trainings that run at the same time.", show_default="one per GPU, or one without a GPU"),
]


def with_device(command: Callable[..., None], option: object = DeviceOption) -> Callable[..., None]:
    """Return the command with the option --device, on which its models compute. option: its type and help."""

    @functools.wraps(command)
    def with_option(*arguments: Any, device: str = "auto", **options: Any) -> None:
        if device == "auto":  # without torch
            return command(*arguments, **options)
        from transduce.model.devices import on_device

        with on_device(device):
            return command(*arguments, **options)

    signature = inspect.signature(command)
    device = inspect.Parameter("device", inspect.Parameter.KEYWORD_ONLY, default="auto", annotation=option)
    with_option.__signature__ = signature.replace(parameters=[*signature.parameters.values(), device])  # type: ignore[attr-defined]
    with_option.__annotations__ = {**command.__annotations__, "device": option}
    return with_option
