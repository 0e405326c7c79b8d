"""Configuration: overrides are typed, problems come all at once, nothing is ignored, nothing read is trusted."""

import dataclasses
import json
import subprocess
import sys
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.config import schema as config_module
from transduce.config.schema import (
    FIXED_PIECES,
    SECTIONS,
    Config,
    DataConfig,
    ModelConfig,
    SearchConfig,
    TrainConfig,
    differences,
    from_json,
    keys,
    override,
    problems,
    to_json,
    validate,
)
from transduce.data.tokenizer import KINDS, Tokenizer
from transduce.decoding.search import Request
from transduce.errors import UserError


def value_of(config: Config, name: str) -> Any:
    section, key = name.split(".")
    return getattr(getattr(config, section), key)


def refusal(config: Config, *settings: str) -> list[str]:
    """The problems for which `settings` are refused."""
    with pytest.raises(UserError) as caught:
        override(config, settings)
    return [*caught.value.args]


# ---- the surface -------------------------------------------------------------------------------------------------

KEYS = {
    "model": "kind vocab_size d_model n_layers n_heads d_k d_v d_ff activation dropout attention_dropout ffn_dropout "
    "norm norm_eps attention_bias positions max_positions tie_src_tgt tie_output output_bias",
    "data": "tokenizer vocab_size batch_tokens max_tokens bpe_dropout",
    "train": "max_steps warmup_steps lr_factor adam_beta2 label_smoothing seed precision accumulate log_every_steps "
    "evaluate_every_steps checkpoint_every_steps keep_checkpoints average_checkpoints ema_decay use best_by patience",
    "search": "beam_size alpha length_penalty max_extra_tokens min_tokens lookahead",
}
# What the scripts of users rely on. A name may be added here, never taken away.
PROMISED = {
    "model": "vocab_size d_model n_layers n_heads d_k d_v d_ff dropout",
    "data": "batch_tokens vocab_size tokenizer",
    "train": "max_steps warmup_steps lr_factor adam_beta2 label_smoothing seed precision checkpoint_every_steps "
    "evaluate_every_steps accumulate",
    "search": "beam_size alpha",
}


HINTS = {f"{name}.{key}": hint for name, kind in SECTIONS.items() for key, hint in get_type_hints(kind).items()}


def full(names: dict[str, str]) -> set[str]:
    return {f"{section}.{key}" for section, words in names.items() for key in words.split()}


def test_a_new_setting_is_a_conscious_act() -> None:
    assert set(keys()) == full(KEYS)
    assert len(keys()) == len(set(keys())) <= 60


def test_promised_names_exist() -> None:
    assert full(PROMISED) <= set(keys())


def test_model_defaults_are_the_papers_base_model() -> None:
    assert dataclasses.asdict(ModelConfig()) == {
        "kind": "transformer",
        "vocab_size": 37_000,
        "d_model": 512,
        "n_layers": 6,
        "n_heads": 8,
        "d_k": None,
        "d_v": None,
        "d_ff": 2048,
        "activation": "relu",
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "ffn_dropout": 0.0,
        "norm": "post",
        "norm_eps": 1e-6,
        "attention_bias": True,
        "positions": "interleaved",
        "max_positions": None,
        "tie_src_tgt": True,
        "tie_output": True,
        "output_bias": False,
    }


def test_training_and_search_defaults_are_the_papers() -> None:
    data, train, search = DataConfig(), TrainConfig(), SearchConfig()
    assert (data.tokenizer, data.vocab_size, data.batch_tokens) == ("bpe", 37_000, 25_000)
    assert (train.max_steps, train.warmup_steps, train.lr_factor, train.adam_beta2) == (100_000, 4_000, 1.0, 0.98)
    assert (train.label_smoothing, train.use, train.average_checkpoints) == (0.1, "average", 5)
    assert (search.beam_size, search.alpha, search.length_penalty, search.max_extra_tokens) == (4, 0.6, "gnmt", 50)


def test_a_whole_run_leaves_the_rows_of_the_embedding_to_the_tokenizer() -> None:
    assert Config().model == ModelConfig(vocab_size=None)
    validate(Config())


