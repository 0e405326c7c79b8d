"""`transduce import`: read another program's model."""

from pathlib import Path
from typing import Literal


def import_(form: Literal["marian"], folder: Path, out: Path) -> None:
    """Make a model folder of another program's model.

    Parameters
    ----------
    form
        marian: a Marian model in Hugging Face's form, as the public OPUS-MT models are.
    folder
        The other program's folder, with config.json, model.safetensors, vocab.json, source.spm and target.spm.
    out
        The new model folder.

    Examples
    --------
    transduce import marian opus-mt-en-de --out imported
    """
    from transduce.interop.marian import import_marian

    import_marian(folder, out)
