"""Mamba in Hugging Face's files."""

from transduce.family.configs import UNLIMITED, MambaConfig
from transduce.family.hugging_face.conversion import Conversion, Entry, linear
from transduce.family.hugging_face.settings import Settings
from transduce.family.mamba import Mamba


def build(settings: Settings) -> Mamba:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "mamba")
    settings.one_of("hidden_act", "silu")
    settings.one_of("use_bias", False)
    settings.one_of("use_conv_bias", True)
    settings.one_of("tie_word_embeddings", True)
    d_model = settings.size("hidden_size")
    d_inner = settings.size("intermediate_size", int(settings.number("expand", 2, below=1_024) * d_model))
    d_step = None if settings.get("time_step_rank") == "auto" else settings.size("time_step_rank", -(-d_model // 16))
    config = MambaConfig(
        vocab_size=settings.size("vocab_size"),
        d_model=d_model,
        n_layers=settings.n_layers("num_hidden_layers"),
        d_state=settings.size("state_size", 16),
        max_positions=UNLIMITED,
    )
    d_conv = settings.size("conv_kernel", 4)
    norm_eps = settings.number("layer_norm_epsilon", 1e-5, below=1)
    return Mamba(config, d_inner=d_inner, d_step=d_step, d_conv=d_conv, norm_eps=norm_eps)


def settings_of(model: Mamba) -> dict[str, object]:
    """Return the config.json of a model."""
    sizes = model.config
    d_model = sizes.d_model
    expand = model.d_inner / d_model
    return {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "vocab_size": sizes.vocab_size,
        "hidden_size": d_model,
        "num_hidden_layers": sizes.n_layers,
        "intermediate_size": model.d_inner,
        "expand": int(expand) if expand.is_integer() else expand,
        "state_size": sizes.d_state,
        "time_step_rank": model.d_step,
        "conv_kernel": model.d_conv,
        "layer_norm_epsilon": model.norm_eps,
        "hidden_act": "silu",
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
    }


def entries_of(model: Mamba) -> list[Entry]:
    """Return the tensors of the file."""
    entries = [
        Entry("backbone.embeddings.weight", ("embedding.weight",)),
        Entry("backbone.norm_f.weight", ("norm.weight",)),
        Entry("lm_head.weight", ("embedding.weight",), is_copy=True),
    ]
    for i in range(len(model.mixers)):
        theirs, ours = f"backbone.layers.{i}.mixer", f"mixers.{i}"
        entries.append(Entry(f"backbone.layers.{i}.norm.weight", (f"residuals.{i}.norm.weight",)))
        entries += [Entry(f"{theirs}.A_log", (f"{ours}.log_a",)), Entry(f"{theirs}.D", (f"{ours}.d",))]
        entries += [*linear(f"{theirs}.conv1d", f"{ours}.conv"), *linear(f"{theirs}.dt_proj", f"{ours}.w_dt")]
        for name, part in ("in_proj", "w_in"), ("x_proj", "w_x"), ("out_proj", "w_out"):
            entries.append(Entry(f"{theirs}.{name}.weight", (f"{ours}.{part}.weight",)))
    return entries


CONVERSION = Conversion(
    model=Mamba,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="backbone.",
    without_weights="",  # every tensor has an entry
)