@pytest.mark.parametrize("module", ["transduce", "transduce.config.schema", "transduce.recipes"])
def test_import_brings_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_configurations_are_frozen() -> None:
    for section in (Config, *SECTIONS.values()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            section().model = None  # pyright: ignore[reportAttributeAccessIssue]


# ---- overrides ---------------------------------------------------------------------------------------------------


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
def test_an_override_has_the_type_of_its_field(setting: str, expected: object) -> None:
    name = setting.split("=")[0]
    config = override(Config(), [setting])
    value = value_of(config, name)
    assert value == expected and type(value) is type(expected)
    untouched = [key for key in keys() if key != name]
    assert [value_of(config, key) for key in untouched] == [value_of(Config(), key) for key in untouched]


def test_override_changes_a_copy() -> None:
    start = Config()
    assert override(start, ["model.d_ff=64"]).model.d_ff == 64
    assert start == Config()


def test_the_last_of_two_overrides_holds() -> None:
    assert override(Config(), ["train.seed=3", "train.seed=4"]).train.seed == 4


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
        ("train.ema_decay=yes", "expected a number or null"),
        ("model.tie_output=maybe", "expected true or false"),
        ("model.norm=middle", "expected one of 'post', 'pre'"),
        ("train.precision=fp16", "expected one of 'fp32', 'bf16'"),
    ],
)
def test_a_wrong_type_is_refused_in_words(setting: str, words: str) -> None:
    assert refusal(Config(), setting) == [f"--set {setting}: {words}"]


