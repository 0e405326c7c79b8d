"""BERT in Hugging Face's files: the encoder, and the heads that the architecture in config.json names."""

from collections.abc import Callable
from typing import Any

from torch import nn

from transduce.errors import UserError
from transduce.family.bert import Bert, BertEncoder
from transduce.family.forms.form import Entry, Form, linear
from transduce.family.forms.settings import Settings, label_settings
from transduce.family.heads import NEXT_SENTENCE, Classifier, Pooler, WordHead

# The heads of an architecture: those of `Bert`, by the names of its arguments.
HEADS = {
    "BertModel": ("pooler",),
    "BertForMaskedLM": ("words",),
    "BertForNextSentencePrediction": ("pooler", "next_sentence"),
    "BertForPreTraining": ("words", "pooler", "next_sentence"),
    "BertForSequenceClassification": ("pooler", "classifier"),
}


def build(settings: Settings) -> Bert:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "bert")
    (architecture,) = settings.one_of("architectures", *([name] for name in HEADS))
    settings.one_of("hidden_act", "gelu")
    settings.one_of("position_embedding_type", "absolute")
    settings.one_of("is_decoder", False)
    settings.one_of("add_cross_attention", False)
    settings.one_of("tie_word_embeddings", True)
    d_model = settings.size("hidden_size", multiple_of="num_attention_heads")
    dropout = settings.number("hidden_dropout_prob", 0.1, below=1)
    norm_eps = settings.number("layer_norm_eps", 1e-12, below=1)
    encoder = BertEncoder(
        settings.size("vocab_size"),
        d_model,
        settings.n_layers("num_hidden_layers"),
        settings.size("num_attention_heads"),
        d_ff=settings.size("intermediate_size"),
        n_positions=settings.size("max_position_embeddings", 512),
        n_segments=settings.size("type_vocab_size", 2),
        dropout=dropout,
        norm_eps=norm_eps,
    )
    classifier_dropout = settings.number("classifier_dropout", dropout, below=1)
    makers: dict[str, Callable[[], nn.Module]] = {
        "words": lambda: WordHead(encoder.embedding, norm_eps),
        "pooler": lambda: Pooler(d_model),
        "next_sentence": lambda: Classifier(d_model, NEXT_SENTENCE),
        "classifier": lambda: Classifier(d_model, _labels(settings), classifier_dropout),
    }
    heads: dict[str, Any] = {name: makers[name]() for name in HEADS[architecture]}
    return Bert(encoder, **heads)


def _labels(settings: Settings) -> list[str]:
    labels = settings.labels()
    if len({*labels}) < len(labels):
        raise settings.refusal("id2label", "a different name for each class")
    return labels


def settings_of(model: Bert) -> dict[str, Any]:
    """Return the config.json of a model. UserError for a set of heads that no architecture has."""
    encoder, dropout = model.encoder, model.encoder.dropout.p
    heads = {name for name, head in model.named_children() if name != "encoder"}
    names = [name for name, of_architecture in HEADS.items() if set(of_architecture) == heads]
    if not names:
        expected = "; ".join(f"{name} ({', '.join(of_architecture)})" for name, of_architecture in HEADS.items())
        raise UserError(f"heads={sorted(heads)}: expected the heads of one of {expected}; add or remove a head")
    settings = {
        "model_type": "bert",
        "architectures": names,
        "vocab_size": encoder.embedding.num_embeddings,
        "hidden_size": encoder.embedding.embedding_dim,
        "num_hidden_layers": len(encoder.layers),
        "num_attention_heads": encoder.n_heads,
        "intermediate_size": encoder.d_ff,
        "hidden_act": "gelu",
        "max_position_embeddings": encoder.positions.num_embeddings,
        "type_vocab_size": encoder.segments.num_embeddings,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "layer_norm_eps": encoder.norm_eps,
        "tie_word_embeddings": True,
    }
    if model.classifier is None:
        return settings
    dropout = model.classifier.dropout.p
    return settings | {"classifier_dropout": dropout, **label_settings(model.classifier.labels)}


def entries_of(model: Bert) -> list[Entry]:
    """Return the tensors of the file. The encoder and the pooler have the prefix, unless they are the whole model."""
    prefix = "bert." if model.words or model.next_sentence or model.classifier else ""
    tables = {"word": "embedding", "position": "positions", "token_type": "segments"}
    entries = [
        Entry(f"{prefix}embeddings.{theirs}_embeddings.weight", (f"encoder.{ours}.weight",))
        for theirs, ours in tables.items()
    ]
    entries += linear(f"{prefix}embeddings.LayerNorm", "encoder.norm")
    for i in range(len(model.encoder.layers)):
        theirs, ours = f"{prefix}encoder.layer.{i}", f"encoder.layers.{i}"
        for name, letter in (("query", "q"), ("key", "k"), ("value", "v")):
            entries += linear(f"{theirs}.attention.self.{name}", f"{ours}.self_attention.w_{letter}")
        entries += linear(f"{theirs}.attention.output.dense", f"{ours}.self_attention.w_o")
        entries += linear(f"{theirs}.attention.output.LayerNorm", f"{ours}.residuals.0.norm")
        entries += linear(f"{theirs}.intermediate.dense", f"{ours}.feed_forward.w_1")
        entries += linear(f"{theirs}.output.dense", f"{ours}.feed_forward.w_2")
        entries += linear(f"{theirs}.output.LayerNorm", f"{ours}.residuals.1.norm")
    if model.pooler is not None:
        entries += linear(f"{prefix}pooler.dense", "pooler.linear")
    if model.words is not None:
        entries += linear("cls.predictions.transform.dense", "words.linear")
        entries += linear("cls.predictions.transform.LayerNorm", "words.norm")
        entries.append(Entry("cls.predictions.bias", ("words.output.bias",)))
        entries.append(Entry("cls.predictions.decoder.weight", ("encoder.embedding.weight",), is_copy=True))
        entries.append(Entry("cls.predictions.decoder.bias", ("words.output.bias",), is_copy=True))
    if model.next_sentence is not None:
        entries += linear("cls.seq_relationship", "next_sentence.linear")
    if model.classifier is not None:
        entries += linear("classifier", "classifier.linear")
    return entries


FORM = Form(
    model=Bert,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="bert.",
    # Numbers of positions in old files. Heads that the architecture does not have: the public bert-base-uncased is a
    # BertForMaskedLM with the tensors of a BertForPreTraining.
    without_weights=r"embeddings\.position_ids|(pooler|cls|classifier)\..*",
    old_endings=(("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")),
)
