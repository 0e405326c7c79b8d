"""A look into a Transformer at work on one sentence pair: the logit lens, and what each head changes in the answer.

    lens       log p_l(token) ~ W norm(h_l)    h_l: a state of the decoder after layer l; W, norm: the model's last ones
    patching   log p(token) with the output of a head replaced, minus log p(token)

The output of a head is replaced by zero, or by its output on another source sentence with the same target. Shapes: L
layers, H heads, T target tokens, K answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from transduce.data.batches import Batch, collate
from transduce.data.vocabulary import TokenizerLike
from transduce.evaluation.attention_view import PARTS, AttentionPart
from transduce.evaluation.heads import transformer_of
from transduce.model.attention import Mask, fast_attention
from transduce.model.build import Model
from transduce.model.transformer import Transformer
from transduce.training.loss import token_log_probs

ANSWERS = 3  # of each state: its most likely tokens


@dataclass(frozen=True)
class Inside:
    """What the states of the decoder would answer, and what each head changes.

    answers (L+1,T,K): the pieces that the embedding and each layer would answer, the most likely first. log_probs
    (L+1,T,K): of these. target_log_probs (L+1,T): of the tokens of the target.
    effects: by part, the change of the log-probability of each target token, (L,H,T); without layers for the encoder if
    the other sentence has another number of tokens. other: the sentence whose heads replace the heads; None: zero does.
    """

    answers: np.ndarray
    log_probs: np.ndarray
    target_log_probs: np.ndarray
    effects: Mapping[AttentionPart, np.ndarray]
    other: str | None = None


def look_in(model: Model, tokenizer: TokenizerLike, src: str, tgt: str, other: str | None = None) -> Inside:
    """Return a look into `model` at a sentence and its translation. other: see `Inside`.

    Raises UserError for a rival of Table 2, which has no layers of the same form.
    """
    network = transformer_of(model)
    ids = [np.asarray(tokenizer.encode(text), np.int64) for text in (src, src if other is None else other)]
    target = np.asarray(tokenizer.target.encode(tgt), np.int64)
    batch, other_batch = (collate([source], [target]).to(network.output.weight.device) for source in ids)
    log_probs, of_target = logit_lens(network, batch)
    best = log_probs.topk(min(ANSWERS, log_probs.size(-1)), dim=-1)
    answers = [[tokenizer.target.pieces(ids) for ids in layer] for layer in best.indices.tolist()]
    effects = head_effects(network, batch, None if other is None else other_batch)
    return Inside(np.array(answers, dtype=str), _array(best.values), _array(of_target), effects, other)


def _array(values: Tensor) -> np.ndarray:
    return values.float().cpu().numpy()


# ---- the logit lens ----------------------------------------------------------------------------------------------


@torch.inference_mode()
def logit_lens(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities (L+1,T,V) of the next token that the states of the decoder give, for one pair.

    The first state is the embedding with its position; the last one gives the answer of the model. Also returns the
    log-probabilities (L+1,T) of the tokens of the target.
    """
    states: list[Tensor] = []
    hooks = [model.decoder[0].register_forward_pre_hook(lambda layer, inputs: states.append(inputs[0]))]
    hooks += [layer.register_forward_hook(lambda layer, inputs, out: states.append(out[0])) for layer in model.decoder]
    try:
        model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask)
    finally:
        for hook in hooks:
            hook.remove()
    log_probs = model.logits(model.decoder_norm(torch.cat(states))).float().log_softmax(-1)
    truth = batch.tgt_out.expand(len(states), -1)[..., None]
    return log_probs, log_probs.gather(-1, truth)[..., 0]


# ---- patching ----------------------------------------------------------------------------------------------------


class Patch:
    """An attention function that replaces outputs of heads in call number `call`, and records the outputs of all calls.

    heads: mask (B,H), True for a head of a row to replace. outputs: by call, what to replace them by, (1,H,T,W); None:
    zero. call: None for no call.
    """

    def __init__(
        self, call: int | None = None, heads: Tensor | None = None, outputs: list[Tensor] | None = None
    ) -> None:
        self.call = call
        self.heads = heads
        self.outputs = outputs
        self.recorded: list[Tensor] = []

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        heads = fast_attention(queries, keys, values, mask, dropout)
        call = len(self.recorded)
        self.recorded.append(heads)
        if call != self.call or self.heads is None:
            return heads
        other = torch.zeros_like(heads) if self.outputs is None else self.outputs[call]
        return torch.where(self.heads[..., None, None], other, heads)


@torch.inference_mode()
def head_effects(model: Transformer, batch: Batch, other: Batch | None = None) -> dict[AttentionPart, np.ndarray]:
    """Return by part (L,H,T) how the log-probability of each target token of one pair changes when a head is replaced.

    other: a pair with the same target, whose head replaces a head; None: zero does. Without layers for the encoder if
    both sources differ in their number of tokens.
    """
    n_encoder, n_decoder = model.config.depths
    end = n_encoder + 2 * n_decoder
    calls = range(n_encoder), range(n_encoder, end, 2), range(n_encoder + 1, end, 2)  # self- and cross-attention
    outputs = None
    if other is not None:
        record = Patch()
        _log_probs(model, other, record)
        outputs = record.recorded
        if other.src.size(1) != batch.src.size(1):
            calls = range(0), *calls[1:]
    before = _log_probs(model, batch, Patch())
    each = torch.eye(model.config.n_heads, dtype=torch.bool, device=batch.src.device)  # row h replaces head h
    rows = replace(batch, **{name: getattr(batch, name).expand(len(each), -1) for name in OF_A_PAIR})
    effects = [[_log_probs(model, rows, Patch(call, each, outputs)) - before for call in of_part] for of_part in calls]
    nothing = before.new_zeros(0, len(each), before.size(1))
    return {part: _array(torch.stack(of) if of else nothing) for part, of in zip(PARTS, effects, strict=True)}


OF_A_PAIR = ("src", "src_mask", "tgt_in", "tgt_out", "tgt_mask")


def _log_probs(model: Transformer, batch: Batch, attention: Patch) -> Tensor:
    """Return the log-probabilities (B,T) of the target tokens."""
    memory = model.encode(batch.src, batch.src_mask, attention)
    decoded = model.decode(batch.tgt_in, memory, batch.src_mask, attention).flatten(0, 1)
    truth = batch.tgt_out.flatten()
    return token_log_probs(decoded, model.output.weight, truth, model.output.bias).view(batch.tgt_out.shape)
