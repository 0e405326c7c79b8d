"""Validation: every number has a range, and a setting without effect is refused."""

from typing import get_args, get_type_hints

import pytest

from transduce.config.overrides import override
from transduce.config.schema import SECTIONS, Config, ModelConfig, TrainConfig, keys
from transduce.config.validation import FIXED_PIECES, problems, validate
from transduce.data.subwords import KINDS
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.hypothesis import LENGTH_PENALTIES
from transduce.errors import UserError

HINTS = {f"{name}.{key}": hint for name, kind in SECTIONS.items() for key, hint in get_type_hints(kind).items()}


def refusal(config: Config, *settings: str) -> list[str]:
    """Return the messages with which `settings` are refused."""
    with pytest.raises(UserError) as caught:
        override(config, settings)
    return [*caught.value.args]


HUGE = str((1 << 63) - 1)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("model.d_ff", ("1",), ("0", "-1")),
        ("model.d_k", ("1", "null"), ("0",)),
        ("model.norm_eps", ("1e-12",), ("0", "-1e-6", "nan", "inf")),
        ("model.dropout", ("0", "0.99"), ("1", "-0.1", "nan")),
        ("train.lr_factor", ("1e-9",), ("0", "-1", "nan", "inf")),
        ("train.decay_steps", ("0", "1", "100000"), ("-1", "100001", HUGE)),
        ("train.adam_beta2", ("0",), ("1", "1.5", "nan")),
        ("train.label_smoothing", ("0",), ("1", "-0.1")),
        ("train.rdrop", ("0", "5", "100"), ("-1", "100.5", "nan", "inf")),
        ("train.seed", ("0", HUGE), ("-1", str(1 << 63))),
        ("train.max_steps", ("1", HUGE), ("0", "-5", "1" + 30 * "0")),
        ("train.patience", ("1", "null"), ("0",)),
        ("train.accumulate", ("10000",), ("0", "10001")),
        ("search.alpha", ("0", "3", "10"), ("-0.1", "10.001", "nan", "inf", "1e300")),
        ("search.lookahead", ("1", "null", HUGE), ("0", "-1")),
        ("search.beam_size", ("1", "500"), ("0", "501", HUGE)),
        ("search.max_extra_tokens", ("1", "1000"), ("0", "1001", HUGE)),
        ("search.min_tokens", ("0", "50"), ("-1", "51", HUGE)),
        ("model.n_layers", ("10000",), ("10001", HUGE)),
        ("model.d_ff", ("1000000",), ("1000001", HUGE)),
        ("data.vocab_size", ("261", "1000000"), ("-1", "0", "1", "260", "1000001", HUGE)),
        ("data.max_tokens", ("2",), ("1", "0")),
    ],
)
def test_values_outside_a_range_are_refused(name: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
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
        (["search.length_penalty=none"], "search.alpha=0.6: expected 0 with search.length_penalty='none'"),
        (
            ["data.bpe_dropout=0.1", "data.tokenizer=wordpiece"],
            "data.bpe_dropout=0.1: expected 0 with data.tokenizer='wordpiece'",
        ),
        (["model.max_positions=512"], "model.max_positions=512: expected null with model.positions='interleaved'"),
        (["model.positions=learned"], "model.max_positions=None: expected the maximum length of a sequence"),
        (
            ["model.positions=learned", "model.max_positions=100"],
            "model.max_positions=100: expected at least data.max_tokens=256",
        ),
        (["data.tags=<2de>,de"], "data.tags=<2de>,de: expected different words of at most 32 ASCII characters"),
        (["data.tags=<2de>,<2de>"], "expected different words"),
        (["data.tags=<2de> <2fr>"], "expected different words"),
        (["data.tags=<s>"], "expected different words"),
        (["data.tags=<0x41>"], "expected different words"),
        (["data.tags=<fim_middle>"], "expected different words"),
        (["data.tags=<2de>", "data.vocab_size=261"], "data.vocab_size=261: expected more than 261"),
        (
            ["data.tags=<2de>", "data.tokenizer=sentencepiece"],
            "data.tags=<2de>: must not be set with data.tokenizer='sentencepiece'",
        ),
        (["data.noise=typo:0.1"], "data.noise=typo:0.1: expected kind:probability with each of capitals, lower,"),
        (["data.noise=typos"], "expected kind:probability"),
        (["data.noise=typos:2"], "expected kind:probability"),
        (["data.noise=typos:nan"], "expected kind:probability"),
        (["data.noise=typos:0.1,typos:0.1"], "at most once"),
        (
            ["data.noise=typos:0.1", "data.target_tokens=symbols", "model.tie_src_tgt=false"],
            "data.noise=typos:0.1: must",
        ),
        (["data.fill_middle=0.5"], "data.fill_middle=0.5: expected 0 with train.task='translation'"),
        (["data.fill_middle=1"], "data.fill_middle=1.0: expected a number from 0 to below 1"),
        (
            ["train.rdrop=5", "model.dropout=0"],
            "train.rdrop=5.0: expected 0 without dropout, where both passes are equal",
        ),
        (["train.use=ema"], "train.ema_decay=None: expected a number with train.use='ema'"),
        (["train.ema_decay=0.999"], "train.ema_decay=0.999: expected null with train.use='average'"),
        (["train.average_checkpoints=6"], "train.average_checkpoints=6: expected at most train.keep_checkpoints=5"),
        (
            ["train.use=last", "train.average_checkpoints=3"],
            "train.average_checkpoints: must not be set with train.use='last'",
        ),
        (["search.max_extra_tokens=9", "search.min_tokens=10"], "expected at most search.max_extra_tokens=9"),
        (["data.tokenizer=wordpiece", "data.vocab_size=516"], "expected more than 516"),
        (["data.batch_tokens=255"], "data.max_tokens=256: expected at most data.batch_tokens=255"),
        (["model.n_heads=7"], "model.d_model=512: expected a multiple of model.n_heads=7"),
        (["model.n_heads=7", "model.d_k=64"], "expected a multiple"),
        (["model.d_model=7", "model.n_heads=7"], "expected an even number"),
        (["model.d_model=2", "model.n_heads=1", "model.positions=tensor2tensor"], "expected at least 4"),
        (["model.kind=foo"], "expected one of 'transformer', 'recurrent', 'convolutional'"),
        (
            ["model.kind=recurrent", "model.d_ff=64"],
            "model.d_ff=64: expected the default, 2048, with model.kind='recurrent'",
        ),
        (["model.kind=recurrent", "model.positions=halves"], "expected the default, 'interleaved'"),
        (
            ["model.kind=convolutional", "model.d_k=64"],
            "model.d_k=64: expected the default, None, with model.kind='convolutional'",
        ),
        (["model.kind=convolutional", "model.norm=pre"], "expected the default, 'post'"),
        (["model.kind=convolutional", "model.positions=learned"], "expected sinusoids with model.kind='convolutional'"),
        (["model.kind=recurrent", "model.d_model=9"], "each direction of the encoder has half of this width"),
        (["model.kind=convolutional", "model.d_model=9"], "sinusoids come in pairs"),
    ],
)
def test_impossible_settings_and_settings_without_effect_are_refused(settings: list[str], words: str) -> None:
    (line,) = refusal(Config(), *settings)
    assert words in line


