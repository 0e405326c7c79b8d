"""`transduce import`: convert another program's model."""

from pathlib import Path
from typing import Literal


def import_(form: Literal["huggingface", "marian"], folder: Path, out: Path) -> None:
    """Convert another program's model into a model folder.

    Parameters
    ----------
    form
        huggingface: a Marian model in the format of Hugging Face, such as the public OPUS-MT models, or a translation
        model that `transduce export --to huggingface` wrote. marian: another name of it.
    folder
        The other program's folder, with config.json, model.safetensors and the files of the tokenizer: vocab.json,
        source.spm and target.spm, or the tokenizer.json of an export.
    out
        The new model folder.

    Examples
    --------
    transduce import huggingface opus-mt-en-de --out imported
    """
    from transduce.interop.marian_import import import_marian

    import_marian(folder, out)
