"""The recipe of `transduce demo`."""

from transduce.config import Config, DataConfig, ModelConfig, TrainConfig


def demo() -> Config:
    """A tiny Transformer for the embedded English-German grammar: minutes on two CPU cores."""
    return Config(
        model=ModelConfig(vocab_size=None, d_model=128, n_layers=2, n_heads=4, d_ff=512, dropout=0.1),
        data=DataConfig(vocab_size=1_000, batch_tokens=4_000, max_tokens=64),
        train=TrainConfig(
            max_steps=1_500,
            warmup_steps=300,
            lr_factor=1.0,
            precision="bf16",
            evaluate_every_steps=500,
            checkpoint_every_steps=100,
        ),
    )
