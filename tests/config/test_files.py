"""config.json: a round trip changes nothing, and a damaged or hostile file is refused with its path."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.config import files
from transduce.config.files import ADDED_LATER, differences, from_json, to_json
from transduce.config.kinds import KINDS, config_class
from transduce.config.overrides import override
from transduce.config.schema import SECTIONS, Config, DataConfig, ModelConfig, SearchConfig, TrainConfig, keys
from transduce.config.validation import problems
from transduce.errors import UserError


def configs() -> st.SearchStrategy[Config]:
    return st.builds(
        Config,
        model=st.builds(
            ModelConfig,
            vocab_size=st.none() | st.integers(1, 10**6),
            d_model=st.integers(1, 64).map(lambda n: 8 * n),
            d_k=st.none() | st.integers(1, 256),
            dropout=st.floats(0, 0.99),
            norm=st.sampled_from(["post", "pre"]),
            positions=st.sampled_from(["interleaved", "halves", "tensor2tensor"]),
            norm_eps=st.floats(1e-30, 1),
            tie_output=st.booleans(),
        ),
        data=st.builds(DataConfig, bpe_dropout=st.floats(0, 0.9)),
        train=st.builds(TrainConfig, seed=st.integers(0, 2**63 - 1), patience=st.none() | st.integers(1)),
        search=st.builds(SearchConfig, alpha=st.floats(0, 10)),
    )


@given(configs())
def test_a_round_trip_through_json_changes_nothing(config: Config) -> None:
    if not problems(config):
        assert from_json(to_json(config), "config.json") == config
        assert from_json(to_json(config).encode(), "config.json") == config


def test_a_key_that_an_older_file_lacks_has_the_old_behaviour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ADDED_LATER", {"model.norm": "pre", "train.patience": 7})
    older = json.loads(to_json(Config()))
    del older["model"]["norm"], older["train"]["patience"]
    config = from_json(json.dumps(older), "config.json")
    assert (config.model.norm, config.train.patience) == ("pre", 7)
    assert from_json(to_json(Config()), "config.json") == Config()  # a file that has the keys keeps its own
    del older["model"]["d_ff"]
    with pytest.raises(UserError, match="model.d_ff: expected a value") as caught:
        from_json(json.dumps(older), "config.json")
    assert "norm" not in str(caught.value)
    with pytest.raises(UserError, match="model: expected a section"):
        from_json('{"format_version": 1}', "config.json")


# The keys that every file has. A key that a section or kind gets later stands in `ADDED_LATER`; a new kind gets a line.
FIRST_KEYS = {
    "data": "tokenizer vocab_size batch_tokens max_tokens bpe_dropout",
    "train": "max_steps warmup_steps lr_factor adam_beta2 label_smoothing seed precision accumulate "
    "log_every_steps evaluate_every_steps checkpoint_every_steps keep_checkpoints average_checkpoints "
    "ema_decay use best_by patience",
    "search": "beam_size alpha length_penalty max_extra_tokens min_tokens",
    "transformer": "vocab_size d_model n_layers n_heads d_k d_v d_ff dropout attention_dropout ffn_dropout norm "
    "norm_eps attention_bias positions max_positions tie_src_tgt tie_output",
    "gpt2": "vocab_size d_model n_layers n_heads d_ff max_positions dropout",
    "llama": "vocab_size d_model n_layers n_heads n_kv_heads d_ff max_positions tied",
    "t6": "vocab_size d_model n_layers n_heads q_rank kv_rank d_ff max_positions tied",
    "performer": "vocab_size d_model n_layers n_heads n_features d_ff max_positions dropout",
    "transformer_xl": "vocab_size d_model n_layers n_heads n_memory d_ff max_positions dropout",
    "decoder": "vocab_size d_model n_layers n_heads d_ff positions rope rope_factor rope_length window n_experts "
    "router n_chosen max_positions dropout",
    "hyena": "vocab_size d_model n_layers order d_ff max_positions dropout",
    "mamba": "vocab_size d_model n_layers d_state max_positions",
    "rwkv": "vocab_size d_model n_layers d_ff max_positions",
    "llada": "vocab_size d_model n_layers n_heads n_kv_heads d_ff max_positions tied",
    "bert": "vocab_size d_model n_layers n_heads d_ff max_positions dropout",
    "longformer": "vocab_size d_model n_layers n_heads reach d_ff max_positions dropout",
    "linformer": "vocab_size d_model n_layers n_heads rank d_ff max_positions dropout",
    "bert_classifier": "vocab_size d_model n_layers n_heads d_ff max_positions n_segments norm_eps dropout",
    "t5": "vocab_size d_model n_layers n_heads d_k d_ff gated tied dropout",
    "palm": "vocab_size d_model n_layers n_heads d_k d_ff max_positions",
    "synthesizer": "vocab_size d_model n_layers n_heads scores rank d_ff max_positions dropout",
    "gpt2_reward": "vocab_size d_model n_layers n_heads d_ff max_positions dropout",
    "whisper": "vocab_size d_model n_layers n_decoder_layers n_heads d_ff n_mels max_frames max_positions dropout",
    "wav2vec2": "vocab_size d_model n_layers n_heads d_ff n_channels kernels strides position_width position_groups "
    "norm norm_eps dropout",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_an_older_version_lacks_only_keys_with_a_value_for_it(kind: str) -> None:
    first = {"model": FIRST_KEYS["transformer" if config_class(kind) is ModelConfig else kind]} | FIRST_KEYS
    names = {f"{section}.{key}" for section in SECTIONS for key in first[section].split()}
    assert {*keys(Config(model=config_class(kind)()))} - names <= {*ADDED_LATER}


def with_values(**sections: Any) -> str:
    """Return a valid config.json with other values for some sections or keys."""
    content = json.loads(to_json(Config()))
    for name, values in sections.items():
        if not isinstance(values, dict):
            content[name] = values
            continue
        for key, value in values.items():
            content.setdefault(name, {})[key] = value
    return json.dumps(content)


def without(name: str, key: str | None = None) -> str:
    """Return a valid config.json without the section `name`, or without one key of it."""
    content = json.loads(to_json(Config()))
    del (content if key is None else content[name])[key or name]
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected valid JSON"),
        ("{", "expected valid JSON"),
        (to_json(Config())[:-5], "expected valid JSON"),
        (b"\xff\xfe{}", "expected valid JSON"),
        (b"\x80", "expected valid JSON"),
        ("[" * 100_000, "expected valid JSON"),
        ('{"a":' * 100_000, "expected valid JSON"),
        ('{"model": ' + "9" * 10_000 + "}", "expected valid JSON"),
        ('{"format_version": 1, "format_version": 1}', "twice"),
        ("null", "a JSON object"),
        ("[]", "a JSON object"),
        ('"model"', "a JSON object"),
        ("{}", "with a format_version"),
        (with_values(format_version=2), "not 2"),
        (with_values(format_version="1"), "not 1"),
        (with_values(format_version=None), "not None"),
        (without("train"), "train: expected a section"),
        (with_values(train=[]), "train: expected a section"),
        (with_values(train=None), "train: expected a section"),
        (with_values(extra={"a": 1}), "'extra': expected a known section"),
        (with_values(model={"d_modle": 1}), "'model.d_modle': expected a known key; did you mean 'd_model'?"),
        (without("model", "norm"), "model.norm: expected a value"),
        (with_values(model={"d_model": "512"}), "model.d_model='512': expected an integer"),
        (with_values(model={"n_heads": 0}), "model.n_heads=0: expected 1 to 10,000"),
        (with_values(model={"n_heads": None}), "model.n_heads=None: expected an integer"),
        (with_values(model={"norm": ["post"]}), "model.norm=['post']: expected one of"),
        (with_values(model={"d_model": {"a": 1}}), "expected an integer"),
        (with_values(model={"dropout": float("nan")}), "model.dropout=nan"),
        (with_values(train={"lr_factor": float("inf")}), "train.lr_factor=inf"),
        (with_values(train={"seed": 1 << 80}), "below 2^63"),
        (with_values(train={"max_steps": True}), "train.max_steps=True: expected an integer"),
    ],
)
def test_a_hostile_file_is_refused_with_its_path(text: str | bytes, words: str) -> None:
    with pytest.raises(UserError) as caught:
        from_json(text, "some/config.json")
    assert str(caught.value).startswith("some/config.json: expected ") and words in str(caught.value)


def test_all_unknown_keys_and_sections_of_a_file_are_reported_together() -> None:
    with pytest.raises(UserError) as caught:
        from_json(with_values(model={"a_knob": 1}, search={"beam": 1}, other=1), "config.json")
    for words in ("model.a_knob", "search.beam", "other"):
        assert words in str(caught.value)


@settings(max_examples=50)  # each for all keys
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_any_value_of_any_key_is_read_or_refused(value: Any) -> None:
    for name in keys():
        section, key = name.split(".")
        try:
            config = from_json(with_values(**{section: {key: value}}), "config.json")
        except UserError:
            continue
        assert not problems(config)


def test_differences_list_the_changed_keys() -> None:
    assert differences(Config(), Config()) == []
    other = override(Config(), ["train.max_steps=5", "model.d_k=32"])
    assert differences(Config(), other) == [
        "  model.d_k: None then, 32 now",
        "  train.max_steps: 100000 then, 5 now (--allow-change train.max_steps allows it)",
    ]
    assert differences(Config(), other, ["train.max_steps"]) == ["  model.d_k: None then, 32 now"]
