"""The report of a run: the page is complete, agrees with the log, and loads and runs nothing from outside."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.pages import Page
from support.toy_task import ROOT, CommandResult, Toy

from transduce.config.files import to_json
from transduce.config.schema import Config, DataConfig, ModelConfig, TrainConfig
from transduce.errors import UserError
from transduce.evaluation.metrics import bleu_signature
from transduce.evaluation.run_history import read_history, status
from transduce.evaluation.run_report import refresh_report, report, write_report
from transduce.storage.model_card import model_card

NOW = 1_790_000_000.0  # 21 September 2026, 14:13 UTC
MODEL = ModelConfig(vocab_size=6_000, d_model=128, n_layers=4, n_heads=4, d_ff=256, norm="pre")
CONFIG = Config(model=MODEL, data=DataConfig(vocab_size=6_000), train=TrainConfig(max_steps=2_000, best_by="loss"))


def log_lines(to: int, every: int = 100, evaluate: int = 500) -> list[dict[str, Any]]:
    """Return the log of a training up to step `to`."""
    lines: list[dict[str, Any]] = []
    for step in range(every, to + 1, every):
        figures = {"loss": round(2 + 500 / step, 5), "lr": 1e-6 * step, "gradient_norm": 0.5 + step % 3}
        lines.append({"step": step, "epoch": step // 240, **figures, "tokens_per_second": 15_000, "seconds": step / 4})
        if step % evaluate == 0:
            loss = 1.5 + abs(step - 1_500) / 1_000
            scores = {"valid_loss": loss, "valid_perplexity": round(math.exp(loss), 4), "valid_bleu": step / 50}
            lines.append({"step": step, **scores})
    return lines


def make_run(folder: Path, lines: list[dict[str, Any]], *, config: Config = CONFIG, end: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(to_json(config), encoding="utf-8")
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + end, encoding="utf-8")
    os.utime(folder / "log.jsonl", (NOW - 30, NOW - 30))
    return folder


def save_model(run: Path, at: float, card: str = "") -> None:
    (run / "model").mkdir()
    (run / "model" / "README.md").write_text(card, encoding="utf-8")
    (run / "model" / "manifest.json").touch()
    os.utime(run / "model" / "manifest.json", (at, at))


def page_of(run: Path, now: float = NOW) -> Page:
    return Page(report(run, now))


@pytest.mark.parametrize(("share", "is_busy"), [(0.9, False), (0.31, True)])
def test_the_page_says_that_the_machine_is_busy(share: float, is_busy: bool, tmp_path: Path) -> None:
    lines = [{**line, "processor_share": share} for line in log_lines(500)]
    text = report(make_run(tmp_path / "run", lines), NOW)
    assert ("Machine busy" in text and "31%" in text) == is_busy


# ---- the page ----------------------------------------------------------------------------------------------------


def test_the_page_agrees_with_the_log(tmp_path: Path) -> None:
    lines = log_lines(2_000)
    page = page_of(make_run(tmp_path / "run", lines))
    charts = [(tag, attrs) for tag, attrs in page.elements if "data-curve" in attrs]
    keys = ["loss", "valid_loss", "valid_bleu", "valid_perplexity", "lr", "gradient_norm", "tokens_per_second"]
    assert [attrs["data-curve"] for _, attrs in charts] == keys
    points = page.points()
    assert points["last"] == 2_000 and sorted(points["curves"]) == sorted(keys)
    for key in keys:
        steps, values = points["curves"][key]
        expected = [(line["step"], line[key]) for line in lines if key in line]
        assert steps == [step for step, _ in expected]
        assert [float(value.replace(",", "")) for value in values] == pytest.approx([v for _, v in expected], rel=0.005)
    for figures in (["1,500 best", "2.333", "1.500", "4.48", "30.00", "1.50e-03"], ["500", "3.000", "2.500", "12.18"]):
        start = page.cells.index(figures[0], page.cells.index("4 evaluations"))
        assert page.cells[start : start + len(figures)] == figures
    assert "training loss: first 7.000 at step 100, last 2.250 at step 2,000" in page.text
    assert "lowest 2.250 at step 2,000, highest 7.000 at step 100." in page.text
    assert "21 September 2026, 14:13 UTC" in page.text


def test_a_chart_has_a_name_and_a_description(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", log_lines(2_000)))
    charts = [attrs for tag, attrs in page.elements if tag == "svg" and attrs.get("role") == "img"]
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(charts) == 6 and len(ids) == len(set(ids))
    assert {attrs["aria-labelledby"] for attrs in charts} | {attrs["aria-describedby"] for attrs in charts} <= set(ids)


def test_settings_that_differ_from_the_defaults_are_bold(tmp_path: Path) -> None:
    source = page_of(make_run(tmp_path / "run", [])).source
    rows = dict(re.findall(r'<tr><th scope="row">(\w+)</th><td>(.*?)</td></tr>', source))
    assert (rows["d_model"], rows["norm"], rows["dropout"], rows["d_k"]) == ("<b>128</b>", "<b>pre</b>", "0.1", "null")
    assert (rows["max_steps"], rows["tie_output"], rows["beam_size"]) == ("<b>2000</b>", "true", "4")


def test_the_page_has_the_model_card(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", log_lines(2_000))
    save_model(
        run, NOW, "# A model\n\n| | |\n|---|---|\n| weights | the mean of <5> |\n| validation | BLEU 35.1 | x |\n"
    )
    cells = page_of(run).cells
    start = cells.index("weights")
    assert cells[start : start + 4] == ["weights", "the mean of <5>", "validation", "BLEU 35.1 | x"]


def test_the_page_names_the_tokenizer_of_its_bleu(tmp_path: Path) -> None:
    """Before the end of the training, there is no signature yet."""
    run = make_run(tmp_path / "run", log_lines(2_000))
    assert "greedy search, sacreBLEU 13a, or zh or char for a script without spaces" in page_of(run).text
    signature = bleu_signature(["他在看书。"])
    save_model(run, NOW, model_card(CONFIG, "the mean", {"validation": f"BLEU 35.1 ({signature}), on valid.zh"}))
    assert "validation, greedy search, sacreBLEU zh" in page_of(run).text


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    assert page_of(make_run(tmp_path / "run", log_lines(2_000))).loads() == []


def test_names_and_reasons_are_escaped(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>&\"'$name`"
    run = make_run(tmp_path / hostile, [*log_lines(500), {"step": 501, "skipped": f"</script>{hostile}"}])
    save_model(run, NOW, f"| weights | {hostile} |\n| {hostile} | x |\n")
    plain, page = page_of(make_run(tmp_path / "plain", log_lines(500))), page_of(run)
    kinds = {tag for tag, _ in plain.elements}
    assert {tag for tag, _ in page.elements} == kinds and "img" not in kinds
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert page.text.count(hostile) >= 5 and f"</script>{hostile}" in page.cells
    assert all(attrs.keys() <= {"class", "scope"} for tag, attrs in page.elements if tag in ("td", "th"))


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux")
def test_the_name_of_a_run_need_not_be_utf8(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    run = make_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")), log_lines(500))
    process = cli("report", run)
    assert (process.code, process.err, process.out) == (0, "", os.fsencode(run / "report.html") + b"\n")
    (run / "report.html").read_bytes().decode("utf-8")


# ---- unusual logs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [None, []])
def test_a_run_without_reports_has_a_page(tmp_path: Path, lines: list[Any] | None) -> None:
    run = make_run(tmp_path / "run", [])
    if lines is None:
        (run / "log.jsonl").unlink()
    page = page_of(run)
    assert page.cells.count("nothing yet") == 6
    assert "No report yet" in page.cells and "the first comes at step 100 of 2,000" in page.cells


def test_before_the_first_evaluation_the_reports_are_listed(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", log_lines(400)))
    assert page.cells.count("nothing yet") == 2 and "4 reports" in page.cells and "best by" not in page.text
    start = page.cells.index("300", page.cells.index("4 reports"))
    assert page.cells[start : start + 3] == ["300", "3.667", "3.00e-04"]


def test_an_unfinished_last_line_is_ignored(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", log_lines(1_300), end='{"step":1400,"lo'))
    assert page.points()["last"] == 1_300
    assert "Running" in page.cells and "step 1,300 of 2,000, 3 min left" in page.cells  # 700 steps, 4 a second


def test_values_that_are_not_finite_are_gaps(tmp_path: Path) -> None:
    lines = log_lines(2_000)
    replacements: dict[int, Any] = {1: None, 3: 1e300, 7: "much", 11: [1]}
    for index, value in replacements.items():
        lines[index]["loss"] = value
    lines[5]["valid_loss"] = lines[5]["valid_bleu"] = None
    run = make_run(tmp_path / "run", lines)
    history = read_history(run)
    assert [step for step, value in zip(*vars(history.curves["loss"]).values(), strict=True) if math.isnan(value)] == [
        lines[index]["step"] for index in replacements
    ]
    page = page_of(run)
    assert page.points()["curves"]["loss"][1][1] == "not finite"
    (path,) = (attrs["d"] for _, attrs in page.elements if attrs.get("data-curve") == "loss")
    assert path and path.count("M") == 1 + len(replacements)
    assert "NaN" not in page.source.replace("isNaN", "") and ">nan<" not in page.source and "inf" not in path


@pytest.mark.parametrize("other", [0, -1e98, 1e-98, 1e-320, None, 1e98])
def test_extreme_values_can_be_drawn(tmp_path: Path, other: float | None) -> None:
    lines = [
        {key: other if i % 4 else 1e98 for key in line} | {"step": line["step"]}
        for i, line in enumerate(log_lines(2_000))
    ]
    paths = [attrs["d"] for _, attrs in page_of(make_run(tmp_path / "run", lines)).elements if "data-curve" in attrs]
    assert len(paths) == 7 and not any(re.search("nan|inf", path or "") for path in paths)


def test_skipped_steps_are_listed_and_marked(tmp_path: Path) -> None:
    skips = [{"step": 501, "skipped": "the loss is nan; train.en:12, 77"}, {"step": 502, "skipped": {"pairs": [1]}}]
    page = page_of(make_run(tmp_path / "run", [*log_lines(500), *skips]))
    start = page.cells.index("step 501")
    assert page.cells[start - 1 : start + 2] == ["2, marked on the axes above", "step 501", skips[0]["skipped"]]
    assert sum(attrs.get("class") == "skips" for _, attrs in page.elements) == 6
    many = [{"step": step, "skipped": "nan"} for step in range(501, 5_000)]
    page = page_of(make_run(tmp_path / "many", [*log_lines(500), *many]))
    assert "50 of 4,499, marked on the axes above" in page.cells and len(page.source) < 110_000


def test_the_page_of_a_long_log_is_short(tmp_path: Path) -> None:
    lines = log_lines(60_000, every=1, evaluate=10)
    lines[30_000]["gradient_norm"] = 777.0
    page = page_of(make_run(tmp_path / "run", lines))
    assert len(page.source) < 300_000
    curves = page.points()["curves"]
    assert all(len(steps) == len(values) <= 1_000 for steps, values in curves.values())
    steps, values = curves["gradient_norm"]
    assert lines[30_000]["step"] == steps[values.index("777.000")] and steps[-1] == 60_000
    assert "51 of 6,000 evaluations" in page.cells and "1,500 best" in page.cells


def test_a_damaged_log_keeps_the_old_page(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    run = make_run(tmp_path / "run", log_lines(500))
    assert cli("report", run).code == 0
    before = (run / "report.html").read_bytes()
    for damage in ("words\n", '{"step":100}\n', '{"step":-1}\n', f'{{"step":{2**60}}}\n'):
        make_run(run, log_lines(500), end=damage + '{"step":600}\n')
        process = cli("report", run)
        assert process.code == 2 and f"{run / 'log.jsonl'}:7" in process.err and process.out == b"", damage
        assert (run / "report.html").read_bytes() == before


# ---- the state of the run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "silent_seconds", "expected"),
    [
        (1_000, 30, ("Running", "step 1,000 of 2,000, 4 min left")),
        (1_000, 599, ("Running", "step 1,000 of 2,000, 4 min left")),
        (1_000, 7_500, ("Interrupted", "step 1,000 of 2,000; no report for 2 h 05 min; resume with train --resume")),
        (1_000, math.inf, ("Interrupted", "step 1,000 of 2,000; resume with train --resume")),
        (100, 30, ("Running", "step 100 of 2,000")),
        (2_000, math.inf, ("Finished", "step 2,000 of 2,000")),
        (2_000, 10, ("Finished", "step 2,000 of 2,000")),
    ],
)
def test_the_state_of_a_run(tmp_path: Path, to: int, silent_seconds: float, expected: tuple[str, str]) -> None:
    assert status(CONFIG, read_history(make_run(tmp_path / "run", log_lines(to))), silent_seconds) == expected


def test_a_slow_training_may_be_silent_for_longer(tmp_path: Path) -> None:
    slow = [{**line, "seconds": line["step"] * 10} for line in log_lines(1_000)]  # 1,000 s from report to report
    history = read_history(make_run(tmp_path / "run", slow))
    assert status(CONFIG, history, 7_200)[0] == "Running"


def test_time_left_is_by_the_newest_reports(tmp_path: Path) -> None:
    lines = [{"step": step, "seconds": 10_000 + step} for step in range(1, 1_001)]  # resumed on a faster machine
    lines[0]["seconds"] = 0
    history = read_history(make_run(tmp_path / "run", lines))
    assert status(CONFIG, history, 1) == ("Running", "step 1,000 of 2,000, 17 min left")


@pytest.mark.parametrize(("patience", "word"), [(1, "Stopped early"), (2, "Running"), (None, "Running")])
def test_patience_stops_a_run_early(tmp_path: Path, patience: int | None, word: str) -> None:
    config = replace(CONFIG, train=replace(CONFIG.train, max_steps=9_000, patience=patience))
    history = read_history(make_run(tmp_path / "run", log_lines(2_000)))  # best at 1,500
    assert status(config, history, 1)[0] == word


def test_the_best_evaluation_is_by_the_runs_own_score(tmp_path: Path) -> None:
    by_bleu = replace(CONFIG, train=replace(CONFIG.train, best_by="bleu"))
    assert "1,500 best" in page_of(make_run(tmp_path / "loss", log_lines(2_000))).cells
    assert "2,000 best" in page_of(make_run(tmp_path / "bleu", log_lines(2_000), config=by_bleu)).cells


def test_a_model_saved_after_the_last_report_ends_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", log_lines(1_000))
    save_model(run, NOW - 60)  # from before the run was resumed
    assert "Running" in page_of(run).cells
    os.utime(run / "model" / "manifest.json", (NOW - 5, NOW - 5))
    assert "Interrupted" in page_of(run).cells


# ---- the command -------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_prints_its_path(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    run = make_run(tmp_path / "run", log_lines(1_000), end='{"st')
    process = cli("report", run)
    assert (process.code, process.err, process.out.decode()) == (0, "", f"{run / 'report.html'}\n")
    Page((run / "report.html").read_text(encoding="utf-8"))
    assert sorted(path.name for path in run.iterdir()) == ["config.json", "log.jsonl", "report.html"]


def test_a_model_is_refused_and_unchanged(toy: Toy, cli: Callable[..., CommandResult]) -> None:
    result = cli("report", toy.model)
    assert result.code == 2 and "expected the folder of a training run, not a model" in result.err
    assert not (toy.model / "report.html").exists()


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        process = cli("report", folder)
        assert process.code == 2 and f"{folder}: expected the folder of a training run" in process.err
    run = make_run(tmp_path / "run", [])
    (run / "config.json").write_text("{")
    assert cli("report", run).code == 2 and not (run / "report.html").exists()


def test_a_page_that_cannot_be_written_does_not_stop_a_training(
    tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    """The command exits with 3; a training gets a line to print."""
    run = make_run(tmp_path / "run", log_lines(1_000))
    (run / "report.html").mkdir()
    process = cli("report", run)
    assert process.code == 3 and "report.html" in process.err
    with pytest.raises(OSError):
        write_report(run)
    (line,) = refresh_report(run)
    assert line.startswith("no report: ") and "report.html" in line
    (line,) = refresh_report(tmp_path / "absent")
    assert "expected the folder of a training run" in line
    (run / "report.html").rmdir()
    assert refresh_report(run) == [] and (run / "report.html").is_file()


def test_importing_loads_no_heavy_package() -> None:
    code = "import sys, transduce.evaluation.run_report; "
    code += "print(sorted({'torch', 'numpy'} & sys.modules.keys()))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, env={"PYTHONPATH": str(ROOT / "src")})
    assert process.stdout.decode().strip() == "[]", process.stderr.decode()


def test_a_damaged_line_is_a_user_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", log_lines(500), end="{}\n")
    with pytest.raises(UserError, match=r"log\.jsonl:7\b"):
        read_history(run)


def test_a_training_leaves_its_report(toy: Toy) -> None:
    page = Page((toy.run / "report.html").read_text(encoding="utf-8"))
    assert "Finished" in page.cells and "step 400 of 400" in page.cells
    assert page.points()["curves"]["valid_bleu"][0] == [200, 400]
    assert "weights" in page.cells  # the page includes the model card, because it is written last
