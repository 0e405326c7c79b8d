"""The recipe of `transduce demo`."""

from transduce.config.schema import Config, DataConfig, ModelConfig, TrainConfig


def demo() -> Config:
    """The demo's tiny model, for the generated English-German text of `transduce demo`.

    The vocabulary has one piece for each word of the grammar. The learning rate peaks at 4.4e-3 after 400 steps. This
    is higher than in the paper, and suits a model of this size (docs/log/demo.md).

    Time: 3 minutes on two cores.
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
