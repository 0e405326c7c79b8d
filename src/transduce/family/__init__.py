"""The family: what was built from the Transformer of 2017, each descendant as a small piece beside it.

| member        | paper                              | what changed                                                |
|---------------|------------------------------------|-------------------------------------------------------------|
| `gpt2.py`     | Radford et al. 2018, 2019          | a decoder alone; learned positions; GELU; in GPT-2 pre-norm |
| `llama.py`    | Touvron et al. 2023                | rotated positions; RMSNorm; gated FFN; shared key heads     |
| `llada.py`    | Nie et al. 2025                    | Llama without the causal mask; diffusion by masks           |
| `bert.py`     | Devlin et al. 2018                 | an encoder alone; segments; GELU; heads                     |
| `vit.py`      | Dosovitskiy et al. 2020            | an encoder alone, of patches of an image; pre-norm; GELU    |
| `t5.py`       | Raffel et al. 2020                 | relative positions as a bias; RMS norm; no biases           |
| `mamba.py`    | Gu and Dao 2023                    | no attention: a state that each token reads and writes      |
| `rwkv.py`     | Peng et al. 2023                   | no attention: averages of values, whose weights fade        |

What several members share:

| shared              | what it is                                                                 |
|---------------------|----------------------------------------------------------------------------|
| `around.py`         | functions around attention: cache, rotation, shared key heads, bias        |
| `feed_forward.py`   | the gated feed-forward network                                             |
| `initialisation.py` | the first values of the weights                                            |
| `row_states.py`     | states of recurrences                                                      |

What belongs to one member:

| file                | member   | what it is                                                      |
|---------------------|----------|-----------------------------------------------------------------|
| `heads.py`          | BERT     | heads of an encoder: words, one vector, classes                 |
| `image_sizes.py`    | ViT      | images of other sizes than those of the training                |
| `relative_bias.py`  | T5       | learned numbers for distances, which `positions.py` has too     |
| `spans.py`          | T5       | spans of a text, which it learns to restore                     |

| attention       | paper                            | what changed                                                 |
|-----------------|----------------------------------|--------------------------------------------------------------|
| `patterns.py`   | Child et al. 2019, and others    | a position sees a part of the others, by a mask              |
| `window.py`     | Vaswani et al. 2017, section 4   | a window, in time linear in the length                       |
| `online.py`     | Dao et al. 2022; Liu et al. 2023 | the same attention in parts, without all weights at once     |
| `linformer.py`  | Wang et al. 2020                 | keys and values are mixtures of positions                    |
| `performer.py`  | Choromanski et al. 2020          | weights are estimated by random features, never computed     |
| `longformer.py` | Beltagy et al. 2020              | a window, and global positions with projections of their own |
| `big_bird.py`   | Zaheer et al. 2020               | a pattern of blocks: edges, neighbours and random ones       |
| `tpa.py`        | Zhang et al. 2025                | queries, keys and values from factors; a small cache         |
| `hyena.py`      | Poli et al. 2023                 | none: products, and convolutions as long as the text         |

| positions       | paper                            | what changed                                                |
|-----------------|----------------------------------|-------------------------------------------------------------|
| `rope.py`       | Su et al. 2021, and others       | rotated positions for longer texts                          |
| `positions.py`  | Press et al. 2021, and others    | ways to know the order of tokens, for `decoder_only.py`     |
| `recurrence.py` | Dai et al. 2019                  | Transformer-XL: a memory of the segment before              |

| feed-forward    | paper                            | what changed                                                |
|-----------------|----------------------------------|-------------------------------------------------------------|
| `experts.py`    | Shazeer et al. 2017, and others  | a mixture of experts                                        |

`decoder_only.py` is a decoder that takes positions, a pattern and experts as parts. Around the models:

| use           | what it is                                                                       |
|---------------|----------------------------------------------------------------------------------|
| `weights.py`  | folders in Hugging Face's form; `forms/` has the form of each member             |
| `configs.py`  | the sizes of each member, with `attention_configs.py`; a member takes them       |
| `tasks/`      | what members learn, for the training loop                                        |
| `use/`        | text in, and text, words, vectors or classes out; `load` returns one of them     |
"""

from pathlib import Path
from typing import Any


def load(folder: str | Path, *, precision: str = "fp32") -> Any:
    """Load a folder in Hugging Face's form, or RUN/model of a training here, as the class for its member.

    | member                     | class                              | methods                   |
    |----------------------------|------------------------------------|---------------------------|
    | GPT-2, Llama, and others   | `language_model.LanguageModel`     | continue_, continue_texts |
    | LLaDA                      | `text_filler.TextFiller`           | fill                      |
    | BERT                       | `text_encoder.TextEncoder`         | fill, embed, classify     |
    | T5                         | `text_to_text.TextToText`          | generate, generate_texts  |
    | ViT                        | `image_classifier.ImageClassifier` | classify                  |

    Each class has a `load` of its own, whose type is known. precision: of continuations, see `LanguageModel`; other
    members have fp32 alone. Raises UserError for a folder that is damaged or not supported.
    """
    from transduce.config.validation import as_path
    from transduce.errors import UserError
    from transduce.family.bert import Bert  # these load torch
    from transduce.family.llada import Llada
    from transduce.family.t5 import T5
    from transduce.family.use.image_classifier import ImageClassifier
    from transduce.family.use.language_model import LanguageModel
    from transduce.family.use.model_folder import open_member
    from transduce.family.use.text_encoder import TextEncoder
    from transduce.family.use.text_filler import TextFiller
    from transduce.family.use.text_to_text import TextToText
    from transduce.family.vit import ViT

    path = as_path("folder", folder)
    member = open_member(path)
    if precision != "fp32" and isinstance(member.model, Bert | Llada | T5 | ViT):
        raise UserError(f"precision={precision!r}: expected 'fp32' for {path}, which continues no text; leave it out")
    match member.model:
        case Bert():
            return TextEncoder(member, path)
        case Llada():
            return TextFiller(member, path)
        case T5():
            return TextToText(member, path)
        case ViT():
            return ImageClassifier(member, path)
        case _:
            return LanguageModel(member, path, precision=precision)
