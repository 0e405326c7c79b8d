"""The recipes for a first model of your own corpus."""

from dataclasses import replace

from transduce.config.schema import Config, DataConfig, ModelConfig, TrainConfig


def small() -> Config:
    """Your own corpus, 50,000 to 500,000 pairs: a small Transformer for a laptop or one GPU.

    It has about 9 M parameters, and more dropout than the paper, as small corpora need. We chose pre-norm: with four
    layers, a small post-norm model learns more slowly (docs/log). Training stops early when the validation
    loss has not improved in 6 evaluations.

    Time: not measured in full: at most 30,000 steps of 6,000 tokens a side, about 13 hours on two cores, derived from
    the speed of a shorter schedule (docs/recipes.md).

        transduce train --recipe small --train train.en train.de --valid valid.en valid.de --out run
    """
    return Config(
        model=ModelConfig(vocab_size=None, d_model=256, n_layers=4, n_heads=4, d_ff=1024, dropout=0.2, norm="pre"),
        data=DataConfig(vocab_size=8_000, batch_tokens=6_000),
        train=TrainConfig(
            max_steps=30_000,
            warmup_steps=2_000,
            lr_factor=1.0,
            precision="bf16",
            evaluate_every_steps=1_000,
            checkpoint_every_steps=1_000,
            patience=6,
        ),
    )


def short() -> Config:
    """Your own corpus of about 200,000 pairs, in an hour and a half: the model of `small` with a shorter schedule.

    It has less dropout than `small`, and half the tokens in a batch. The learning rate falls to 0 at the end, and the
    model is the moving average of the weights.

    Time: 94 minutes on two cores, for 5.2 epochs of 227,000 pairs of 10 words a side.

        transduce train --recipe small-short --train train.en train.de --valid valid.en valid.de --out run
    """
    start = small()
    return replace(
        start,
        model=replace(start.model, dropout=0.1),
        data=replace(start.data, batch_tokens=3_000),
        train=replace(
            start.train,
            max_steps=7_200,
            warmup_steps=800,
            lr_factor=0.905,
            decay_steps=4_200,
            ema_decay=0.998,
            use="ema",
            checkpoint_every_steps=500,
        ),
    )
