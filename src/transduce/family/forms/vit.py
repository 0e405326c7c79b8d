"""ViT in Hugging Face's files."""

from typing import Any

from transduce.family.forms.form import Entry, Form, linear
from transduce.family.forms.settings import Settings, label_settings
from transduce.family.vit import ViT


def build(settings: Settings) -> ViT:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "vit")
    settings.one_of("architectures", ["ViTForImageClassification"])
    settings.one_of("hidden_act", "gelu")
    settings.one_of("qkv_bias", True)
    return ViT(
        settings.size("image_size", multiple_of="patch_size"),
        settings.size("patch_size"),
        settings.size("hidden_size", multiple_of="num_attention_heads"),
        settings.n_layers("num_hidden_layers"),
        settings.size("num_attention_heads"),
        settings.labels(),
        n_channels=settings.size("num_channels", 3),
        d_ff=settings.size("intermediate_size"),
        dropout=settings.number("hidden_dropout_prob", 0.0, below=1),
        norm_eps=settings.number("layer_norm_eps", 1e-12, below=1),
    )


def settings_of(model: ViT) -> dict[str, Any]:
    """Return the config.json of a model."""
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": model.image_size,
        "patch_size": model.patch_size,
        "num_channels": model.patches.in_channels,
        "hidden_size": model.patches.out_channels,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": model.n_heads,
        "intermediate_size": model.d_ff,
        "hidden_act": "gelu",
        "qkv_bias": True,
        "hidden_dropout_prob": model.dropout.p,
        "attention_probs_dropout_prob": model.dropout.p,
        "layer_norm_eps": model.norm_eps,
        **label_settings(model.labels),
    }


def entries_of(model: ViT) -> list[Entry]:
    """Return the tensors of the file."""
    entries = [
        Entry("vit.embeddings.cls_token", ("start",)),
        Entry("vit.embeddings.position_embeddings", ("positions",)),
        *linear("vit.embeddings.patch_embeddings.projection", "patches"),
    ]
    for i in range(len(model.layers)):
        theirs, ours = f"vit.encoder.layer.{i}", f"layers.{i}"
        entries += linear(f"{theirs}.layernorm_before", f"{ours}.residuals.0.norm")
        for name, letter in (("query", "q"), ("key", "k"), ("value", "v")):
            entries += linear(f"{theirs}.attention.attention.{name}", f"{ours}.self_attention.w_{letter}")
        entries += linear(f"{theirs}.attention.output.dense", f"{ours}.self_attention.w_o")
        entries += linear(f"{theirs}.layernorm_after", f"{ours}.residuals.1.norm")
        entries += linear(f"{theirs}.intermediate.dense", f"{ours}.feed_forward.w_1")
        entries += linear(f"{theirs}.output.dense", f"{ours}.feed_forward.w_2")
    return entries + linear("vit.layernorm", "norm") + linear("classifier", "output")


FORM = Form(
    model=ViT,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="",  # only a model without a classifier leaves it out
    without_weights=r"vit\.pooler\.dense\.(weight|bias)",  # of the state of the class, which no classifier uses
)
