"""The search of Table 2: the same for each system, a step at a time; the recipes have its choices."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.study_results import search_results
from support.toy_task import ROOT, write_pairs

from transduce.config.recipes import find_recipe
from transduce.config.recipes.studies import table2
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.evaluation.study_report import html_page, markdown
from transduce.studies import table2_search
from transduce.studies.results import Results, read_results
from transduce.studies.table2_search import SYSTEMS, Candidate, choices, report, run_search, search, waiting
from transduce.studies.trainings import Texts, Training
from transduce.training.optimizer import learning_rate


def names(results: Results, system: str) -> list[tuple[str, float, float]]:
    return [(one.shape, one.peak, one.dropout) for one in search(system, results).candidates]


def test_every_shape_has_two_million_parameters_and_steps_for_the_budget() -> None:
    assert table2.CHOICES.keys() == table2.SHAPES.keys() == table2.KINDS.keys() == table2.SMALL.keys() == SYSTEMS.keys()
    for system, shapes in table2.SHAPES.items():
        for shape in shapes:
            config = Candidate(system, shape, 1.8e-3, 0.1).training().config()
            assert 2.0e6 < parameter_count(config.model, 6_000) < 2.2e6
            seconds = table2.steps(system, shape) * table2.SECONDS[system][shape]
            assert 1_950 < seconds <= table2.BUDGET == 2_000
    steps = [find_recipe(f"small-table2-{system}")().train.max_steps for system in SYSTEMS]
    assert steps == [7_000, 7_000, 7_600, 6_700]


def test_the_number_of_steps_is_that_of_the_chosen_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table2, "CHOICES", {"post-norm": table2.Choice("deep", 0.1, 1.8e-3)})
    config = table2.recipe("post-norm")
    assert config.model.n_layers == 4 and config.train.max_steps == 5_500
    assert config.train.warmup_steps == 550 and config.train.keep_checkpoints == 56


def test_a_candidate_has_the_peak_and_the_share_of_warm_up_of_the_training_that_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for system in SYSTEMS:
        for shape in ("deep", "wide"):
            monkeypatch.setattr(table2, "CHOICES", {system: table2.Choice(shape, 0.2, 3.6e-3)})
            served = table2.recipe(system)
            config = Candidate(system, shape, 3.6e-3, 0.2).training().config()
            assert config.model == served.model and config.train.use == "last" and config.train.max_steps == 1_000
            for one in (config, served):
                train = one.train
                assert train.warmup_steps == train.max_steps / 10
                options = {"d_model": one.model.d_model, "warmup_steps": train.warmup_steps}
                peak = learning_rate(train.warmup_steps, **options, lr_factor=train.lr_factor)
                assert peak == pytest.approx(3.6e-3, rel=1e-3)


def test_the_search_is_the_same_for_each_system_and_goes_outwards_until_it_is_worse(tmp_path: Path) -> None:
    results = search_results(tmp_path)
    for system in SYSTEMS:
        assert names(results, system) == [
            ("wide", 3.6e-3, 0.1),
            ("wide", 7.2e-3, 0.1),
            ("wide", 1.8e-3, 0.1),
            ("wide", 0.9e-3, 0.1),
            ("deep", 1.8e-3, 0.1),
            ("deep", 1.8e-3, 0.2),
            ("deep", 1.8e-3, 0.3),
        ]
        assert search(system, results).choice == Candidate(system, "deep", 1.8e-3, 0.2)
    assert len(results.entries) == 28
    high = Candidate("recurrent", "wide", 7.2e-3, 0.1).training().name
    results.entries[high]["perplexity"] = 5.0
    assert names(results, "recurrent")[2:] == [("wide", 14.4e-3, 0.1)] and search("recurrent", results).choice is None
    assert waiting(results) == [Candidate("recurrent", "wide", 14.4e-3, 0.1)]


def test_a_choice_of_the_recipes_does_not_change_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a search would refuse to continue after its choices were written into the recipes."""
    candidates = [Candidate(system, "wide", 3.6e-3, 0.1) for system in SYSTEMS]
    before = [candidate.training().config() for candidate in candidates]
    other = {system: table2.Choice("deep", 0.25, 9e-3) for system in SYSTEMS}
    monkeypatch.setattr(table2, "CHOICES", other)
    assert find_recipe("small-table2-recurrent")().model.dropout == 0.25
    assert [candidate.training().config() for candidate in candidates] == before


