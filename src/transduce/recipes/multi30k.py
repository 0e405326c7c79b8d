"""Multi30k English-German: 29,000 image captions, the smallest real task with published figures."""

from dataclasses import replace

from transduce.config import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig


def tiny() -> Config:
    """The Transformer-Tiny of Wu et al. (2021), who report 41.02 lowercased tokenised BLEU on test_2016.

    They fix: 4 + 4 layers, d_model 128, d_ff 256, 4 heads, dropout 0.3, joint BPE, warm-up of 2,000 steps to a learning
    rate of 5e-3, the mean of 10 checkpoints, beam 5, 8,000 steps of 8,192 tokens.
    We chose, for two CPU cores: batches of about half that size, BPE-dropout against overfitting, bf16.
    Time and figures: README and docs/log.md.
    """
    return Config(
        model=ModelConfig(vocab_size=None, d_model=128, n_layers=4, n_heads=4, d_ff=256, dropout=0.3),
        data=DataConfig(vocab_size=6_000, batch_tokens=5_120, max_tokens=128, bpe_dropout=0.1),
        train=TrainConfig(
            max_steps=7_000,
            warmup_steps=2_000,
            lr_factor=2.5,
            precision="bf16",
            evaluate_every_steps=250,
            checkpoint_every_steps=250,
            keep_checkpoints=10,
            average_checkpoints=10,
        ),
        search=SearchConfig(beam_size=5),
    )


def raw() -> Config:
    """The same for the raw, cased text, in a shorter training; scored with sacreBLEU."""
    start = tiny()
    return replace(start, train=replace(start.train, max_steps=4_000, warmup_steps=1_500))
