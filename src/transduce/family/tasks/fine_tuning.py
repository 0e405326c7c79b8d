"""The start of a fine-tuning: a pre-trained encoder with a new head for the classes of the training text.

    encoder       from the folder
    pooler        from the folder; new where it has none
    classifier    new

What is new has matrices from N(0, 0.02), drawn with train.seed, and biases 0 (`family/initialisation.py`).
"""

from dataclasses import replace
from typing import Any

import torch

from transduce.config.schema import Config
from transduce.data.labels import TOKENIZER, TextAndLabels, learn_labels
from transduce.errors import UserError
from transduce.family.bert import Bert, BertClassifier, BertEncoder
from transduce.family.configs import BertClassifierConfig, sizes_of
from transduce.family.hugging_face.folder import WITHOUT_CONVERSION
from transduce.family.inference.model_folder import open_member
from transduce.storage.model_folder import LoadedModel
from transduce.storage.run_request import TrainRequest


def start(request: TrainRequest) -> LoadedModel:
    """Return the model that a fine-tuning starts from, with the tokenizer of its encoder and the labels of the text.

    Raises UserError if the folder of the request is no BERT with a tokenizer, or for a wrong label.
    """
    folder = request.start_from
    assert folder is not None
    member = open_member(folder)
    parent = member.model
    kind = member.settings.get("model_type")
    if not isinstance(parent, Bert) or kind in WITHOUT_CONVERSION:
        raise UserError(
            f"{folder}: model_type={kind!r}: expected a BERT; use one in Hugging Face's form, or train one "
            "with --recipe bert-small"
        )
    if TOKENIZER not in member.files:
        raise UserError(f"{folder}: expected {TOKENIZER}; use a whole folder")
    labels = learn_labels(request.corpora)
    sizes = _config(parent.encoder, len(labels))
    assert sizes.vocab_size is not None
    try:
        files = {name: content.decode() for name, content in member.files.items()}
        tokenizer = TextAndLabels(files, labels, sizes.vocab_size)
    except (UserError, UnicodeDecodeError) as problem:
        raise UserError(f"{folder}: expected a tokenizer in UTF-8 that fits the encoder, but {problem}") from None
    torch.manual_seed(request.config.train.seed)
    model: Any = BertClassifier(sizes)
    model.encoder.load_state_dict(parent.encoder.state_dict())
    if parent.pooler is not None:
        model.pooler.load_state_dict(parent.pooler.state_dict())
    data = replace(request.config.data, tokenizer=tokenizer.kind, target_tokens="labels")
    return LoadedModel(model, Config(model=sizes, data=data), tokenizer, str(folder))


def _config(encoder: BertEncoder, n_classes: int) -> BertClassifierConfig:
    """Return the configuration of a classifier with this encoder."""
    return replace(
        sizes_of(encoder.config, BertClassifierConfig),
        tgt_vocab_size=n_classes,
        d_ff=encoder.d_ff,
        n_segments=encoder.segments.num_embeddings,
        norm_eps=encoder.norm_eps,
        dropout=BertClassifierConfig.dropout,
    )
