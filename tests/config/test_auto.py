"""The recipe `auto`: sizes from the text, steps from the time."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from transduce.config.overrides import OF_THE_TOKENIZER
from transduce.config.recipes import RECIPES, auto
from transduce.config.recipes.auto import Conditions, ExplainedConfig, TextSize, Trial
from transduce.config.recipes.schedule import highest_rate, scheduled, with_optimizer
from transduce.config.schema import Config, TrainConfig
from transduce.config.validation import problems
from transduce.errors import UserError
from transduce.training.optimizer import learning_rate

CAPTIONS = TextSize(pairs=29_000, tokens=430_000, characters=84)


def choose(
    text: TextSize, minutes: float | None, tokens_per_second: float = 10_000.0, evaluation: float = 5.0
) -> ExplainedConfig:
    """Choose on a machine on which a model of width 128 reads so many tokens a second; wider ones are slower."""

    def trial(config: Config) -> Trial:
        parameters = 4 * config.model.n_layers * config.model.d_model**2 * 8
        factor = (config.model.d_model / 128) ** 1.5
        return Trial(config.data.batch_tokens * factor / tokens_per_second, evaluation, parameters)

    return auto.choose(text, Conditions(minutes, "fp32", trial))


def training_seconds(choice: ExplainedConfig, text: TextSize, tokens_per_second: float, evaluation: float) -> float:
    config = choice.config
    step = config.data.batch_tokens * (config.model.d_model / 128) ** 1.5 / tokens_per_second
    evaluations = config.train.max_steps // config.train.evaluate_every_steps
    return config.train.max_steps * step + (evaluations + 2) * evaluation + 15 + 6e-6 * text.tokens


@pytest.mark.parametrize("minutes", [3, 9, 20, 60])
@pytest.mark.parametrize("pairs", [5_000, 29_000, 227_000, 400_000])
def test_a_training_takes_the_given_minutes(minutes: float, pairs: int) -> None:
    text = TextSize(pairs, pairs * 15, 100)
    choice = choose(text, minutes)
    assert not problems(choice.config)
    seconds = training_seconds(choice, text, 10_000, 5)
    assert seconds < 63 * minutes
    is_enough = choice.config.train.max_steps * choice.config.data.batch_tokens > 59 * text.tokens
    assert seconds > 54 * minutes or is_enough, choice.lines


def test_more_text_and_more_time_give_a_larger_model() -> None:
    def widths(minutes: float | None, pairs: tuple[int, ...], speed: float) -> list[int]:
        return [choose(TextSize(n, n * 15, 100), minutes, speed).config.model.d_model for n in pairs]

    pairs = (1_000, 29_000, 227_000, 4_000_000)
    assert widths(None, pairs, 1e6) == [128, 128, 256, 512]
    assert widths(3, pairs[:3], 1e4) == [128, 128, 128]
    assert widths(60, pairs, 1e6) == [128, 128, 256, 512] and widths(60, pairs, 1e4)[3] < 512
    vocabulary = [choose(TextSize(n, n * 15, 100), 60).config.data.vocab_size for n in pairs]
    assert vocabulary == sorted(vocabulary)


def test_a_text_that_is_seen_often_gets_more_dropout() -> None:
    dropouts = [choose(CAPTIONS, minutes).config.model.dropout for minutes in (3, 10, 60)]
    assert dropouts == [0.1, 0.2, 0.3]


def test_many_characters_get_more_pieces() -> None:
    few, many = (choose(replace(CAPTIONS, characters=n), 10).config.data.vocab_size for n in (100, 3_300))
    assert many - few == 3_000


def test_without_minutes_a_training_is_full_and_says_its_time() -> None:
    choice = choose(CAPTIONS, None)
    steps = choice.config.train.max_steps
    assert 18 <= steps * choice.config.data.batch_tokens / CAPTIONS.tokens <= 25
    assert "--minutes M ends" in choice.lines[-1] and "about 17 minutes" in choice.lines[-1]


def with_batches(config: Config) -> Config:
    return replace(config, data=replace(config.data, batch_tokens=8_192))


@pytest.mark.parametrize("parent", [None, RECIPES["mixture"]()])
def test_batches_of_the_user_change_the_steps_and_not_the_epochs(parent: Config | None) -> None:
    def choice(complete: Callable[[Config], Config]) -> Config:
        conditions = Conditions(None, "fp32", lambda config: Trial(0.1, 5.0, 2_000_000), complete)
        return (auto.choose_from(parent, CAPTIONS, conditions) if parent else auto.choose(CAPTIONS, conditions)).config

    own, larger = choice(lambda config: config), choice(with_batches)
    tokens = [config.train.max_steps * config.data.batch_tokens for config in (own, larger)]
    assert larger.data.batch_tokens == 8_192 and tokens[1] == pytest.approx(tokens[0], rel=0.05)
    assert larger.model.dropout == own.model.dropout


@pytest.mark.parametrize("parent", [None, RECIPES["mixture"]()])
@pytest.mark.parametrize("steps", [1, 2, 5, 33, 170, 2_010])
@pytest.mark.parametrize("evaluation", [0.001, 5.0])
def test_the_schedule_fits_the_steps_of_the_user(steps: int, evaluation: float, parent: Config | None) -> None:
    def complete(config: Config) -> Config:
        return replace(config, train=replace(config.train, max_steps=steps))

    conditions = Conditions(None, "fp32", lambda config: Trial(0.1, evaluation, 2_000_000), complete, steps)
    choice = auto.choose_from(parent, CAPTIONS, conditions) if parent else auto.choose(CAPTIONS, conditions)
    train = choice.config.train
    assert not problems(choice.config)
    assert train.decay_steps <= steps / 2 and train.warmup_steps <= max(1, steps / 4)
    assert (
        steps - max(1, steps / 10)
        <= train.evaluate_every_steps * (train.max_steps // train.evaluate_every_steps)
        <= steps
    )
    assert f"{steps:,} steps" in choice.lines[-1] or f"{steps:,} steps" in choice.lines[-2]


def test_few_steps_of_the_user_get_a_smaller_model() -> None:
    text = TextSize(227_000, 3_400_000, 100)
    widths = [
        auto.choose(
            text, Conditions(None, "fp32", lambda _: Trial(0.1, 5.0, 5_000_000), steps=steps)
        ).config.model.d_model
        for steps in (500, 20_000)
    ]
    assert widths == [128, 256]


def test_time_that_a_text_cannot_use_is_not_used() -> None:
    choice = choose(TextSize(2_000, 30_000, 80), 600)
    assert training_seconds(choice, TextSize(2_000, 30_000, 80), 10_000, 5) < 60 * 60
    assert "would not help" in choice.lines[-1]
    assert "expect a weak model" in choice.lines[1]


@pytest.mark.parametrize("minutes", [1.2, 1.5, 3, 9, 30])
@pytest.mark.parametrize("speed", [2_000, 3_000, 5_000, 9_000, 30_000])
def test_a_training_that_ends_early_has_as_many_steps_in_more_time(minutes: float, speed: float) -> None:
    text = TextSize(5_000, 75_000, 84)
    choice = choose(text, minutes, speed)
    if any("would not help" in line for line in choice.lines):
        assert choose(text, 2 * minutes, speed).config.train.max_steps == choice.config.train.max_steps


def test_a_text_smaller_than_a_batch_is_read_as_often_as_others() -> None:
    choice = choose(TextSize(1, 16, 30), 10)
    assert choice.config.train.max_steps == 176 and "176 steps, 176.0 epochs" in choice.lines[2]


def test_too_little_time_is_refused_with_a_number_that_works() -> None:
    with pytest.raises(
        UserError, match=r"--minutes=0.2: expected at least 1 for this text on this mach.*; give --minutes 1$"
    ):
        choose(CAPTIONS, 0.2)
    assert choose(CAPTIONS, 1)
    millions = TextSize(3_000_000, 45_000_000, 100)
    with pytest.raises(UserError, match=r"--minutes=3: expected at least 6 for"):
        choose(millions, 3)
    assert choose(millions, 6)
    with pytest.raises(UserError, match=r"^--minutes: expected at least (\d+) for .*; give --minutes \1$") as caught:
        choose(millions, None, tokens_per_second=0.5)
    least = int(str(caught.value).split()[-1])
    assert least > 24 * 60 and choose(millions, least, tokens_per_second=0.5)


@pytest.mark.parametrize("step", [0.5, 0.9, 1.0, 1.1, 1.2, 1.3, 5.0])
@pytest.mark.parametrize("evaluation", [0.1, 1.0, 2.0, 30.0])
def test_the_number_that_works_leaves_time_for_the_evaluations(step: float, evaluation: float) -> None:
    text, trial = TextSize(20_000, 150_000, 11), Trial(step, evaluation, 1_600_000)
    with pytest.raises(UserError) as caught:
        auto.steps_within(0.1, text, trial)
    least = int(str(caught.value).split()[-1])
    assert auto.steps_within(least, text, trial) >= auto.FEWEST_STEPS


def test_long_and_repeated_pairs_are_named() -> None:
    lines = choose(TextSize(29_000, 430_000, 84, long=0.4, repeated=0.95), 60).lines
    assert any(line.startswith("40% of the pairs are longer than data.max_tokens") for line in lines)
    assert any(line.startswith("95% of the pairs repeat") for line in lines)
    assert not any("repeat" in line or "longer" in line for line in choose(CAPTIONS, 60).lines)


def choose_from(parent: Config, text: TextSize, minutes: float | None = None) -> ExplainedConfig:
    return auto.choose_from(parent, text, Conditions(minutes, "fp32", lambda config: Trial(0.2, 5.0, 2_000_000)))


@pytest.mark.parametrize("recipe", ["multi30k-joint", "mixture", "vaswani2017-base"])
@pytest.mark.parametrize("pairs", [200, 10_000, 1_000_000])
def test_a_training_from_a_model_keeps_it_and_learns_more_slowly(recipe: str, pairs: int) -> None:
    parent = RECIPES[recipe]()
    text = TextSize(pairs, pairs * 15, 100)
    config = choose_from(parent, text).config
    assert not problems(config) and config.model == parent.model and config.search == parent.search
    kept = {name: getattr(parent.data, name) for name in OF_THE_TOKENIZER}
    assert kept == {name: getattr(config.data, name) for name in OF_THE_TOKENIZER}
    assert highest_rate(parent) / 3 < highest_rate(config) * 1.01 < highest_rate(parent)
    assert (
        (config.train.use, config.train.best_by) == ("best", "loss")
        and config.train.ema_decay
        and config.train.accumulate == 1
    )
    assert config.train.warmup_steps <= 0.12 * config.train.max_steps
    assert config.train.max_steps >= (32 if pairs == 200 else 280)
    again = choose_from(config, text).config
    assert highest_rate(again) > 0.6 * highest_rate(config)


def test_a_training_from_a_model_takes_the_given_minutes() -> None:
    choice = choose_from(RECIPES["mixture"](), TextSize(227_000, 3_400_000, 100), 20)
    train = choice.config.train
    seconds = train.max_steps * 0.2 + (train.max_steps // train.evaluate_every_steps + 2) * 5 + 15 + 20
    assert 0.9 < seconds / 60 / 20 < 1.05
    assert "keeps 4 + 4 layers, d_model 256" in choice.lines[0] and "highest learning rate" in choice.lines[1]
    with pytest.raises(UserError, match=r"--minutes=0.2: expected at least 1 for"):
        choose_from(RECIPES["mixture"](), CAPTIONS, 0.2)


def test_the_lines_have_the_learning_rate_of_the_optimizer_that_the_user_sets() -> None:
    rates = []
    for complete in (
        lambda config: config,
        partial(with_optimizer, optimizer="adam"),
        partial(with_optimizer, optimizer="muon"),
    ):
        conditions = Conditions(10, "fp32", lambda _: Trial(0.2, 5.0, 9), complete)
        choice = auto.choose_from(RECIPES["mixture"](), CAPTIONS, conditions)
        rates.append(f"{highest_rate(choice.config):.1e}")
        assert choice.lines[1].startswith(f"highest learning rate {rates[-1]}, a third of")
    assert len({*rates}) == 2


@pytest.mark.parametrize("steps", [32, 47, 159, 4_500, 7_213])
def test_the_schedule_keeps_the_peak_ends_at_0_and_has_a_checkpoint_before_the_fall(steps: int) -> None:
    recipe = TrainConfig(warmup_steps=1_000, lr_factor=1.25)
    train = scheduled(recipe, steps, 4)
    rates = [
        learning_rate(
            step,
            d_model=128,
            warmup_steps=train.warmup_steps,
            lr_factor=train.lr_factor,
            max_steps=train.max_steps,
            decay_steps=train.decay_steps,
        )
        for step in range(1, train.max_steps + 1)
    ]
    assert max(rates) == pytest.approx(1.25 * 128**-0.5 * 1_000**-0.5, rel=1e-3)
    assert rates[-1] < max(rates) / train.decay_steps * 1.5
    assert 0 <= steps - train.max_steps < (16 if steps >= 160 else 4)
    assert train.evaluate_every_steps % train.checkpoint_every_steps == 0
    assert (train.max_steps - train.decay_steps) % train.checkpoint_every_steps == 0
    assert train.max_steps % train.evaluate_every_steps == 0


def test_another_optimizer_gets_the_learning_rate_that_it_needs() -> None:
    config = choose(CAPTIONS, 10).config
    other = with_optimizer(config, "adam")
    assert highest_rate(config) == pytest.approx(9e-3, rel=1e-3)
    assert highest_rate(other) == pytest.approx(3.5e-3, rel=1e-3) and other.train.optimizer == "adam"


def test_a_low_learning_rate_of_a_short_training_is_not_0() -> None:
    assert scheduled(TrainConfig(warmup_steps=4_000, lr_factor=0.001), 32, 1).lr_factor > 0
