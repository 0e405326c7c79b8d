"""Recipes: each is valid and pure, and its docstring names its source. Table 3 equals the paper's."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from transduce.config.overrides import override
from transduce.config.recipes import RECIPES, catalogue, find_recipe, vaswani2017
from transduce.config.schema import Config, ModelConfig, keys
from transduce.config.validation import problems
from transduce.errors import UserError

PRESETS = (
    "vaswani2017-base",
    "vaswani2017-big",
    "vaswani2017-base-enfr",
    "vaswani2017-big-enfr",
    "vaswani2017-parse",
    "vaswani2017-parse-semi",
    "t2t2018-base",
)
OTHER_RECIPES = (
    "auto",
    "demo",
    "multi30k-tiny",
    "multi30k-diverse",
    "multi30k-raw",
    "multi30k-joint",
    "mixture",
    "craft-parse",
    "gpt2-small",
    "llama-small",
    "palm-small",
    "synthesizer-small",
    "t6-small",
    "performer-small",
    "transformer-xl-small",
    "mamba-small",
    "rwkv-small",
    "hyena-small",
    "alibi-small",
    "experts-small",
    "llada-small",
    "bert-small",
    "longformer-small",
    "linformer-small",
    "t5-small",
    "bert-classifier",
    "speech-small",
    "ctc-small",
    "gpt2-preferences",
    "gpt2-reward",
)

# The changes of each row of Table 3 to the base model, as in the table (with d_k and d_v where they are derived).
TABLE_3: dict[str, dict[str, Any]] = {
    "base": {},
    "h1": {"model.n_heads": 1},
    "h4": {"model.n_heads": 4},
    "h16": {"model.n_heads": 16},
    "h32": {"model.n_heads": 32},
    "dk16": {"model.d_k": 16, "model.d_v": 64},
    "dk32": {"model.d_k": 32, "model.d_v": 64},
    "n2": {"model.n_layers": 2},
    "n4": {"model.n_layers": 4},
    "n8": {"model.n_layers": 8},
    "d256": {"model.d_model": 256},
    "d1024": {"model.d_model": 1024},
    "ff1024": {"model.d_ff": 1024},
    "ff4096": {"model.d_ff": 4096},
    "dropout0": {"model.dropout": 0.0},
    "dropout0.2": {"model.dropout": 0.2},
    "smoothing0": {"train.label_smoothing": 0.0},
    "smoothing0.2": {"train.label_smoothing": 0.2},
    "learned": {"model.positions": "learned", "model.max_positions": 1024},
    "big": {
        "model.d_model": 1024,
        "model.d_ff": 4096,
        "model.n_heads": 16,
        "model.dropout": 0.3,
        "train.max_steps": 300_000,
    },
}
HEAD_WIDTHS = {
    "h1": 512,
    "h4": 128,
    "h16": 32,
    "h32": 16,
    "d256": 32,
    "d1024": 128,
    "big": 64,
}  # d_k = d_v, columns 5, 6
INTERVALS = ("train.checkpoint_every_steps", "train.evaluate_every_steps", "train.keep_checkpoints")


def values(config: Config) -> dict[str, Any]:
    return {name: getattr(getattr(config, name.split(".")[0]), name.split(".")[1]) for name in keys()}


def test_all_names_are_listed_here() -> None:
    rows = {f"{scale}-table3-{row}" for row in TABLE_3 for scale in ("vaswani2017", "small")}
    rivals = {f"small-table2-{row}" for row in ("post-norm", "pre-norm", "recurrent", "convolutional")}
    parsers = {f"small-table4-{row}" for row in ("base", "n2", "n6", "d64", "d192")}
    assert set(RECIPES) == {*PRESETS, *OTHER_RECIPES, *rivals, *rows, *parsers}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_valid_and_pure(name: str) -> None:
    config = find_recipe(name)()
    assert problems(config) == []
    assert config == RECIPES[name]()
    assert config.model.vocab_size is None  # the tokenizer's
    assert override(config, ["train.seed=2"]) == dataclasses.replace(
        config, train=dataclasses.replace(config.train, seed=2)
    )


@pytest.mark.parametrize("row", TABLE_3)
def test_a_row_of_table_3_changes_the_columns_of_the_table(row: str) -> None:
    base, config = values(vaswani2017.base()), values(RECIPES[f"vaswani2017-table3-{row}"]())
    assert config["train.use"] == "last"  # "without checkpoint averaging"
    changes = {name: value for name, value in config.items() if value != base[name] and name not in INTERVALS}
    del changes["train.use"]
    changes.pop("train.average_checkpoints", None)  # unused
    assert changes == TABLE_3[row]
    if row in HEAD_WIDTHS:
        assert (config["model.d_k"], config["model.d_v"]) == (None, None)
        assert config["model.d_model"] // config["model.n_heads"] == HEAD_WIDTHS[row]


def test_the_base_model_is_the_papers() -> None:
    config = vaswani2017.base()
    assert dataclasses.replace(config.model, vocab_size=37_000) == ModelConfig()
    assert (config.data.vocab_size, config.data.batch_tokens, config.data.tokenizer) == (37_000, 25_000, "bpe")
    assert (config.train.max_steps, config.train.use, config.train.average_checkpoints) == (100_000, "average", 5)


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("vaswani2017-")])
def test_techniques_after_the_paper_are_off_in_its_models(name: str) -> None:
    data, train = find_recipe(name)().data, find_recipe(name)().train
    assert (data.bpe_dropout, data.tags, train.rdrop, train.decay_steps, train.ema_decay) == (0, (), 0, 0, None)


def test_the_big_models_are_the_papers() -> None:
    big, enfr = vaswani2017.big(), vaswani2017.big_enfr()
    assert (big.model.d_model, big.model.d_ff, big.model.n_heads, big.model.dropout) == (1024, 4096, 16, 0.3)
    assert (big.train.max_steps, big.train.average_checkpoints, big.model.n_layers) == (300_000, 20, 6)
    assert enfr.model == dataclasses.replace(big.model, dropout=0.1)
    assert (enfr.data.tokenizer, enfr.data.vocab_size, enfr.train) == ("wordpiece", 32_000, big.train)


def test_the_base_model_for_french_differs_in_its_vocabulary_only() -> None:
    base, enfr = values(vaswani2017.base()), values(vaswani2017.base_enfr())
    changes = {name: value for name, value in enfr.items() if value != base[name]}
    assert changes == {"data.tokenizer": "wordpiece", "data.vocab_size": 32_000}


def test_the_parsing_models_are_the_papers() -> None:
    config, semi = vaswani2017.parse(), vaswani2017.parse_semi_supervised()
    assert (config.model.n_layers, config.model.d_model, config.data.vocab_size) == (4, 1024, 16_000)
    assert (config.model.tie_output, config.model.tie_src_tgt) == (False, False)  # as in the 2017 code
    search = config.search
    assert (search.beam_size, search.alpha, search.max_extra_tokens) == (21, 0.3, 300)
    assert (semi.data.vocab_size, semi.model.dropout, semi.model.attention_dropout) == (32_000, 0.1, 0.2)
    assert (semi.search, semi.train) == (config.search, config.train)


def test_t2t2018_differs_from_the_paper_as_its_code_does() -> None:
    base, config = values(vaswani2017.base()), values(RECIPES["t2t2018-base"]())
    assert {name: value for name, value in config.items() if value != base[name]} == {
        "model.norm": "pre",
        "model.attention_bias": False,
        "model.attention_dropout": 0.1,
        "model.ffn_dropout": 0.1,
        "model.positions": "tensor2tensor",
        "train.lr_factor": 2.0,
        "train.warmup_steps": 8_000,
        "train.adam_beta2": 0.997,
    }


@pytest.mark.parametrize("name", PRESETS)
def test_the_docstring_of_a_preset_names_the_source_of_each_choice(name: str) -> None:
    text = " ".join((RECIPES[name].__doc__ or "").split())
    assert "The paper fixes:" in text and "We chose:" in text
    assert "The code does" in text or "The 2017 code" in text


def test_the_catalogue_has_a_sentence_and_a_time_for_every_recipe() -> None:
    entries = {entry.name: entry for entry in catalogue()}
    assert [*entries] == [*RECIPES]
    for entry in entries.values():
        assert 20 < len(entry.summary) < 160 and entry.summary.endswith("."), entry
        assert entry.time and not entry.time.endswith("."), entry
    assert entries["vaswani2017-base"].time == "12 hours on 8 P100, in the paper"
    assert entries["small-table3-h1"].summary.startswith("n_heads 1: row h1")
    assert entries["vaswani2017-table3-big"].time == "3.5 days on 8 P100, in the paper"


# ---- finding one -------------------------------------------------------------------------------------------------


def test_an_unknown_name_gets_the_nearest_or_the_command_that_lists_them() -> None:
    with pytest.raises(UserError, match=r"recipe='vaswani-base': expected .*; did you mean 'vaswani2017-base'\?"):
        find_recipe("vaswani-base")
    with pytest.raises(UserError, match="recipe='zzzz': expected .*; `transduce recipes` lists the names"):
        find_recipe("zzzz")
    for name in ("", "zzzz", "Base"):
        with pytest.raises(UserError, match="expected the name of a recipe"):
            find_recipe(name)


USER_FILE = """
from dataclasses import replace

