"""Table 2: three kinds of model at equal cost; an interrupted study resumes, and a missing run is reported."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.studies import write_study
from support.toy_task import ROOT

from transduce.errors import UserError
from transduce.evaluation.study_report import markdown
from transduce.studies import table2
from transduce.studies.results import read_results
from transduce.studies.trainings import Texts, Training

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

def transformer():
    return tiny("transformer", 30, n_heads=2, d_ff=32)

def recurrent():
    return tiny("recurrent", 40)

def convolutional():
    return tiny("convolutional", 50)
"""


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    return write_study(tmp_path, RECIPE, has_test=True)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainings = [Training(system, 1, f"{tmp_path / 'recipe.py'}:{system}") for system in table2.SYSTEMS]
    monkeypatch.setattr(table2, "trainings", lambda: trainings)


@pytest.mark.slow
def test_every_system_is_evaluated_within_the_cost_of_the_cheapest(tmp_path: Path, texts: Texts) -> None:
    out = tmp_path / "out"
    results = table2.run_table2(texts, out, jobs=3)
    entries = json.loads((out / "results.json").read_text("utf-8"))["cells"]
    assert {name: entry["status"] for name, entry in entries.items()} == dict.fromkeys(entries, "done")
    assert len(entries) == 3 * (1 + 2)
    for cost, budget in (("processor_seconds", "time"), ("flops", "flops")):
        ends = {system: entries[f"{system}-1"]["checkpoints"][-1] for system in table2.SYSTEMS}
        limit = min(ends[system][cost] for system in ends)
        for system in table2.SYSTEMS:
            scores = entries[f"{system}-{budget}"]
            cost_at = {point["step"]: point[cost] for point in entries[f"{system}-1"]["checkpoints"]}
            assert cost_at[scores["step"]] <= limit < cost_at.get(scores["step"] + 5, float("inf"))
            assert scores["lines"] == 9 and scores["perplexity"] > 1 and 0 <= scores["bleu"] <= 100
        assert any(entries[f"{system}-{budget}"]["step"] == ends[system]["step"] for system in ends)
    curve = entries["recurrent-1"]["curve"]
    assert [point["step"] for point in curve] == [10, 20, 30, 40]

    shutil.rmtree(out / "runs")
    second = table2.run_table2(texts, out)
    assert second.entries == results.entries, "from results.json alone"


COSTS = ("seconds", "cpu_seconds", "ended_at", "session", "checkpoints", "command")


def reproducible(entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the trainings and the models at equal FLOPs, without dates and durations."""
    selection = {name: entry for name, entry in entries.items() if not name.endswith("-time")}
    return {name: {key: value for key, value in entry.items() if key not in COSTS} for name, entry in selection.items()}


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
    assert [entry["status"] for entry in before.values()] == ["done"] * 5 + ["not run"] * 4
    report = (out / "report.md").read_text("utf-8")
    assert report.count("not run") == 4 and "ConvS2S (quoted) | 25.16 | 40.46 | 9.6e18 | 1.5e20" in report

    monkeypatch.setattr(table2, "evaluate_checkpoint", original)
    after = table2.run_table2(texts, out, jobs=3).entries
    assert {name: after[name] for name, entry in before.items() if entry["status"] == "done"} == {
        name: entry for name, entry in before.items() if entry["status"] == "done"
    }
    reference = table2.run_table2(texts, tmp_path / "uninterrupted", jobs=3).entries
    curves = [
        {name: [{**p} for p in entry.get("curve", [])] for name, entry in entries.items()}
        for entries in (after, reference)
    ]
    assert curves[0] == curves[1] and reproducible(after) == reproducible(reference)
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<svg role") == 2 and "not run" not in page and "LSTM with attention" in page


def test_scores_are_computed_again_after_a_later_training() -> None:
    """The cheapest training sets the budget of all systems."""
    results = read_results(ROOT / "docs" / "results" / "table2" / "results.json")
    names = [f"{system}-{budget}" for system in table2.SYSTEMS for budget in table2.BUDGETS]
    assert all(table2.is_evaluated(name, results) for name in names)
    assert "not run" not in markdown(table2.report(results))
    results.entries["recurrent-1"]["ended_at"] = "2026-11-22T00:00:00+00:00"
    assert not any(table2.is_evaluated(name, results) for name in names)
    assert markdown(table2.report(results)).count("not run") == 6


def test_scores_without_their_checkpoint_are_computed_again() -> None:
    results = read_results(ROOT / "docs" / "results" / "table2" / "results.json")
    points = results.entries["transformer-1"]["checkpoints"]
    points[:] = [point for point in points if point["step"] != results.entries["transformer-time"]["step"]]
    assert not table2.is_evaluated("transformer-time", results) and table2.is_evaluated("recurrent-time", results)
    assert markdown(table2.report(results)).count("not run") == 1


def test_the_report_names_the_norm_and_the_sizes_that_were_trained() -> None:
    results = read_results(ROOT / "docs" / "results" / "table2" / "results.json")
    text = markdown(table2.report(results))
    assert "| Transformer (pre-norm) | 22.68 |" in text and "Both Transformers quoted are post-norm" in text
    assert "4 + 4 layers, d_model 128, d_ff 256, 4 heads, 800 steps" in text and "newest 5 checkpoints" in text
    for entry in results.entries.values():
        if "config" in entry:
            entry["config"]["model"]["norm"] = "post" if "n_heads" in entry["config"]["model"] else "pre"
            entry["config"]["train"]["max_steps"] = 123
        entry["averaged"] = 7
    text = markdown(table2.report(results))
    assert "| Transformer (post-norm) | 22.68 |" in text and "4 heads, 123 steps" in text and "newest 7" in text
    del results.entries["transformer-1"]["config"]
    assert "Transformer: settings not recorded" in markdown(table2.report(results))


@pytest.mark.slow
def test_a_missing_run_that_is_still_needed_is_reported(tmp_path: Path, texts: Texts) -> None:
    out = tmp_path / "out"
    results = table2.run_table2(texts, out, jobs=3)
    results.entries["recurrent-time"] = {"status": "not run"}
    results.save()
    shutil.rmtree(out / "runs")
    with pytest.raises(UserError, match="recurrent-1: expected a run with checkpoints"):
        table2.run_table2(texts, out)
    with pytest.raises(UserError, match="give --test SRC REF"):
        table2.run_table2(Texts(texts.train, texts.valid), tmp_path / "other")
