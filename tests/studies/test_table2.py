"""Table 2: systems at equal cost; an interrupted study resumes, and a missing run is reported."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.studies import write_study

from transduce.errors import UserError
from transduce.studies import step_costs, table2
from transduce.studies.results import Results, read_results
from transduce.studies.table2_budgets import SHARES, Budgets
from transduce.studies.table2_search import SYSTEMS
from transduce.studies.texts import Texts
from transduce.studies.trainings import Training

RECIPE = """
from transduce import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig

def tiny(kind, max_steps, **sizes):
    return Config(
        model=ModelConfig(kind=kind, vocab_size=None, d_model=16, n_layers=1, **sizes),
        data=DataConfig(vocab_size=300, batch_tokens=100, max_tokens=32),
        train=TrainConfig(
            max_steps=max_steps, warmup_steps=20, log_every_steps=5, evaluate_every_steps=10,
            checkpoint_every_steps=5, keep_checkpoints=20,
        ),
        search=SearchConfig(max_extra_tokens=5, beam_size=2),
    )

def post():
    return tiny("transformer", 30, n_heads=2, d_ff=32)

def pre():
    return tiny("transformer", 30, n_heads=2, d_ff=32, norm="pre")

def recurrent():
    return tiny("recurrent", 40)

def convolutional():
    return tiny("convolutional", 50)
"""
FUNCTIONS = {"post-norm": "post", "pre-norm": "pre"}


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    return write_study(tmp_path, RECIPE, has_test=True)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two seeds of tiny systems, and a machine on which all steps take the same time."""
    recipe = tmp_path / "recipe.py"
    trainings = [Training(one, seed, f"{recipe}:{FUNCTIONS.get(one, one)}") for seed in (1, 2) for one in SYSTEMS]
    monkeypatch.setattr(table2, "trainings", lambda: trainings)
    monkeypatch.setattr(step_costs._Stepper, "seconds", lambda _: 0.5)


@pytest.mark.slow
def test_every_system_is_evaluated_within_each_budget(tmp_path: Path, texts: Texts) -> None:
    out = tmp_path / "out"
    results = table2.run_table2(texts, out, jobs=3)
    entries = json.loads((out / "results.json").read_text("utf-8"))["cells"]
    assert {name: entry["status"] for name, entry in entries.items()} == dict.fromkeys(entries, "done")
    budgets = Budgets(results)
    assert len(budgets.all()) == 2 * len(SHARES)
    for budget in budgets.all():
        for system in SYSTEMS:
            step = budgets.step(system, budget)
            cost = budgets.step_cost(system, budget.cost)
            assert step == 5 or step * cost <= budget.limit * 1.001 < (step + 5) * cost
            points = budgets.points(system, budget)
            assert [point["seed"] for point in points] == [1, 2] and {point["step"] for point in points} == {step}
            for point in points:
                assert point["lines"] == 9 and point["perplexity"] > 1 and 0 <= point["bleu"] <= 100
    assert [entries[f"{system}-1-step-30"]["averaged"] for system in SYSTEMS] == [2, 2, 2, 2]  # 25 and 30
    assert [point["step"] for point in entries["recurrent-2"]["curve"]] == [10, 20, 30, 40]

    shutil.rmtree(out / "runs")
    second = table2.run_table2(texts, out)
    assert second.entries == results.entries, "from results.json alone"


COSTS = ("seconds", "cpu_seconds", "ended_at", "session", "command")


def reproducible(entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the entries without dates and durations."""
    return {name: {key: value for key, value in entry.items() if key not in COSTS} for name, entry in entries.items()}


@pytest.mark.slow
def test_an_interrupted_study_reports_gaps_and_resumes(
    tmp_path: Path, texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, original, calls = tmp_path / "out", table2.evaluate_checkpoint, []

    def interrupt(*arguments: Any) -> dict[str, Any]:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(table2, "evaluate_checkpoint", interrupt)
    with pytest.raises(KeyboardInterrupt):
        table2.run_table2(texts, out, jobs=3)
    before = read_results(out / "results.json").entries
    assert len(before) == 8 + 4 + 2 and all(entry["status"] == "done" for entry in before.values())
    report = (out / "report.md").read_text("utf-8")
    assert report.count("not run") >= 2 and "ConvS2S (quoted) | 25.16 | 40.46 | 9.6e18 | 1.5e20" in report
    assert "Not all systems have been evaluated at equal time" in report

    monkeypatch.setattr(table2, "evaluate_checkpoint", original)
    after = table2.run_table2(texts, out, jobs=3).entries
    assert {name: after[name] for name in before} == before
    reference = table2.run_table2(texts, tmp_path / "uninterrupted", jobs=3).entries
    assert reproducible(after) == reproducible(reference)
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<svg role") == 4 and "not run" not in page and "LSTM with attention" in page


@pytest.mark.slow
def test_a_missing_run_that_is_still_needed_is_reported(tmp_path: Path, texts: Texts) -> None:
    out = tmp_path / "out"
    results = table2.run_table2(texts, out, jobs=3)
    name = next(name for name in results.entries if name.startswith("recurrent-1-step-"))
    results.entries[name] = {"status": "not run"}
    results.save()
    shutil.rmtree(out / "runs")
    with pytest.raises(UserError, match="recurrent-1: expected the folder of a training, which the study still needs"):
        table2.run_table2(texts, out)
    with pytest.raises(UserError, match="give --test SRC REF"):
        table2.run_table2(replace(texts, test=None), tmp_path / "other")


def test_entries_older_than_their_training_are_computed_again(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json", "table2", {})
    results.record("recurrent-1", "done", row="recurrent", seed=1)
    results.record("recurrent-1-step-5", "done", row="recurrent", seed=1)
    assert table2.is_newer("recurrent-1-step-5", "recurrent-1", results)
    results.entries["recurrent-1"]["ended_at"] = "2999-11-22T00:00:00+00:00"
    assert not table2.is_newer("recurrent-1-step-5", "recurrent-1", results)
    assert not table2.is_newer("recurrent-1-step-10", "recurrent-1", results)
