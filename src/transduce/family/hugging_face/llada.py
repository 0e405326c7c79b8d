"""LLaDA in Hugging Face's files, with the names of its authors. A table of lengths is an addition of ours."""

from transduce.errors import UserError
from transduce.family.configs import LladaConfig
from transduce.family.hugging_face.conversion import Conversion, Entry
from transduce.family.hugging_face.settings import Settings
from transduce.family.llada import Llada
from transduce.family.rope import Rope

LENGTHS = "longest_line"  # the number of lengths with a probability; absent in the authors' files


def build(settings: Settings) -> Llada:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "llada")
    settings.one_of("block_type", "llama")
    settings.one_of("activation_type", "silu")
    settings.one_of("layer_norm_type", "rms")
    settings.one_of("rope", True)
    for name in ("alibi", "include_bias", "include_qkv_bias", "attention_layer_norm", "scale_logits", "input_emb_norm"):
        settings.one_of(name, False)
    settings.one_of("multi_query_attention", None, False)
    n_heads, d_model = settings.size("n_heads"), settings.size("d_model", multiple_of="n_heads")
    n_kv_heads = settings.size("n_kv_heads", n_heads)
    if n_heads % n_kv_heads:
        raise settings.refusal("n_kv_heads", f"a divisor of n_heads={n_heads}")
    if d_model // n_heads % 2:
        raise settings.refusal("d_model", f"an even number of values in a head, not {d_model // n_heads}")
    n_rows = settings.size("embedding_size", settings.size("vocab_size"))
    if n_rows < settings.size("vocab_size"):
        raise settings.refusal("embedding_size", f"at least vocab_size={settings.size('vocab_size')}")
    config = LladaConfig(
        vocab_size=n_rows,
        d_model=d_model,
        n_layers=settings.n_layers("n_layers"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=settings.size("mlp_hidden_size"),
        max_positions=settings.size("max_sequence_length"),
        tied=settings.one_of("weight_tying", True, False),
    )
    rope = Rope(settings.number("rope_theta", 10_000.0, below=1e12))
    n_lengths = 0 if settings.get(LENGTHS) is None else settings.size(LENGTHS)
    return Llada(config, n_lengths=n_lengths, rope=rope, norm_eps=settings.number("rms_norm_eps", 1e-5, below=1))


def settings_of(model: Llada) -> dict[str, object]:
    """Return the config.json of a model."""
    llama = model.llama
    sizes = llama.config
    if type(llama.rope) is not Rope:
        raise UserError("the Llama of a LLaDA: expected unscaled positions; build another")
    return {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "vocab_size": sizes.vocab_size,
        "embedding_size": sizes.vocab_size,
        "d_model": sizes.d_model,
        "mlp_hidden_size": sizes.d_ff,
        "n_layers": sizes.n_layers,
        "n_heads": sizes.n_heads,
        "n_kv_heads": sizes.n_kv_heads or sizes.n_heads,
        "max_sequence_length": sizes.max_positions,
        "rms_norm_eps": llama.norm_eps,
        "rope": True,
        "rope_theta": llama.rope.theta,
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "alibi": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "weight_tying": sizes.tied,
        **({} if model.lengths is None else {LENGTHS: len(model.lengths)}),
    }


PARTS = {
    **{f"{letter}_proj": f"self_attention.w_{letter}" for letter in "qkv"},
    "attn_out": "self_attention.w_o",
    "ff_proj": "feed_forward.w_1",
    "up_proj": "feed_forward.w_3",
    "ff_out": "feed_forward.w_2",
    "attn_norm": "residuals.0.norm",
    "ff_norm": "residuals.1.norm",
}


def entries_of(model: Llada) -> list[Entry]:
    """Return the tensors of the file."""
    output = "embedding" if model.llama.config.tied else "output"
    return [
        Entry("model.transformer.wte.weight", ("llama.embedding.weight",)),
        Entry("model.transformer.ln_f.weight", ("llama.norm.weight",)),
        Entry("model.transformer.ff_out.weight", (f"llama.{output}.weight",), is_copy=model.llama.config.tied),
        *(
            Entry(f"model.transformer.blocks.{i}.{theirs}.weight", (f"llama.layers.{i}.{ours}.weight",))
            for i in range(len(model.llama.layers))
            for theirs, ours in PARTS.items()
        ),
        *([] if model.lengths is None else [Entry("line_lengths", ("lengths",))]),
    ]


CONVERSION = Conversion(
    model=Llada,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="model.",
    without_weights=r"(?!)",  # none
)
