"""ViT in Hugging Face's files."""

from typing import Any

from transduce.family.hugging_face.conversion import Conversion, Entry, layer_entries, linear
from transduce.family.hugging_face.settings import Settings, label_settings
from transduce.family.images.configs import ViTConfig
from transduce.family.images.vit import PatchEncoder, ViT

LAYER = """
layernorm_before attention.attention.query attention.attention.key attention.attention.value attention.output.dense
layernorm_after intermediate.dense output.dense
"""


def build(settings: Settings) -> ViT:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "vit")
    settings.one_of("architectures", ["ViTForImageClassification"])
    return ViT(image_sizes(settings, settings.size("intermediate_size")), settings.labels())


def image_sizes(settings: Settings, d_ff: int, norm_eps: float = 1e-12) -> ViTConfig:
    """Return the sizes of an encoder of patches. norm_eps: its value where it is absent."""
    settings.one_of("hidden_act", "gelu")
    settings.one_of("qkv_bias", True)
    return ViTConfig(
        image_size=settings.size("image_size", multiple_of="patch_size"),
        patch_size=settings.size("patch_size"),
        d_model=settings.size("hidden_size", multiple_of="num_attention_heads"),
        n_layers=settings.n_layers("num_hidden_layers"),
        n_heads=settings.size("num_attention_heads"),
        n_channels=settings.size("num_channels", 3),
        d_ff=d_ff,
        dropout=settings.number("hidden_dropout_prob", 0.0, below=1),
        norm_eps=settings.number("layer_norm_eps", norm_eps, below=1),
    )


def settings_of(model: PatchEncoder) -> dict[str, Any]:
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


def encoder_entries(prefix: str, model: PatchEncoder, layer: str = LAYER) -> list[Entry]:
    """Return the tensors of an encoder of patches. layer: their names of the parts of a layer."""
    entries = [
        Entry(f"{prefix}.embeddings.cls_token", ("starts.0",)),
        Entry(f"{prefix}.embeddings.position_embeddings", ("positions",)),
        *linear(f"{prefix}.embeddings.patch_embeddings.projection", "patches"),
    ]
    for i in range(len(model.layers)):
        entries += layer_entries(f"{prefix}.encoder.layer.{i}", f"layers.{i}", layer)
    return entries + linear(f"{prefix}.layernorm", "norm")


def entries_of(model: ViT) -> list[Entry]:
    """Return the tensors of the file."""
    return encoder_entries("vit", model) + linear("classifier", "output")


CONVERSION = Conversion(
    model=ViT,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="",  # only a model without a classifier leaves it out
    without_weights=r"vit\.pooler\.dense\.(weight|bias)",  # of the state of the class, which no classifier uses
)
