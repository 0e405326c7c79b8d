"""The model card: its rows after training and after averaging, and values that must not break its table."""

import platform
from pathlib import Path

import pytest
import torch
from support.toy_task import Toy

import transduce
from transduce.config.schema import Config, ModelConfig
from transduce.evaluation.metrics import bleu_signature, corpus_scores
from transduce.storage.model_card import model_card, recipe_in_words
from transduce.storage.run_folder import average_run


def rows_of(card: str) -> dict[str, str]:
    """Return the rows of the table of a card, as Markdown reads it."""
    lines = card.splitlines()
    first = lines.index("|---|---|") + 1
    table = lines[first : lines.index("", first)]
    cells = [line.replace("\\|", "\0").strip("|").split("|") for line in table]
    assert all(len(row) == 2 for row in cells)
    return {name.strip(): value.strip().replace("\0", "|") for name, value in cells}


def card_of(folder: Path) -> dict[str, str]:
    return rows_of((folder / "README.md").read_text("utf-8"))


def test_the_card_has_architecture_and_versions() -> None:
    rows = rows_of(model_card(Config(model=ModelConfig()), "the last checkpoint", {"recipe": "mixture"}))
    assert rows == {
        "weights": "the last checkpoint",
        "architecture": "Transformer, 6 + 6 layers, d_model 512, d_ff 2048, 8 heads, post-norm, interleaved positions",
        "tokenizer": "bpe, 37,000 pieces, shared by both languages",
        "recipe": "mixture",
        "made with": f"transduce {transduce.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
    }


@pytest.mark.parametrize("value", ["a|b", "a | b |", "two\nlines", "\u2028|", "| x |\r\n|---|---|"])
def test_a_value_stays_in_its_cell(value: str) -> None:
    rows = rows_of(model_card(Config(model=ModelConfig()), value, {"recipe": value}))
    assert len(rows) == 5
    assert rows["weights"] == rows["recipe"] == " ".join(value.splitlines()).strip()


def test_a_value_is_shown_as_it_is_and_is_no_html() -> None:
    card = model_card(Config(model=ModelConfig()), "<script>", {"recipe": "a\x1b[31m.py [b](c) v\udce4l.en"})
    assert "&lt;script&gt;" in card and "a\\x1b&#91;31m.py &#91;b](c) v\\xe4l.en" in card
    assert card.isprintable() or set(filter(lambda c: not c.isprintable(), card)) == {"\n"}


def test_the_recipe_is_written_as_on_the_command_line() -> None:
    settings = ["train.seed=2", "model.dropout=0"]
    assert recipe_in_words("mixture", [], None) == "mixture"
    assert recipe_in_words("a.py:f", settings, Path("old/model")) == (
        "a.py:f --set train.seed=2 --set model.dropout=0 --from old/model"
    )
    assert recipe_in_words(Config(), settings[:1], None) == "a Config made in Python --set train.seed=2"


def test_the_card_of_a_trained_model(toy: Toy) -> None:
    rows = card_of(toy.model)
    assert rows["recipe"] == f"{toy.folder / 'recipe.py'}:reverse"
    assert rows["training text"] == "train.src and train.tgt"
    assert rows["training"].startswith("400 steps, ")
    for words in ("loss 0.", "perplexity 1.", "BLEU ", "greedy search", "on valid.src and valid.tgt"):
        assert words in rows["validation"]
    assert bleu_signature(["a b"]) in rows["validation"]


def test_the_card_of_a_mean_of_checkpoints(toy: Toy, tmp_path: Path) -> None:
    average_run(toy.run, last=2, out=tmp_path / "mean")
    original, mean = card_of(toy.model), card_of(tmp_path / "mean")
    assert (mean["recipe"], mean["training text"]) == (original["recipe"], original["training text"])
    assert mean["training"] == "400 steps"
    assert "step-00000200, step-00000400" in mean["weights"]


def test_the_signature_belongs_to_the_score() -> None:
    assert corpus_scores(["a b c d"], ["a b c d"])[0].signature == bleu_signature(["a b c d"])
    for tokenize, line in (("zh", "我们去北京"), ("char", "東京に行く"), ("13a", "一个 dog runs")):
        assert corpus_scores([line], [line], tokenize=tokenize)[0].signature == bleu_signature([line])
