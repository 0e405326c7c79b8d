"""All attention weights of a model for one sentence pair (§3.2)."""

import numpy as np
import torch
from torch import Tensor

from transduce.data.batches import Batch
from transduce.model.attention import Mask, attention_weights
from transduce.model.build import Model
from transduce.model.transformer import Transformer
from transduce.training.loss import token_log_probs


@torch.inference_mode()
def all_weights(model: Model, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the attention weights for one sentence pair, and the log-probability of each target token (T,).

    The weights are those of encoder (L,H,S,S), decoder (L,H,T,T) and cross-attention (L,H,T,S). The model gets an
    attention function that records them. The rivals of Table 2 have only cross-attention: the arrays of encoder and
    decoder then have no layers.
    """
    layers: list[np.ndarray] = []

    def recording_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        weights = attention_weights(queries, keys, mask)
        layers.append(weights[0].float().cpu().numpy())
        return weights @ values

    if isinstance(model, Transformer):
        memory = model.encode(batch.src, batch.src_mask, recording_attention)
    else:
        memory = model.encode(batch.src, batch.src_mask)
    decoded = model.decode(batch.tgt_in, memory, batch.src_mask, recording_attention)
    hidden, targets = batch.real(decoded)
    log_probs = token_log_probs(hidden, model.output.weight, targets, model.output.bias).float().cpu().numpy()
    if isinstance(model, Transformer):
        n = model.config.n_layers
        return np.stack(layers[:n]), np.stack(layers[n::2]), np.stack(layers[n + 1 :: 2]), log_probs
    encoder, decoder = (np.zeros((0, 1, ids.size(1), ids.size(1)), "f4") for ids in (batch.src, batch.tgt_in))
    return encoder, decoder, np.stack(layers), log_probs
