"""Kinds of model: each has its own configuration class, which `config_class` imports by its name."""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from support.made_up_kind import WINDOW, Window, WindowConfig

from transduce.config.files import differences, from_json, to_json
from transduce.config.kinds import KINDS, config_class, model_class
from transduce.config.overrides import inherit, override, without_effect
from transduce.config.schema import Config, ModelConfig, keys
from transduce.config.validation import problems
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError
from transduce.model.build import build
from transduce.storage.model_card import model_card
from transduce.storage.model_folder import load_model, save_model
from transduce.training.weights import weights

CONFIG = Config(model=WindowConfig())


@pytest.fixture(autouse=True)
def with_a_made_up_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "window", WINDOW)


def test_each_kind_names_two_classes_that_exist() -> None:
    for kind in KINDS:
        assert config_class(kind)(kind=kind).kind == kind
        assert issubclass(model_class(kind), torch.nn.Module)


def test_the_class_of_a_configuration_is_found_without_torch() -> None:
    program = "import sys; from transduce.config.kinds import *; [config_class(kind) for kind in KINDS]"
    program += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# ---- a kind with its own keys ------------------------------------------------------------------------------------


def test_its_own_keys_are_set_and_stored() -> None:
    config = override(CONFIG, ["model.window=5", "model.bias=false", "train.seed=7"])
    assert config.model == WindowConfig(window=5, bias=False)
    assert [name for name in keys(config) if name.startswith("model.")] == [
        f"model.{key}" for key in asdict(CONFIG.model)
    ]
    assert from_json(to_json(config), "config.json") == config
    assert differences(CONFIG, config) == [
        "  model.window: 3 then, 5 now",
        "  model.bias: True then, False now",
        "  train.seed: 1 then, 7 now",
    ]


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("model.windw=5", "--set model.windw=5: expected a known key; did you mean 'model.window'?"),
        ("model.n_heads=5", "--set model.n_heads=5: expected a known key"),
        ("model.window=wide", "--set model.window=wide: expected an integer"),
        ("model.window=0", "model.window=0: expected 1 to 100"),
        ("model.d_model=0", "model.d_model=0: expected 1 to 1,000,000"),
        (
            "model.kind=wndow",
            "model.kind='wndow': expected one of 'transformer', 'recurrent', 'convolutional', 'gpt2', 'gpt2_reward', "
            "'llama', 'palm', 'synthesizer', 't6', 'performer', 'transformer_xl', "
            "'decoder', 'hyena', 'mamba', 'rwkv', 'llada', 'bert', "
            "'longformer', 'linformer', 'bert_classifier', 't5', 'whisper', 'wav2vec2', 'window'",
        ),
        ("model.kind=recurrent", "model.kind='recurrent': expected a ModelConfig, not a WindowConfig"),
    ],
)
def test_a_wrong_setting_of_a_kind_is_refused(setting: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        override(CONFIG, [setting])
    assert len(caught.value.args) == 1 and caught.value.args[0].startswith(line)


def test_a_setting_does_not_change_a_kind_to_one_with_other_keys() -> None:
    with pytest.raises(UserError, match="expected one of 'transformer', .*; use a recipe of this kind"):
        override(Config(), ["model.kind=window"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            to_json(CONFIG).replace('"window": 3', '"windw": 3'),
            "'model.windw': expected a known key; did you mean 'window'?",
        ),
        (to_json(CONFIG).replace('"window": 3', '"window": "3"'), "model.window='3': expected an integer"),
        (to_json(CONFIG).replace('"window": 3', '"window": 0'), "model.window=0: expected 1 to 100"),
        (to_json(CONFIG).replace('"kind": "window"', '"kind": "wind"'), "did you mean 'window'?"),
        (to_json(CONFIG).replace('"kind": "window"', '"kind": "transformer"'), "'model.window': expected a known key"),
    ],
)
def test_a_file_with_a_wrong_model_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        from_json(text, "some/config.json")
    assert str(caught.value).startswith("some/config.json: ") and words in str(caught.value)


def test_an_unknown_kind_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    text = to_json(CONFIG)
    monkeypatch.delitem(KINDS, "window")
    known = (
        "model.kind='window': expected one of 'transformer', 'recurrent', 'convolutional', 'gpt2', 'gpt2_reward', "
        "'llama', 'palm', 'synthesizer', 't6', 'performer', 'transformer_xl', "
        "'decoder', 'hyena', 'mamba', 'rwkv', 'llada', 'bert', "
        "'longformer', 'linformer', 'bert_classifier', 't5', 'whisper', 'wav2vec2'"
    )
    assert problems(CONFIG) == [f"{known}; did you mean 'linformer'?"]
    for use in (lambda: build(CONFIG.model), lambda: from_json(text, "config.json"), lambda: override(CONFIG, [])):
        with pytest.raises(UserError, match=known):
            use()


def test_a_run_inherits_the_whole_model() -> None:
    parent = override(CONFIG, ["model.window=5"])
    assert inherit(Config(), parent).model == inherit(CONFIG, parent).model == parent.model
    assert len(without_effect(["model.window=4", "train.seed=3", "model.n_heads=2"], Path("parent"), CONFIG)) == 1


def test_it_is_built_saved_and_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vocab_size=None"):
        build(CONFIG.model)
    tokenizer = Tokenizer.learn(["a b c"], kind="bpe", vocab_size=270)
    config = replace(CONFIG, model=replace(CONFIG.model, vocab_size=tokenizer.vocab_size))
    model = build(config.model)
    assert isinstance(model, Window)
    card = model_card(config, "random", {})
    assert "| architecture | window, d_model 8, window 3, bias True |" in card
    save_model(tmp_path / "model", weights(model), config, tokenizer, card)
    loaded = load_model(tmp_path / "model")
    ids = torch.tensor([[5, 6, 7, 8]])
    assert loaded.config == config and torch.equal(loaded.model(ids), model(ids))


def test_the_model_of_the_paper_keeps_its_class() -> None:
    assert type(from_json(to_json(Config()), "config.json").model) is ModelConfig
