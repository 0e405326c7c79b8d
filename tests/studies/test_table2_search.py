"""The search of Table 2: the same for each system, in two stages; the choices are those of the recipes."""

from pathlib import Path

import pytest
from support.study_results import search_results
from support.toy_task import ROOT, write_pairs

from transduce.evaluation.model_size import parameter_count
from transduce.evaluation.study_report import html_page, markdown
from transduce.recipes import find_recipe, table2
from transduce.studies import table2_search
from transduce.studies.results import Results, read_results
from transduce.studies.table2_search import SYSTEMS, choices, first_stage, report, run_search, second_stage
from transduce.studies.texts import Texts
from transduce.studies.trainings import Training


def test_every_shape_has_two_million_parameters() -> None:
    assert table2.CHOICES.keys() == table2.SHAPES.keys() == table2.KINDS.keys() == table2.SMALL.keys() == SYSTEMS.keys()
    for candidate in first_stage():
        assert 2.0e6 < parameter_count(candidate.training().config().model, 6_000) < 2.2e6, candidate


def test_the_search_is_the_same_for_each_system(tmp_path: Path) -> None:
    results = search_results(tmp_path)
    for system in SYSTEMS:
        settings = [[(one.shape, one.lr_factor, one.dropout) for one in stage if one.system == system]
                    for stage in (first_stage(), second_stage(results))]  # fmt: skip
        assert len(settings[0]) == 6 and settings[1] == [("wide", 1.2, 0.1), ("wide", 1.2, 0.3)]
    assert len(results.entries) == 32
    config = first_stage()[0].training().config()
    assert (config.train.max_steps, config.train.use, config.model.norm) == (500, "last", "post")


def test_a_choice_of_the_recipes_does_not_change_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a search would refuse to continue after its choices were written into the recipes."""
    before = [candidate.training().config() for candidate in first_stage()]
    other = {system: table2.Choice("deep", 0.25, 9.0, 1_000) for system in SYSTEMS}
    monkeypatch.setattr(table2, "CHOICES", other)
    assert find_recipe("small-table2-recurrent")().train.lr_factor == 9
    assert [candidate.training().config() for candidate in first_stage()] == before


def test_the_best_candidate_is_chosen(tmp_path: Path) -> None:
    results = search_results(tmp_path)
    assert {(one.shape, one.lr_factor, one.dropout) for one in choices(results).values()} == {("wide", 1.2, 0.1)}
    text = markdown(report(results))
    assert '    "recurrent": Choice("wide", 0.1, 1.2, 6_000),' in text and text.count("| chosen |") == 4
    assert "32 trainings done." in text and html_page(report(results))


def test_a_system_without_all_candidates_has_no_choice(tmp_path: Path) -> None:
    results = search_results(tmp_path)
    name = next(name for name in results.entries if name.startswith("recurrent-deep"))
    results.entries[name] = {"status": "failed", "why": "diverged"}
    assert "recurrent" in choices(results), "a candidate that diverged is not the best"
    results.entries[name] = {"status": "not run"}
    assert choices(results).keys() == SYSTEMS.keys() - {"recurrent"}
    assert "Not finished: LSTM with attention." in markdown(report(results))


def test_the_second_stage_follows_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete, calls = search_results(tmp_path / "complete"), []

    def train(trainings: list[Training], texts: Texts, results: Results, **_: object) -> None:
        calls.append([training.name for training in trainings])
        for name in calls[-1]:
            results.entries[name] = complete.entries[name]
        results.start_session([])

    monkeypatch.setattr(table2_search, "run_trainings", train)
    texts = Texts(write_pairs(tmp_path, "train", ["a b"]), write_pairs(tmp_path, "valid", ["c d"]))
    (tmp_path / "out").mkdir()
    run_search(texts, tmp_path / "out")
    assert [len(names) for names in calls] == [24, 8]
    assert read_results(tmp_path / "out" / "results.json").entries == complete.entries
    failed = calls[0][0]
    complete.entries[failed] = {"status": "failed", "why": "diverged"}
    results = read_results(tmp_path / "out" / "results.json")
    results.entries[failed] = complete.entries[failed]
    results.save()
    run_search(texts, tmp_path / "out")
    assert failed not in calls[2] and len(calls[2]) == 23


def test_the_recipes_have_the_choices_of_the_published_search() -> None:
    path = ROOT / "docs" / "results" / "table2-search" / "results.json"
    if not path.exists():
        pytest.skip("the search has not been published")
    for system, winner in choices(read_results(path)).items():
        choice = table2.CHOICES[system]
        assert (choice.shape, choice.dropout, choice.lr_factor) == (winner.shape, winner.dropout, winner.lr_factor)
