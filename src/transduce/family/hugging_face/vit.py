"""ViT in Hugging Face's files."""

from typing import Any

from transduce.family.configs import ViTConfig
from transduce.family.hugging_face.conversion import Conversion, Entry, linear
from transduce.family.hugging_face.settings import Settings, label_settings
from transduce.family.vit import ViT


def build(settings: Settings) -> ViT:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "vit")
    settings.one_of("architectures", ["ViTForImageClassification"])
    settings.one_of("hidden_act", "gelu")
    settings.one_of("qkv_bias", True)
    config = ViTConfig(
        image_size=settings.size("image_size", multiple_of="patch_size"),
        patch_size=settings.size("patch_size"),
        d_model=settings.size("hidden_size", multiple_of="num_attention_heads"),
        n_layers=settings.n_layers("num_hidden_layers"),
        n_heads=settings.size("num_attention_heads"),
        n_channels=settings.size("num_channels", 3),
        d_ff=settings.size("intermediate_size"),
        dropout=settings.number("hidden_dropout_prob", 0.0, below=1),
        norm_eps=settings.number("layer_norm_eps", 1e-12, below=1),
    )
    return ViT(config, settings.labels())


def settings_of(model: ViT) -> dict[str, Any]:
    """Return the config.json of a model."""
    sizes = model.config
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": sizes.image_size,
        "patch_size": sizes.patch_size,
        "num_channels": sizes.n_channels,
        "hidden_size": sizes.d_model,
        "num_hidden_layers": sizes.n_layers,
        "num_attention_heads": sizes.n_heads,
        "intermediate_size": sizes.d_ff or 4 * sizes.d_model,
        "hidden_act": "gelu",
        "qkv_bias": True,
        "hidden_dropout_prob": sizes.dropout,
        "attention_probs_dropout_prob": sizes.dropout,
        "layer_norm_eps": sizes.norm_eps,
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


CONVERSION = Conversion(
    model=ViT,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="",  # only a model without a classifier leaves it out
    without_weights=r"vit\.pooler\.dense\.(weight|bias)",  # of the state of the class, which no classifier uses
)
