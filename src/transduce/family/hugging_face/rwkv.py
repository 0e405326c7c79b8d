"""RWKV-4 in Hugging Face's files."""

from transduce.family.configs import UNLIMITED, RWKVConfig
from transduce.family.hugging_face.conversion import Conversion, Entry, linear
from transduce.family.hugging_face.settings import Settings
from transduce.family.rwkv import RWKV


def build(settings: Settings) -> RWKV:
    """Return the model of a config.json. Raises UserError for values that it cannot have.

    `rescale_every` is ignored: it halves states in evaluation, for float16. The norms add a constant to the variance of
    these states, so it changes logits by more than rounding: scores of a beam by 4e-3.
    """
    settings.one_of("model_type", "rwkv")
    settings.one_of("tie_word_embeddings", False)
    settings.one_of("layer_norm_epsilon", 1e-5)
    d_model = settings.size("hidden_size")
    settings.one_of("attention_hidden_size", d_model)
    return RWKV(
        RWKVConfig(
            vocab_size=settings.size("vocab_size"),
            d_model=d_model,
            n_layers=settings.n_layers("num_hidden_layers"),
            d_ff=settings.size("intermediate_size", 4 * d_model),
            max_positions=UNLIMITED,
        )
    )


def settings_of(model: RWKV) -> dict[str, object]:
    """Return the config.json of a model."""
    sizes = model.config
    d_model = sizes.d_model
    return {
        "model_type": "rwkv",
        "architectures": ["RwkvForCausalLM"],
        "vocab_size": sizes.vocab_size,
        "hidden_size": d_model,
        "attention_hidden_size": d_model,
        "num_hidden_layers": sizes.n_layers,
        "intermediate_size": model.d_ff,
        "layer_norm_epsilon": model.norm.eps,
        "rescale_every": 0,
        "tie_word_embeddings": False,
    }


def entries_of(model: RWKV) -> list[Entry]:
    """Return the tensors of the file."""
    entries = [
        Entry("rwkv.embeddings.weight", ("embedding.weight",)),
        *linear("rwkv.blocks.0.pre_ln", "embedding_norm"),
        *linear("rwkv.ln_out", "norm"),
        Entry("head.weight", ("output.weight",)),
    ]
    names = {"receptance": "r", "key": "k", "value": "v"}
    for i in range(len(model.mixers)):
        block, is_channel_mix = f"rwkv.blocks.{i // 2}", i % 2
        theirs, ours = f"{block}.{'feed_forward' if is_channel_mix else 'attention'}", f"mixers.{i}"
        entries += linear(f"{block}.ln{i % 2 + 1}", f"residuals.{i}.norm")
        for name, letter in names.items():
            entries.append(Entry(f"{theirs}.{name}.weight", (f"{ours}.w_{letter}.weight",)))
            if not (is_channel_mix and name == "value"):
                entries.append(Entry(f"{theirs}.time_mix_{name}", (f"{ours}.mu_{letter}",)))
        if not is_channel_mix:
            entries.append(Entry(f"{theirs}.output.weight", (f"{ours}.w_o.weight",)))
            entries += [
                Entry(f"{theirs}.time_decay", (f"{ours}.log_w",)),
                Entry(f"{theirs}.time_first", (f"{ours}.u",)),
            ]
    return entries


CONVERSION = Conversion(
    model=RWKV,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="rwkv.",
    without_weights="",  # every tensor has an entry
)