from transduce.config.schema import Config, TrainConfig
from transduce.config.recipes.vaswani2017 import base

SEED = 7


def custom():
    return replace(base(), train=TrainConfig(seed=SEED))


def impossible():
    return Config(train=TrainConfig(max_steps=0))


def lookup():
    return {}["a missing key"]


def with_argument(argument):
    return Config()


def exits():
    raise SystemExit(0)


def other():
    return {"train": 1}


number = 3
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "my recipes.py"
    path.write_text(USER_FILE, encoding="utf-8")
    return path


def test_a_function_of_the_user_is_a_recipe(user_file: Path) -> None:
    config = find_recipe(f"{user_file}:custom")()
    assert config.train.seed == 7 and config.model == vaswani2017.base().model


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("absent", ":absent': expected a function that "),
        ("costum", " defines; did you mean 'custom'?"),
        ("", ":': expected a function that "),
        ("lookup", "failed: KeyError: 'a missing key'"),
        ("with_argument", "failed: TypeError"),
        ("number", "failed: TypeError"),
        ("exits", "failed: SystemExit"),
        ("other", "expected a function that returns a Config, not a dict"),
    ],
)
def test_a_function_that_is_no_recipe_is_refused(user_file: Path, function: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        find_recipe(f"{user_file}:{function}")
    assert f"{user_file}:{function}" in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("recipe.py", "def broken(:", "failed: SyntaxError"),
        ("recipe.py", "import no_such_module_here", "failed: ModuleNotFoundError"),
        ("recipe.py", b"\xff\xfe", "failed: SyntaxError"),
        ("recipe.py", b"\x00", "null bytes"),
        ("recipe.txt", "x = 1", "expected a Python file; give a name that ends in .py"),
        ("folder.py/x", "", "does not exist"),
        (".", "", "is a folder; give the path of a file in it"),
    ],
)
def test_a_file_without_a_recipe_is_refused(tmp_path: Path, name: str, text: str | bytes, words: str) -> None:
    path = tmp_path / name
    if path.parent == tmp_path:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        find_recipe(f"{path}:recipe")
    assert str(path) in str(caught.value) and words in str(caught.value)


def test_an_invalid_recipe_of_the_user_is_refused_on_use(user_file: Path) -> None:
    with pytest.raises(UserError, match="train.max_steps=0: expected at least 1"):
        override(find_recipe(f"{user_file}:impossible")(), [])
