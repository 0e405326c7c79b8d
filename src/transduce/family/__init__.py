"""The family: what was built from the Transformer of 2017. Each descendant is a small file.

| member                    | paper                           | what changed                                           |
|---------------------------|---------------------------------|--------------------------------------------------------|
| `gpt2.py`                 | Radford et al. 2018, 2019       | decoder-only; learned positions; GELU; pre-norm (2019) |
| `llama.py`                | Touvron et al. 2023             | rotation; RMSNorm; gated FFN; shared key heads         |
| `llada.py`                | Nie et al. 2025                 | Llama without the causal mask; diffusion by masks      |
| `bert.py`                 | Devlin et al. 2018              | encoder-only; segments; GELU; heads                    |
| `images/`                 | Dosovitskiy et al. 2020         | ViT, encoder-only, of patches of an image; and others  |
| `t5.py`                   | Raffel et al. 2020              | relative positions as a bias; RMS norm; no biases      |
| `sound/whisper.py`        | Radford et al. 2022             | sound in: two convolutions, pre-norm, GELU             |
| `sound/wav2vec2.py`       | Baevski et al. 2020             | sound in: convolutions, also for positions; CTC        |
| `mamba.py`                | Gu and Dao 2023                 | no attention: a state that each token reads and writes |
| `rwkv.py`                 | Peng et al. 2023                | no attention: averages of values, whose weights fade   |
| `transformer_xl.py`       | Dai et al. 2019                 | a memory of the segment before; scores of distances    |
| `hyena.py`                | Poli et al. 2023                | no attention: products, and long convolutions          |
| `decoder_only.py`         | Radford et al. 2019, and others | GPT-2 with positions, a pattern and experts as parts   |
| `palm.py`                 | Chowdhery et al. 2022           | Llama whose attention and FFN read the same input      |
| `decision_transformer.py` | Chen et al. 2021                | GPT-2's layers over returns, states and actions        |

What several members share:

| shared                  | what it is                                                          |
|-------------------------|---------------------------------------------------------------------|
| `attention_wrappers.py` | functions around attention: cache, rotation, shared key heads, bias |
| `encoder_decoder.py`    | what a search uses of T5 and Whisper                                |
| `feed_forward.py`       | the gated feed-forward network                                      |
| `initialisation.py`     | the first values of the weights                                     |
| `layers.py`             | the layer of most members: attention, and any network               |
| `row_states.py`         | states of recurrences                                               |
| `text_model.py`         | what a member that continues text has, for its training and search  |

What belongs to one member:

| file                 | member | what it is                                                  |
|----------------------|--------|-------------------------------------------------------------|
| `bert_heads.py`      | BERT   | heads of an encoder: words, one vector, classes             |
| `comet.py`           | BERT   | COMET: the quality of a translation, by the states of BERT  |
| `reward.py`          | GPT-2  | a scalar head, which judges texts                           |
| `relative_bias.py`   | T5     | learned numbers for distances, which `positions.py` has too |
| `span_corruption.py` | T5     | spans of a text, which it learns to restore                 |

| attention                     | paper                            | what changed                                    |
|-------------------------------|----------------------------------|-------------------------------------------------|
| `attention_patterns.py`       | Child et al. 2019, and others    | a position sees some others, by a mask          |
| `window.py`                   | Vaswani et al. 2017, section 4   | a window, in time linear in the length          |
| `online_softmax.py`           | Dao et al. 2022; Liu et al. 2023 | exact attention, one part of the keys at a time |
| `linformer.py`                | Wang et al. 2020                 | keys and values are mixtures of positions       |
| `performer.py`                | Choromanski et al. 2020          | weights are estimated by random features        |
| `longformer.py`               | Beltagy et al. 2020              | a window, and some global positions             |
| `big_bird.py`                 | Zaheer et al. 2020               | blocks: edges, neighbours and random ones       |
| `tensor_product_attention.py` | Zhang et al. 2025                | queries, keys and values from factors           |
| `synthesizer.py`              | Tay et al. 2020                  | other scores, in `synthetic_scores.py`          |
| `evoformer.py`                | Jumper et al. 2021               | AlphaFold 2's block, with `row_attention.py`    |

| positions, feed-forward | paper                           | what changed                                            |
|-------------------------|---------------------------------|---------------------------------------------------------|
| `rope.py`               | Su et al. 2021, and others      | rotated positions for longer texts                      |
| `positions.py`          | Press et al. 2021, and others   | ways to know the order of tokens, for `decoder_only.py` |
| `experts.py`            | Shazeer et al. 2017, and others | a mixture of experts                                    |

Around the models:

| around          | what it is                                                                          |
|-----------------|-------------------------------------------------------------------------------------|
| `configs.py`    | the sizes of each member, with `attention_configs.py`; a member takes them          |
| `sound/`        | members that hear, and the features of sound                                        |
| `hugging_face/` | folders in Hugging Face's form: `folder.py`, and the conversion of each member      |
| `tasks/`        | what members learn, for the training loop                                           |
| `inference/`    | text in, and text, words, vectors or classes out; `load` returns one of its classes |
"""

