"""Llama in Hugging Face's files."""

from typing import Any

from transduce.family.form import Entry, Form
from transduce.family.llama import Llama
from transduce.family.settings import Settings


def build(settings: Settings) -> Llama:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "llama")
    settings.one_of("hidden_act", "silu")
    settings.one_of("attention_bias", False)
    settings.one_of("mlp_bias", False)
    rotation = rotation_of(settings)
    theta = rotation.number("rope_theta", 10_000.0, below=1e12)
    if theta == 0:
        raise rotation.refusal("rope_theta", "a number above 0")
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
    return Llama(
        settings.size("vocab_size"),
        d_model,
        settings.n_layers("num_hidden_layers"),
        n_heads,
        d_ff=settings.size("intermediate_size"),
        n_kv_heads=n_kv_heads,
        d_k=d_k,
        n_positions=settings.size("max_position_embeddings", 2_048),
        theta=theta,
        norm_eps=settings.number("rms_norm_eps", 1e-6, below=1),
        tied=settings.one_of("tie_word_embeddings", False, True),
    )


def rotation_of(settings: Settings) -> Settings:
    """Return the settings of RoPE. transformers 5 has them in an object, older versions beside an object of scaling."""
    for key in ("rope_parameters", "rope_scaling"):
        values = settings.get(key)
        if values is None:
            continue
        if not isinstance(values, dict):
            raise settings.refusal(key, "an object")
        kind = values.get("rope_type", values.get("type", "default"))
        if kind != "default":
            raise settings.refusal(key, "rope_type='default', positions that are not scaled")
        if values.get("rope_theta") is not None:
            return Settings(values, settings.where)
    return settings


def settings_of(model: Llama) -> dict[str, Any]:
    """Return the config.json of a model."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": model.embedding.num_embeddings,
        "hidden_size": model.embedding.embedding_dim,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": model.n_heads,
        "num_key_value_heads": model.n_kv_heads,
        "head_dim": model.d_k,
        "max_position_embeddings": model.n_positions,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": model.tied,
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
    output = "embedding.weight" if model.tied else "output.weight"
    return [
        Entry("model.embed_tokens.weight", ("embedding.weight",)),
        Entry("model.norm.weight", ("norm.weight",)),
        Entry("lm_head.weight", (output,), is_copy=model.tied),
        *(
            Entry(f"model.layers.{i}.{theirs}.weight", (f"layers.{i}.{ours}.weight",))
            for i in range(len(model.layers))
            for theirs, ours in PARTS.items()
        ),
    ]


FORM = Form(
    model=Llama,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="model.",
    without_weights=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",  # of old files; rope_theta gives them
)
