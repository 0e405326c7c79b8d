"""Table 3: its rows at both scales, its claims, and the report, which marks every gap."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.pages import Page
from support.studies import figures_of
from support.toy_task import write_pairs

from transduce.config.recipes import RECIPES
from transduce.config.recipes.studies import table3
from transduce.config.validation import problems
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.evaluation.study_report import html_page, markdown, write_report
from transduce.studies.comparison import Row
from transduce.studies.results import Results, encode_config, provenance, read_results
from transduce.studies.table3 import PLANS, STUDY, Table3Texts, run_table3, trainings
from transduce.studies.table3_report import CLAIMS, LARGE_BASE, PAPER, SIZES, overall, report

# ---- rows --------------------------------------------------------------------------------------------------------


def test_recipes_plans_claims_and_paper_have_the_same_rows() -> None:
    assert PAPER.keys() == table3.ROWS.keys() == {row for row, _ in PLANS["paper"]} - {LARGE_BASE}
    assert {row for row, _ in PLANS["small"]} < {*PAPER, LARGE_BASE}
    assert {row for effects in CLAIMS.values() for row in effects} < PAPER.keys() and {*SIZES} < PAPER.keys()
    for scale, count in (("small", 15), ("paper", 26)):
        plan = trainings(scale, has_large_text=True)
        assert len(plan) == len({training.name for training in plan}) == count + 1
        assert [one.name for one in plan if one.row != LARGE_BASE] == [one.name for one in trainings(scale)]
        for training in plan:
            assert training.config().train.seed == training.seed and problems(training.config()) == []
            assert training.averaged == 5 <= training.config().train.keep_checkpoints


def test_every_row_can_be_trained_with_every_seed() -> None:
    everything = trainings("small", ["all"], [1, 2, 3], has_large_text=True)
    assert sorted(one.name for one in everything) == sorted(
        f"{row}-{i}" for row in (*PAPER, LARGE_BASE) for i in (1, 2, 3)
    )
    on_request = [one.name for one in trainings("small", ["all"])]
    plan = [one.name for one in trainings("small")]
    assert on_request[: len(plan)] == plan
    assert sorted(on_request[len(plan) :]) == [
        "big-1",
        "dk32-1",
        "dropout0.2-1",
        "h16-1",
        "h32-1",
        "h4-1",
        "n8-1",
        "smoothing0.2-1",
    ]
    assert [one.name for one in trainings("small", ["h4", "n2"])] == ["n2-1", "n2-2", "h4-1"]


@pytest.mark.parametrize("row", [row for row, entry in PAPER.items() if entry.parameters and row != "big"])
def test_parameters_are_the_papers(row: str) -> None:
    """With the 40,960 rows of the embedding that the 2017 code pads to; no vocabulary gives the figure of big."""
    assert round(parameter_count(table3.paper(row).model, 40_960) / 1e6) == PAPER[row].parameters


@pytest.mark.parametrize("row", table3.ROWS)
def test_small_rows_keep_the_papers_ratios(row: str) -> None:
    """The ratios of all sizes to the sizes of base; the other settings are the paper's. A single head is one head."""
    small, paper = table3.small(row), table3.paper(row)
    small_base, paper_base = table3.small("base"), table3.paper("base")

    def sizes(config: object) -> list[float]:
        model, train = config.model, config.train  # type: ignore[attr-defined]
        d_k, d_v = model.d_k or model.d_model / model.n_heads, model.d_v or model.d_model / model.n_heads
        heads = [] if row == "h1" else [model.n_heads, d_k, d_v]
        return [model.d_model, model.d_ff, model.n_layers, train.max_steps, *heads]

    ratios = [[a / b for a, b in zip(sizes(one), sizes(base), strict=True)] for one, base in
              ((small, small_base), (paper, paper_base))]  # fmt: skip
    assert ratios[0] == ratios[1]
    for name in ("dropout", "positions", "norm", "tie_output"):
        assert getattr(small.model, name) == getattr(paper.model, name)
    assert small.train.label_smoothing == paper.train.label_smoothing and small.search == paper.search
    assert small.train.use == paper.train.use == "last"
    assert small.model.n_heads == paper.model.n_heads == 1 or row != "h1"


