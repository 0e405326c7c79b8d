"""Table 2: systems at equal cost; an interrupted study resumes, and a missing run is reported."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from support.studies import write_study

from transduce.errors import UserError
from transduce.model import devices
from transduce.storage.run_request import TrainRequest
from transduce.studies import table2, table2_costs
from transduce.studies.results import Results, read_results
from transduce.studies.table2_costs import Budgets
from transduce.studies.table2_search import SYSTEMS
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


@dataclass(frozen=True)
class Folder:
    """A folder with a recipe, texts, and the study in `out`."""

    path: Path
    texts: Texts

    @property
    def out(self) -> Path:
        return self.path / "out"

    def trainings(self) -> list[Training]:
        """Return tiny systems, one of them with two seeds."""
        recipe = self.path / "recipe.py"
        runs = [(1, system) for system in SYSTEMS] + [(2, "recurrent")]
        return [Training(system, seed, f"{recipe}:{FUNCTIONS.get(system, system)}") for seed, system in runs]

    def run(self, *, jobs: int | None = None, rerun: bool = False) -> dict[str, dict[str, Any]]:
        """Run the study, and return its entries."""
        return table2.run_table2(self.texts, self.out, jobs=jobs, rerun=rerun).entries

    def results(self) -> Results:
        return read_results(self.out / "results.json", table2.STUDY)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """Return a study that is done. Tests must not change it. All steps take the same time."""
    path = tmp_path_factory.mktemp("table2")
    folder = Folder(path, write_study(path, RECIPE, has_test=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table2, "trainings", folder.trainings)
        patch.setattr(table2_costs, "SHARES", (0.15, 1.0))  # each budget takes two processes of each training
        patch.setattr(table2_costs, "_seconds", lambda _: repeat(0.5))
        folder.run(jobs=3)
        yield folder


@pytest.fixture
def folder(complete: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Return a copy of the complete study with the first seed only."""
    copy = tmp_path / "copy"
    shutil.copytree(complete.path, copy)
    keep_first(copy / "out", 4 + 4)
    folder = Folder(copy, complete.texts)
    monkeypatch.setattr(table2, "trainings", lambda: folder.trainings()[:4])
    return folder


def keep_first(out: Path, count: int) -> None:
    """Keep the first entries of the results."""
    results = read_results(out / "results.json", table2.STUDY)
    results.entries = dict([*results.entries.items()][:count])
    results.save()


@pytest.mark.slow
@pytest.mark.xdist_group("table2")
def test_every_system_is_evaluated_within_each_budget(complete: Folder, tmp_path: Path) -> None:
    results = complete.results()
    entries = json.loads(results.path.read_text("utf-8"))["cells"]
    assert {name: entry["status"] for name, entry in entries.items()} == dict.fromkeys(entries, "done")
    assert len(entries) == 4 + 5, "the costs and the trainings"
    budgets = Budgets(results)
    assert len(budgets.all()) == 2 * 2
    for budget in budgets.all():
        for system in SYSTEMS:
            step = budgets.step(system, budget)
            cost = budgets.step_cost(system, budget.cost)
            assert step == 5 or step * cost <= budget.limit * 1.001 < (step + 5) * cost
            points = budgets.points(system, budget)
            assert [point["seed"] for point in points] == [1, 2][: 1 + (system == "recurrent")] and {
                point["step"] for point in points
            } == {step}
            for point in points:
                assert point["lines"] == 9 and point["perplexity"] > 1 and 0 <= point["bleu"] <= 100
    for system in SYSTEMS:
        points = {point["step"]: point["averaged"] for point in entries[f"{system}-1"]["points"]}
        assert points[30] == 2 and points[5] == 1  # of 25 and 30, and of 5
        assert "test" not in entries[f"{system}-1"], "only the points see the test text"
    assert [point["step"] for point in entries["recurrent-2"]["curve"]] == [10, 20, 30, 40]

    shutil.copy(results.path, tmp_path)
    again = table2.run_table2(complete.texts, tmp_path)
    assert again.entries == results.entries, "only results.json is read"


COSTS = ("seconds", "cpu_seconds", "ended_at", "session", "command")


def reproducible(entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the entries without dates and durations."""
    return {name: {key: value for key, value in entry.items() if key not in COSTS} for name, entry in entries.items()}


@pytest.mark.slow
@pytest.mark.xdist_group("table2")
def test_a_study_that_loses_its_runs_continues_from_its_results(complete: Folder, tmp_path: Path) -> None:
    out = tmp_path
    shutil.copy(complete.out / "results.json", out)
    keep_first(out, 4 + 3)
    before = read_results(out / "results.json", table2.STUDY).entries
    after = table2.run_table2(complete.texts, out, jobs=3).entries
    assert {name: after[name] for name in before} == before
    assert reproducible(after) == reproducible(complete.results().entries)
    assert "ConvS2S (quoted) | 25.16 | 40.46 | 9.6e18 | 1.5e20" in (out / "report.md").read_text("utf-8")
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<svg role") == 4 and "not run" not in page and "LSTM with attention" in page


@pytest.mark.slow
@pytest.mark.xdist_group("table2")
def test_trainings_of_other_budgets_are_evaluated_again_only_when_asked(folder: Folder) -> None:
    results = folder.results()
    before = folder.results().entries
    results.entries["recurrent-1"]["points"].pop(0)
    results.save()
    with pytest.raises(UserError, match=r"recurrent-1: evaluated at steps \[(?!5,).* then, \[5, .* now"):
        folder.run()
    assert reproducible(folder.run(rerun=True)) == reproducible(before)
    with pytest.raises(UserError, match="give --test SRC REF"):
        table2.run_table2(replace(folder.texts, test=None), folder.path / "other")


@pytest.mark.slow
@pytest.mark.xdist_group("table2")
def test_a_change_of_a_recipe_changes_its_cost_only_when_asked(folder: Folder) -> None:
    before = folder.results().entries
    recipe = folder.path / "recipe.py"
    recipe.write_text(recipe.read_text("utf-8").replace('tiny("recurrent", 40)', 'tiny("recurrent", 20)'), "utf-8")
    with pytest.raises(UserError, match="train.max_steps=40 then, 20 now"):
        folder.run()
    entries = folder.run(rerun=True)
    assert entries["recurrent-1"]["steps"] == 20
    assert max(point["step"] for point in entries["post-norm-1"]["points"]) == 20
    assert entries["post-norm-1"]["curve"] == before["post-norm-1"]["curve"], "evaluated again, not trained"


def test_the_cost_of_a_step_is_of_a_cpu_also_beside_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is on another device computes no step in the memory of a CPU."""
    texts = write_study(tmp_path, RECIPE)
    monkeypatch.setattr(table2_costs, "COUNTED", 1)
    monkeypatch.setattr(table2_costs, "ROUNDS", 1)
    monkeypatch.setattr(table2_costs, "STEPS", 1)
    monkeypatch.setattr(devices, "_name", lambda: "meta")
    request = TrainRequest(
        f"{tmp_path / 'recipe.py'}:post", texts.train, texts.valid, tmp_path / "run", ["train.precision=fp32"]
    )
    (cost,) = table2_costs.measure_costs([request])
    assert cost["flops_per_step"] > 0 and cost["seconds_per_step"][0] > 0
