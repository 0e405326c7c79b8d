"""Translation models in Hugging Face's form: Marian, the class of the public OPUS-MT models, and Pegasus.

`marian_import` and `marian_export` convert models. Marian is post-norm. Pegasus is the same network with pre-norm, and
its parameters have the same names.

All programs compute the same Transformer. These points differ in Hugging Face's:
- The positions have all sines first ("halves"). For a model with interleaved positions the export reorders the
  dimensions of the whole model.
- LayerNorm has eps 1e-5, and the length penalty is |Y|^alpha.
- Outputs of OPUS-MT start with the padding token. The import maps the token ids (`transduce.data.sentencepiece_pair`).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from transduce.config.schema import ModelConfig

EPS = 1e-5  # of their LayerNorm; no configuration changes it
MODEL_TYPES = {"post": "marian", "pre": "pegasus"}  # in config.json, by model.norm
# Our parameters that have a row for each id.
OF_THE_VOCABULARY = ("src_embedding.weight", "tgt_embedding.weight", "output.weight", "output.bias")


def marian_names(config: ModelConfig) -> dict[str, str]:
    """Return the name of each of our parameters in Marian and in Pegasus."""
    names = {"src_embedding.weight": "model.shared.weight"}
    if not config.tie_src_tgt:
        names["src_embedding.weight"] = "model.encoder.embed_tokens.weight"
        names["tgt_embedding.weight"] = "model.decoder.embed_tokens.weight"
    if not config.tie_output:
        names["output.weight"] = "lm_head.weight"
    if config.output_bias:
        names["output.bias"] = "final_logits_bias"
    parts = {"feed_forward.w_1": "fc1", "feed_forward.w_2": "fc2"}
    for letter, word in {"q": "q", "k": "k", "v": "v", "o": "out"}.items():
        parts[f"self_attention.w_{letter}"] = f"self_attn.{word}_proj"
    encoder = {**parts, "residuals.0.norm": "self_attn_layer_norm", "residuals.1.norm": "final_layer_norm"}
    decoder = {**parts, "residuals.0.norm": "self_attn_layer_norm", "residuals.1.norm": "encoder_attn_layer_norm"}
    decoder["residuals.2.norm"] = "final_layer_norm"
    for letter, word in {"q": "q", "k": "k", "v": "v", "o": "out"}.items():
        decoder[f"cross_attention.w_{letter}"] = f"encoder_attn.{word}_proj"
    stacks = zip(("encoder", "decoder"), (encoder, decoder), config.depths, strict=True)
    for stack, parts_of_stack, depth in stacks:
        for i in range(depth):
            for ours, theirs in parts_of_stack.items():
                for kind in ("weight", "bias"):
                    names[f"{stack}.{i}.{ours}.{kind}"] = f"model.{stack}.layers.{i}.{theirs}.{kind}"
        if config.norm == "pre":
            names |= {f"{stack}_norm.{kind}": f"model.{stack}.layer_norm.{kind}" for kind in ("weight", "bias")}
    return names


def sines_first(d_model: int) -> Tensor:
    """Return the order of the dimensions of a model that has interleaved positions: even ones, then odd ones."""
    return torch.tensor([*range(0, d_model, 2), *range(1, d_model, 2)])


def with_order(parameters: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Return the same model, by our names, with the dimensions of the residual stream in another order."""
    reordered = {}
    for name, values in parameters.items():
        if name == "output.bias":
            reordered[name] = values
        elif "norm." in name or name.split(".")[-2] in ("w_o", "w_2"):
            reordered[name] = values[order]
        elif name.endswith("bias"):
            reordered[name] = values
        else:
            reordered[name] = values[:, order].contiguous()
    return reordered
