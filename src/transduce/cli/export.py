"""`transduce export`: write a model for another program."""

import sys
from pathlib import Path
from typing import Literal

from transduce.errors import UserError


def export(model: Path, out: Path, *, to: Literal["ctranslate2", "marian"], precision: str = "fp32") -> None:
    """Write a model for another program, and try there whether it computes the same.

    Parameters
    ----------
    model
        A model folder, such as run/model.
    out
        The new folder.
    to
        ctranslate2: translate then uses it without PyTorch. marian: MarianMTModel of Hugging Face's transformers.
    precision
        Of the weights on disk, for CTranslate2: fp32, or int8, which is a quarter of the size and rounds.

    Examples
    --------
    transduce export run/model --to ctranslate2 --out exported
    transduce export run/model --to ctranslate2 --out small --precision int8
    """
    if to == "marian":
        if precision != "fp32":
            raise UserError(f"--precision {precision} has no effect with --to marian; leave it out")
        from transduce.interop.marian import export_marian

        found = export_marian(model, out)
    else:
        from transduce.interop.ctranslate2_export import export_ctranslate2

        found = export_ctranslate2(model, out, precision)
    print(found, file=sys.stderr)
