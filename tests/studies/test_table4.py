"""Table 4: its rows, the texts of its trainings, the report, and a study of a tiny treebank, killed and resumed."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pages import Page
from support.studies import figures_of, is_locked, rows_of, wait_for
from support.study_results import table4_results
from support.toy_task import ROOT, CommandResult, write_lines

from transduce.config.recipes import RECIPES
from transduce.config.recipes.studies import table4
from transduce.config.schema import architecture
from transduce.config.validation import problems
from transduce.errors import UserError
from transduce.evaluation.study_report import html_page, markdown, write_report
from transduce.parsing.linearize import tree_of
from transduce.parsing.trees import read_trees, words_of
from transduce.studies.results import Results, read_results
from transduce.studies.table4 import (
    LEARNING,
    PAPER,
    STUDY,
    TITLES,
    VARIANTS,
    Treebanks,
    Variant,
    report,
    run_table4,
    trainings,
    write_tree_texts,
)
from transduce.studies.trainings import Training

# ---- rows --------------------------------------------------------------------------------------------------------


def test_plan_report_and_recipes_have_the_same_rows() -> None:
    plan = trainings()
    assert {one.row for one in plan} == TITLES.keys() == table4.ROWS.keys() | VARIANTS.keys()
    assert len({one.name for one in plan}) == len(plan) == 10 and {*LEARNING} < TITLES.keys()
    assert {one.row for one in plan if one.seed == 2} == {"base", "topdown"}
    for one in plan:
        assert one.recipe in RECIPES and problems(one.config()) == [] and one.config().train.seed == one.seed
    base = next(one.config() for one in plan if one.row == "base")
    for one in plan:
        if one.row in VARIANTS and one.seed == 1:
            assert one.config() == base, "the same budget"


def test_a_row_changes_only_its_column() -> None:
    sizes = {row: architecture(table4.small(row)) for row in table4.ROWS}
    assert sizes == {
        "base": "4 + 4 layers, d_model 128, d_ff 256, 4 heads",
        "n2": "2 + 2 layers, d_model 128, d_ff 256, 4 heads",
        "n6": "6 + 6 layers, d_model 128, d_ff 256, 4 heads",
        "d64": "4 + 4 layers, d_model 64, d_ff 128, 2 heads",
        "d192": "4 + 4 layers, d_model 192, d_ff 384, 6 heads",
    }
    for row in table4.ROWS:
        config, base = table4.small(row), table4.small("base")
        assert (config.data, config.train, config.search) == (base.data, base.train, base.search)
    train = table4.small("base").train
    assert train.warmup_steps * 10 == train.max_steps == train.checkpoint_every_steps * 30
    assert train.keep_checkpoints >= train.average_checkpoints


# ---- texts -------------------------------------------------------------------------------------------------------

NOUNS = ["cat", "dog", "bird", "fish"]
TREES = [f"(ROOT (S (NP (DT the) (NN {a})) (VP (VBZ sees) (NP (DT a) (NN {b})))))" for a in NOUNS for b in NOUNS]
TREES += [f"(ROOT (S (NP (NN {a})) (VP (VBZ sleeps)) (. .)))" for a in NOUNS]


@pytest.fixture
def banks(tmp_path: Path) -> Treebanks:
    train, valid = write_lines(tmp_path / "train.trees", TREES * 2), write_lines(tmp_path / "valid.trees", TREES[-5:])
    return Treebanks(train, valid, write_lines(tmp_path / "test.trees", TREES[:2]))


def test_texts_are_the_trees_of_the_treebank(banks: Treebanks, tmp_path: Path) -> None:
    settings, trees = banks.read()
    assert settings["number of training trees"] == 40 and len(settings) == 4
    for variant in (Variant(), Variant(form="top-down")):
        texts = write_tree_texts(trees, variant, banks.gold(), tmp_path / "texts")
        for (words, symbols), path in ((texts.train, banks.train), (texts.valid, banks.valid)):
            pairs = zip(words.read_text().splitlines(), symbols.read_text().splitlines(), strict=True)
            assert [tree_of(line.split(), words_of(sentence)) for sentence, line in pairs] == [*read_trees(path)]
    assert (tmp_path / "texts" / "train.symbols").read_text() != (
        tmp_path / "texts" / "train.top-down.symbols"
    ).read_text()
    assert texts.evaluations()["test"] == ["--trees", str(banks.test), "--json"]


def test_a_part_contains_smaller_parts_and_is_always_the_same(banks: Treebanks, tmp_path: Path) -> None:
    _, trees = banks.read()
    numbered = [type(tree)((str(i),), ("NN",), ()) for i, tree in enumerate(trees["train"])]
    twenty, fifty = Variant(20).part_of(numbered), Variant(50).part_of(numbered)
    assert (len(twenty), len(fifty)) == (8, 20) and {*twenty} < {*fifty} and twenty == Variant(20).part_of(numbered)
    assert fifty == sorted(fifty, key=lambda tree: int(tree.words[0])) and Variant().part_of(numbered) == numbered
    assert len(Variant(20).part_of(numbered[:1])) == 1
    texts = write_tree_texts(trees, Variant(20), banks.gold(), tmp_path / "texts")
    assert texts.train[0].name == "train-20.words" and len(texts.train[1].read_text().splitlines()) == 8


# ---- the report --------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return table4_results(tmp_path)


def test_the_report_compares_each_row_with_base(results: Results) -> None:
    """4.30 is Student's t for two degrees of freedom: both pairs of seeds differ by 0.4."""
    text = markdown(report(results))
    effects = figures_of(text, "## The effect of each change")
    assert effects["2 layers"] == ["-3.20, -4.69 to -1.71", "worse"]
    assert effects["6 layers"] == ["+1.00, -0.49 to +2.49", "inconclusive"]
    assert effects["top-down form"] == ["+1.80, +0.58 to +3.02", "better"]
    assert effects["d_model 192"] == ["not run", ""] and "Not run: d_model 192." in text
    assert "between seeds is 0.28 on the validation trees, with 2 degrees of freedom" in text
    assert "of 18,951 training trees: 9 trainings of 7 of 8 rows done. Base has 4 + 4 layers, d_model 128" in text


