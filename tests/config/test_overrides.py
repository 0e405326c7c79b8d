"""Overrides of a configuration: values have the type of their field, and all problems are reported together."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.config.overrides import override
from transduce.config.schema import Config, ModelConfig, architecture, keys, value_of
from transduce.errors import UserError


def refusal(config: Config, *settings: str) -> list[str]:
    """Return the messages with which `settings` are refused."""
    with pytest.raises(UserError) as caught:
        override(config, settings)
    return [*caught.value.args]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("train.warmup_steps=123", 123),
        ("train.warmup_steps=1e3", 1000),
        ("train.lr_factor=2", 2.0),
        ("train.lr_factor=2.5e-1", 0.25),
        ("model.attention_bias=false", False),
        ("model.attention_bias=true", True),
        ("model.d_k=16", 16),
        ("model.d_k=null", None),
        ("train.patience=null", None),
        ("model.vocab_size=8000", 8000),
        ("model.norm=pre", "pre"),
        ("data.tokenizer=wordpiece", "wordpiece"),
        ("search.alpha=0", 0.0),
    ],
)
def test_the_field_gives_the_type_of_a_value(setting: str, expected: object) -> None:
    name = setting.split("=")[0]
    config = override(Config(), [setting])
    value = value_of(config, name)
    assert value == expected and type(value) is type(expected)
    other_keys = [key for key in keys() if key != name]
    assert [value_of(config, key) for key in other_keys] == [value_of(Config(), key) for key in other_keys]


def test_an_override_changes_a_copy() -> None:
    start = Config()
    assert override(start, ["model.d_ff=64"]).model.d_ff == 64
    assert start == Config()


def test_the_last_of_two_overrides_counts() -> None:
    assert override(Config(), ["train.seed=3", "train.seed=4"]).train.seed == 4


@pytest.mark.parametrize(
    ("settings", "depths"),
    [
        ("model.n_layers=3", (3, 3)),
        ("model.n_decoder_layers=1", (6, 1)),
        ("model.n_layers=12 model.n_decoder_layers=1", (12, 1)),
        ("model.n_encoder_layers=2 model.n_layers=3", (2, 3)),
        ("model.n_encoder_layers=3 model.n_decoder_layers=1", (3, 1)),
    ],
)
def test_each_stack_may_have_its_own_depth(settings: str, depths: tuple[int, int]) -> None:
    config = override(Config(), settings.split())
    assert config.model.depths == depths
    assert architecture(config).startswith(f"{depths[0]} + {depths[1]} layers, ")


def test_one_number_sets_both_stacks_of_a_recipe_with_unequal_ones() -> None:
    recipe = Config(ModelConfig(vocab_size=None, n_encoder_layers=12, n_decoder_layers=1))
    assert override(recipe, ["model.n_layers=3"]).model.depths == (3, 3)
    assert override(recipe, ["model.n_decoder_layers=2", "model.n_layers=3"]).model.depths == (3, 2)
    assert override(recipe, ["model.n_decoder_layers=2"]).model.depths == (12, 2)


def test_a_wrong_depth_is_refused() -> None:
    assert refusal(Config(), "model.n_decoder_layers=0") == ["model.n_decoder_layers=0: expected 1 to 10,000"]
    both = "model.n_encoder_layers=6", "model.n_decoder_layers=1"
    (line,) = refusal(Config(), "model.n_layers=3", *both)
    assert line == f"--set model.n_layers: must not be set with {both[0]} and {both[1]}; leave it out"
    rival = replace(Config(), model=ModelConfig(kind="recurrent", vocab_size=None))
    (line,) = refusal(rival, "model.n_decoder_layers=1")
    assert line.startswith("model.n_decoder_layers=1: expected the default, None, with model.kind='recurrent'")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.warmup_steps=4k", "expected an integer"),
        ("train.warmup_steps=1.5", "expected an integer"),
        ("train.warmup_steps=", "expected an integer"),
        ("train.warmup_steps=null", "expected an integer"),
        ("train.warmup_steps=true", "expected an integer"),
        ("train.lr_factor=fast", "expected a number"),
        ("model.d_k=wide", "expected an integer or null"),
        ("model.n_encoder_layers=six", "expected an integer or null"),
        ("train.ema_decay=yes", "expected a number or null"),
        ("model.tie_output=maybe", "expected true or false"),
        ("model.norm=middle", "expected one of 'post', 'pre'"),
        ("train.precision=fp16", "expected one of 'auto', 'fp32', 'bf16'"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(setting: str, words: str) -> None:
    assert refusal(Config(), setting) == [f"--set {setting}: {words}"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("train.warmup_step", "train.warmup_steps"),
        ("train.warmup", "train.warmup_steps"),
        ("warmup_steps", "train.warmup_steps"),
        ("model.warmup_steps", "train.warmup_steps"),
        ("Model.d_model", "model.d_model"),
        ("model.dmodel", "model.d_model"),
        ("search.beam", "search.beam_size"),
        ("beam_size", "search.beam_size"),
        ("train.batch_tokens", "data.batch_tokens"),
    ],
)
def test_a_message_about_an_unknown_key_has_the_nearest_key(name: str, nearest: str) -> None:
    (line,) = refusal(Config(), f"{name}=1")
    assert line.endswith(f"expected a known key; did you mean {nearest!r}?")


@pytest.mark.parametrize("setting", ["", "=", "train.max_steps", "model=3", "model.=3", ".=", "a.b.c=1", "__class__=1"])
def test_text_that_is_no_setting_is_refused(setting: str) -> None:
    (line,) = refusal(Config(), setting)
    assert "expected section.key=value" in line or "expected a known key" in line


@given(st.text(), st.text())
def test_a_bad_setting_raises_only_user_errors(name: str, value: str) -> None:
    for setting in (f"{name}={value}", f"train.seed={value}", f"model.norm={value}", f"train.lr_factor={value}"):
        try:
            override(Config(), [setting])
        except UserError:
            continue


def test_all_problems_are_reported_together() -> None:
    lines = refusal(
        Config(),
        "train.warmup_step=10",
        "train.max_steps=many",
        "no equals sign",
        "model.dropout=1.0",
        "model.n_heads=7",
        "search.length_penalty=none",
        "data.max_tokens=0",
        "train.use=ema",
    )
    expected = (
        "train.warmup_step=10: expected a known key",
        "train.max_steps=many",
        "no equals sign",
        "model.dropout=1.0",
        "model.n_heads=7",
        "search.alpha=0.6",
        "data.max_tokens=0",
        "train.ema_decay=None",
    )
    assert len(lines) == len(expected)
    for words in expected:
        assert sum(words in line for line in lines) == 1, words


def test_several_problems_are_counted_and_one_is_not() -> None:
    with pytest.raises(UserError, match=r"^train.seed=-1: expected at least 0, below 2\^63$"):
        override(Config(), ["train.seed=-1"])
    with pytest.raises(UserError, match="^2 problems:\n  train.max_steps=0: .*\n  train.seed=-1: "):
        override(Config(), ["train.seed=-1", "train.max_steps=0"])
