"""CLIP in Hugging Face's files."""

from typing import Any

from transduce.family.hugging_face.conversion import Conversion, Entry, layer_entries, linear
from transduce.family.hugging_face.settings import Settings
from transduce.family.images.clip import Clip
from transduce.family.images.configs import ClipConfig, ViTConfig

OLD_END = 2  # of folders from before 2023, in which the end is the largest id
LAYER = """
layer_norm1 self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj layer_norm2 mlp.fc1 mlp.fc2
"""


def build(settings: Settings) -> Clip:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "clip")
    settings.one_of("architectures", ["CLIPModel"])
    text, vision = tower(settings, "text_config"), tower(settings, "vision_config")
    n_rows = text.size("vocab_size", 49_408)
    end = int(text.number("eos_token_id", n_rows - 1, below=n_rows))
    image_size, patch_size = vision.size("image_size", 224), vision.size("patch_size", 32)
    if image_size % patch_size:
        raise vision.refusal("image_size", f"a multiple of patch_size={patch_size}")
    n_channels = vision.size("num_channels", 3)
    images = ViTConfig(image_size, patch_size, n_channels=n_channels, **sizes(vision, 768, 12))
    config = ClipConfig(
        images=images,
        vocab_size=n_rows,
        max_positions=text.size("max_position_embeddings", 77),
        d_joint=settings.size("projection_dim", 512),
        **sizes(text, 512, 8),
    )
    return Clip(config, end=None if end == OLD_END else end)


def tower(settings: Settings, key: str) -> Settings:
    """Return the settings of a tower. Those of `key`_dict, in older folders, replace those of `key`."""
    return settings.part(key if settings.get(f"{key}_dict") is None else f"{key}_dict")


def sizes(settings: Settings, d_model: int, n_heads: int) -> dict[str, Any]:
    """Return the sizes that both towers have. d_model, n_heads: their values where they are absent."""
    settings.one_of("hidden_act", "quick_gelu")
    d_model, n_heads = settings.size("hidden_size", d_model), settings.size("num_attention_heads", n_heads)
    if d_model % n_heads:
        raise settings.refusal("hidden_size", f"a multiple of num_attention_heads={n_heads}")
    return {
        "d_model": d_model,
        "n_layers": settings.n_layers("num_hidden_layers", 12),
        "n_heads": n_heads,
        "d_ff": settings.size("intermediate_size", 4 * d_model),
        "dropout": settings.number("attention_dropout", 0.0, below=1),
        "norm_eps": settings.number("layer_norm_eps", 1e-5, below=1),
    }


def settings_of(model: Clip) -> dict[str, object]:
    """Return the config.json of a model."""
    text, images = model.config, model.config.images
    ends = {"eos_token_id": model.texts.end}
    vision_sizes = {"image_size": images.image_size, "patch_size": images.patch_size, "num_channels": images.n_channels}
    text_sizes = {"vocab_size": text.vocab_size, "max_position_embeddings": text.max_positions, **ends}
    return {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": text.d_joint,
        "vision_config": {"model_type": "clip_vision_model", **vision_sizes, **tower_settings(images)},
        "text_config": {"model_type": "clip_text_model", **text_sizes, **tower_settings(text)},
    }


def tower_settings(config: ViTConfig | ClipConfig) -> dict[str, object]:
    """Return the settings that both towers have."""
    return {
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff or 4 * config.d_model,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": "quick_gelu",
        "attention_dropout": config.dropout,
    }


def entries_of(model: Clip) -> list[Entry]:
    """Return the tensors of the file."""
    vision, text = "vision_model", "text_model"
    entries = [
        Entry("logit_scale", ("log_scale",)),
        Entry("visual_projection.weight", ("images.projection.weight",)),
        Entry("text_projection.weight", ("texts.projection.weight",)),
        Entry(f"{vision}.embeddings.class_embedding", ("images.starts.0",), n_dimensions=1),
        Entry(f"{vision}.embeddings.patch_embedding.weight", ("images.patches.weight",)),
        Entry(f"{vision}.embeddings.position_embedding.weight", ("images.positions",), n_dimensions=2),
        *linear(f"{vision}.pre_layrnorm", "images.first_norm"),  # spelled as in the files
        *linear(f"{vision}.post_layernorm", "images.norm"),
        Entry(f"{text}.embeddings.token_embedding.weight", ("texts.embedding.weight",)),
        Entry(f"{text}.embeddings.position_embedding.weight", ("texts.positions.weight",)),
        *linear(f"{text}.final_layer_norm", "texts.norm"),
    ]
    for theirs, ours in (vision, "images"), (text, "texts"):
        for i in range(len(getattr(model, ours).layers)):
            entries += layer_entries(f"{theirs}.encoder.layers.{i}", f"{ours}.layers.{i}", LAYER)
    return entries


CONVERSION = Conversion(
    model=Clip,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="",
    without_weights=r"(vision|text)_model\.embeddings\.position_ids",  # 0, 1, 2, ... in older files
)