def test_without_a_second_seed_every_comparison_is_inconclusive(results: Results) -> None:
    del results.entries["base-2"], results.entries["topdown-2"]
    text = markdown(report(results))
    effects = figures_of(text, "## The effect of each change")
    assert effects["2 layers"] == ["-3.00", "inconclusive"]
    assert "is unknown, since no row has two seeds. So every difference is inconclusive." in text


def test_every_row_has_its_figures(results: Results) -> None:
    text = markdown(report(results))
    figures = figures_of(text, "## Every row")
    assert figures["base"] == [
        "18,951", "1 2", "70.20 (70.00 to 70.40)", "71.20 (71.00 to 71.40)", "69.20 (69.00 to 69.40)",
        "20.00 (20.00 to 20.00)", "90.00 (90.00 to 90.00)", "600 of 600",
    ]  # fmt: skip
    assert figures["20 % of the trees"][:3] == ["3,790", "1", "55.00"] and figures["d_model 192"][2] == "not run"
    assert "| d_model 64 | 4 + 4 layers, d_model 64, d_ff 128, 2 heads | 1.85 M | 3,600 | 900 | 720 |" in text
    results.entries["base-1"]["test"] = {**results.entries["base-1"]["valid"], "f1": 66.5, "sentences": 900}
    text = markdown(report(results))
    figures = figures_of(text, "## Every row")
    assert figures["base"][8:] == ["66.50", "300 of 900"] and figures["2 layers"][8:] == ["", ""]
    assert "The test trees are 900." in text


def test_the_papers_rows_are_marked_as_quoted(results: Results) -> None:
    text = markdown(report(results))
    rows = rows_of(text, "## Compared with the paper's table")
    assert [row[2] for row in rows[: len(PAPER)]] == [
        "88.3", "90.4", "90.4", "91.7", "91.3", "91.3", "91.3", "92.1", "92.1", "92.7", "93.0", "93.3"
    ]  # fmt: skip
    assert {row[3] for row in rows[: len(PAPER)]} == {"quoted, WSJ section 23"}
    assert rows[len(PAPER)] == [
        "this study: base",
        "this treebank only",
        "70.20 (70.00 to 70.40)",
        "validation trees, not WSJ",
    ]
    assert "The treebanks differ." in text


def test_the_page_is_complete_and_loads_nothing(results: Results, tmp_path: Path) -> None:
    results.entries["d64-1"] = {"status": "failed", "row": "d64", "seed": 1, "why": "train: a <b>disk</b> is full"}
    results.save()
    write_report(tmp_path, report(results), results.sessions)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert Page(text).loads() == [] and "$" not in text and text.count("<figure>") == 2
    assert "&lt;b&gt;disk" in text and "<b>disk</b>" not in text
    assert html_page(report(results)) == html_page(report(read_results(results.path, STUDY)))
    positions = [float(position) for position in re.findall(r'c[xy]="([-\d.]+)%"', text)]
    assert len(positions) == 2 * (3 + 4 * 6) and all(0 <= position <= 100 for position in positions)


def test_a_report_without_results_has_every_row(tmp_path: Path) -> None:
    text = markdown(report(Results(tmp_path / "results.json", STUDY, {"number of training trees": 5})))
    assert "0 trainings of 0 of 8 rows done." in text and text.count("| not run |") == 15 and "Figure" not in text


