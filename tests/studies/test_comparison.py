"""Comparisons of several seeds: noise, intervals, verdicts, and tables."""

import math
from pathlib import Path

import pytest

from transduce.evaluation.study_report import Report, Section, fill_report, rows_table
from transduce.studies.comparison import Difference, Noise, by_verdict, difference, noise, paired_difference


def test_noise_is_pooled_over_groups() -> None:
    assert noise([[1.0], [2.0], []]) is None
    assert noise([[1.0, 3.0], [5.0]]) == Noise(pytest.approx(math.sqrt(2)), 1)
    assert noise([[1.0, 3.0], [0.0, 0.0, 0.0]]) == Noise(pytest.approx(math.sqrt(2 / 3)), 3)


def test_an_interval_depends_on_the_noise_and_on_the_seeds() -> None:
    """4.30 is Student's t for 95 % and two degrees of freedom."""
    change = difference([24.0, 26.0], [20.0] * 4, Noise(1.0, 2))
    margin = 4.30 * math.sqrt(1 / 2 + 1 / 4)
    assert change and change.value == 5 and change.interval == (pytest.approx(5 - margin), pytest.approx(5 + margin))
    assert Noise(1.0, 1_000).margin(1, 1) == pytest.approx(2.23 * math.sqrt(2))  # cautious beyond the table
    assert difference([21.0], [20.0], None) == Difference(1.0, None) and Difference(1.0, None).interval is None


def test_a_paired_difference_has_the_spread_of_its_own_seeds() -> None:
    change = paired_difference([-0.029, -0.031, -0.030])
    assert (
        change and change.value == pytest.approx(-0.03) and change.margin == pytest.approx(4.30 * 0.001 / math.sqrt(3))
    )
    assert paired_difference([0.5]) == Difference(0.5, None)


def test_without_values_there_is_no_difference() -> None:
    assert difference([], [1.0], None) is difference([1.0], [], None) is paired_difference([]) is None


def test_a_verdict_needs_the_whole_interval_on_one_side() -> None:
    assert Difference(0.05, 0.04).verdict() == "worse" and Difference(-0.05, 0.04).verdict() == "better"
    assert Difference(0.05, 0.04).verdict(more_is_better=True) == "better"
    assert Difference(-0.05, 0.04).verdict(more_is_better=True) == "worse"
    for change in (Difference(0.05, 0.06), Difference(0.05, 0.05), Difference(9.0, None), Difference(0.0, 0.0)):
        assert change.verdict() == change.verdict(more_is_better=True) == "inconclusive"


def test_titles_are_grouped_by_their_verdicts() -> None:
    changes = {"a": Difference(1.0, 0.5), "b": None, "c": Difference(-1.0, 0.5), "d": Difference(2.0, 0.5)}
    assert [*by_verdict(changes).items()] == [("better", ["c"]), ("worse", ["a", "d"])]


def test_a_short_row_of_a_table_is_quiet() -> None:
    table = rows_table(["row", "loss", "seeds"], [["a", "1.0", "1 2"], ["b", "not run"]])
    assert table.rows == [["a", "1.0", "1 2"], ["b", "not run", ""]] and table.quiet == {1}


def test_a_report_is_its_markdown_file_with_its_parts(tmp_path: Path) -> None:
    paragraphs = [
        "# A {scale} study",
        "A lead\nof {n:,} steps. {failed}",
        "## {what}",
        "{table}",
        "{failures}",
        "{both}",
        "| row | loss |\n| --- | ---: |\n| {rows} |",
    ]
    (tmp_path / "study.md").write_text("\n\n".join([*paragraphs, "{n} and\n{n}\n"]), "utf-8")
    table = rows_table(["row", "loss"], [["a", "1.0"]])
    parts = {"scale": "small", "n": 1_200, "failed": "", "what": "Loss", "table": table, "failures": []}
    parts["rows"] = [["a", "1.0"]]
    report = fill_report(tmp_path / "study.md", {**parts, "both": [table, "a {brace}"]})
    blocks = [table, table, "a {brace}", table, "1200 and 1200"]
    assert report == Report("A small study", "A lead of 1,200 steps.", [Section("Loss", blocks)])


def test_a_direction_holds_if_the_whole_interval_is_on_its_side() -> None:
    assert Difference(0.05, 0.04).claim_verdict("hurts", 0.02) == "holds"
    assert Difference(0.05, 0.06).claim_verdict("hurts", 0.02) == "inconclusive"
    assert Difference(-0.05, 0.04).claim_verdict("hurts", 0.02) == "does not hold"
    assert Difference(-0.05, 0.04).claim_verdict("helps", 0.02) == "holds"
    assert Difference(0.05, 0.04).claim_verdict("helps", 0.02) == "does not hold"
    assert Difference(9.0, None).claim_verdict("hurts", 0.02) == "inconclusive"


def test_no_effect_holds_if_the_whole_interval_is_small() -> None:
    """A small difference is no evidence: with a wide interval it is inconclusive."""
    assert Difference(0.005, 0.01).claim_verdict("none", 0.02) == "holds"
    assert Difference(0.005, 0.04).claim_verdict("none", 0.02) == "inconclusive"
    assert Difference(0.05, 0.01).claim_verdict("none", 0.02) == "does not hold"
    assert Difference(-0.05, 0.01).claim_verdict("none", 0.02) == "does not hold"
    assert Difference(0.03, 0.02).claim_verdict("none", 0.02) == "inconclusive"
