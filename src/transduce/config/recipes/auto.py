"""The recipe that derives everything from the size of a text, the speed of the machine and the time there is."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from transduce.config.recipes.schedule import (
    CHECKPOINTS,
    highest_rate,
    in_4_digits,
    scheduled,
    usual_peak,
    with_optimizer,
)
from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig, architecture
from transduce.console import in_words
from transduce.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Size:
    """A model that `auto` can choose, and the tokens of its batches on each side."""

    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    batch_tokens: int


# By the pairs from which on the next larger model has enough text: the models of `multi30k-raw`, of `mixture`, and of
# the paper's base.
SIZES = (
    (60_000, Size(d_model=128, n_layers=4, n_heads=4, d_ff=256, batch_tokens=2_048)),
    (1_000_000, Size(d_model=256, n_layers=4, n_heads=4, d_ff=1024, batch_tokens=3_000)),
    (math.inf, Size(d_model=512, n_layers=6, n_heads=8, d_ff=2048, batch_tokens=12_000)),
)
PIECES = ((5_000, 2_000), (20_000, 4_000), (60_000, 6_000), (500_000, 8_000), (2_000_000, 16_000), (math.inf, 32_000))
LATIN = 300  # different characters of two languages of one alphabet: more of them need more pieces
FULL_EPOCHS = 20  # of a full training
FULL_TOKENS = 9_000_000  # at least, on each side: 4,500 steps of `multi30k-raw`
MOST_EPOCHS = 60  # of a full training of a small text
TUNING_EPOCHS = 6  # of a full training that starts from a model
TUNING_TOKENS = 600_000  # at least, on each side
TUNING_STEPS = 300  # for which the batches of a large model become smaller
MOST_TIMES = 3  # times a full training: a longer one would hardly gain
TOKENS_PER_PARAMETER = 1.5  # at least, on each side; with less, a smaller model is better
LONGEST = 24 * 60.0  # minutes of a training without --minutes
DROPOUTS = ((8, 0.1), (15, 0.2), (math.inf, 0.3))  # by the epochs, not above: a text that is seen often needs more
EVALUATIONS = 8  # during a training
EVALUATED = 0.1  # share of the time at most
FEWEST_STEPS = 32
MOST_STEPS = (1 << 63) - 1
FEW = 5_000  # pairs
ODD = 0.1  # share of pairs
FILLED = 0.95  # share of a batch's tokens that are real
TUNING_PEAK = 1 / 3  # of the highest rate of a first training; docs/better-models.md has others
SECONDS_TO_START = 15.0  # and to write the model and the report
SECONDS_PER_TOKEN = 6e-6  # to learn the tokenizer and to apply it, for each token of the longer side


@dataclass(frozen=True)
class TextSize:
    """The size of a training text.

    pairs: number of pairs of an epoch, by the weights, without blank and long ones. tokens: estimated tokens of the
    longer side in an epoch. characters: number of different characters. equal, blank, long, repeated: share of the
    pairs with two equal sides, with a side without text, with a side of more than `data.max_tokens`, and of those that
    came before.
    """

    pairs: int
    tokens: int
    characters: int
    equal: float = 0.0
    blank: float = 0.0
    long: float = 0.0
    repeated: float = 0.0

    @property
    def mean_tokens(self) -> float:
        """Tokens of the longer side of a pair, with EOS."""
        return self.tokens / self.pairs


@dataclass(frozen=True)
class Trial:
    """What a trial of a model measured: seconds of a step and of an evaluation, and the number of parameters."""

    step: float
    evaluation: float
    parameters: int


def _as_it_is(config: Config) -> Config:
    return config


@dataclass(frozen=True)
class Conditions:
    """The conditions of a training.

    minutes: time of the whole training; None: a full training, of a day at most. precision: "bf16" where the device is
    fast in it. trial: measures the speed of a model on this device. complete: applies the settings of the user. steps:
    the steps that the user sets instead of a time; None: as many as fit into the time and help.
    """

    minutes: float | None
    precision: str
    trial: Callable[[Config], Trial]
    complete: Callable[[Config], Config] = _as_it_is
    steps: int | None = None


@dataclass(frozen=True)
class ExplainedConfig:
    """The configuration that `choose` returns. lines: what it chose, and why."""

    config: Config
    lines: list[str]


def start() -> Config:
    """Any text: model, vocabulary, batches and steps from its size, from the speed of this machine, and --minutes.

    `transduce recipes auto --train SRC TGT` shows the choice (docs/recipes.md). The settings below are those for 60,000
    pairs.

    Time: --minutes, or what the first lines of the training say.
    """
    return configure(SIZES[0][1], TextSize(60_000, 800_000, 100), steps=4_500, precision="fp32")


def undecided() -> Config:
    """Return `start()` with a number of steps that any setting of the schedule fits, until `choose` sets it."""
    config = start()
    return replace(config, train=replace(config.train, max_steps=MOST_STEPS, decay_steps=0))


def choose(text: TextSize, conditions: Conditions) -> ExplainedConfig:
    """Return the configuration of a training of `text`.

    The largest model for which there is enough text is tried first. If the time is too short for it, a smaller one is.
    Raises UserError if the time is too short for any.
    """
    minutes, precision = conditions.minutes, conditions.precision
    full_tokens = _tokens(text, FULL_EPOCHS, FULL_TOKENS)
    smallest, *larger = [size for i, (_, size) in enumerate(SIZES) if i == 0 or text.pairs > SIZES[i - 1][0]]
    for size in [*reversed(larger), smallest]:
        config = conditions.complete(configure(size, text, steps=1_000, precision=precision))
        batch_tokens = config.data.batch_tokens
        speed = conditions.trial(config)
        most_steps = conditions.steps or _most_steps(minutes or LONGEST, text, speed)
        needed = TOKENS_PER_PARAMETER * speed.parameters if minutes or conditions.steps else full_tokens
        if size is not smallest and most_steps * batch_tokens * FILLED < needed:
            continue
        steps = _steps(conditions, text, speed, _useful_steps(text, full_tokens, batch_tokens, minutes))
        size = replace(size, batch_tokens=batch_tokens)
        config = configure(size, text, steps=steps, precision=precision, evaluations=evaluations(steps, speed))
        config = conditions.complete(config)
        return ExplainedConfig(config, [*_of_text(text, config), *of_time(text, config, speed, minutes)])
    raise AssertionError("the smallest size ends the loop")


def choose_from(parent: Config, text: TextSize, conditions: Conditions) -> ExplainedConfig:
    """Return the configuration of a training of `text` that starts with the weights of a model.

    parent: the configuration of that model. Raises UserError if the time is too short.
    """
    minutes = conditions.minutes
    child = replace(parent, model=conditions.complete(parent).model)
    relearns = architecture(child) != architecture(parent)  # other depths
    configured = partial(configure_from, child, text, precision=conditions.precision, relearns=relearns)
    config = conditions.complete(configured(steps=1_000))
    speed = conditions.trial(config)
    full_tokens = _tokens(text, FULL_EPOCHS, FULL_TOKENS) if relearns else _tokens(text, TUNING_EPOCHS, TUNING_TOKENS)
    useful = _useful_steps(text, full_tokens, config.data.batch_tokens, minutes)
    steps = _steps(conditions, text, speed, max(FEWEST_STEPS, useful))
    n_evaluations = evaluations(steps, speed)
    chosen = configured(steps=steps, evaluations=n_evaluations)
    config = conditions.complete(chosen)
    share = (
        "as in a first training: most layers are new"
        if relearns
        else "a third of a first training's: with more, the model would forget more of its old text; --old-valid has "
        "the scores there"
    )
    is_own = highest_rate(config) == highest_rate(with_optimizer(chosen, config.train.optimizer))
    lines = [
        f"{text.pairs:,} pairs of about {text.mean_tokens:.0f} tokens: the model keeps {architecture(config)}, "
        f"its pieces, and dropout {config.model.dropout:g}",
        f"highest learning rate {highest_rate(config):.1e}, {share if is_own else 'by your settings'}",
    ]
    return ExplainedConfig(config, [*lines, *_oddities(text), *of_time(text, config, speed, minutes)])


def _steps(conditions: Conditions, text: TextSize, trial: Trial, useful: int) -> int:
    """Return the steps of a training, at most `useful` unless the user sets them. Raises UserError for too few."""
    return conditions.steps or min(useful, steps_within(conditions.minutes, text, trial))


def steps_within(minutes: float | None, text: TextSize, trial: Trial) -> int:
    """Return the steps of a training that ends after `minutes`, or a day. Raises UserError if these are too few."""
    steps = _most_steps(minutes or LONGEST, text, trial)
    _check(minutes, steps, text, trial)
    return steps


def _tokens(text: TextSize, epochs: int, least: int) -> int:
    """Return the tokens of a full training, on each side: `epochs`, and at least `least` unless these are too many."""
    return max(epochs * text.tokens, min(least, MOST_EPOCHS * text.tokens))


def _useful_steps(text: TextSize, full_tokens: int, batch_tokens: int, minutes: float | None) -> int:
    return math.ceil(full_tokens * (MOST_TIMES if minutes else 1) / _step_tokens(text, batch_tokens))


def _step_tokens(text: TextSize, batch_tokens: int) -> float:
    """Return the tokens of a step, on each side. A step has no pair twice."""
    return min(FILLED * batch_tokens, text.tokens)


def _check(minutes: float | None, steps: int, text: TextSize, trial: Trial) -> None:
    if steps < FEWEST_STEPS:
        least = math.ceil(_seconds(text, FEWEST_STEPS, trial) / 60)
        while _most_steps(least, text, trial) < FEWEST_STEPS:  # which leaves time for more evaluations
            least += 1
        name = "--minutes" if minutes is None else f"--minutes={minutes:g}"  # without it, a training ends after a day
        raise UserError(f"{name}: expected at least {least} for this text on this machine; give --minutes {least}")


def _most_steps(minutes: float, text: TextSize, trial: Trial) -> int:
    seconds = 60 * minutes - _seconds_without_steps(text, trial)
    most_evaluations = max(trial.evaluation, min(EVALUATED * seconds, EVALUATIONS * trial.evaluation))
    return int((seconds - most_evaluations) / trial.step)


def evaluations(steps: int, trial: Trial) -> int:
    """Return the number of evaluations of a training: 1, 2, 4 or 8."""
    most = min(EVALUATIONS, EVALUATED * steps * trial.step / trial.evaluation)
    return 2 ** max(0, int(math.log2(max(1.0, most))))


def configure(size: Size, text: TextSize, *, steps: int, precision: str, evaluations: int = EVALUATIONS) -> Config:
    """Return the configuration for a size, a text, and a number of steps."""
    return Config(
        model=ModelConfig(
            vocab_size=None,
            d_model=size.d_model,
            n_layers=size.n_layers,
            n_heads=size.n_heads,
            d_ff=size.d_ff,
            dropout=_of(DROPOUTS, _epochs(text, size.batch_tokens, steps)),
            norm="pre",
        ),
        data=DataConfig(
            vocab_size=_of(PIECES, text.pairs) + max(0, text.characters - LATIN), batch_tokens=size.batch_tokens
        ),
        train=scheduled(
            TrainConfig(
                warmup_steps=steps,
                lr_factor=usual_peak("muon", size.d_model) * math.sqrt(size.d_model * steps),
                optimizer="muon",
                precision="bf16" if precision == "bf16" else "fp32",
                best_by="chrf",
            ),
            steps,
            evaluations,
        ),
        search=SearchConfig(length_penalty="power", alpha=1.0),
    )


def configure_from(
    parent: Config,
    text: TextSize,
    *,
    steps: int,
    precision: str,
    evaluations: int = EVALUATIONS,
    relearns: bool = False,
) -> Config:
    """Return the configuration of a training that starts from a model with the configuration `parent`.

    It keeps all but the training. The highest learning rate is a third of the parent's, or of what a first
    training has if that is more: the parent may itself have started from a model. The result is the best moving average
    of the evaluations, among which is the parent. relearns: the model gets other depths than its weights had. Then rate
    and result are as in a first training.
    """
    width = parent.model.d_model
    size = min((size for _, size in SIZES), key=lambda size: abs(size.d_model - width))
    first = configure(replace(size, d_model=width), text, steps=steps, precision=precision, evaluations=evaluations)
    peak = (1 if relearns else TUNING_PEAK) * max(highest_rate(parent), usual_peak(parent.train.optimizer, width))
    warmup = max(1, steps // 10)
    train = replace(
        first.train,
        warmup_steps=warmup,
        lr_factor=in_4_digits(peak * math.sqrt(width * warmup)),
        optimizer=parent.train.optimizer,
        adam_beta2=parent.train.adam_beta2,
        label_smoothing=parent.train.label_smoothing,
        use="ema" if relearns else "best",
        # by chrF of few pairs, a parent with a loss of 7.1 was the best, and not the model with 4.5
        best_by="chrf" if relearns else "loss",
    )
    small_batch = max(_tokens(text, TUNING_EPOCHS, TUNING_TOKENS) // TUNING_STEPS, SIZES[0][1].batch_tokens)
    batch_tokens = max(min(size.batch_tokens, small_batch), parent.data.max_tokens)
    return replace(parent, data=replace(parent.data, batch_tokens=batch_tokens, sentences_per_line=None), train=train)


def of_time(text: TextSize, config: Config, trial: Trial, minutes: float | None) -> list[str]:
    """Return lines on the steps, the epochs and the expected time of a training."""
    steps = config.train.max_steps
    expected = _seconds(text, steps, trial) / 60
    epochs = _epochs(text, config.data.batch_tokens, steps)
    line = f"{trial.step:.2g} s for a step of {config.data.batch_tokens:,} tokens a side in {config.train.precision}"
    lines = [f"{line}: {steps:,} steps, {epochs:.1f} epochs, about {in_words(expected)}"]
    if minutes is None:
        lines[0] += "; --minutes M ends after M minutes"
    elif expected < 0.9 * minutes and _most_steps(minutes, text, trial) - steps >= CHECKPOINTS:
        lines.append(f"more than {in_words(expected)} would not help a text of this size, so the training ends earlier")
    if epochs < 1:
        lines.append(f"the model sees only {epochs:.0%} of the text: more minutes, or a GPU, would help most")
    return lines


def _of_text(text: TextSize, config: Config) -> list[str]:
    """Return lines on what follows from the text."""
    lines = [
        f"{text.pairs:,} pairs of about {text.mean_tokens:.0f} tokens: {architecture(config)}, "
        f"{config.data.vocab_size:,} pieces, dropout {config.model.dropout:g}"
    ]
    if text.pairs < FEW:
        lines.append(f"fewer than {FEW:,} pairs: expect a weak model, good only for sentences like its text")
    return [*lines, *_oddities(text)]


def _oddities(text: TextSize) -> list[str]:
    shares = (
        (text.equal, "have two equal sides: are these two languages?"),
        (text.blank, "have an empty side and are not used"),
        (text.long, "are longer than data.max_tokens and are not used: split them into sentences, or set more"),
        (text.repeated, "repeat an earlier pair: `transduce clean` keeps one of each"),
    )
    return [f"{share:.0%} of the pairs {words}" for share, words in shares if share > ODD]


def _epochs(text: TextSize, batch_tokens: int, steps: int) -> float:
    return steps * _step_tokens(text, batch_tokens) / text.tokens


def _seconds_without_steps(text: TextSize, trial: Trial) -> float:
    """Return the seconds of the start and of the end, with the last evaluation."""
    return SECONDS_TO_START + SECONDS_PER_TOKEN * text.tokens + 2 * trial.evaluation


def _seconds(text: TextSize, steps: int, trial: Trial) -> float:
    return _seconds_without_steps(text, trial) + steps * trial.step + evaluations(steps, trial) * trial.evaluation


def _of(table: Sequence[tuple[float, T]], value: float) -> T:
    """Return the entry of the first row whose limit is at least `value`."""
    return next(entry for limit, entry in table if value <= limit)