@pytest.mark.parametrize(
    "settings",
    [
        ["search.length_penalty=none", "search.alpha=0"],
        ["data.bpe_dropout=0.1"],
        ["data.noise=typos:0.1,capitals:1"],
        ["model.positions=learned", "model.max_positions=256"],
        ["train.rdrop=5", "model.dropout=0", "model.ffn_dropout=0.1"],
        ["data.tags=<2de>,<2fr>", "data.vocab_size=263"],
        ["data.tags=__zh-Hans__,>>fra<<,[de]"],
        ["data.tags="],
        ["train.use=ema", "train.ema_decay=0.999"],
        ["train.use=best", "train.ema_decay=0.999"],
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
def test_valid_settings_near_a_limit_are_accepted(settings: list[str]) -> None:
    override(Config(), settings)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_has_room_for_more_than_its_fixed_pieces(kind: str) -> None:
    assert Tokenizer.learn(["a"], kind=kind, vocab_size=1_000).vocab_size >= FIXED_PIECES[kind]
    with pytest.raises(UserError, match=f"{FIXED_PIECES[kind]}"):
        Tokenizer.learn(["a"], kind=kind, vocab_size=FIXED_PIECES[kind])
    with pytest.raises(UserError, match=f"expected more than {FIXED_PIECES[kind]}"):
        override(Config(), [f"data.tokenizer={kind}", f"data.vocab_size={FIXED_PIECES[kind]}"])


def test_a_sentencepiece_tokenizer_cannot_be_learned() -> None:
    with pytest.raises(UserError, match="'sentencepiece': expected one of bpe, wordpiece"):
        Tokenizer.learn(["a"], kind="sentencepiece", vocab_size=1_000)


@pytest.mark.parametrize("alpha", ["0", "10"])
def test_the_search_accepts_every_alpha_of_a_valid_configuration(alpha: str) -> None:
    search = override(Config(), [f"search.alpha={alpha}", "search.length_penalty=power"]).search
    assert 1 <= LENGTH_PENALTIES[search.length_penalty](1_000_000, search.alpha) < float("inf")


def test_the_types_of_a_configuration_made_in_python_are_checked() -> None:
    config = Config(
        model=ModelConfig(d_model="512", n_heads=None, norm="sandwich"),  # pyright: ignore[reportArgumentType]
        train=TrainConfig(max_steps=True, seed=1.5, warmup_steps=0),  # pyright: ignore[reportArgumentType]
    )
    message = "\n".join(problems(config))
    for words in ("model.d_model='512'", "model.n_heads=None", "model.norm='sandwich'", "train.max_steps=True"):
        assert words in message
    assert "train.seed=1.5: expected an integer" in message and "train.warmup_steps=0: expected at least 1" in message
    with pytest.raises(UserError, match="6 problems"):
        validate(config)
