"""A first model for a corpus of your own."""

from transduce.config.schema import Config, DataConfig, ModelConfig, TrainConfig


def small() -> Config:
    """A small Transformer for 50,000 to 500,000 pairs, on a laptop or one GPU; about 9 M parameters.

    More dropout than the paper, as small corpora need; stops by itself when validation no longer gets better.

        transduce train --recipe small --train train.en train.de --valid valid.en valid.de --out run
    """
    return Config(
        model=ModelConfig(vocab_size=None, d_model=256, n_layers=4, n_heads=4, d_ff=1024, dropout=0.2),
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
