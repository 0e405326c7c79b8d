"""Table 3: its rows at both scales, what is said of a change, and the report, which fills no gap."""

import math
import re
from pathlib import Path

import pytest
from support.pages import Page
from support.toy_task import write_pairs

from transduce.config.validation import problems
from transduce.evaluation.model_size import parameter_count
from transduce.evaluation.study_report import html_page, markdown, write_report
from transduce.recipes import RECIPES, table3
from transduce.studies.results import Results, provenance, read_results
from transduce.studies.table3 import PAPER, PLAN, Noise, cells, effect, noise, report, run_table3, table
from transduce.studies.trainings import Texts

# ---- rows --------------------------------------------------------------------------------------------------------


def test_rows_scales_and_published_figures_are_of_one_table() -> None:
    assert PAPER.keys() == table3.ROWS.keys() == {row for row, _ in PLAN}
    for scale in ("small", "paper"):
        planned = cells(scale)
        assert len(planned) == len({cell.name for cell in planned}) == 26
        assert [cell.name for cell in planned if cell.seed > 1] == [
            f"{row}-{seed}" for seed in (2, 3) for row in ("base", "n2", "dropout0")
        ]
        for cell in planned:
            assert cell.config().train.seed == cell.seed and problems(cell.config()) == []


@pytest.mark.parametrize("row", [row for row, there in PAPER.items() if there.parameters and row != "big"])
def test_parameters_are_the_papers(row: str) -> None:
    """With the 40,960 rows of the embedding that the 2017 code pads to; big fits with no vocabulary."""
    assert round(parameter_count(table3.paper(row).model, 40_960) / 1e6) == PAPER[row].parameters


@pytest.mark.parametrize("row", table3.ROWS)
def test_small_rows_keep_the_papers_ratios(row: str) -> None:
    """To base, in every size; what is no size is the paper's."""
    small, paper = table3.small(row), table3.paper(row)
    small_base, paper_base = table3.small("base"), table3.paper("base")

    def sizes(config: object) -> list[float]:
        model, train = config.model, config.train  # type: ignore[attr-defined]
        d_k, d_v = model.d_k or model.d_model / model.n_heads, model.d_v or model.d_model / model.n_heads
        return [model.d_model, model.d_ff, model.n_layers, model.n_heads, d_k, d_v, train.max_steps]

    ratios = [[a / b for a, b in zip(sizes(one), sizes(base), strict=True)] for one, base in
              ((small, small_base), (paper, paper_base))]  # fmt: skip
    assert ratios[0] == ratios[1]
    for name in ("dropout", "positions", "norm", "tie_output"):
        assert getattr(small.model, name) == getattr(paper.model, name)
    assert small.train.label_smoothing == paper.train.label_smoothing and small.search == paper.search
    assert small.train.use == paper.train.use == "last"


def test_the_chosen_rows_and_seeds() -> None:
    assert [cell.name for cell in cells("small", ["h1", "base"])] == ["base-1", "base-2", "h1-1", "base-3"]
    assert [cell.name for cell in cells("paper", ["h1", "base"], [5, 4])] == ["base-5", "h1-5", "base-4", "h1-4"]
    assert cells("paper", ["h1"])[0].recipe in RECIPES and cells("small", ["h1"])[0].recipe in RECIPES


# ---- what is said of a change ------------------------------------------------------------------------------------


def test_noise_is_pooled_over_rows() -> None:
    assert noise([[1.0], [2.0], []]) is None
    assert noise([[1.0, 3.0], [5.0]]) == Noise(pytest.approx(math.sqrt(2)), 1)
    assert noise([[1.0, 3.0], [0.0, 0.0, 0.0]]) == Noise(pytest.approx(math.sqrt(2 / 3)), 3)


def test_an_effect_is_told_from_noise() -> None:
    """4.30 is Student's t for 95 % and two degrees of freedom."""
    assert effect([21.0], [20.0], None) == "spread unknown"
    error, spread = math.sqrt(1 + 1 / 4), Noise(1.0, 2)
    assert effect([20 + 4.31 * error], [20.0] * 4, spread) == "helps"
    assert effect([20 + 4.29 * error], [20.0] * 4, spread) == "within noise"
    assert effect([20 - 4.31 * error], [20.0] * 4, spread) == "hurts"
    assert Noise(1.0, 1_000).interval(1, 1) == pytest.approx(2.23 * math.sqrt(2))  # cautious beyond the table


# ---- the report --------------------------------------------------------------------------------------------------