def test_the_choices_and_the_edges_are_reported(tmp_path: Path) -> None:
    results = search_results(tmp_path)
    text = markdown(report(results))
    assert '    "recurrent": Choice("deep", 0.2, 1.8e-3),' in text and text.count("| chosen |") == 4
    assert "28 trainings done." in text and html_page(report(results)) and "At the edge" not in text
    results.entries[Candidate("recurrent", "wide", 0.9e-3, 0.1).training().name]["perplexity"] = 5.0
    for other in (Candidate("recurrent", "deep", 0.9e-3, 0.1), Candidate("recurrent", "wide", 0.9e-3, 0.2)):
        results.entries[other.training().name] = {"status": "done", "perplexity": 9.0, "bleu": 20.0}
    text = markdown(report(results))
    edge = (
        "At the edge of its grid, beyond which the best may be: LSTM with attention: learning rate 0.0009 and dropout"
    )
    assert f"{edge} 0.1." in text and "1,000 steps, 100 of them warm-up" in text


def test_a_candidate_that_diverged_is_not_the_best(tmp_path: Path) -> None:
    """Another failure tells nothing, so the candidate is trained again."""
    results = search_results(tmp_path)
    best = Candidate("recurrent", "deep", 1.8e-3, 0.2)
    results.entries[best.training().name] = {"status": "failed", "why": "the training diverged", "diverged": True}
    assert choices(results)["recurrent"] == replace(best, dropout=0.1) and "| failed |" in markdown(report(results))
    del results.entries[best.training().name]["diverged"]
    assert choices(results).keys() == SYSTEMS.keys() - {"recurrent"} and waiting(results) == [best]
    assert "Not finished: LSTM with attention." in markdown(report(results))


def test_the_search_continues_after_a_divergence_and_stops_after_another_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = search_results(tmp_path / "complete")
    calls: list[list[str]] = []
    failure: dict[str, object] = {"status": "failed", "why": "train: the training diverged", "diverged": True}
    bad = Candidate("recurrent", "wide", 0.9e-3, 0.1).training().name

    def train(trainings: list[Training], texts: Texts, results: Results, **_: object) -> None:
        calls.append([one.name for one in trainings if not results.is_done(one.name)])
        for name in calls[-1]:
            results.entries[name] = failure if name == bad else complete.entries[name]
        results.start_session([])
        if bad in calls[-1]:
            raise UserError("1 of 28 trainings failed")

    monkeypatch.setattr(table2_search, "run_trainings", train)
    texts = Texts(write_pairs(tmp_path, "train", ["a b"]), write_pairs(tmp_path, "valid", ["c d"]))
    (tmp_path / "out").mkdir()
    results = run_search(texts, tmp_path / "out")
    assert [len(batch) for batch in calls] == [8, 4, 4, 4, 4, 4] and len(choices(results)) == 4
    assert read_results(results.path, table2_search.STUDY).entries == {**complete.entries, bad: failure}
    run_search(texts, tmp_path / "out")
    assert calls[6:] == [[]]

    del failure["diverged"]
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="trainings failed"):
        run_search(texts, tmp_path / "other")
    assert len(calls) == 10 and bad in calls[-1]


def test_a_test_text_is_refused(tmp_path: Path) -> None:
    pair = write_pairs(tmp_path, "train", ["a b"])
    with pytest.raises(UserError, match=r"--test: must not be set with --search, .*; leave it out"):
        run_search(Texts(pair, pair, pair), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_recipes_have_the_choices_of_the_published_search() -> None:
    path = ROOT / "docs" / "results" / "table2-search" / "results.json"
    if not path.exists():
        pytest.skip("the search has not been published")
    for system, winner in choices(read_results(path, table2_search.STUDY)).items():
        choice = table2.CHOICES[system]
        assert (choice.shape, choice.dropout, choice.peak) == (winner.shape, winner.dropout, winner.peak)
