"""Swin in Hugging Face's files."""

from transduce.family.hugging_face.conversion import Conversion, Entry, layer_entries, linear
from transduce.family.hugging_face.settings import Settings, label_settings
from transduce.family.images.configs import SwinConfig
from transduce.family.images.swin import Swin

LAYER = """
layernorm_before attention.self.query attention.self.key attention.self.value attention.output.dense
layernorm_after intermediate.dense output.dense
"""


def build(settings: Settings) -> Swin:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "swin")
    settings.one_of("architectures", ["SwinForImageClassification"])
    settings.one_of("hidden_act", "gelu")
    settings.one_of("qkv_bias", True)
    settings.one_of("use_absolute_embeddings", False)
    depths, n_heads = settings.depths("depths", (2, 2, 6, 2)), settings.sizes("num_heads", (3, 6, 12, 24))
    d_model = settings.size("embed_dim", 96)
    if len(n_heads) != len(depths) or any((d_model << i) % n for i, n in enumerate(n_heads)):
        raise settings.refusal("num_heads", f"a divisor of embed_dim={d_model} times 2^i for each of the depths")
    config = SwinConfig(
        image_size=settings.size("image_size", 224),
        patch_size=settings.size("patch_size", 4),
        d_model=d_model,
        depths=depths,
        n_heads=n_heads,
        window=settings.size("window_size", 7),
        n_channels=settings.size("num_channels", 3),
        expansion=int(settings.one_of("mlp_ratio", 4.0, 4, 2.0, 2, 3.0, 3)),
        dropout=settings.number("hidden_dropout_prob", 0.0, below=1),
        norm_eps=settings.number("layer_norm_eps", 1e-5, below=1),
    )
    return Swin(config, settings.labels())


def settings_of(model: Swin) -> dict[str, object]:
    """Return the config.json of a model."""
    sizes = model.config
    return {
        "model_type": "swin",
        "architectures": ["SwinForImageClassification"],
        "image_size": sizes.image_size,
        "patch_size": sizes.patch_size,
        "num_channels": sizes.n_channels,
        "embed_dim": sizes.d_model,
        "depths": list(sizes.depths),
        "num_heads": list(sizes.n_heads),
        "window_size": sizes.window,
        "mlp_ratio": float(sizes.expansion),
        "hidden_act": "gelu",
        "qkv_bias": True,
        "use_absolute_embeddings": False,
        "hidden_dropout_prob": sizes.dropout,
        "attention_probs_dropout_prob": sizes.dropout,
        "layer_norm_eps": sizes.norm_eps,
        **label_settings(model.labels),
    }


def entries_of(model: Swin) -> list[Entry]:
    """Return the tensors of the file."""
    embeddings = "swin.embeddings"
    entries = linear(f"{embeddings}.patch_embeddings.projection", "patches") + linear(
        f"{embeddings}.norm", "first_norm"
    )
    for i, depth in enumerate(model.config.depths):
        stage = f"swin.encoder.layers.{i}"
        for k in range(depth):
            layer, table = f"{stage}.blocks.{k}", "attention.self.relative_position_bias_table"
            entries += layer_entries(layer, f"stages.{i}.layers.{k}", LAYER)
            entries.append(Entry(f"{layer}.{table}", (f"stages.{i}.biases.{k}.table.weight",)))
        if i < len(model.config.depths) - 1:
            entries += linear(f"{stage}.downsample.norm", f"stages.{i}.merging.norm")
            entries.append(Entry(f"{stage}.downsample.reduction.weight", (f"stages.{i}.merging.linear.weight",)))
    return entries + linear("swin.layernorm", "norm") + linear("classifier", "output")


CONVERSION = Conversion(
    model=Swin,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="",
    without_weights=r"swin\.encoder\.layers\.\d+\.blocks\.\d+\.attention\.self\.relative_position_index",  # constants
)
