"""The recipe that tensor2tensor called "transformer_base" after the paper: a pre-norm model."""

from dataclasses import replace

from transduce.config.recipes import vaswani2017
from transduce.config.schema import Config


def base() -> Config:
    """Base in tensor2tensor, its `transformer_base` of 2018 and later: a pre-norm model that trains more stably.

    The paper fixes: sizes, smoothing and search, as in vaswani2017-base.
    The code does, by the end of 2017: LayerNorm before each sub-layer and after each stack, no biases in attention,
    dropout 0.1 on attention weights and inside the feed-forward layer as well, learning rate factor 2, 8,000 warm-up
    steps, sines and cosines in two halves with its own exponent. Since February 2018: beta2 0.997. This recipe has all
    of these.
    We chose: the initialisation of vaswani2017-base (that code no longer had the joint fan-out of Q, K and V).

    Time: not measured: about as vaswani2017-base, 12 hours on 8 P100.
    """
    start = vaswani2017.base()
    return replace(
        start,
        model=replace(
            start.model,
            norm="pre",
            attention_bias=False,
            attention_dropout=0.1,
            ffn_dropout=0.1,
            positions="tensor2tensor",
        ),
        train=replace(start.train, lr_factor=2.0, warmup_steps=8_000, adam_beta2=0.997),
    )
