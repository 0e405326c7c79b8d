"""`transduce import`: convert another program's model."""

from pathlib import Path
from typing import Literal


def import_(form: Literal["marian"], folder: Path, out: Path) -> None:
    """Convert another program's model into a model folder.

    Parameters
    ----------
    form
        marian: a Marian model in the format of Hugging Face, such as the public OPUS-MT models.
    folder
        The other program's folder, with config.json, model.safetensors, vocab.json, source.spm and target.spm.
    out
        The new model folder.

    Examples
    --------
    transduce import marian opus-mt-en-de --out imported
    """
    from transduce.interop.marian_import import import_marian

    import_marian(folder, out)
