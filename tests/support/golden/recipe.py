"""The recipe of the run in this folder."""

from transduce import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig


def tiny() -> Config:
    return Config(
        model=ModelConfig(vocab_size=None, d_model=16, n_layers=1, n_heads=2, d_ff=24, dropout=0.0, norm="pre"),
        data=DataConfig(vocab_size=280, batch_tokens=400, max_tokens=32, bpe_dropout=0.01),
        train=TrainConfig(
            max_steps=300,
            warmup_steps=60,
            lr_factor=0.5,
            use="ema",
            ema_decay=0.9,
            log_every_steps=50,
            evaluate_every_steps=150,
            checkpoint_every_steps=150,
            keep_checkpoints=2,
        ),
        search=SearchConfig(max_extra_tokens=10),
    )