def test_rows_and_seeds_can_be_selected() -> None:
    rows = ["h1", "base"]
    assert [training.name for training in trainings("small", rows)] == ["base-1", "base-2", "h1-1"]
    assert [training.name for training in trainings("paper", rows)] == ["base-1", "base-2", "h1-1", "base-3"]
    assert [training.name for training in trainings("paper", rows, [5, 4])] == ["base-5", "h1-5", "base-4", "h1-4"]
    assert trainings("paper", ["h1"])[0].recipe in RECIPES and trainings("small", ["h1"])[0].recipe in RECIPES


# ---- the report --------------------------------------------------------------------------------------------------


def entry(row: str, seed: int, perplexity: float, bleu: float) -> dict[str, object]:
    costs = {"parameters": 1_900_544, "seconds": 500.0, "cpu_seconds": 300.0}
    return {"status": "done", "row": row, "seed": seed, "perplexity": perplexity, "bleu": bleu, **costs}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Base twice, N = 2 much worse, dropout 0 better, h = 1 failed, h = 4 not run."""
    study = Results(tmp_path / "results.json", STUDY, {"scale": "small"}, sessions=[provenance()])
    for number, (perplexity, bleu) in enumerate([(10.0, 30.0), (10.02, 30.1)], start=1):
        study.entries[f"base-{number}"] = entry("base", number, perplexity, bleu)
    study.entries["n2-1"] = entry("n2", 1, 14.0, 22.0)
    study.entries["dropout0-1"] = entry("dropout0", 1, 8.0, 33.0)
    study.entries["h1-1"] = {"status": "failed", "row": "h1", "seed": 1, "why": "train: a <b>disk</b> is full"}
    study.entries["h4-1"] = {"status": "not run"}
    study.save()
    return study


EFFECTS = "## The effect of each change"


def test_the_report_has_the_effect_of_each_change_with_its_interval(results: Results) -> None:
    """12.71 is Student's t for one degree of freedom; the two seeds of base differ by 0.1 BLEU and 0.2 %."""
    results.entries["n2-1"]["valid_mean"] = {"perplexity": 13.0, "bleu": 23.0}
    results.entries["base-1"]["valid_mean"] = {"perplexity": 9.0, "bleu": 31.0}
    effects = figures_of(markdown(report(results)), EFFECTS)
    assert effects["(C) N = 2"] == ["x 1.242", "x 1.399, 1.368 to 1.430", "x 1.444", "-2.1", "-8.05, -9.15 to -6.95"]
    assert effects["(D) dropout 0"] == ["x 1.173", "x 0.799, 0.782 to 0.817", "", "-1.2", "+2.95, +1.85 to +4.05"]
    assert len(effects) == 19
    figures = figures_of(markdown(report(results)), "## Every row")
    assert figures["(C) N = 2"][1:5] == ["14.00", "22.00", "13.00", "23.00"]


def test_a_claim_about_several_rows_holds_for_all_of_them() -> None:
    assert overall(["holds", "holds"]) == "holds"
    assert overall(["holds", "inconclusive"]) == "inconclusive"
    assert overall(["holds", "inconclusive", "does not hold"]) == "does not hold"


def test_each_claim_has_one_sentence(results: Results) -> None:
    text = markdown(report(results))
    assert "Dropout is very helpful in avoiding over-fitting: does not hold: dropout 0 (perplexity x 0.799, 0.7" in text
    assert (
        "Bigger models are better: holds. By row: holds: N = 2 (perplexity x 1.399, 1.368 to 1.430); not run: N = 4, N "
        "= 8, d" in text
    )
    assert "Single-head attention is worse than the best setting: inconclusive, not run: h = 1." in text
    assert "sinusoids: inconclusive, not run: learned positions." in text
    results.entries["learned-1"] = entry("learned", 1, 10.0, 30.0)
    assert "sinusoids: inconclusive: learned positions (perplexity x 0.999, 0.977 to 1.021)." in markdown(
        report(results)
    )
    results.entries["learned-2"] = entry("learned", 2, 10.0, 30.0)
    assert "sinusoids: holds: learned positions (perplexity x 0.999, 0.9" in markdown(report(results))
    del results.entries["base-2"], results.entries["learned-2"]
    text = markdown(report(results))
    assert (
        "better: inconclusive. By row: inconclusive: N = 2 (perplexity x 1.400); not run" in text
        and "seeds is unknown so far" in text
    )


