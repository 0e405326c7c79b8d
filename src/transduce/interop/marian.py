"""Marian models in Hugging Face's form: MarianMTModel, the class of the public OPUS-MT models; names of parameters.

`marian_import` and `marian_export` convert models.

Both programs compute the post-norm Transformer. These points differ in Marian:
- The positions have all sines first ("halves"). For a model with interleaved positions the export reorders the
  dimensions of the whole model.
- LayerNorm has eps 1e-5, and the length penalty is |Y|^alpha.
- Outputs start with the padding token. The import maps the token ids (`transduce.data.sentencepiece_pair`).
"""

from transduce.config.schema import ModelConfig

EPS = 1e-5  # of Marian's LayerNorm; no configuration changes it
# Our parameters that have a row for each id.
OF_THE_VOCABULARY = ("src_embedding.weight", "tgt_embedding.weight", "output.weight", "output.bias")


def marian_names(config: ModelConfig) -> dict[str, str]:
    """Return Marian's name of each of our parameters."""
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
    return names