@pytest.mark.parametrize(
    ("given_name", "nearest"),
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
def test_an_unknown_key_names_the_nearest(given_name: str, nearest: str) -> None:
    (line,) = refusal(Config(), f"{given_name}=1")
    assert line.endswith(f"unknown key {given_name!r}; did you mean {nearest!r}?")


@pytest.mark.parametrize("setting", ["", "=", "train.max_steps", "model=3", "model.=3", ".=", "a.b.c=1", "__class__=1"])
def test_what_is_no_setting_at_all(setting: str) -> None:
    (line,) = refusal(Config(), setting)
    assert "expected section.key=value" in line or "unknown key" in line


@given(st.text(), st.text())
def test_no_setting_makes_anything_but_a_user_error(name: str, value: str) -> None:
    for setting in (f"{name}={value}", f"train.seed={value}", f"model.norm={value}", f"train.lr_factor={value}"):
        try:
            override(Config(), [setting])
        except UserError:
            continue


def test_every_problem_is_named_at_once() -> None:
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
    wanted = (
        "train.warmup_step'",
        "train.max_steps=many",
        "no equals sign",
        "model.dropout=1.0",
        "model.n_heads=7",
        "search.alpha=0.6",
        "data.max_tokens=0",
        "train.use='ema'",
    )
    assert len(lines) == len(wanted)
    for words in wanted:
        assert sum(words in line for line in lines) == 1, words


def test_several_problems_are_counted_and_one_stands_alone() -> None:
    with pytest.raises(UserError, match=r"^train.seed=-1: expected 0 or more, below 2\^63$"):
        override(Config(), ["train.seed=-1"])
    with pytest.raises(UserError, match="^2 problems:\n  train.max_steps=0: .*\n  train.seed=-1: "):
        override(Config(), ["train.seed=-1", "train.max_steps=0"])


# ---- validation --------------------------------------------------------------------------------------------------


HUGE = str((1 << 63) - 1)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("model.d_ff", ("1",), ("0", "-1")),
        ("model.d_k", ("1", "null"), ("0",)),
        ("model.norm_eps", ("1e-12",), ("0", "-1e-6", "nan", "inf")),
        ("model.dropout", ("0", "0.99"), ("1", "-0.1", "nan")),
        ("train.lr_factor", ("1e-9",), ("0", "-1", "nan", "inf")),
        ("train.adam_beta2", ("0",), ("1", "1.5", "nan")),
        ("train.label_smoothing", ("0",), ("1", "-0.1")),
        ("train.seed", ("0", HUGE), ("-1", str(1 << 63))),
        ("train.max_steps", ("1", HUGE), ("0", "-5", "1" + 30 * "0")),
        ("train.patience", ("1", "null"), ("0",)),
        ("train.accumulate", ("10000",), ("0", "10001")),
        ("search.alpha", ("0", "3", "10"), ("-0.1", "10.001", "nan", "inf", "1e300")),
        ("search.lookahead", ("1", "null", HUGE), ("0", "-1")),
        ("search.beam_size", ("1", "10000"), ("0", "10001", HUGE)),
        ("search.max_extra_tokens", ("1", "1000000"), ("0", "1000001", HUGE)),
        ("search.min_tokens", ("0", "50"), ("-1", "51", HUGE)),
        ("model.n_layers", ("10000",), ("10001", HUGE)),
        ("model.d_ff", ("1000000",), ("1000001", HUGE)),
        ("data.vocab_size", ("261", "1000000"), ("-1", "0", "1", "260", "1000001", HUGE)),
        ("data.max_tokens", ("2",), ("1", "0")),
    ],
)
def test_ranges(name: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    for value in good:
        override(Config(), [f"{name}={value}"])
    for value in bad:
        (line,) = refusal(Config(), f"{name}={value}")
        assert line.startswith(f"{name}=") and "expected" in line


def test_every_number_has_a_range() -> None:
    for name in keys():
        numeric = any(part in (int, float) for part in get_args(HINTS[name]) or (HINTS[name],))
        if numeric:
            (line,) = refusal(Config(), f"{name}=-7")
            assert line.startswith(f"{name}=-7")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["search.length_penalty=none"], "search.alpha=0.6 has no effect"),
        (["data.bpe_dropout=0.1", "data.tokenizer=wordpiece"], "needs data.tokenizer='bpe'"),
        (["model.max_positions=512"], "model.max_positions=512 has no effect with sinusoids"),
        (["model.positions=learned"], "needs model.max_positions"),
        (["model.positions=learned", "model.max_positions=100"], "is less than data.max_tokens=256"),
        (["train.use=ema"], "needs train.ema_decay"),
        (["train.ema_decay=0.999"], "train.ema_decay=0.999 has no effect with train.use='average'"),
        (["train.average_checkpoints=6"], "is more than train.keep_checkpoints=5"),
        (["train.use=last", "train.average_checkpoints=3"], "train.average_checkpoints has no effect"),
        (["search.max_extra_tokens=9", "search.min_tokens=10"], "expected at most search.max_extra_tokens=9"),
        (["data.tokenizer=wordpiece", "data.vocab_size=516"], "expected more than 516"),
        (["data.batch_tokens=255"], "data.max_tokens=256 is more than data.batch_tokens=255"),
        (["model.n_heads=7"], "model.d_model=512 is not a multiple of model.n_heads=7"),
        (["model.n_heads=7", "model.d_k=64"], "is not a multiple"),
        (["model.d_model=7", "model.n_heads=7"], "expected an even number"),
        (["model.d_model=2", "model.n_heads=1", "model.positions=tensor2tensor"], "needs at least 4"),
        (["model.kind=foo"], "expected one of 'transformer', 'recurrent', 'convolutional'"),
        (["model.kind=recurrent", "model.d_ff=64"], "model.d_ff=64 has no effect with model.kind='recurrent'"),
        (["model.kind=recurrent", "model.positions=halves"], "expected the default, 'interleaved'"),
        (["model.kind=convolutional", "model.d_k=64"], "model.d_k=64 has no effect with model.kind='convolutional'"),
        (["model.kind=convolutional", "model.norm=pre"], "expected the default, 'post'"),
        (["model.kind=convolutional", "model.positions=learned"], "expected sinusoids with model.kind='convolutional'"),
        (["model.kind=recurrent", "model.d_model=9"], "each direction of the reader has half of it"),
        (["model.kind=convolutional", "model.d_model=9"], "sinusoids come in pairs"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_is_refused(settings: list[str], words: str) -> None:
    (line,) = refusal(Config(), *settings)
    assert words in line


@pytest.mark.parametrize(
    "settings",
    [
        ["search.length_penalty=none", "search.alpha=0"],
        ["data.bpe_dropout=0.1"],
        ["model.positions=learned", "model.max_positions=256"],
        ["train.use=ema", "train.ema_decay=0.999"],
        ["train.average_checkpoints=6", "train.keep_checkpoints=6"],
        ["train.use=last", "train.keep_checkpoints=1"],
        ["data.batch_tokens=256"],
        ["search.max_extra_tokens=9", "search.min_tokens=9"],
        ["data.tokenizer=wordpiece", "data.vocab_size=517"],
        ["model.n_heads=7", "model.d_k=64", "model.d_v=32"],
        ["model.d_model=7", "model.n_heads=7", "model.positions=learned", "model.max_positions=256"],
        ["model.kind=recurrent", "model.d_model=10", "model.tie_output=false"],
        ["model.kind=convolutional", "model.d_model=10", "model.positions=halves", "model.dropout=0.5"],
    ],
)
def test_what_is_near_a_refusal_and_right(settings: list[str]) -> None:
    override(Config(), settings)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_has_room_for_more_than_its_fixed_pieces(kind: str) -> None:
    assert Tokenizer.learn(["a"], kind=kind, vocab_size=1_000).vocab_size >= FIXED_PIECES[kind]
    with pytest.raises(UserError, match=f"{FIXED_PIECES[kind]}"):
        Tokenizer.learn(["a"], kind=kind, vocab_size=FIXED_PIECES[kind])
    with pytest.raises(UserError, match=f"expected more than {FIXED_PIECES[kind]}"):
        override(Config(), [f"data.tokenizer={kind}", f"data.vocab_size={FIXED_PIECES[kind]}"])


def test_sentencepiece_is_imported_never_learned() -> None:
    with pytest.raises(UserError, match="'sentencepiece': expected one of bpe, wordpiece"):
        Tokenizer.learn(["a"], kind="sentencepiece", vocab_size=1_000)


@pytest.mark.parametrize("alpha", ["0", "10"])
def test_the_search_takes_every_alpha_that_a_configuration_may_have(alpha: str) -> None:
    search = override(Config(), [f"search.alpha={alpha}", "search.length_penalty=power"]).search
    request = Request(max_lengths=[9], bos=1, eos=2, length_penalty=search.length_penalty, alpha=search.alpha)
    assert 1 <= request.penalty(1_000_000) < float("inf")


def test_types_of_a_configuration_made_in_python_are_checked_too() -> None:
    config = Config(
        model=ModelConfig(d_model="512", n_heads=None, norm="sandwich"),  # pyright: ignore[reportArgumentType]
        train=TrainConfig(max_steps=True, seed=1.5, warmup_steps=0),  # pyright: ignore[reportArgumentType]
    )
    found = "\n".join(problems(config))
    for words in ("model.d_model='512'", "model.n_heads=None", "model.norm='sandwich'", "train.max_steps=True"):
        assert words in found
    assert "train.seed=1.5: expected an integer" in found and "train.warmup_steps=0: expected at least 1" in found
    with pytest.raises(UserError, match="6 problems"):
        validate(config)


# ---- on disk -----------------------------------------------------------------------------------------------------


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
def test_json_round_trip(config: Config) -> None:
    if not problems(config):
        assert from_json(to_json(config), "config.json") == config
        assert from_json(to_json(config).encode(), "config.json") == config


def test_a_key_that_was_added_later_means_in_older_files_what_was_done_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "ADDED_LATER", {"model.norm": "pre", "train.patience": 7})
    older = json.loads(to_json(Config()))
    del older["model"]["norm"], older["train"]["patience"]
    read = from_json(json.dumps(older), "config.json")
    assert (read.model.norm, read.train.patience) == ("pre", 7)
    assert from_json(to_json(Config()), "config.json") == Config()  # a file that has the keys keeps its own
    del older["model"]["d_ff"]
    with pytest.raises(UserError, match="key 'model.d_ff' is missing") as caught:
        from_json(json.dumps(older), "config.json")
    assert "norm" not in str(caught.value)
    with pytest.raises(UserError, match="section 'model' is missing"):
        from_json('{"format_version": 1}', "config.json")


