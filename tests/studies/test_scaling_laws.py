"""`study scaling` on tiny sizes: what a training reads, its learning rate and FLOPs, a whole study, and its report."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.studies import write_words
from support.study_results import scaling_results
from support.study_rows import diverging_if_wide, stopping
from torch import Tensor

from transduce.errors import UserError
from transduce.evaluation.study_report import html_page, markdown
from transduce.model.transformer import parameter_count
from transduce.studies import scaling_laws, scaling_report
from transduce.studies.results import read_results
from transduce.studies.scaling_fit import CHINCHILLA, Estimate, Fit
from transduce.studies.scaling_laws import (
    SWEEP,
    SweepTraining,
    batches,
    build,
    embedding_count,
    learning_rate,
    run_scaling,
)
from transduce.studies.scaling_report import Laws, Outcome, envelope, fit_laws, report
from transduce.studies.small_models import read_streams
from transduce.training.flops import flops_per_token

TINY = replace(SWEEP, shapes=((1, 16), (2, 32)), budgets=(64, 128), vocab_size=320, segment=8, rows=4, evaluated=64)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_words(tmp_path_factory.mktemp("texts"))


# ---- a training --------------------------------------------------------------------------------------------------


def test_the_sweep_has_the_sizes_of_its_page() -> None:
    cells = SWEEP.trainings()
    assert len(cells) == len({cell.name for cell in cells}) == 35
    assert (cells[0].name, cells[-1].name) == ("6x208-4194304", "2x32-262144")
    models = [build(SweepTraining(*shape, 0), SWEEP) for shape in SWEEP.shapes]
    bodies = [parameter_count(model) - embedding_count(model) for model in models]
    assert bodies == [25_472, 84_912, 200_064, 447_552, 991_616, 1_856_000, 3_131_648]
    assert embedding_count(models[0]) == (1_000 + 128) * 32
    assert all(tokens % (SWEEP.rows * SWEEP.segment) == 0 for tokens in SWEEP.budgets)


def test_a_training_reads_each_segment_once_and_a_smaller_budget_is_its_beginning() -> None:
    ids = torch.arange(150)  # 18 segments of 8

    def segments(tokens: int) -> Tensor:
        pairs = list(batches(ids, TINY, tokens))
        assert all(torch.equal(inputs + 1, targets) for inputs, targets in pairs)
        return torch.cat([inputs for inputs, _ in pairs])

    long = segments(128)
    assert long.shape == (16, 8) and len({*long.flatten().tolist()}) == 128
    assert torch.equal(segments(64), long[:8])
    assert long[:, 0].tolist() != sorted(long[:, 0].tolist())


def test_the_learning_rate_ends_at_the_end_of_each_training() -> None:
    for n_steps in (7, 100, 4_096):
        rates = [learning_rate(step, n_steps) for step in range(1, n_steps + 1)]
        peak = max(1, n_steps // 10)
        assert rates[peak - 1] == max(rates) == 1 and 0 < rates[-1] < 1.2 / n_steps
        assert rates[0] == pytest.approx(1 / peak)
        assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_flops_are_six_for_each_weight_and_those_of_attention() -> None:
    d, layers = 32, 2
    model = build(SweepTraining(layers, d, 0), TINY)
    weights = layers * 12 * d * d + TINY.vocab_size * d
    attention = 12 * TINY.segment * d * layers
    inputs = torch.zeros(1, TINY.segment, dtype=torch.int64)
    assert flops_per_token(model, inputs, inputs) == 6 * weights + attention


# ---- a study -----------------------------------------------------------------------------------------------------


def test_a_study_trains_all_models_once_and_reports_them(
    texts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as first, pytest.raises(KeyboardInterrupt):
        first.setattr(scaling_laws, "train_and_evaluate", stopping)
        run_scaling(*texts, tmp_path, jobs=1, sweep=TINY, resamples=1)
    interrupted = read_results(tmp_path / "results.json", scaling_laws.STUDY)
    assert len(interrupted.entries) == 4 and not any(map(interrupted.is_done, interrupted.entries))
    assert "0 of 4 trainings done" in (tmp_path / "report.md").read_text("utf-8")

    results = run_scaling(*texts, tmp_path, jobs=2, sweep=TINY, resamples=1)
    assert all(map(results.is_done, results.entries)) and len(results.sessions) == 2
    entry = results.entries["1x16-128"]
    assert (entry["steps"], entry["tokens"], entry["row"]) == (4, 128, "1x16")
    assert 2 < entry["loss"] < math.log(320) + 0.5
    page = (tmp_path / "report.md").read_text("utf-8")
    assert "4 of 4 trainings done" in page and (tmp_path / "report.html").exists()

    streams = read_streams(*texts, TINY.vocab_size, (129, 9))
    assert scaling_laws.train_and_evaluate(SweepTraining(1, 16, 128), TINY, streams)["loss"] == entry["loss"]
    capsys.readouterr()
    run_scaling(*texts, tmp_path, sweep=TINY, resamples=1)
    assert "there is nothing to do" in capsys.readouterr().err
    with pytest.raises(UserError, match="expected results with the same sweep"):
        run_scaling(*texts, tmp_path, sweep=replace(TINY, peak_rate=0.5))


def test_a_training_that_diverges_is_reported(
    texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling_laws, "train_and_evaluate", diverging_if_wide)
    sweep = replace(TINY, budgets=(64,))
    with pytest.raises(UserError, match="1 of 2 trainings failed: 2x32-64; see "):
        run_scaling(*texts, tmp_path, jobs=1, sweep=sweep, resamples=1)
    page = (tmp_path / "report.md").read_text("utf-8")
    assert "Failed: 2x32-64: the loss of step 1 is nan" in page and "No law yet: 1 trainings: expected" in page


def test_a_text_that_would_be_read_twice_is_refused(texts: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="train.txt: expected a text of at least 64,001 tokens, not "):
        run_scaling(*texts, tmp_path / "out", sweep=replace(TINY, budgets=(64_000,)))
    assert not (tmp_path / "out" / "report.md").exists()


# ---- the report --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def laws(tmp_path_factory: pytest.TempPathFactory) -> Laws:
    return fit_laws(scaling_results(tmp_path_factory.mktemp("results")), resamples=2)


def test_the_report_has_the_laws_of_this_text_beside_quoted_ones(laws: Laws, tmp_path: Path) -> None:
    law = laws.chinchilla.value
    assert law and law.n_share.value == pytest.approx(0.38 / 0.73, abs=0.05)
    page = markdown(report(scaling_results(tmp_path), laws))
    assert "35 of 35 trainings done, 52 min of processor time" in page
    assert f"grows with C to the power {law.n_share.value:.3g} (" in page
    assert "| quoted: Hoffmann et al. 2022 | quoted: Besiroglu et al. 2024 |" in page
    (row,) = (line for line in page.splitlines() if line.startswith("| alpha |"))
    assert row.startswith(f"| alpha | {law.constants['alpha'].value:.6g} (") and row.endswith(" | 0.34 | 0.3478 |")
    assert "| 2x32 | 24,576 | 36,096 | 2.30 | 6.39" in page
    html = html_page(report(scaling_results(tmp_path), laws))
    assert html.count('class="first" cx=') == 35 and "nan" not in html


def test_the_report_says_what_the_trainings_do_not_show(laws: Laws, tmp_path: Path) -> None:
    results, law = scaling_results(tmp_path), laws.chinchilla.value
    assert law
    assert "do not show" not in markdown(report(results, laws))
    without_end = replace(law, constants={**law.constants, "E": Estimate(1e-40, 1e-90, 1.5)})
    page = markdown(report(results, replace(laws, chinchilla=Outcome(without_end))))
    assert "and E is 0 (0 to 1.5): these trainings do not show where the loss ends." in page
    assert "| E | 0 (0 to 1.5) |" in page

    (row,) = (line for line in page.splitlines() if "at a hundredth of it" in line)
    best, per_parameter = (float(text.replace(",", "")) for text in row.split(" | ")[1].split(", "))
    assert 24_576 <= best and 262_144 <= best * per_parameter  # the smallest that were trained
    greedy = replace(law, constants={**law.constants, "alpha": Estimate(0.9, 0.9, 0.9)})  # needs hardly any parameters
    page = markdown(report(results, replace(laws, chinchilla=Outcome(greedy))))
    assert "| best N, and tokens for each, at the largest N D | not among the measured sizes |" in page


def test_the_report_has_the_exponents_without_some_of_the_trainings(laws: Laws, tmp_path: Path) -> None:
    results, whole = scaling_results(tmp_path), laws.chinchilla.value
    assert isinstance(whole, Fit)
    exponents = {part[0].value.n_share.value for part in laws.parts.values() if part[0].value}
    assert len({*exponents, whole.n_share.value}) == 4
    for exponent in exponents:  # the losses follow the law, with noise, so any part of them gives it
        assert exponent == pytest.approx(whole.n_share.value, abs=0.1)
    page = markdown(report(results, laws))
    assert "| without the two smallest sizes | " in page and "| without the most text | " in page
    entry = results.entries["6x208-4194304"]
    entry["loss"] *= 2
    assert "% too low for 6x208 after 4.19 M, and" in markdown(report(results, laws))


def test_a_part_of_the_study_has_a_report(tmp_path: Path) -> None:
    results = scaling_results(tmp_path, count=4)
    page = markdown(report(results, fit_laws(results, resamples=1)))
    assert "4 of 35 trainings done" in page and "No law yet: 4 trainings: expected more than 5" in page
    assert "| 6x208 |  |  |  | not run |" in page and "| L(N) | 0 points: expected at least 3" in page
    empty = scaling_results(tmp_path, count=0)
    assert "0 of 35 trainings done" in markdown(report(empty, fit_laws(empty, resamples=1)))


def test_a_model_that_has_only_embeddings_gives_a_message(laws: Laws, tmp_path: Path) -> None:
    """As in a results.json that someone edited."""
    results = scaling_results(tmp_path)
    entry = results.entries["2x32-262144"]
    entry["parameters"] = entry["embeddings"]
    law = scaling_report._fit(CHINCHILLA, results.done())
    assert law.value is None
    page = markdown(report(results, replace(laws, chinchilla=law)))
    assert "No law yet: parameters=0: expected a positive, finite number" in page


def test_the_envelope_is_of_the_lowest_losses_so_far() -> None:
    entries = [{"flops": flops, "loss": loss} for flops, loss in ((3, 2.0), (1, 4.0), (2, 5.0), (4, 2.0), (1, 4.5))]
    assert [(one["flops"], one["loss"]) for one in envelope(entries)] == [(1, 4.0), (3, 2.0)]
