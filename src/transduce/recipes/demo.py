"""The recipe of `transduce demo`."""

from transduce.config.schema import Config, DataConfig, ModelConfig, TrainConfig


def demo() -> Config:
    """A tiny Transformer for the embedded English-German grammar: about three minutes on two CPU cores.

    The vocabulary holds every word of the grammar whole. The learning rate peaks at 4.4e-3 after 400 steps, high for
    the paper but right for a model this small; docs/log has what was tried.
    """
    return Config(
        model=ModelConfig(vocab_size=None, d_model=128, n_layers=2, n_heads=4, d_ff=512, dropout=0.1),
        data=DataConfig(vocab_size=2_000, batch_tokens=2_000, max_tokens=64),
        train=TrainConfig(
            max_steps=1_400,
            warmup_steps=400,
            precision="bf16",
            evaluate_every_steps=350,
            checkpoint_every_steps=100,
        ),
    )