from pathlib import Path
from typing import Any


def load(folder: str | Path, *, precision: str = "fp32", device: str = "auto") -> Any:
    """Load a folder in Hugging Face's form, or RUN/model of a training here, as the class for its member.

    | member                   | class                                | methods                   |
    |--------------------------|--------------------------------------|---------------------------|
    | GPT-2, Llama, and others | `language_model.LanguageModel`       | continue_, continue_texts |
    | LLaDA                    | `text_filler.TextFiller`             | fill                      |
    | BERT                     | `text_encoder.TextEncoder`           | fill, embed, classify     |
    | T5                       | `text_to_text.TextToText`            | generate, generate_texts  |
    | ViT, DeiT, and others    | `image_classifier.ImageClassifier`   | classify, embed           |
    | CLIP                     | `zero_shot.ZeroShotClassifier`       | classify, embed           |
    | Whisper                  | `transcriber.Transcriber`            | transcribe                |
    | wav2vec 2.0              | `speech_recogniser.SpeechRecogniser` | transcribe                |

    Each class has its own `load`, whose type is known. precision: see `PreparedApplication`; other classes have only
    fp32. device: of the model, as for `transduce.load`. Raises UserError for a folder that is damaged or not supported.
    """
    from transduce.config.validation import as_path
    from transduce.errors import UserError
    from transduce.family.bert import Bert  # these load torch
    from transduce.family.images.clip import Clip
    from transduce.family.images.image_model import ImageModel
    from transduce.family.inference.image_classifier import ImageClassifier
    from transduce.family.inference.language_model import LanguageModel
    from transduce.family.inference.model_folder import open_member
    from transduce.family.inference.speech_recogniser import SpeechRecogniser
    from transduce.family.inference.text_encoder import TextEncoder
    from transduce.family.inference.text_filler import TextFiller
    from transduce.family.inference.text_to_text import TextToText
    from transduce.family.inference.transcriber import Transcriber
    from transduce.family.inference.zero_shot import ZeroShotClassifier
    from transduce.family.llada import Llada
    from transduce.family.sound.wav2vec2 import Wav2Vec2
    from transduce.family.sound.whisper import Whisper
    from transduce.family.t5 import T5
    from transduce.model import devices

    path = as_path("folder", folder)
    with devices.on_device(device):
        member = open_member(path)
        if precision != "fp32" and isinstance(member.model, Bert | Llada | T5 | ImageModel | Clip | Wav2Vec2):
            expected = f"expected 'fp32', the only precision of model_type={member.settings['model_type']!r}"
            raise UserError(f"precision={precision!r}: {expected}; leave it out")
        match member.model:
            case Bert():
                return TextEncoder(member, path)
            case Llada():
                return TextFiller(member, path)
            case T5():
                return TextToText(member, path)
            case ImageModel():
                return ImageClassifier(member, path)
            case Clip():
                return ZeroShotClassifier(member, path)
            case Whisper():
                return Transcriber(member, path, precision=precision)
            case Wav2Vec2():
                return SpeechRecogniser(member, path)
            case _:
                return LanguageModel(member, path, precision=precision)
