"""GPT-2, GPT-1 and StarCoder in Hugging Face's files."""

from transduce.family.configs import GPT2Config
from transduce.family.gpt2 import GPT2
from transduce.family.hugging_face.conversion import Conversion, Entry, linear
from transduce.family.hugging_face.settings import Settings


def build(settings: Settings) -> GPT2:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    name = settings.one_of("model_type", "gpt2", "openai-gpt", "gpt_bigcode")
    post = name == "openai-gpt"
    multi_query = name == "gpt_bigcode"
    if multi_query:
        settings.one_of("multi_query", True)
    settings.one_of(*(("afn", "gelu") if post else ("activation_function", "gelu_new", "gelu_pytorch_tanh")))
    settings.one_of("tie_word_embeddings", True)
    settings.one_of("scale_attn_weights", True)
    settings.one_of("scale_attn_by_inverse_layer_idx", False)
    settings.one_of("add_cross_attention", False)
    d_model = settings.size("n_embd", multiple_of="n_head")
    config = GPT2Config(
        vocab_size=settings.size("vocab_size"),
        d_model=d_model,
        n_layers=settings.n_layers("n_layer"),
        n_heads=settings.size("n_head"),
        multi_query=multi_query,
        d_ff=settings.size("n_inner", 4 * d_model),
        max_positions=settings.size("n_positions", 512 if post else 1_024),
        dropout=settings.number("resid_pdrop", 0.1, below=1),
    )
    return GPT2(config, norm_eps=settings.number("layer_norm_epsilon", 1e-5, below=1), post=post)


def settings_of(model: GPT2) -> dict[str, object]:
    """Return the config.json of a model."""
    sizes = model.config
    d_ff = None if sizes.d_ff == 4 * sizes.d_model else sizes.d_ff
    if model.post:
        name = "openai-gpt"
        architecture = "OpenAIGPTLMHeadModel"
        own = {"afn": "gelu"}
    elif sizes.multi_query:
        own = {"activation_function": "gelu_pytorch_tanh", "n_inner": d_ff, "multi_query": True}
        name, architecture = "gpt_bigcode", "GPTBigCodeForCausalLM"
    else:
        name = "gpt2"
        architecture = "GPT2LMHeadModel"
        own = {"activation_function": "gelu_new", "n_inner": d_ff}
    return {
        "model_type": name,
        "architectures": [architecture],
        **own,
        "vocab_size": sizes.vocab_size,
        "n_embd": sizes.d_model,
        "n_layer": sizes.n_layers,
        "n_head": sizes.n_heads,
        "n_positions": sizes.max_positions,
        "layer_norm_epsilon": model.norm_eps,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), sizes.dropout),
        "tie_word_embeddings": True,
    }


def entries_of(model: GPT2) -> list[Entry]:
    """Return the tensors of the file. Queries, keys and values have one together. StarCoder's are not transposed."""
    token, position = ("tokens_embed", "positions_embed") if model.post else ("wte", "wpe")
    entries = [
        Entry(f"transformer.{token}.weight", ("embedding.weight",)),
        Entry(f"transformer.{position}.weight", ("positions.weight",)),
        Entry("lm_head.weight", ("embedding.weight",), is_copy=True),
    ]
    for i in range(len(model.layers)):
        theirs = f"transformer.h.{i}"
        attention = f"layers.{i}.self_attention"
        ffn = f"layers.{i}.feed_forward"
        is_transposed = not model.config.multi_query
        entries += linear(f"{theirs}.ln_1", f"layers.{i}.residuals.0.norm")
        entries += linear(f"{theirs}.attn.c_attn", *(f"{attention}.w_{x}" for x in "qkv"), is_transposed=is_transposed)
        entries += linear(f"{theirs}.attn.c_proj", f"{attention}.w_o", is_transposed=is_transposed)
        entries += linear(f"{theirs}.ln_2", f"layers.{i}.residuals.1.norm")
        entries += linear(f"{theirs}.mlp.c_fc", f"{ffn}.w_1", is_transposed=is_transposed)
        entries += linear(f"{theirs}.mlp.c_proj", f"{ffn}.w_2", is_transposed=is_transposed)
    return entries if model.post else entries + linear("transformer.ln_f", "norm")


CONVERSION = Conversion(
    model=GPT2,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="transformer.",
    without_weights=r"h\.\d+\.attn\.(bias|masked_bias)",  # masks, in old files
)
