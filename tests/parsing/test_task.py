"""A parser is trained like a translator; its validation is F1."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.random_parsers import MODEL
from support.toy_task import write_lines
from support.trainings import CONFIG, train

from transduce.config.schema import Config, DataConfig, SearchConfig
from transduce.config.validation import problems
from transduce.errors import UserError
from transduce.parsing.linearize import FORMS, TreeForm, linearize
from transduce.parsing.parse import load_parser
from transduce.parsing.trees import sentence_of, trees_of
from transduce.storage.run_log import reports

NOUNS = ["cat", "dog", "bird", "fish"]
TREES = [f"(S (NP (DT the) (NN {a})) (VP (VBZ sees) (NP (DT a) (NN {b}))))" for a in NOUNS for b in NOUNS]
TREES += [f"(S (NP (NN {a})) (VP (VBZ sleeps)) (. .))" for a in NOUNS]
TRAIN = replace(
    CONFIG.train, task="parsing", max_steps=120, warmup_steps=60, lr_factor=1.0, accumulate=1, label_smoothing=0.0,
    use="best", best_by="f1", evaluate_every_steps=60, checkpoint_every_steps=60, log_every_steps=60,
)  # fmt: skip
PARSER = Config(
    model=replace(MODEL, vocab_size=None),
    data=DataConfig(vocab_size=290, batch_tokens=200, max_tokens=24, target_tokens="symbols"),
    train=TRAIN,
    search=SearchConfig(max_extra_tokens=20),
)


def texts(folder: Path, form: TreeForm) -> tuple[Path, Path]:
    trees = [*trees_of(TREES, "test")] * 5
    words = write_lines(folder / "words", [sentence_of(tree.words) for tree in trees])
    return words, write_lines(folder / "symbols", [" ".join(linearize(tree, form)) for tree in trees])


@pytest.mark.parametrize("form", FORMS)
def test_a_parser_learns_its_treebank(form: TreeForm, tmp_path: Path) -> None:
    both = texts(tmp_path, form)
    model = train(PARSER, train=both, valid=both, out=tmp_path / "run")
    evaluations = [line for line in reports(tmp_path / "run") if "valid_f1" in line]
    assert [line["step"] for line in evaluations] == [60, 120]
    assert evaluations[-1]["valid_f1"] > 90
    assert evaluations[-1].keys() >= {"valid_loss", "valid_perplexity", "valid_exact", "valid_tagging"}
    card = (model / "README.md").read_text()
    assert card.startswith("# A parser\n") and "`transduce parse THIS_FOLDER" in card
    assert re.search(r"\| validation \| loss .*, F1 .* by greedy search \(EVALB", card)
    assert "F1" in (tmp_path / "run" / "report.html").read_text()
    (parse,) = load_parser(model).parse(["the bird sees a cat"])
    assert str(parse.tree).startswith("(TOP (S (NP (DT the) (NN bird)) (VP")


def test_validation_symbols_that_are_no_tree_are_refused_before_the_training(tmp_path: Path) -> None:
    words, symbols = texts(tmp_path, "top-down")
    bad = write_lines(tmp_path / "bad", [*symbols.read_text().splitlines()[:-1], "(S NN )S"])
    expected = r"bad:100: expected the symbols of a tree over the words of the sentence \(1 tags for 3 words\)"
    with pytest.raises(UserError, match=expected):
        train(PARSER, train=(words, symbols), valid=(words, bad), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_that_do_not_fit_the_task_are_named() -> None:
    data = replace(PARSER.data, target_tokens="subwords")
    lines = problems(replace(PARSER, data=data, train=replace(TRAIN, best_by="bleu")))
    assert lines == [
        "train.best_by='bleu': expected 'loss' or 'f1' with train.task='parsing'",
        "data.target_tokens='subwords': expected 'symbols' with train.task='parsing'",
    ]
    (line,) = problems(replace(CONFIG, train=replace(CONFIG.train, best_by="f1")))
    assert line == "train.best_by='f1': expected 'loss' or 'bleu' or 'chrf' with train.task='translation'"
