"""Table 2 at small scale: the Transformer and its rivals, of one size, on the same pairs in the same batches.

The rivals are trained instead of GNMT and ConvS2S. They are smaller: GNMT and ConvS2S are too large for one core.
Dropout is 0.3 in all. `_common` has the other shared settings: tokens, batches, label smoothing, Adam, warm-up, mean
of checkpoints, search.
Each model has sizes that give 2.1 M parameters, and the learning rate that was best on the validation text
(docs/log/paper-tables.md). The numbers of steps give about the same time on one core. `transduce study table2` compares
the models after the same time, and after the same FLOPs.
"""

from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig


def transformer() -> Config:
    """Transformer, in the small Table 2: the model of multi30k-tiny.

    Time: 29 minutes on one core, while two other trainings run.
    """
    model = ModelConfig(vocab_size=None, d_model=128, n_layers=4, n_heads=4, d_ff=256, dropout=0.3, norm="pre")
    return _common(model, lr_factor=1.2, max_steps=800)


def recurrent() -> Config:
    """LSTM, instead of GNMT: an encoder-decoder of 2 + 2 layers with attention. The encoder is bidirectional.

    Time: 28 minutes on one core, while two other trainings run.
    """
    model = ModelConfig(kind="recurrent", vocab_size=None, d_model=176, n_layers=2, dropout=0.3)
    return _common(model, lr_factor=2.4, max_steps=1_200)


def convolutional() -> Config:
    """Gated convolutions, instead of ConvS2S: 6 + 6 layers with attention in each decoder layer.

    Time: 29 minutes on one core, while two other trainings run.
    """
    model = ModelConfig(kind="convolutional", vocab_size=None, d_model=128, n_layers=6, dropout=0.3)
    return _common(model, lr_factor=1.2, max_steps=900)


def _common(model: ModelConfig, *, lr_factor: float, max_steps: int) -> Config:
    """Return the settings that all three share. All checkpoints are kept, because the study chooses among them."""
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
