"""BERT in Hugging Face's files: the encoder, and the heads that the architecture in config.json names."""

from transduce.errors import UserError
from transduce.family.bert import Bert
from transduce.family.configs import BertConfig
from transduce.family.hugging_face.conversion import Conversion, Entry, layer_entries, linear
from transduce.family.hugging_face.settings import Settings, label_settings

# The heads of an architecture, by the names of the arguments of `Bert`.
HEADS = {
    "BertModel": ("pooler",),
    "BertForMaskedLM": ("words",),
    "BertForNextSentencePrediction": ("pooler", "next_sentence"),
    "BertForPreTraining": ("words", "pooler", "next_sentence"),
    "BertForSequenceClassification": ("pooler", "classifier"),
}
LAYER = """
attention.output.LayerNorm attention.self.query attention.self.key attention.self.value attention.output.dense
output.LayerNorm intermediate.dense output.dense
"""


def build(settings: Settings) -> Bert:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "bert")
    (architecture,) = settings.one_of("architectures", *([name] for name in HEADS))
    settings.one_of("hidden_act", "gelu")
    settings.one_of("position_embedding_type", "absolute")
    settings.one_of("is_decoder", False)
    settings.one_of("add_cross_attention", False)
    settings.one_of("tie_word_embeddings", True)
    heads = HEADS[architecture]
    if architecture == "BertModel" and not any("pooler." in name for name in settings.shapes or ["pooler."]):
        heads = ()
    config = BertConfig(
        vocab_size=settings.size("vocab_size"),
        d_model=settings.size("hidden_size", multiple_of="num_attention_heads"),
        n_layers=settings.n_layers("num_hidden_layers"),
        n_heads=settings.size("num_attention_heads"),
        d_ff=settings.size("intermediate_size"),
        max_positions=settings.size("max_position_embeddings", 512),
        dropout=settings.number("hidden_dropout_prob", 0.1, below=1),
    )
    return Bert(
        config,
        heads=heads,
        labels=_labels(settings) if "classifier" in heads else (),
        classifier_dropout=settings.number("classifier_dropout", config.dropout, below=1),
        n_segments=settings.size("type_vocab_size", 2),
        norm_eps=settings.number("layer_norm_eps", 1e-12, below=1),
    )


def _labels(settings: Settings) -> list[str]:
    labels = settings.labels()
    if len({*labels}) < len(labels):
        raise settings.refusal("id2label", "a different name for each class")
    return labels


def settings_of(model: Bert) -> dict[str, object]:
    """Return the config.json of a model. UserError for a set of heads that no architecture has."""
    encoder = model.encoder
    sizes = encoder.config
    heads = {name for name, head in model.named_children() if name != "encoder"}
    names = [name for name, of_architecture in HEADS.items() if set(of_architecture) == (heads or {"pooler"})]
    if not names:
        expected = "; ".join(f"{name} ({', '.join(of_architecture)})" for name, of_architecture in HEADS.items())
        raise UserError(f"heads={sorted(heads)}: expected the heads of one of {expected}; add or remove a head")
    settings = {
        "model_type": "bert",
        "architectures": names,
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.d_model,
        "num_hidden_layers": sizes.n_layers,
        "num_attention_heads": sizes.n_heads,
        "intermediate_size": encoder.d_ff,
        "hidden_act": "gelu",
        "max_position_embeddings": sizes.max_positions,
        "type_vocab_size": encoder.segments.num_embeddings,
        "hidden_dropout_prob": sizes.dropout,
        "attention_probs_dropout_prob": sizes.dropout,
        "layer_norm_eps": encoder.norm_eps,
        "tie_word_embeddings": True,
    }
    if model.classifier is None:
        return settings
    return settings | {"classifier_dropout": model.classifier.dropout.p, **label_settings(model.classifier.labels)}


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
        entries += layer_entries(f"{prefix}encoder.layer.{i}", f"encoder.layers.{i}", LAYER)
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


CONVERSION = Conversion(
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