def test_what_was_added_later_is_a_key_and_possible() -> None:
    assert {*config_module.ADDED_LATER} <= {*keys()} - full(PROMISED)


def changed(**sections: Any) -> str:
    """A good config.json with other content in some places; None takes a place out."""
    content = json.loads(to_json(Config()))
    for name, values in sections.items():
        if not isinstance(values, dict):
            content[name] = values
            continue
        for key, value in values.items():
            content.setdefault(name, {})[key] = value
    return json.dumps(content)


def without(name: str, key: str | None = None) -> str:
    content = json.loads(to_json(Config()))
    del (content if key is None else content[name])[key or name]
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        (to_json(Config())[:-5], "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"\x80", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a":' * 100_000, "not valid JSON"),
        ('{"model": ' + "9" * 10_000 + "}", "not valid JSON"),
        ('{"format_version": 1, "format_version": 1}', "twice"),
        ("null", "expected a JSON object"),
        ("[]", "expected a JSON object"),
        ('"model"', "expected a JSON object"),
        ("{}", "no format_version"),
        (changed(format_version=2), "format version 2"),
        (changed(format_version="1"), "format version 1"),
        (changed(format_version=None), "format version None"),
        (without("train"), "section 'train' is missing"),
        (changed(train=[]), "section 'train' is not an object"),
        (changed(train=None), "section 'train' is not an object"),
        (changed(extra={"a": 1}), "unknown section 'extra'"),
        (changed(model={"d_modle": 1}), "unknown key 'model.d_modle'; did you mean 'd_model'?"),
        (without("model", "norm"), "key 'model.norm' is missing"),
        (changed(model={"d_model": "512"}), "model.d_model='512': expected an integer"),
        (changed(model={"n_heads": 0}), "model.n_heads=0: expected 1 to 10,000"),
        (changed(model={"n_heads": None}), "model.n_heads=None: expected an integer"),
        (changed(model={"norm": ["post"]}), "model.norm=['post']: expected one of"),
        (changed(model={"d_model": {"a": 1}}), "expected an integer"),
        (changed(model={"dropout": float("nan")}), "model.dropout=nan"),
        (changed(train={"lr_factor": float("inf")}), "train.lr_factor=inf"),
        (changed(train={"seed": 1 << 80}), "below 2^63"),
        (changed(train={"max_steps": True}), "train.max_steps=True: expected an integer"),
    ],
)
def test_a_hostile_file_is_a_user_error_that_names_it(text: str | bytes, words: str) -> None:
    with pytest.raises(UserError) as caught:
        from_json(text, "some/config.json")
    assert str(caught.value).startswith("some/config.json ") and words in str(caught.value)


def test_all_that_is_unknown_in_a_file_is_named_at_once() -> None:
    with pytest.raises(UserError) as caught:
        from_json(changed(model={"a_knob": 1}, search={"beam": 1}, other=1), "config.json")
    for words in ("model.a_knob", "search.beam", "other"):
        assert words in str(caught.value)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_any_value_in_any_place_is_read_or_refused(value: Any) -> None:
    for name in keys():
        section, key = name.split(".")
        try:
            config = from_json(changed(**{section: {key: value}}), "config.json")
        except UserError:
            continue
        assert not problems(config)


def test_differences_name_what_changed() -> None:
    assert differences(Config(), Config()) == []
    other = override(Config(), ["train.max_steps=5", "model.d_k=32"])
    assert differences(Config(), other) == [
        "  model.d_k: None then, 32 now",
        "  train.max_steps: 100000 then, 5 now (--allow-change train.max_steps lets it)",
    ]
    assert differences(Config(), other, ["train.max_steps"]) == ["  model.d_k: None then, 32 now"]
