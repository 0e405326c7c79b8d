"""The recipe for a first model of your own corpus."""

from transduce.config.schema import Config, DataConfig, ModelConfig, TrainConfig


def small() -> Config:
    """Your own corpus, 50,000 to 500,000 pairs: a small Transformer for a laptop or one GPU.

    It has about 9 M parameters, and more dropout than the paper, as small corpora need. We chose pre-norm: with four
    layers, a small post-norm model learns more slowly (docs/log). Training stops early when the validation
    loss has not improved in 6 evaluations.

    Time: not measured in full: at most 30,000 steps of 6,000 tokens a side.

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
