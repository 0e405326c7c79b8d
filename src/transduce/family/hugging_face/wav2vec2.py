"""wav2vec 2.0 in Hugging Face's files."""

from transduce.family.hugging_face.conversion import Conversion, Entry, layer_entries, linear
from transduce.family.hugging_face.settings import Settings
from transduce.family.sound.configs import Wav2Vec2Config
from transduce.family.sound.ctc import BLANK
from transduce.family.sound.wav2vec2 import Wav2Vec2

CONVOLUTIONS = Wav2Vec2Config()
LAYER = """
layer_norm attention.q_proj attention.k_proj attention.v_proj attention.out_proj
final_layer_norm feed_forward.intermediate_dense feed_forward.output_dense
"""


def build(settings: Settings) -> Wav2Vec2:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "wav2vec2")
    settings.one_of("architectures", ["Wav2Vec2ForCTC"])
    settings.one_of("hidden_act", "gelu")
    settings.one_of("feat_extract_activation", "gelu")
    settings.one_of("add_adapter", False)
    settings.one_of("pad_token_id", BLANK)
    is_pre = settings.one_of("feat_extract_norm", "group", "layer") == "layer"
    if is_pre or settings.get("do_stable_layer_norm") is not None:
        settings.one_of("do_stable_layer_norm", is_pre)
    if is_pre or settings.get("conv_bias") is not None:
        settings.one_of("conv_bias", is_pre)
    limits = {"most": 10_000, "most_values": 20}
    kernels = settings.sizes("conv_kernel", CONVOLUTIONS.kernels, **limits)
    strides = settings.sizes("conv_stride", CONVOLUTIONS.strides, **limits)
    channels = settings.sizes("conv_dim", (CONVOLUTIONS.n_channels,) * len(kernels), **limits)
    if len({*channels}) != 1:
        raise settings.refusal("conv_dim", "equal numbers")
    if len(strides) != len(kernels):
        raise settings.refusal("conv_stride", "as many numbers as conv_kernel")
    groups = settings.size("num_conv_pos_embedding_groups", 16)
    if settings.size("hidden_size") % groups:
        raise settings.refusal("num_conv_pos_embedding_groups", "a divisor of hidden_size")
    config = Wav2Vec2Config(
        vocab_size=settings.size("vocab_size", 32),
        d_model=settings.size("hidden_size", multiple_of="num_attention_heads"),
        n_layers=settings.n_layers("num_hidden_layers"),
        n_heads=settings.size("num_attention_heads"),
        d_ff=settings.size("intermediate_size"),
        n_channels=channels[0],
        kernels=kernels,
        strides=strides,
        position_width=settings.size("num_conv_pos_embeddings", 128),
        position_groups=groups,
        norm="pre" if is_pre else "post",
        norm_eps=settings.number("layer_norm_eps", 1e-5, below=1),
        dropout=settings.number("hidden_dropout", 0.1, below=1),
    )
    return Wav2Vec2(config)


def settings_of(model: Wav2Vec2) -> dict[str, object]:
    """Return the config.json of a model."""
    sizes = model.config
    is_pre = sizes.norm == "pre"
    return {
        "model_type": "wav2vec2",
        "architectures": ["Wav2Vec2ForCTC"],
        "vocab_size": sizes.vocab_size,
        "pad_token_id": BLANK,
        "hidden_size": sizes.d_model,
        "num_hidden_layers": sizes.n_layers,
        "num_attention_heads": sizes.n_heads,
        "intermediate_size": sizes.d_ff or 4 * sizes.d_model,
        "conv_dim": [sizes.n_channels] * len(sizes.kernels),
        "conv_kernel": [*sizes.kernels],
        "conv_stride": [*sizes.strides],
        "num_feat_extract_layers": len(sizes.kernels),
        "num_conv_pos_embeddings": sizes.position_width,
        "num_conv_pos_embedding_groups": sizes.position_groups,
        "feat_extract_norm": "layer" if is_pre else "group",
        "feat_extract_activation": "gelu",
        "do_stable_layer_norm": is_pre,
        "conv_bias": is_pre,
        "hidden_act": "gelu",
        "layer_norm_eps": sizes.norm_eps,
        **dict.fromkeys(("hidden_dropout", "attention_dropout", "feat_proj_dropout", "final_dropout"), sizes.dropout),
        **dict.fromkeys(("activation_dropout", "layerdrop", "mask_time_prob", "mask_feature_prob"), 0.0),
    }


def entries_of(model: Wav2Vec2) -> list[Entry]:
    """Return the tensors of the file."""
    entries = list[Entry]()
    for i, convolution in enumerate(model.convolutions):
        theirs = f"wav2vec2.feature_extractor.conv_layers.{i}"
        weight, bias = linear(f"{theirs}.conv", f"convolutions.{i}")
        entries += [weight] if convolution.bias is None else [weight, bias]
        entries += linear(f"{theirs}.layer_norm", f"norms.{i}") if i < len(model.norms) else []
    positions = "wav2vec2.encoder.pos_conv_embed.conv"
    entries += [
        *linear("wav2vec2.feature_projection.layer_norm", "feature_norm"),
        *linear("wav2vec2.feature_projection.projection", "projection"),
        Entry(f"{positions}.bias", ("positions.bias",)),
        Entry(f"{positions}.{LENGTH}", ("positions.length",)),
        Entry(f"{positions}.{DIRECTION}", ("positions.direction",)),
        *linear("wav2vec2.encoder.layer_norm", "norm"),
    ]
    for i in range(len(model.layers)):
        entries += layer_entries(f"wav2vec2.encoder.layers.{i}", f"layers.{i}", LAYER)
    return entries + linear("lm_head", "output")


LENGTH, DIRECTION = "parametrizations.weight.original0", "parametrizations.weight.original1"
CONVERSION = Conversion(
    model=Wav2Vec2,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="",  # only a model without a layer for CTC leaves it out
    without_weights=r"wav2vec2\.masked_spec_embed",  # of the frames that its training hides
    old_endings=(("weight_g", LENGTH), ("weight_v", DIRECTION)),
)
