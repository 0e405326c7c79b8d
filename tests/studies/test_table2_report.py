"""The report of Table 2: no system is better within the spread of the seeds, and captions come from the entries."""

from pathlib import Path

import pytest
from support.pages import Page
from support.studies import figures_of
from support.study_results import table2_results

from transduce.config.recipes import find_recipe
from transduce.config.schema import with_value
from transduce.data.batches import collate
from transduce.evaluation.study_report import html_page, markdown
from transduce.model.build import build
from transduce.studies import table2
from transduce.studies.results import Results, read_results
from transduce.studies.table2_costs import Budgets, cost_name
from transduce.studies.table2_report import COUNTED, PAPER, report
from transduce.training.flops import step_flops


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return table2_results(tmp_path)


def test_the_report_has_quality_at_every_budget(results: Results) -> None:
    """The cheapest training has 7,600 steps of 0.22 s: 1,672 s."""
    text = markdown(report(results))
    assert [round(one.limit) for one in Budgets(results).all()[:4]] == [251, 502, 1003, 1672]
    assert "| at equal time | BLEU, 251 s | BLEU, 502 s | BLEU, 1,003 s | BLEU, 1,672 s | perplexity, 251 s |" in text
    scores = figures_of(text, "| at equal time |")["LSTM with attention"]
    assert scores[3] == "19.70 (19.63 to 19.77)" and scores[7] == "6.61 (6.54 to 6.67)"
    assert len(figures_of(text, "| at equal FLOPs |")) == 4 and "1.68e14 FLOPs" in text
    assert "base 9.5e17, 29 % of 3.3e18; big 9.7e18, 42 % of 2.3e19" in text
    assert figures_of(text, "| system |")["LSTM with attention"][3:5] == ["0.220", "0.270"]


def test_a_system_is_better_only_beyond_the_spread(results: Results) -> None:
    text = markdown(report(results))
    assert "the Transformer (pre-norm) is better than the LSTM with attention and better than the gated conv" in text
    assert "the Transformer (post-norm) is worse than the LSTM with attention and worse than the gated conv" in text
    for entry in results.entries.values():
        for point in entry.get("points", []):
            point["bleu"] += 10 * (entry["seed"] - 2)
    text = markdown(report(results))
    lead = text.split("## ")[0]
    assert lead.count("not conclusively different from the") == 8 and lead.count("better than") == 1
    assert "| inconclusive | x 0.862, 0.846 to 0.879 | better |" in text
    for system in ("post-norm", "pre-norm", "recurrent", "convolutional"):
        del results.entries[f"{system}-2"], results.entries[f"{system}-3"]
    text = markdown(report(results))
    assert "| inconclusive |" in text and "| better |" not in text and "no system passes another" in text


def test_crossings_are_named_and_marked(results: Results) -> None:
    text, page = markdown(report(results)), html_page(report(results))
    assert "Crossings of perplexity by time: " in text
    assert "Transformer (pre-norm) passes LSTM with attention at 983 s (BLEU 17.23)" in text
    assert page.count('class="ring"') == text.count(" passes ") > 0
    assert Page(page).loads() == []


def test_captions_are_those_of_the_entries(results: Results) -> None:
    text = markdown(report(results))
    assert "lr_factor 2.8901, 760 steps of warm-up, dropout 0.1" in text
    results.entries["post-norm-1"]["config"]["model"]["norm"] = "pre"
    results.entries["recurrent-1"]["config"]["train"]["warmup_steps"] = 123
    text = markdown(report(results))
    assert "Transformer (post and pre-norm)" in text and "123 steps of warm-up" in text
    del results.entries["recurrent-1"]["config"]
    assert "LSTM with attention: settings not recorded" in markdown(report(results))


def test_missing_results_are_reported(results: Results, tmp_path: Path) -> None:
    results.save()
    assert markdown(report(read_results(tmp_path / "results.json", table2.STUDY))) == markdown(report(results))
    assert "Not run:" not in markdown(report(results))
    results.entries["post-norm-3"] = results.entries["recurrent-3"] = {"status": "not run"}
    assert "\n\nNot run: post-norm-3, recurrent-3.\n\n" in markdown(report(results))
    del results.entries[cost_name("recurrent")]
    text = markdown(report(results))
    assert figures_of(text, "| system |")["LSTM with attention"][0] == "not run" and "at equal time." in text
    empty = Results(tmp_path / "other.json", table2.STUDY, {})
    assert markdown(report(empty)).count("not run") > 6 and html_page(report(empty))


@pytest.mark.slow
def test_the_flops_of_the_papers_models_are_counted() -> None:
    """In pairs of 25 + 25 tokens, 25,000 tokens a side and step."""
    for name, flops in COUNTED.items():
        config = with_value(find_recipe(f"vaswani2017-{name}")(), "model.vocab_size", 37_000)
        import numpy as np

        sides = [np.arange(24) + 10] * 4
        batch = collate(sides, sides)
        counted = step_flops(build(config.model).train(), [batch], 0.1) / 100 * 25_000 * config.train.max_steps
        assert counted == pytest.approx(flops, rel=0.02), PAPER
