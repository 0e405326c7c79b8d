"""`transduce export`: write a model for another program."""

import sys
from pathlib import Path
from typing import Literal

from transduce.errors import UserError


def export(
    model: Path, out: Path, *, to: Literal["ctranslate2", "marian", "huggingface"], precision: str = "fp32"
) -> None:
    """Write a model for another program.

    For CTranslate2 and Marian, the command checks that the other program computes the same outputs.

    Parameters
    ----------
    model
        A model folder, such as run/model.
    out
        The new folder.
    to
        ctranslate2: `transduce translate` then runs without PyTorch. marian: MarianMTModel of Hugging Face's
        transformers. huggingface: a language model that was trained here, for transformers and other programs.
    precision
        Precision of the stored weights, for CTranslate2: fp32, or int8, which takes a quarter of the space and rounds
        the weights.

    Examples
    --------
    transduce export run/model --to ctranslate2 --out exported
    transduce export run/model --to ctranslate2 --out small --precision int8
    transduce export gpt/model --to huggingface --out gpt-for-transformers
    """
    if to != "ctranslate2" and precision != "fp32":
        raise UserError(f"--precision={precision}: must not be set with --to {to}; leave it out")
    if to == "huggingface":
        from transduce.family.inference.model_folder import export_member

        summary = export_member(model, out)
    elif to == "marian":
        from transduce.interop.marian_export import export_marian

        summary = export_marian(model, out)
    else:
        from transduce.interop.ctranslate2_export import export_ctranslate2

        summary = export_ctranslate2(model, out, precision)
    print(summary, file=sys.stderr)
