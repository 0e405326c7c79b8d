"""Recipes for models of sound, small enough for a laptop. Their frames and sounds suit made or read speech."""

from dataclasses import replace

from transduce.config.kinds import config_class
from transduce.config.schema import Config, DataConfig, TrainConfig


def ctc_small() -> Config:
    """Speech with its text, 3,000 sentences or more: a small wav2vec 2.0, which learns by CTC to write what it hears.

    A source line is the path of a sound file, a target line its text. A sound counts 256 tokens, so a step has 12. A
    frame has 40 ms, twice as many as in the public models, so that a step takes half the time.

    Size: 0.9 M parameters.

    Time: 42 minutes on two busy cores, 10 of the processor, for 3,000 sentences of 2 s; 63 % of the words are wrong.

        transduce train --recipe ctc-small --train train.paths train.en --valid valid.paths valid.en --out run
    """
    return Config(
        model=config_class("wav2vec2")(
            d_model=144,
            n_layers=3,
            n_heads=4,
            n_channels=64,
            kernels=(40, 3, 3, 3, 4),
            strides=(20, 2, 2, 2, 4),
            position_width=16,
            norm="pre",
        ),
        data=DataConfig(vocab_size=290, batch_tokens=12 * 256),
        train=TrainConfig(
            task="ctc",
            max_steps=1_900,
            warmup_steps=150,
            lr_factor=0.22,
            decay_steps=400,
            label_smoothing=0.0,
            log_every_steps=25,
            evaluate_every_steps=100,
            checkpoint_every_steps=100,
            use="best",
        ),
    )


def speech_small() -> Config:
    """Speech of at most 5 s with its text, 3,000 sentences or more: a small Whisper, which writes what it hears.

    With the translations as the target text, it learns to translate speech, which takes longer. Text with capitals
    needs more than 290 pieces (--set data.vocab_size=400). Paths and texts are as for ctc-small.

    Size: 1.3 M parameters.

    Time: 43 minutes on two busy cores, for 3,000 sentences of 2 s; 20 % of the words are wrong, with a beam of 4.

        transduce train --recipe speech-small --train train.paths train.en --valid valid.paths valid.en --out run
    """
    start = ctc_small()
    model = config_class("whisper")(
        d_model=128,
        n_layers=3,
        n_decoder_layers=2,
        n_heads=4,
        n_mels=40,
        max_frames=250,
        max_positions=256,
        dropout=0.1,
    )
    train = replace(start.train, task="speech", max_steps=5_000, lr_factor=0.2, label_smoothing=0.1)
    return replace(start, model=model, train=train)