def test_a_claim_about_several_rows_has_one_verdict(results: Results) -> None:
    bigger = "Bigger models are better: "
    results.entries["ff4096-1"] = entry("ff4096", 1, 10.0, 30.0)
    assert f"{bigger}inconclusive. By row: holds: N = 2" in markdown(report(results))
    results.entries["d1024-1"] = entry("d1024", 1, 13.0, 20.0)
    assert f"{bigger}does not hold. By row: holds: N = 2" in markdown(report(results))
    results.entries["dk16-1"] = entry("dk16", 1, 11.0, 28.0)
    assert "hurts model quality: holds. By row: holds: d_k = 16 (per" in markdown(report(results))


def test_the_text_of_the_spread_between_seeds_is_named(results: Results) -> None:
    assert "larger text" not in markdown(report(results))
    results.settings["larger training text"] = "hash"
    results.entries["base-large-1"] = entry("base-large", 1, 12.0, 25.0)
    text = markdown(report(results))
    assert (
        "No row of the larger text has several seeds: its intervals take the spread of the smaller text, from b" in text
    )
    results.entries["base-large-2"] = entry("base-large", 2, 12.1, 25.0)
    text = markdown(report(results))
    assert "pooled over both texts: of the larger one, base, larger text has several seeds." in text
    assert "2 degrees of freedom" in text and "No row of the larger" not in text


def test_rows_of_another_size_are_compared_with_the_base_of_their_text(results: Results) -> None:
    results.entries["d256-1"] = entry("d256", 1, 15.0, 20.0)
    assert figures_of(markdown(report(results)), EFFECTS)["(C) d_model = 256"][1].startswith("x 1.499, ")
    results.settings["larger training text"] = "hash"
    text = markdown(report(results))
    assert figures_of(text, EFFECTS)["(C) d_model = 256"][1] == "not run", "its base was not run"
    results.entries["base-large-1"] = entry("base-large", 1, 12.0, 25.0)
    text = markdown(report(results))
    assert figures_of(text, EFFECTS)["(C) d_model = 256"][1].startswith("x 1.250, ")
    assert figures_of(text, EFFECTS)["(C) N = 2"][1].startswith("x 1.399, ")
    assert figures_of(text, "## Every row")["base, larger text"][1:3] == ["12.00", "25.00"]
    assert "were trained on a larger text" in text and html_page(report(results))


def test_the_report_marks_rows_that_were_not_run(results: Results) -> None:
    text = markdown(report(results))
    effects = figures_of(text, EFFECTS)
    assert effects["(A) h = 4"] == ["x 1.016", "not run", "", "-0.3", "not run"]
    figures = figures_of(text, "## Every row")
    assert figures["base"][1:5] == ["10.01 (10.00 to 10.02)", "30.05 (30.00 to 30.10)", "1 2", "1.90 M"]
    for name in ("(A) h = 1", "(A) h = 4", "big"):
        assert figures[name][1:5] == ["not run", "not run", "", ""]
        assert figures[name][8:] == [""]
    assert "Failed: h1-1: train: a <b>disk</b> is full" in text
    assert "4 trainings of 3 of 20 rows done." in text


def test_captions_are_those_of_the_entries(results: Results) -> None:
    """And not the settings of today's recipes."""
    text = markdown(report(results))
    assert "at small scale, where base has settings that were not recorded: 4 trainings" in text
    assert figures_of(text, "## Every row")["(C) N = 2"][0] == "not recorded"
    assert figures_of(text, "## Every row")["(A) h = 4"][0] == "n_heads 2"  # not run: as in the recipe
    for row, changes in {"base": {"n_layers": 7}, "n2": {"n_layers": 5}}.items():
        config = table3.small(row)
        train = replace(config.train, max_steps=321)
        config = replace(config, model=replace(config.model, **changes), train=train)
        results.entries[f"{row}-1"] |= {"config": encode_config(config), "steps": 321}
    text = markdown(report(results))
    assert "where base has 7 + 7 layers, d_model 128, d_ff 512, 4 heads and 321 steps: 4" in text
    assert figures_of(text, "## Every row")["(C) N = 2"][0] == "n_layers 5" and "4,200" not in text


