"""Table 2: three kinds of model trained and judged at equal cost; what is interrupted goes on, what is lost is said."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.toy_task import write_pairs

from transduce.errors import UserError
from transduce.studies import table2
from transduce.studies.results import read_results
from transduce.studies.trainings import Cell, Texts

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
    lines = ["a b c d", "b c", "c d e f g", "a", "g f a b"] * 8
    (tmp_path / "recipe.py").write_text(RECIPE, encoding="utf-8")
    pairs = [write_pairs(tmp_path, name, lines[:size]) for name, size in (("train", 40), ("valid", 6), ("test", 9))]
    return Texts(*pairs)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells = [Cell(system, 1, f"{tmp_path / 'recipe.py'}:{system}") for system in table2.SYSTEMS]
    monkeypatch.setattr(table2, "cells", lambda: cells)


@pytest.mark.slow
def test_every_system_is_judged_where_it_has_cost_no_more_than_the_cheapest(tmp_path: Path, texts: Texts) -> None:
    out = tmp_path / "out"
    results = table2.run_table2(texts, out, jobs=3)
    found = json.loads((out / "results.json").read_text("utf-8"))["cells"]
    assert {name: cell["status"] for name, cell in found.items()} == dict.fromkeys(found, "done")
    assert len(found) == 3 * (1 + 2)
    for cost, budget in (("processor_seconds", "time"), ("flops", "flops")):
        ends = {system: found[f"{system}-1"]["checkpoints"][-1] for system in table2.SYSTEMS}
        least = min(ends[system][cost] for system in ends)
        for system in table2.SYSTEMS:
            judged = found[f"{system}-{budget}"]
            spent = {point["step"]: point[cost] for point in found[f"{system}-1"]["checkpoints"]}
            assert spent[judged["step"]] <= least < spent.get(judged["step"] + 5, float("inf"))
            assert judged["lines"] == 9 and judged["perplexity"] > 1 and 0 <= judged["bleu"] <= 100
        assert any(found[f"{system}-{budget}"]["step"] == ends[system]["step"] for system in ends)
    curve = found["recurrent-1"]["curve"]
    assert [point["step"] for point in curve] == [10, 20, 30, 40]

    shutil.rmtree(out / "runs")
    again = table2.run_table2(texts, out)
    assert again.cells == results.cells, "from results.json alone"


COSTS = ("seconds", "cpu_seconds", "ended_at", "session", "checkpoints", "command")


def figures(cells: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What of the trainings, and of the models judged at equal FLOPs, does not depend on when and how long."""
    kept = {name: cell for name, cell in cells.items() if not name.endswith("-time")}
    return {name: {key: value for key, value in cell.items() if key not in COSTS} for name, cell in kept.items()}


@pytest.mark.slow
def test_an_interrupted_study_says_what_is_missing_and_goes_on(
    tmp_path: Path, texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, judge, done = tmp_path / "out", table2.judge, []

    def interrupted(*arguments: Any) -> dict[str, Any]:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(arguments)
        return judge(*arguments)

    monkeypatch.setattr(table2, "judge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table2.run_table2(texts, out, jobs=3)
    before = read_results(out / "results.json").cells
    assert [cell["status"] for cell in before.values()] == ["done"] * 5 + ["not run"] * 4
    report = (out / "report.md").read_text("utf-8")
    assert report.count("not run") == 4 and "ConvS2S (quoted) | 25.16 | 40.46 | 9.6e18 | 1.5e20" in report

    monkeypatch.setattr(table2, "judge", judge)
    after = table2.run_table2(texts, out, jobs=3).cells
    assert {name: after[name] for name, cell in before.items() if cell["status"] == "done"} == {
        name: cell for name, cell in before.items() if cell["status"] == "done"
    }
    whole = table2.run_table2(texts, tmp_path / "whole", jobs=3).cells
    curves = [
        {name: [{**p} for p in cell.get("curve", [])] for name, cell in cells.items()} for cells in (after, whole)
    ]
    assert curves[0] == curves[1] and figures(after) == figures(whole)
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<svg role") == 2 and "not run" not in page and "LSTM with attention" in page


def test_trainings_that_are_lost_before_they_were_judged_are_said(tmp_path: Path, texts: Texts) -> None:
    out = tmp_path / "out"
    results = table2.run_table2(texts, out, jobs=3)
    results.cells["recurrent-time"] = {"status": "not run"}
    results.save()
    shutil.rmtree(out / "runs")
    with pytest.raises(UserError, match="recurrent-1 holds no checkpoints"):
        table2.run_table2(texts, out)
    with pytest.raises(UserError, match="give --test SRC REF"):
        table2.run_table2(Texts(texts.train, texts.valid), tmp_path / "other")