# ---- a whole study -----------------------------------------------------------------------------------------------

RECIPE = """
from transduce import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig

def tiny() -> Config:
    return Config(
        model=ModelConfig(vocab_size=None, d_model=16, n_layers=1, n_heads=2, d_ff=16, tie_src_tgt=False),
        data=DataConfig(vocab_size=290, batch_tokens=200, max_tokens=64, target_tokens="symbols"),
        train=TrainConfig(
            task="parsing", max_steps=40, warmup_steps=20, evaluate_every_steps=20, checkpoint_every_steps=10,
        ),
        search=SearchConfig(max_extra_tokens=20),
    )
"""
SCRIPT = """
import sys
from pathlib import Path
from transduce.studies.table4 import run_table4
from transduce.studies.trainings import Training
from transduce.studies.table4 import Treebanks
folder = Path(sys.argv[1])
plan = [Training(row, 1, f"{folder / 'recipe.py'}:tiny") for row in ("base", "topdown")]
run_table4(Treebanks(*(folder / f"{name}.trees" for name in ("train", "valid", "test"))), folder / "out", plan, jobs=2)
"""


@pytest.mark.slow
def test_a_killed_study_of_a_tiny_treebank_resumes(
    banks: Treebanks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    (tmp_path / "recipe.py").write_text(RECIPE, encoding="utf-8")
    out, command = tmp_path / "out", [sys.executable, "-c", SCRIPT, str(tmp_path)]
    study = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for((out / "runs" / "base-1" / "config.json").exists)
    study.send_signal(signal.SIGKILL)
    assert study.wait() == -signal.SIGKILL
    wait_for(lambda: not is_locked(out / "runs"))  # a training whose study was killed runs to its end
    assert {entry["status"] for entry in read_results(out / "results.json", STUDY).entries.values()} == {"not run"}
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0 and re.search(r"base-1: F1 \d+\.\d\d; .* of processor time", result.stderr)
    entries = read_results(out / "results.json", STUDY).entries
    assert {name: entry["status"] for name, entry in entries.items()} == {"base-1": "done", "topdown-1": "done"}
    for entry in entries.values():
        assert entry["valid"]["sentences"] == entry["valid"]["valid"] == 5 and entry["test"]["valid"] == 2
        assert [point["step"] for point in entry["curve"]] == [20, 40] and entry["f1"] == entry["valid"]["f1"]
    symbols = {row: (out / "runs" / f"{row}-1" / "model" / "tokenizer.json").read_text() for row in ("base", "topdown")}
    assert '")NP"' in symbols["topdown"] and '")NP"' not in symbols["base"]
    assert "2 trainings of 2 of 8 rows done." in (out / "report.md").read_text("utf-8")


def test_finished_trainings_are_not_outdated(
    banks: Treebanks, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The tokenizer sets the sizes of both vocabularies, which are None in the recipe."""
    study = table4_results(tmp_path)
    study.settings, _ = banks.read()
    config = study.entries["base-1"]["config"]["model"]
    config["vocab_size"], config["tgt_vocab_size"] = 3_900, 110
    study.save()
    selection = [one for one in trainings() if study.is_done(one.name)]
    run_table4(banks, tmp_path, selection)
    assert "there is nothing to do" in capfd.readouterr().err
    study.entries["base-1"]["config"]["train"]["lr_factor"] = 0.7
    study.save()
    with pytest.raises(UserError, match="base-1: train.lr_factor=0.7 then, 0.5 now"):
        run_table4(banks, tmp_path, [Training("base", 1, "small-table4-base")])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--jobs", "0", "--jobs=0: expected at least 1"),
        ("--valid", "bad.trees", "bad.trees:2: expected "),
        ("--valid", "empty.trees", "empty.trees: expected at least 1 tree in brackets"),
        ("--test", "none.trees", "none.trees"),
    ],
)
def test_mistakes_are_named_before_a_training_starts(
    cli: Callable[..., CommandResult], banks: Treebanks, tmp_path: Path, option: str, value: str, message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "bad.trees", [TREES[0], "(S (NP"])
    write_lines(tmp_path / "empty.trees", [])
    options = {"--train": banks.train, "--valid": banks.valid, "--out": "out", option: value}
    result = cli("study", "table4", *(word for pair in options.items() for word in pair))
    assert result.code == 2 and message in result.err and not (tmp_path / "out").exists()


def test_trees_of_another_study_are_refused(banks: Treebanks, tmp_path: Path) -> None:
    study = table4_results(tmp_path)
    study.settings = {**banks.read()[0], "valid trees": "another hash"}
    study.save()
    with pytest.raises(UserError, match="expected results with the same valid trees"):
        run_table4(banks, tmp_path, trainings())
    assert json.loads(study.path.read_bytes())["study"] == "table4"
