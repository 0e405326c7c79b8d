"""`study experts` on tiny sizes: its rows, its FLOPs, and a whole study."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.studies import write_words
from support.study_results import experts_results

from transduce.evaluation.study_report import markdown
from transduce.family.experts import Experts, routings
from transduce.model.transformer import parameter_count
from transduce.studies import experts
from transduce.studies.experts import N_EXPERTS, ROWS, SIZES, balance, build, report
from transduce.studies.small_models import batches
from transduce.training.flops import flops_per_token

TINY = replace(
    SIZES, vocab_size=320, d_model=16, n_layers=2, n_heads=2, segment=8, rows=4, steps=2, warmup=2, lengths=(8,),
    evaluated=64,
)  # fmt: skip


def test_rows_of_experts_have_the_products_of_the_dense_network() -> None:
    """Of all weights of a layer, a token uses as many as in the dense row, and the router's."""
    models: dict[str, Any] = {row: build(row, SIZES) for row in ROWS}
    dense = parameter_count(models["dense"].layers[0].feed_forward)
    for row in ("switch", "top-2", "noisy-2"):
        module = models[row].layers[0].feed_forward
        assert isinstance(module, Experts) and len(module.networks) == N_EXPERTS
        used = parameter_count(module.networks[0]) * getattr(module.router, "k", 1)
        assert used == pytest.approx(dense, rel=0.01)
    assert parameter_count(models["dense-wide"].layers[0].feed_forward) == pytest.approx(4 * dense, rel=0.01)


def test_flops_are_six_for_each_weight_that_a_token_uses() -> None:
    """And the FLOPs of attention, which all rows have."""
    ids, d = torch.randint(320, (200,)), 16
    router = 2 * 16 * N_EXPERTS  # two layers
    inputs, targets, _ = next(batches(ids, TINY, 1))
    counts = {row: flops_per_token(build(row, TINY), inputs, targets) for row in ("dense", "dense-wide", "top-2")}
    network = 2 * 2 * d * 4 * d
    assert counts["dense-wide"] - counts["dense"] == 6 * 3 * network
    assert counts["top-2"] - counts["dense"] == 6 * router
    attention = 12 * 8 * d * 2  # scores and outputs over 8 positions
    assert counts["dense"] == 6 * (network + 2 * 4 * d * d + 320 * d) + attention


def test_the_balance_is_that_of_the_last_call() -> None:
    model = build("switch", TINY)
    model(torch.randint(320, (2, 8)))
    before = balance(model)
    assert len(routings(model)) == 2 and 0.009 < before.item() < 0.08
    model(torch.randint(320, (2, 8)))
    assert balance(model).item() != before.item()


@pytest.mark.slow
def test_a_study_trains_all_rows_once_and_reports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.studies.small_models.SEEDS", (1,))
    results = replace(experts.STUDY, sizes=TINY).run(*write_words(tmp_path), tmp_path / "out", jobs=1)
    assert [*results.entries] == [f"{row}-1" for row in ROWS] and all(map(results.is_done, results.entries))
    for name, entry in results.entries.items():
        assert ("shares" in entry) == (not name.startswith("dense"))
        for layer in entry.get("shares", []):
            assert sum(layer) == pytest.approx(N_EXPERTS, abs=0.01)
    page = (tmp_path / "out" / "report.md").read_text("utf-8")
    assert "6 of 6 trainings done" in page and "not run" not in page


def test_the_report_compares_with_the_dense_network(tmp_path: Path) -> None:
    page = markdown(report(experts_results(tmp_path)))
    assert "after as many steps, better: Switch: 1 of 8; worse: noisy top-k: 2 of 8 of half the width." in page
    row = "| Switch: 1 of 8 | 4,900,000 | 8.1 | 51.00 (50.00 to 52.00) | x 0.836, "
    assert row in page and "| 1.50 | 0.50 | 2 |" in page
    assert "| dense, 4 times as wide | not run |" in page
