"""`study positions` on tiny sizes: its streams, its rows, and a whole study."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.studies import write_words
from support.study_results import positions_results
from support.study_rows import diverging
from torch.nn import functional as F

from transduce.errors import UserError
from transduce.evaluation.study_report import markdown
from transduce.family.configs import TransformerXLConfig
from transduce.family.decoder_only import DecoderOnly
from transduce.family.positions import Alibi, Bucketed, Learned, Rotary, Shaw, Sinusoids
from transduce.family.transformer_xl import TransformerXL
from transduce.studies import positions
from transduce.studies.positions import POSITIONS, ROWS, XL, build, report, scalings
from transduce.studies.results import read_results
from transduce.studies.small_models import (
    SegmentSizes,
    batches,
    hashes,
    perplexities,
    read_streams,
    train_on_segments,
)

SIZES = SegmentSizes()
KINDS = Sinusoids, Learned, Rotary, Alibi, Bucketed, Shaw
TINY = replace(
    SIZES, vocab_size=320, d_model=16, n_layers=1, n_heads=2, segment=8, rows=4, steps=3, warmup=2,
    lengths=(8, 16, 32), evaluated=100,
)  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_words(tmp_path_factory.mktemp("texts"))


def test_the_streams_of_a_batch_continue_from_step_to_step() -> None:
    ids = torch.arange(100)
    sizes = replace(SIZES, segment=8, rows=3, steps=6)
    steps = list(batches(ids, sizes, seed=5))
    start = int(steps[0][0][0, 0])
    for i, (inputs, targets, is_first) in enumerate(steps):
        assert is_first == (i % 4 == 0)  # 99 // 24 segments of each stream
        for row in range(3):
            begin = start + row * 32 + i % 4 * 8
            assert inputs[row].tolist() == [(begin + t) % 100 for t in range(8)]
            assert targets[row].tolist() == [(begin + t + 1) % 100 for t in range(8)]
    assert int(next(batches(ids, sizes, seed=6))[0][0, 0]) != start


@pytest.mark.parametrize("row", ["alibi", XL])
def test_the_perplexity_is_that_of_the_same_tokens_at_each_length(row: str) -> None:
    """Transformer-XL remembers the whole block."""
    torch.manual_seed(1)
    model: Any = build(row, TINY).eval()
    ids = torch.randint(320, (110,))
    values = perplexities(model, ids, TINY)
    for length, value in zip(TINY.lengths, values, strict=True):
        losses = []
        if row == XL:
            model.n_memory = length
        for begin in range(0, 96, length):
            block, truth = ids[begin : begin + length], ids[begin + 1 : begin + length + 1]
            losses.append(F.cross_entropy(model.output(model.states(block[None])[0])[0], truth).item())
        assert value == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)


def test_rows_are_models_that_differ_in_their_positions() -> None:
    assert len(ROWS) == 7
    for row in ROWS:
        torch.manual_seed(1)
        model = build(row, TINY)
        assert isinstance(model, TransformerXL if row == XL else DecoderOnly)
        if row != XL:
            assert [name for name, one in zip(POSITIONS, KINDS, strict=True) if type(model.positions) is one] == [row]
    scaled = scalings(SIZES)
    lengths = torch.tensor([512])
    lowest = {name: float(rope.frequencies(32, lengths).flatten()[-1]) for name, rope in scaled.items()}
    assert lowest == pytest.approx(dict.fromkeys(scaled, 10_000 ** (-30 / 32) / 8), rel=1e-4)


@pytest.mark.parametrize("sizes", [TINY, SIZES])
def test_a_segment_reaches_all_buckets_of_t5(sizes: SegmentSizes) -> None:
    model: Any = build("t5", sizes)
    bias = model.positions.bias
    assert {*bias.buckets(-torch.arange(sizes.segment)).tolist()} == {*range(len(bias.table.weight))}


def test_the_memory_of_transformer_xl_is_trained() -> None:
    """With it, the gradients of a step differ from those without."""
    torch.manual_seed(1)
    ids = torch.randint(320, (200,))
    weights = []
    for n_memory in (8, 0):
        torch.manual_seed(2)
        model: Any = TransformerXL(
            TransformerXLConfig(vocab_size=320, d_model=16, n_layers=1, n_heads=2, n_memory=n_memory, dropout=0.0)
        )
        train_on_segments(model, ids, TINY, seed=3)
        weights.append(model.layers[0].w_r.weight)
    assert not torch.equal(*weights)


def test_an_added_loss_joins_the_training() -> None:
    torch.manual_seed(1)
    model, ids = build("rope", TINY), torch.randint(320, (200,))
    train_on_segments(model, ids, TINY, seed=3, added_loss=lambda model: 1e4 * model.get_parameter("norm.bias").sum())
    assert (model.get_parameter("norm.bias") < 0).all() and not model.training


def test_a_loss_that_is_not_finite_ends_a_training() -> None:
    model = build("learned", TINY)
    torch.nn.init.constant_(model.embedding.weight, math.nan)
    with pytest.raises(UserError, match="the loss of step 1 is nan"):
        train_on_segments(model, torch.randint(320, (200,)), TINY, seed=3)


@pytest.mark.slow
def test_a_study_trains_all_rows_once_and_reports_them(
    texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("transduce.studies.small_models.SEEDS", (1, 2))
    results = replace(positions.STUDY, sizes=TINY).run(*texts, tmp_path, jobs=1)
    assert len(results.entries) == 14 and all(map(results.is_done, results.entries))
    entry = results.entries["rope-1"]
    assert [*entry["points"]] == ["rope", *scalings(TINY)]
    assert [point["length"] for point in entry["points"]["rope-yarn"]] == [8, 16, 32]
    assert read_results(tmp_path / "results.json", positions.STUDY).entries == results.entries
    page = (tmp_path / "report.md").read_text("utf-8")
    assert "14 of 14 trainings done" in page and "not run" not in page
    assert page.count("| 2 |\n") == 11
    assert (tmp_path / "report.html").exists()

    again = positions.train_and_evaluate(TINY, "shaw", 2, read_streams(*texts, TINY.vocab_size, (33, 33)))
    assert again["points"] == results.entries["shaw-2"]["points"]
    capsys.readouterr()
    replace(positions.STUDY, sizes=TINY).run(*texts, tmp_path)
    assert "there is nothing to do" in capsys.readouterr().err
    with pytest.raises(UserError, match="expected results with the same sizes"):
        positions.STUDY.run(*texts, tmp_path)


def test_a_training_that_diverges_is_reported(
    texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.studies.small_models.SEEDS", (1,))
    study = replace(positions.STUDY, rows=("rope", "alibi"), sizes=TINY, figures=diverging)
    with pytest.raises(UserError, match="1 of 2 trainings failed: rope-1"):
        study.run(*texts, tmp_path, jobs=1)
    page = (tmp_path / "report.md").read_text("utf-8")
    assert "Failed: rope-1: the loss of step 1 is nan" in page and "| RoPE | not run |" in page


def test_the_report_says_which_rows_get_better_and_which_worse(tmp_path: Path) -> None:
    page = markdown(report(positions_results(tmp_path)))
    assert "these get better: ALiBi; get worse: sinusoids, RoPE; inconclusive: RoPE (YaRN)." in page
    assert "| RoPE | 81.50 (81.00 to 82.00) | 83.50 (83.00 to 84.00) | 111.50 (111.00 to 112.00) | 180.00 (" in page
    assert "180.00 (179.00 to 181.00) | x 2.209, " in page
    assert "| Shaw | not run |" in page and "6 of 7 trainings done" in page


def test_texts_that_are_missing_or_too_short_are_refused(texts: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing: expected a text file"):
        hashes(texts[0], tmp_path / "missing")
    short = tmp_path / "short.txt"
    short.write_text("a dog .\n")
    with pytest.raises(UserError, match="short.txt: expected a text of at least 33 tokens"):
        read_streams(texts[0], short, 320, (33, 33))
    with pytest.raises(UserError, match="short.txt: expected a text of at least 33 tokens"):
        read_streams(short, texts[1], 320, (33, 33))
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(UserError, match="empty.txt: expected a text of at least 33 tokens, not 0; "):
        read_streams(texts[0], empty, 320, (33, 33))
    with pytest.raises(UserError, match="empty.txt: expected a line that is not blank"):
        read_streams(empty, texts[1], 320, (33, 33))
    empty.write_text("".join(map(chr, range(0x4E00, 0x4F00))))
    with pytest.raises(UserError, match="empty.txt: expected at most 160 different characters"):
        read_streams(empty, texts[1], 320, (33, 33))
