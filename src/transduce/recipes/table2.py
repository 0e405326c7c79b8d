"""Table 2 at small scale: the Transformer and its rivals, of one size, on the same pairs in the same batches.

The rivals stand in the places of GNMT and ConvS2S; they are not those systems, which nobody could train on one core.
What all have in common is `_common`: tokens, batches, dropout, label smoothing, Adam, warm-up, mean of checkpoints,
search. Each has sizes that make 2.1 M parameters and the learning rate that served it best on the validation text
(docs/log). Steps are such that each takes about as long on one core; `transduce study table2` compares them where
they have had the same time, and where they have had the same FLOPs.
"""

from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig


def transformer() -> Config:
    """The model of `multi30k-tiny`."""
    model = ModelConfig(vocab_size=None, d_model=128, n_layers=4, n_heads=4, d_ff=256, dropout=0.3, norm="pre")
    return _common(model, lr_factor=1.2, max_steps=800)


def recurrent() -> Config:
    """An LSTM that reads both ways and one that writes, two layers each, with attention; in the place of GNMT."""
    model = ModelConfig(kind="recurrent", vocab_size=None, d_model=176, n_layers=2, dropout=0.3)
    return _common(model, lr_factor=2.4, max_steps=1_200)


def convolutional() -> Config:
    """Six gated convolutions on each side, with attention in each that writes; in the place of ConvS2S."""
    model = ModelConfig(kind="convolutional", vocab_size=None, d_model=128, n_layers=6, dropout=0.3)
    return _common(model, lr_factor=1.2, max_steps=900)


def _common(model: ModelConfig, *, lr_factor: float, max_steps: int) -> Config:
    """All checkpoints are kept: the study chooses among them."""
    every = 50
    return Config(
        model=model,
        data=DataConfig(vocab_size=6_000, batch_tokens=2_048, max_tokens=128),
        train=TrainConfig(
            max_steps=max_steps,
            warmup_steps=200,
            lr_factor=lr_factor,
            precision="bf16",
            log_every_steps=every,
            evaluate_every_steps=5 * every,
            checkpoint_every_steps=every,
            keep_checkpoints=max_steps // every + 1,
        ),
        search=SearchConfig(beam_size=5, length_penalty="power", alpha=1.0),
    )


SMALL = {"transformer": transformer, "recurrent": recurrent, "convolutional": convolutional}