def test_the_papers_scale_has_the_papers_bleu(results: Results) -> None:
    brevity = {"bleu_compound_split": {"penalty": 0.875, "hyp_tokens": 88, "ref_tokens": 100}}
    for number, one in enumerate(results.entries.values()):
        if one["status"] == "done":
            one["valid"] = {"bleu_compound_split": 50.0 + number, "brevity": brevity}
    assert "brevity penalty" not in markdown(report(results))  # of the BLEU in the table, which has none recorded
    results.settings["scale"] = "paper"
    text = markdown(report(results))
    assert figures_of(text, "## Every row")["base"][2:4] == ["50.50 (50.00 to 51.00)", "0.875"]
    assert "tokenised BLEU with compounds split" in text and "13a" not in text
    results.save()
    del results.entries["n2-1"]["valid"]["bleu_compound_split"]
    results.save()
    with pytest.raises(UserError, match="n2-1: Object missing required field `bleu_compound_split`"):
        read_results(results.path, STUDY)


def test_the_papers_scale_needs_the_papers_bleu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.evaluation.metrics._has_sacremoses", lambda: False)
    texts = Table3Texts(write_pairs(tmp_path, "train", ["a b"]), write_pairs(tmp_path, "valid", ["c d"]))
    with pytest.raises(UserError, match=r"--scale=paper: expected .*pip install 'transduce\[eval\]'"):
        run_table3(texts, tmp_path / "out", trainings("paper"), scale="paper")


def test_a_changed_recipe_is_refused_also_for_rows_that_are_not_selected(tmp_path: Path) -> None:
    texts = Table3Texts(write_pairs(tmp_path, "train", ["a b"]), write_pairs(tmp_path, "valid", ["c d"]))
    study = Results(tmp_path / "results.json", STUDY, {"scale": "small", "language": "en", **texts.read()})
    config = table3.small("base")
    config = replace(config, train=replace(config.train, seed=4, lr_factor=0.7))
    study.entries["base-4"] = {**entry("base", 4, 9.0, 20.0), "config": encode_config(config)}
    study.save()
    with pytest.raises(UserError, match=r"again with --rerun:\n  base-4: train.lr_factor=0.7 then, 0.4 now"):
        run_table3(texts, tmp_path, trainings("small", ["h1"]), rerun=True)
    assert not (tmp_path / "runs").exists()


def test_a_report_without_results_has_every_row(tmp_path: Path) -> None:
    text = markdown(report(Results(tmp_path / "results.json", STUDY, {"scale": "paper"})))
    assert text.count("not run") > 40 and "0 trainings of 0 of 20 rows" in text


def test_the_page_is_complete_and_loads_nothing(results: Results, tmp_path: Path) -> None:
    write_report(tmp_path, report(results), results.sessions)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert Page(text).loads() == [] and "$" not in text
    assert "<b>disk</b>" not in text and "&lt;b&gt;disk" in text
    assert text.count(">not run</text>") == 2 * 17  # one in each figure
    for session in results.sessions:
        assert str(session["versions"]["torch"]) in text and session["started_at"] in text
    assert html_page(report(results)) == html_page(report(read_results(results.path, STUDY)))
    assert not list(tmp_path.glob(".tmp*"))


def test_all_dots_are_within_their_panels(results: Results) -> None:
    text = html_page(report(results))
    positions = [float(position) for position in re.findall(r'cx="([-\d.]+)%"', text)]
    assert len(positions) == 2 * (19 + 2) and all(0 <= position <= 100 for position in positions)


def test_finished_trainings_are_reported_without_their_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """From only results.json: no runs, and no model, are needed."""
    texts = Table3Texts(write_pairs(tmp_path, "train", ["a b"]), write_pairs(tmp_path, "valid", ["c d"]))
    out = tmp_path / "out"
    out.mkdir()
    study = Results(out / "results.json", STUDY, {"scale": "small", "language": "en", **texts.read()})
    study.sessions = [provenance()]
    study.entries = {f"n4-{seed}": entry("n4", seed, 9.0, 20.0 + seed) for seed in (1, 2)}
    study.save()
    results = run_table3(texts, out, trainings("small", ["n4"], [1, 2]))
    assert "there is nothing to do" in capfd.readouterr().err and Row(results.done("n4")).values("bleu") == [21.0, 22.0]
    assert "21.50 (21.00 to 22.00)" in (out / "report.md").read_text("utf-8") and not (out / "runs").exists()
