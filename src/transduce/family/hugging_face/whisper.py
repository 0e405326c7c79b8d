"""Whisper in Hugging Face's files."""

from transduce.family.configs import WhisperConfig
from transduce.family.hugging_face.conversion import Conversion, Entry, linear
from transduce.family.hugging_face.settings import Settings
from transduce.family.sound.whisper import Whisper


def build(settings: Settings) -> Whisper:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "whisper")
    settings.one_of("architectures", ["WhisperForConditionalGeneration"])
    settings.one_of("activation_function", "gelu")
    for key, value in (("scale_embedding", False), ("tie_word_embeddings", True)):
        settings.one_of(key, value)
    for size in "attention_heads", "ffn_dim":
        settings.one_of(f"decoder_{size}", settings.size(f"encoder_{size}"))
    config = WhisperConfig(
        vocab_size=settings.size("vocab_size"),
        d_model=settings.size("d_model", multiple_of="encoder_attention_heads"),
        n_layers=settings.n_layers("encoder_layers"),
        n_decoder_layers=settings.n_layers("decoder_layers"),
        n_heads=settings.size("encoder_attention_heads"),
        d_ff=settings.size("encoder_ffn_dim"),
        n_mels=settings.size("num_mel_bins", 80),
        max_frames=settings.size("max_source_positions", 1_500),
        max_positions=settings.size("max_target_positions", 448),
        dropout=settings.number("dropout", 0.0, below=1),
    )
    if config.problems():
        raise settings.refusal("d_model", "an even number of at least 4, and up to 10,000 num_mel_bins")
    return Whisper(config)


def settings_of(model: Whisper) -> dict[str, object]:
    """Return the config.json of a model."""
    sizes = model.config
    d_ff = sizes.d_ff or 4 * sizes.d_model
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": sizes.vocab_size,
        "d_model": sizes.d_model,
        "encoder_layers": sizes.n_layers,
        "decoder_layers": len(model.decoder),
        "encoder_attention_heads": sizes.n_heads,
        "decoder_attention_heads": sizes.n_heads,
        "encoder_ffn_dim": d_ff,
        "decoder_ffn_dim": d_ff,
        "num_mel_bins": sizes.n_mels,
        "max_source_positions": sizes.max_frames,
        "max_target_positions": sizes.max_positions,
        "activation_function": "gelu",
        "scale_embedding": False,
        "dropout": sizes.dropout,
        "attention_dropout": sizes.dropout,
        "is_encoder_decoder": True,
    }


def entries_of(model: Whisper) -> list[Entry]:
    """Return the tensors of the file."""
    entries = [
        *linear("model.encoder.conv1", "conv_1"),
        *linear("model.encoder.conv2", "conv_2"),
        Entry("model.encoder.embed_positions.weight", ("src_positions",)),
        Entry("model.decoder.embed_positions.weight", ("positions.table",)),
        Entry("model.decoder.embed_tokens.weight", ("tgt_embedding.weight",)),
        Entry("proj_out.weight", ("tgt_embedding.weight",), is_copy=True),
    ]
    for side, attentions in SIDES.items():
        for i in range(len(getattr(model, side))):
            theirs, ours = f"model.{side}.layers.{i}", f"{side}.{i}"
            for j, (their_part, our_part) in enumerate(attentions):
                entries += _attention(f"{theirs}.{their_part}", f"{ours}.{our_part}")
                entries += linear(f"{theirs}.{their_part}_layer_norm", f"{ours}.residuals.{j}.norm")
            entries += linear(f"{theirs}.fc1", f"{ours}.feed_forward.w_1")
            entries += linear(f"{theirs}.fc2", f"{ours}.feed_forward.w_2")
            entries += linear(f"{theirs}.final_layer_norm", f"{ours}.residuals.{len(attentions)}.norm")
        entries += linear(f"model.{side}.layer_norm", f"{side}_norm")
    return entries


SELF = ("self_attn", "self_attention")  # the name of theirs and of ours
SIDES = {"encoder": (SELF,), "decoder": (SELF, ("encoder_attn", "cross_attention"))}


def _attention(theirs: str, ours: str) -> list[Entry]:
    """Return the entries of an attention, whose keys have no bias."""
    entries = [Entry(f"{theirs}.k_proj.weight", (f"{ours}.w_k.weight",))]
    for name, letter in (("q_proj", "q"), ("v_proj", "v"), ("out_proj", "o")):
        entries += linear(f"{theirs}.{name}", f"{ours}.w_{letter}")
    return entries


CONVERSION = Conversion(
    model=Whisper,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="model.",
    without_weights="",
)