def cell(row: str, seed: int, perplexity: float, bleu: float) -> dict[str, object]:
    costs = {"parameters": 1_900_544, "seconds": 500.0, "cpu_seconds": 300.0}
    return {"status": "done", "row": row, "seed": seed, "perplexity": perplexity, "bleu": bleu, **costs}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Base twice, N = 2 much worse, dropout 0 better, h = 1 failed, h = 4 not run."""
    given = Results(tmp_path / "results.json", "table3", {"scale": "small"}, sessions=[provenance()])
    for number, (perplexity, bleu) in enumerate([(10.0, 30.0), (10.02, 30.1)], start=1):
        given.cells[f"base-{number}"] = cell("base", number, perplexity, bleu)
    given.cells["n2-1"] = cell("n2", 1, 14.0, 22.0)
    given.cells["dropout0-1"] = cell("dropout0", 1, 8.0, 33.0)
    given.cells["h1-1"] = {"status": "failed", "row": "h1", "seed": 1, "why": "train: a <b>disk</b> is full"}
    given.cells["h4-1"] = {"status": "not run"}
    given.save()
    return given


def rows_of(text: str, heading: str) -> dict[str, list[str]]:
    """The first table below a heading of the report, by the row's name."""
    lines = text.split(f"## {heading}")[1].split("\n\n")[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {row[0]: row[1:] for row in cells}


def test_the_report_says_what_each_change_does(results: Results) -> None:
    said = rows_of(markdown(report(results)), "Does each change do what it did there?")
    assert said["(C) N = 2"] == ["-2.1 hurts", "-8.05 hurts", "yes", "x 1.242 hurts", "x 1.399 hurts", "yes"]
    assert said["(D) dropout 0"] == ["-1.2 hurts", "+2.95 helps", "no", "x 1.173 hurts", "x 0.799 helps", "no"]
    assert len(said) == 19


def test_the_report_fills_no_gap(results: Results) -> None:
    text = markdown(report(results))
    said = rows_of(text, "Does each change do what it did there?")
    assert said["(A) h = 4"] == ["-0.3 hurts", "not run", "", "x 1.016 no change", "not run", ""]
    figures = rows_of(text, "Every row")
    assert figures["base"][1:5] == ["10.01 (10.00 to 10.02)", "30.05 (30.00 to 30.10)", "1 2", "1.90 M"]
    for name in ("(A) h = 1", "(A) h = 4", "big"):
        assert figures[name][1:5] == ["not run", "not run", "", ""]
        assert figures[name][8:] == [""]
    assert "Failed: h1-1: train: a <b>disk</b> is full" in text
    assert "4 trainings of 26 done; 17 of 20 rows not run" in text


def test_a_report_of_nothing_has_every_row(tmp_path: Path) -> None:
    text = markdown(report(Results(tmp_path / "results.json", "table3", {"scale": "paper"})))
    assert text.count("not run") > 40 and "0 trainings of 26" in text


def test_the_page_is_whole_and_loads_nothing(results: Results, tmp_path: Path) -> None:
    write_report(tmp_path, report(results), results.sessions)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert Page(text).loads() == [] and "$" not in text
    assert "<b>disk</b>" not in text and "&lt;b&gt;disk" in text
    assert text.count(">not run</text>") == 2 * 17  # one in each figure
    for session in results.sessions:
        assert str(session["versions"]["torch"]) in text and session["started_at"] in text
    assert html_page(report(results)) == html_page(report(read_results(results.path)))
    assert not list(tmp_path.glob(".tmp*"))


def test_the_drawing_stays_within_its_panels(results: Results) -> None:
    text = html_page(report(results))
    places = [float(place) for place in re.findall(r'cx="([-\d.]+)%"', text)]
    assert len(places) == 2 * (19 + 2) and all(0 <= place <= 100 for place in places)


def test_what_is_done_is_reported_without_a_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """From results.json alone: no runs, and no model, are needed."""
    texts = Texts(write_pairs(tmp_path, "train", ["a b"]), write_pairs(tmp_path, "valid", ["c d"]))
    out = tmp_path / "out"
    out.mkdir()
    given = Results(out / "results.json", "table3", {"scale": "small", "language": "en", **texts.read()})
    given.sessions, given.cells = [provenance()], {f"n4-{seed}": cell("n4", seed, 9.0, 20.0 + seed) for seed in (1, 2)}
    given.save()
    found = run_table3(texts, out, rows=["n4"], seeds=[1, 2])
    assert "nothing is left to do" in capfd.readouterr().err and table(found)["n4"].bleus == [21.0, 22.0]
    assert "21.50 (21.00 to 22.00)" in (out / "report.md").read_text("utf-8") and not (out / "runs").exists()
