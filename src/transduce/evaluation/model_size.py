"""Count the parameters of a model from its configuration.

A formula counts the models of the paper without torch, because `transduce recipes` lists 64 of them at once. Any other
kind is built without memory and counted, which needs torch.
"""

from dataclasses import replace

from transduce.config.kinds import ModelSettings
from transduce.config.schema import ModelConfig


def parameter_count(model: ModelSettings, vocab_size: int) -> int:
    """Return the number of trained values; a tied matrix counts once."""
    if not isinstance(model, ModelConfig):
        return _count_built(replace(model, vocab_size=vocab_size))  # pyright: ignore[reportArgumentType]
    target = model.tgt_vocab_size or vocab_size
    tables = vocab_size * model.d_model + target * (model.d_model * (2 - model.tie_src_tgt - model.tie_output))
    tables += target * model.output_bias
    layers = {"transformer": _transformer, "recurrent": _recurrent, "convolutional": _convolutional}
    return tables + layers[model.kind](model)


def _transformer(model: ModelConfig) -> int:
    """Return the number of values of a Transformer without its embedding tables."""
    d = model.d_model
    d_ff = model.d_ff
    heads = model.n_heads
    keys = heads * (model.d_k or d // heads)
    values = heads * (model.d_v or d // heads)
    attention = 2 * d * (keys + values) + (2 * keys + values + d if model.attention_bias else 0)
    ffn = 2 * d * d_ff + d_ff + d
    norm = 2 * d
    encoder, decoder = model.depths
    layers = encoder * (attention + ffn + 2 * norm) + decoder * (2 * attention + ffn + 3 * norm)
    layers += 2 * norm if model.norm == "pre" else 0
    positions = (model.max_positions or 0) * d if model.positions == "learned" else 0
    return layers + positions


def _recurrent(model: ModelConfig) -> int:
    """Return the number of values of the LSTM without its tables: encoder, decoder, initial state, attention."""
    d, n = model.d_model, model.n_layers
    return n * (6 * d * d + 8 * d) + n * (8 * d * d + 8 * d) + 2 * n * (d * d + d) + d * d + (2 * d * d + d)


def _convolutional(model: ModelConfig) -> int:
    """Return the number of values of the convolutional model without its tables.

    The convolutions have width 3, and twice the channels because of the gates. Each decoder layer projects queries.
    """
    d = model.d_model
    return model.n_layers * (2 * (6 * d * d + 2 * d) + d * d + d)


def _count_built(model: ModelSettings) -> int:
    import torch

    from transduce.model.build import build_without_values
    from transduce.model.transformer import parameter_count

    with torch.device("meta"):
        return parameter_count(build_without_values(model))
