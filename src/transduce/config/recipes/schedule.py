"""The schedule of a training of a given number of steps: learning rate, intervals, and the final model."""

import math
from dataclasses import replace

from transduce.config.schema import Config, TrainConfig

CHECKPOINTS = 16  # of a training, whose steps are a multiple of them
FEWER_CHECKPOINTS = 4  # of a short training, which would lose many steps otherwise
DECAY = 0.5  # share of the steps in which the learning rate falls to 0
PEAKS = {"adam": 3.5e-3, "muon": 9e-3}  # learning rate of a model of width 128,
POWERS = {"adam": -0.8, "muon": 0.0}  # and of the width, for other models: a step of Muon is as large at each width
WARMUP = 0.25  # share of the steps in which the learning rate rises, at most


def scheduled(train: TrainConfig, steps: int, evaluations: int) -> TrainConfig:
    """Return `train` for a training of about `steps` steps with the same peak of the learning rate, which ends at 0.

    The final model is the moving average over a twentieth of the training.
    """
    warmup = max(1, min(train.warmup_steps, int(WARMUP * steps)))
    count = CHECKPOINTS if steps >= 10 * CHECKPOINTS else min(steps, max(FEWER_CHECKPOINTS, evaluations))
    every = steps // count
    steps = count * every
    return replace(
        train,
        max_steps=steps,
        warmup_steps=warmup,
        lr_factor=in_4_digits(train.lr_factor * math.sqrt(warmup / train.warmup_steps)),
        decay_steps=every * round(DECAY * count),
        log_every_steps=max(1, min(100, every)),
        evaluate_every_steps=max(1, steps // evaluations),
        checkpoint_every_steps=every,
        ema_decay=round(1 - 20 / max(steps, 40), 5),
        use="ema",
        patience=None,
    )


def usual_peak(optimizer: str, d_model: int) -> float:
    """Return the highest learning rate of a training from the start."""
    return PEAKS[optimizer] * (d_model / 128) ** POWERS[optimizer]


def with_optimizer(config: Config, optimizer: str) -> Config:
    """Return `config` with another optimizer, and the learning rate that it needs."""
    factor = usual_peak(optimizer, config.model.d_model) / usual_peak(config.train.optimizer, config.model.d_model)
    train = replace(config.train, optimizer=optimizer, lr_factor=in_4_digits(config.train.lr_factor * factor))
    return replace(config, train=train)


def in_4_digits(value: float) -> float:
    """Return `value` rounded to four significant digits."""
    return float(f"{value:.4g}")


def highest_rate(config: Config) -> float:
    """Return the learning rate at the end of the warm-up (§5.3)."""
    return config.train.lr_factor / math.sqrt(config.model.d_model * config.train.warmup_steps)
