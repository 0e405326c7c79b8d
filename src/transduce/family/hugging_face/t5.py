"""T5 in Hugging Face's files, version 1.0 and 1.1."""

from transduce.family.configs import T5Config
from transduce.family.hugging_face.conversion import Conversion, Entry
from transduce.family.hugging_face.settings import Settings
from transduce.family.t5 import T5


def build(settings: Settings) -> T5:
    """Return the model of a config.json. Raises UserError for values that it cannot have.

    Version 1.1 has a separate output matrix. Its config.json says so by `tie_word_embeddings`, or, as transformers 5
    writes it, only by the factor of the output.
    """
    settings.one_of("model_type", "t5")
    settings.one_of("architectures", ["T5ForConditionalGeneration"])
    tied = settings.one_of("tie_word_embeddings", True, False) and settings.one_of("scale_decoder_outputs", True, False)
    n_buckets = settings.size("relative_attention_num_buckets", 32)
    if n_buckets < 4:
        raise settings.refusal("relative_attention_num_buckets", "4 or more")
    longest = settings.size("relative_attention_max_distance", 128)
    if longest <= n_buckets // 2:
        raise settings.refusal("relative_attention_max_distance", f"more than {n_buckets // 2}, half of the buckets")
    config = T5Config(
        vocab_size=settings.size("vocab_size"),
        d_model=settings.size("d_model"),
        n_layers=settings.n_layers("num_layers"),
        n_heads=settings.size("num_heads"),
        d_k=settings.size("d_kv"),
        d_ff=settings.size("d_ff"),
        gated=settings.one_of("feed_forward_proj", "relu", "gated-gelu") == "gated-gelu",
        tied=tied,
        dropout=settings.number("dropout_rate", 0.1, below=1),
    )
    return T5(
        config,
        n_sentinels=0,  # vocab_size counts them
        n_decoder_layers=None
        if settings.get("num_decoder_layers") is None
        else settings.n_layers("num_decoder_layers"),
        n_buckets=n_buckets,
        longest=longest,
        norm_eps=settings.number("layer_norm_epsilon", 1e-6, below=1),
    )


def settings_of(model: T5) -> dict[str, object]:
    """Return the config.json of a model."""
    sizes = model.config
    bias = model.encoder_bias
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": model.embedding.num_embeddings,
        "d_model": sizes.d_model,
        "num_layers": sizes.n_layers,
        "num_decoder_layers": len(model.decoder),
        "num_heads": sizes.n_heads,
        "d_kv": model.d_k,
        "d_ff": model.d_ff,
        "feed_forward_proj": "gated-gelu" if sizes.gated else "relu",
        "relative_attention_num_buckets": bias.n_buckets,
        "relative_attention_max_distance": bias.longest,
        "dropout_rate": sizes.dropout,
        "layer_norm_epsilon": model.norm_eps,
        "tie_word_embeddings": sizes.tied,
        "scale_decoder_outputs": sizes.tied,
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def entries_of(model: T5) -> list[Entry]:
    """Return the tensors of the file."""
    entries = [Entry("shared.weight", ("embedding.weight",))]
    entries += [Entry(f"{side}.embed_tokens.weight", ("embedding.weight",), is_copy=True) for side in SIDES]
    output = "embedding.weight" if model.config.tied else "output.weight"
    entries.append(Entry("lm_head.weight", (output,), is_copy=model.config.tied))
    for side, n_layers in zip(SIDES, (len(model.encoder), len(model.decoder)), strict=True):
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        entries += [Entry(bias, (f"{side}_bias.table.weight",))]
        entries += [Entry(f"{side}.final_layer_norm.weight", (f"{side}_norm.weight",))]
        for i in range(n_layers):
            entries += _layer_entries(f"{side}.block.{i}.layer", f"{side}.{i}", SIDES[side], model.config.gated)
    return entries


# The parts of a layer of each side, in their order: the names of theirs and of ours.
SELF = ("SelfAttention", "self_attention")
FEED_FORWARD = ("DenseReluDense", "feed_forward")
SIDES = {"encoder": (SELF, FEED_FORWARD), "decoder": (SELF, ("EncDecAttention", "cross_attention"), FEED_FORWARD)}


def _layer_entries(theirs: str, ours: str, parts: tuple[tuple[str, str], ...], gated: bool) -> list[Entry]:
    attention = {letter: f"w_{letter}" for letter in "qkvo"}
    feed_forward = {"wi_0": "w_1", "wi_1": "w_3", "wo": "w_2"} if gated else {"wi": "w_1", "wo": "w_2"}
    entries = []
    for j, (their_part, our_part) in enumerate(parts):
        matrices = feed_forward if our_part == "feed_forward" else attention
        entries += [
            Entry(f"{theirs}.{j}.{their_part}.{name}.weight", (f"{ours}.{our_part}.{matrices[name]}.weight",))
            for name in matrices
        ]
        entries.append(Entry(f"{theirs}.{j}.layer_norm.weight", (f"{ours}.residuals.{j}.norm.weight",)))
    return entries


CONVERSION = Conversion(
    model=T5,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="",
    # of old files; it has no effect
    without_weights=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)
