"""The tokenizer of models that write symbols: subwords for the source, whole words for the target."""

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from support.random_models import CONFIG
from support.tokenizer_texts import encode_dropout
from support.toy_task import write_lines
from support.trainings import CONFIG as TRAINING
from support.trainings import train

from transduce.config.schema import ModelConfig
from transduce.config.validation import problems
from transduce.data.symbols import MAX_SYMBOLS, SubwordsAndSymbols
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import CONTROLS, UNK, TokenizerLike
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.model.build import build
from transduce.model.transformer import parameter_count as counted
from transduce.storage.model_folder import load_model
from transduce.translate import Translator

PAIRS = [("the cat sleeps", "(S (NP DT NN )NP VBZ )S"), ("a dog", "(NP DT NN )NP"), ("NN", "NN")]
SYMBOLS = ["(NP", "(S", ")NP", ")S", "DT", "NN", "VBZ"]


@pytest.fixture(scope="module")
def tokenizer() -> SubwordsAndSymbols:
    return SubwordsAndSymbols.learn(iter(PAIRS), partial(Tokenizer.learn, vocab_size=300))


def test_the_words_of_the_target_text_are_the_first_ids(tokenizer: SubwordsAndSymbols) -> None:
    assert tokenizer.symbols == SYMBOLS
    assert tokenizer.vocabulary[: tokenizer.target.vocab_size] == [*CONTROLS, *SYMBOLS]
    ids = tokenizer.target.encode("(NP DT  NEW )NP")
    assert ids == [4, 8, UNK, 6]
    assert tokenizer.decode(ids) == tokenizer.target.decode(ids) == "(NP DT )NP"
    assert tokenizer.pieces(ids) == ["(NP", "DT", "<unk>", ")NP"]
    assert encode_dropout(tokenizer.target, "DT NN", p=0.9, key="") == [8, 9]


def test_a_source_line_survives_and_shares_no_id_with_a_symbol(tokenizer: SubwordsAndSymbols) -> None:
    for line in ("a NN (NP ü", "the dog sleeps"):
        for ids in (tokenizer.encode(line), encode_dropout(tokenizer, line, p=0.5, key="1")):
            assert min(ids) >= tokenizer.target.vocab_size
            assert tokenizer.decode(ids) == line
    assert "".join(tokenizer.pieces(tokenizer.encode("cat"))) == "▁cat"


def test_it_returns_from_its_text_and_from_a_copy(tokenizer: SubwordsAndSymbols) -> None:
    others: list[TokenizerLike] = [Tokenizer.from_json(tokenizer.to_json()), copy.deepcopy(tokenizer)]
    for other in others:
        assert other.sha256 == tokenizer.sha256
        assert other.encode("a dog") == tokenizer.encode("a dog")
        assert other.target.encode("NN") == [9]


@pytest.mark.parametrize(
    ("old", "new"), [('"DT"', '"NN"'), ('"DT"', '"<s>"'), ('"DT"', '"D T"'), ('"DT"', "7"), ('"symbols"', '"other"')]
)
def test_a_damaged_file_is_refused(tokenizer: SubwordsAndSymbols, old: str, new: str) -> None:
    with pytest.raises(UserError, match=r"tokenizer.json: expected a tokenizer of transduce, but it"):
        Tokenizer.from_json(tokenizer.to_json().replace(old, new), "tokenizer.json")


def test_a_target_text_with_too_many_words_is_refused() -> None:
    pairs = [("a", f"word{i}") for i in range(MAX_SYMBOLS + 1)]
    with pytest.raises(UserError, match=r"data.target_tokens='symbols': expected 1 to 10,000 .*, not 10,001"):
        SubwordsAndSymbols.learn(pairs, partial(Tokenizer.learn, vocab_size=300))


@pytest.mark.parametrize("kind", ["transformer", "recurrent", "convolutional"])
def test_the_output_of_a_model_has_only_rows_of_the_target(kind: str) -> None:
    config = replace(CONFIG, vocab_size=300, tgt_vocab_size=11, tie_src_tgt=False, output_bias=True)
    if kind != "transformer":
        sizes = {"d_model": 32, "n_layers": 2, "dropout": 0.0}
        config = ModelConfig(kind=kind, vocab_size=300, tgt_vocab_size=11, tie_src_tgt=False, **sizes)  # pyright: ignore
    model = build(config)
    assert (model.src_embedding.num_embeddings, model.tgt_embedding.num_embeddings) == (300, 11)
    assert model(torch.tensor([[299, 2]]), torch.tensor([[True, True]]), torch.tensor([[1, 10]])).shape == (1, 2, 11)
    assert counted(model) == parameter_count(config, 300)


def test_one_matrix_of_both_sides_cannot_have_symbols() -> None:
    data = replace(TRAINING.data, target_tokens="symbols")
    (line,) = problems(replace(TRAINING, data=data))
    assert line == "model.tie_src_tgt=True: expected false with data.target_tokens='symbols'"


def test_a_trained_model_writes_symbols(tmp_path: Path) -> None:
    src, tgt = (write_lines(tmp_path / name, [pair[side] for pair in PAIRS] * 20) for side, name in enumerate("st"))
    config = replace(
        TRAINING,
        model=replace(TRAINING.model, tie_src_tgt=False),
        data=replace(TRAINING.data, target_tokens="symbols", vocab_size=300),
        train=replace(TRAINING.train, max_steps=2),
    )
    loaded = load_model(train(config, train=(src, tgt), valid=(src, tgt), out=tmp_path / "run"))
    assert loaded.config.model.tgt_vocab_size == len(CONTROLS) + len(SYMBOLS)
    (translation,) = Translator([loaded]).translate(["a cat"])
    assert {*translation.text.split()} <= {*SYMBOLS}
