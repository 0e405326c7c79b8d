"""The dataclasses of a configuration: keys, defaults, and an import without torch."""

import dataclasses
import subprocess
import sys

import pytest

from transduce.config.files import ADDED_LATER
from transduce.config.kinds import KINDS, config_class
from transduce.config.schema import SECTIONS, Config, DataConfig, ModelConfig, SearchConfig, TrainConfig, keys
from transduce.config.validation import validate

KEYS = {
    "model": "kind vocab_size tgt_vocab_size d_model n_layers n_encoder_layers n_decoder_layers n_heads d_k d_v d_ff "
    "activation dropout attention_dropout ffn_dropout norm norm_eps attention_bias positions max_positions tie_src_tgt "
    "tie_output output_bias",
    "data": "tokenizer vocab_size batch_tokens max_tokens bpe_dropout noise fill_middle source_tokens target_tokens "
    "tags sentences_per_line normalization",
    "train": "task max_steps warmup_steps lr_factor decay_steps optimizer adam_beta2 label_smoothing rdrop dpo_beta "
    "seed precision freeze lora_rank accumulate log_every_steps evaluate_every_steps checkpoint_every_steps "
    "keep_checkpoints average_checkpoints ema_decay use best_by patience",
    "search": "beam_size alpha length_penalty max_extra_tokens min_tokens lookahead max_length no_repeat_ngram "
    "repetition_penalty",
}
# Keys that scripts of users rely on. A key may be added here, and none removed.
STABLE_KEYS = {
    "model": "vocab_size d_model n_layers n_heads d_k d_v d_ff dropout",
    "data": "batch_tokens vocab_size tokenizer",
    "train": "max_steps warmup_steps lr_factor adam_beta2 label_smoothing seed precision checkpoint_every_steps "
    "evaluate_every_steps accumulate",
    "search": "beam_size alpha",
}


def full(names: dict[str, str]) -> set[str]:
    return {f"{section}.{key}" for section, words in names.items() for key in words.split()}


def test_all_keys_are_listed_here() -> None:
    assert set(keys()) == full(KEYS)
    assert len(keys()) == len(set(keys())) <= 68


def test_promised_keys_exist() -> None:
    assert full(STABLE_KEYS) <= set(keys())


def test_model_defaults_are_the_papers_base_model() -> None:
    assert dataclasses.asdict(ModelConfig()) == {
        "kind": "transformer",
        "vocab_size": 37_000,
        "tgt_vocab_size": None,
        "d_model": 512,
        "n_layers": 6,
        "n_encoder_layers": None,
        "n_decoder_layers": None,
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
    data = DataConfig()
    train = TrainConfig()
    search = SearchConfig()
    assert (data.tokenizer, data.vocab_size, data.batch_tokens) == ("bpe", 37_000, 25_000)
    assert (train.max_steps, train.warmup_steps, train.lr_factor, train.adam_beta2) == (100_000, 4_000, 1.0, 0.98)
    assert (train.label_smoothing, train.use, train.average_checkpoints) == (0.1, "average", 5)
    assert (search.beam_size, search.alpha, search.length_penalty, search.max_extra_tokens) == (4, 0.6, "gnmt", 50)
    later_techniques = (data.bpe_dropout, data.tags, train.rdrop, train.decay_steps, train.ema_decay)
    assert later_techniques == (0, (), 0, 0, None)


def test_the_tokenizer_sets_the_rows_of_the_embedding_by_default() -> None:
    assert Config().model == ModelConfig(vocab_size=None)
    validate(Config())


@pytest.mark.parametrize("module", ["transduce", "transduce.config.schema", "transduce.config.recipes"])
def test_the_import_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_configurations_are_frozen() -> None:
    for section in (Config, *SECTIONS.values()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            section().model = None  # pyright: ignore[reportAttributeAccessIssue]


def test_a_key_added_later_exists_and_is_not_promised() -> None:
    of_kinds = {key for kind in KINDS for key in keys(Config(model=config_class(kind)()))}
    assert {*ADDED_LATER} <= of_kinds - full(STABLE_KEYS)
