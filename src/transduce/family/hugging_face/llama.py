"""Llama in Hugging Face's files."""

from transduce.family.configs import LlamaConfig
from transduce.family.hugging_face.conversion import Conversion, Entry
from transduce.family.hugging_face.rope import rope_of, rope_settings
from transduce.family.hugging_face.settings import Settings
from transduce.family.llama import Llama
from transduce.family.rope import DynamicRope


def build(settings: Settings) -> Llama:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "llama")
    settings.one_of("hidden_act", "silu")
    settings.one_of("attention_bias", False)
    settings.one_of("mlp_bias", False)
    n_heads = settings.size("num_attention_heads")
    d_model = settings.size("hidden_size")
    if settings.get("head_dim") is None:
        settings.size("hidden_size", multiple_of="num_attention_heads")
    n_kv_heads = settings.size("num_key_value_heads", n_heads)
    if n_heads % n_kv_heads:
        raise settings.refusal("num_key_value_heads", f"a divisor of num_attention_heads={n_heads}")
    d_k = settings.size("head_dim", max(1, d_model // n_heads))
    if d_k % 2:
        raise settings.refusal("head_dim", f"an even number of values in a head, not {d_k}")
    rope = rope_of(settings)
    if isinstance(rope, DynamicRope) and d_k < 4:
        raise settings.refusal("head_dim", f"at least 4 values in a head with rope_type 'dynamic', not {d_k}")
    config = LlamaConfig(
        vocab_size=settings.size("vocab_size"),
        d_model=d_model,
        n_layers=settings.n_layers("num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=settings.size("intermediate_size"),
        max_positions=settings.size("max_position_embeddings", 2_048),
        tied=settings.one_of("tie_word_embeddings", False, True),
    )
    return Llama(config, d_k=d_k, rope=rope, norm_eps=settings.number("rms_norm_eps", 1e-6, below=1))


def settings_of(model: Llama) -> dict[str, object]:
    """Return the config.json of a model."""
    sizes = model.config
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.d_model,
        "intermediate_size": sizes.d_ff,
        "num_hidden_layers": sizes.n_layers,
        "num_attention_heads": sizes.n_heads,
        "num_key_value_heads": sizes.n_kv_heads or sizes.n_heads,
        "head_dim": model.d_k,
        "max_position_embeddings": sizes.max_positions,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": rope_settings(model.rope),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": sizes.tied,
    }


PARTS = {
    **{f"self_attn.{letter}_proj": f"self_attention.w_{letter}" for letter in "qkvo"},
    "mlp.gate_proj": "feed_forward.w_1",
    "mlp.up_proj": "feed_forward.w_3",
    "mlp.down_proj": "feed_forward.w_2",
    "input_layernorm": "residuals.0.norm",
    "post_attention_layernorm": "residuals.1.norm",
}


def entries_of(model: Llama) -> list[Entry]:
    """Return the tensors of the file."""
    output = "embedding.weight" if model.config.tied else "output.weight"
    return [
        Entry("model.embed_tokens.weight", ("embedding.weight",)),
        Entry("model.norm.weight", ("norm.weight",)),
        Entry("lm_head.weight", (output,), is_copy=model.config.tied),
        *(
            Entry(f"model.layers.{i}.{theirs}.weight", (f"layers.{i}.{ours}.weight",))
            for i in range(len(model.layers))
            for theirs, ours in PARTS.items()
        ),
    ]


CONVERSION = Conversion(
    model=Llama,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="model.",
    without_weights=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",  # of old files; rope_theta gives them
)
