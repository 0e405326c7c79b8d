"""`transduce export`: write a model for another program."""

import sys
from pathlib import Path
from typing import Literal

from transduce.errors import UserError


def export(
    model: Path,
    out: Path,
    *,
    to: Literal["ctranslate2", "argos", "huggingface", "onnx", "marian"],
    precision: str = "fp32",
    languages: str | None = None,
) -> None:
    """Write a model for another program.

    For a translation model, the command checks that the other program computes the same outputs.

    Parameters
    ----------
    model
        A model folder, such as run/model.
    out
        The new folder; for argos the new file, whose name ends with .argosmodel.
    to
        ctranslate2: `transduce translate` then runs without PyTorch. argos: a package that Argos Translate and
        LibreTranslate install. huggingface: a translation model or a language model for Hugging Face's transformers
        and other programs. onnx: two graphs for ONNX Runtime, and a program that translates with them without
        PyTorch. marian: another name of huggingface.
    precision
        Precision of the stored weights, for CTranslate2 and Argos Translate: fp32, or int8, which takes a quarter of
        the space and rounds the weights.
    languages
        The languages of the model, for Argos Translate: source and target, such as en-de.

    Examples
    --------
    transduce export run/model --to ctranslate2 --out exported
    transduce export run/model --to ctranslate2 --out small --precision int8
    transduce export run/model --to argos --languages en-de --out my.argosmodel
    transduce export run/model --to huggingface --out for-transformers
    transduce export run/model --to onnx --out graphs
    """
    if to not in ("ctranslate2", "argos") and precision != "fp32":
        raise UserError(f"--precision={precision}: must not be set with --to {to}; leave it out")
    if to == "argos" and languages is None:
        raise UserError("--languages: expected the languages of the model; add them, such as --languages en-de")
    if to != "argos" and languages is not None:
        raise UserError(f"--languages={languages}: must not be set with --to {to}; leave it out")
    if languages is not None:
        from transduce.interop.argos_export import export_argos
        from transduce.serve.models import name_of, pair_of

        source, target = ((code, name_of(code)) for code in pair_of(languages))
        summary = export_argos(model, out, source, target, precision)
    elif to in ("huggingface", "marian"):
        summary = _export_to_hugging_face(model, out)
    elif to == "onnx":
        from transduce.interop.onnx_export import export_onnx

        summary = export_onnx(model, out)
    else:
        from transduce.interop.ctranslate2_export import export_ctranslate2

        summary = export_ctranslate2(model, out, precision)
    print(summary, file=sys.stderr)


def _export_to_hugging_face(model: Path, out: Path) -> str:
    from transduce.storage.model_folder import load_config

    if load_config(model).translation_model:
        from transduce.interop.marian_export import export_marian

        return export_marian(model, out)
    from transduce.family.inference.model_folder import export_member

    return export_member(model, out)
