"""The family: what was built from the Transformer of 2017, each descendant as a small piece beside it.

| member        | paper                              | what changed                                                |
|---------------|------------------------------------|-------------------------------------------------------------|
| `gpt2.py`     | Radford et al. 2018, 2019          | a decoder alone; learned positions; GELU; in GPT-2 pre-norm |
| `llama.py`    | Touvron et al. 2023                | rotated positions; RMSNorm; gated FFN; shared key heads     |
| `bert.py`     | Devlin et al. 2018                 | an encoder alone; segments; GELU; heads                     |
| `vit.py`      | Dosovitskiy et al. 2020            | an encoder alone, of patches of an image; pre-norm; GELU    |
| `t5.py`       | Raffel et al. 2020                 | relative positions as a bias; RMS norm; no biases           |

`around.py` has the functions around attention, which several members share. `transduce.family.load` reads a folder in
Hugging Face's form.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transduce.family.language_model import LanguageModel


def load(folder: str | Path) -> "LanguageModel":
    """Load the model of a folder in Hugging Face's form. Raises UserError for one that is damaged or not supported."""
    from transduce.config.validation import as_path
    from transduce.family.language_model import LanguageModel  # loads torch
    from transduce.family.weights import read_member

    return LanguageModel(read_member(as_path("folder", folder)), folder)
