"""A sharded model trains like one that every rank holds completely, with less memory."""

import math
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support.ranks import (
    TINY,
    Fault,
    Ranks,
    gradient_in_shards,
    new_store,
    run_on_ranks,
    tiny_model,
    tiny_pairs,
    train_and_measure,
    train_and_record,
)
from support.small_runs import CONFIGS, Texts, differences, ending
from support.toy_task import CommandResult

from transduce.config.schema import ModelConfig
from transduce.data.batches import collate
from transduce.storage.run_log import reports
from transduce.training.loss import label_smoothed_cross_entropy

SHARD = {"shard": True}
SHORT = replace(CONFIGS["ema"].train, max_steps=18, rdrop=2.0)
EMA = replace(CONFIGS["ema"], train=SHORT)  # with dropout, whose masks do not depend on shards
LARGER = replace(
    EMA,
    model=replace(EMA.model, d_model=64, d_ff=512),
    train=replace(SHORT, max_steps=5, evaluate_every_steps=3, checkpoint_every_steps=2),
)
NAN = [Fault(1, 4, "nan"), Fault(1, 5, "nan")]


@pytest.fixture(scope="module")
def run_without_shards(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of two ranks without shards, where rank 1 has a loss of NaN in two steps."""
    return run_of_two(tmp_path_factory.mktemp("unsharded"), texts, {})


@pytest.fixture(scope="module")
def run_with_shards(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same run with shards."""
    return run_of_two(tmp_path_factory.mktemp("sharded"), texts, SHARD)


def run_of_two(folder: Path, texts: Texts, more: dict[str, Any]) -> Path:
    run_on_ranks(folder / "ranks", 2, train_and_record, EMA, texts, folder / "run", NAN, **more)
    return folder / "run"


def assert_close(run: Path, expected: Path) -> None:
    """Check that two runs differ by rounding only, in the log and in all tensors of model and checkpoints."""
    for line, other in zip(reports(run), reports(expected), strict=True):
        assert line.keys() == other.keys() and line["step"] == other["step"]
        assert line.get("lines") == other.get("lines")
        for name in line.keys() & {"loss", "gradient_norm", "valid_loss"}:
            assert line[name] == pytest.approx(other[name], rel=1e-5, abs=2e-5)
    files = {folder: sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in (run, expected)}
    assert files[run] == files[expected]
    for name in (name for name in files[run] if name.endswith(".safetensors")):
        tensors, others = (safetensors.torch.load_file(folder / name) for folder in (run, expected))
        assert tensors.keys() == others.keys()
        for key in tensors.keys() - {key for key in tensors if key.endswith("w_k.bias")}:  # their gradient is rounding
            torch.testing.assert_close(tensors[key], others[key], rtol=0, atol=1e-4)


# ---- the same gradient -------------------------------------------------------------------------------------------

UNTIED = replace(TINY, norm="pre", tie_src_tgt=False, tie_output=False, positions="learned", max_positions=16)


@pytest.mark.parametrize(
    ("config", "dtype", "tolerance", "indices"),
    [
        pytest.param(TINY, torch.float64, 1e-6, [[[0, 1, 2], [3, 4]], [[5, 6, 7, 8]]], id="two-ranks"),
        pytest.param(
            TINY, torch.float32, 1e-5, [[[0, 1, 2, 3], [4]], [[5, 6, 7], [8]], []], id="one-rank-without-pairs"
        ),
        pytest.param(UNTIED, torch.float64, 1e-6, [[], [[8, 7], [6], [5, 4, 3, 2]], [[1, 0]]], id="nothing-tied"),
    ],
)
def test_the_gradient_equals_the_whole_batch(
    config: ModelConfig, dtype: torch.dtype, tolerance: float, indices: list[list[list[int]]], tmp_path: Path
) -> None:
    """The pairs are distributed in several ways. The tolerance is relative to the gradient norm of each parameter."""
    results = run_on_ranks(tmp_path / "ranks", len(indices), gradient_in_shards, config, dtype, indices)
    model, batch = tiny_model(config, dtype), collate(*tiny_pairs())
    targets = batch.tgt_out[batch.tgt_mask]
    loss = label_smoothed_cross_entropy(model(batch.src, batch.src_mask, batch.tgt_in)[batch.tgt_mask], targets, 0.1)
    (loss / len(targets)).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = math.sqrt(sum(float(gradient.norm()) ** 2 for gradient in gradients.values()))
    for result in results:
        assert result["loss"] == pytest.approx(loss.item(), rel=1e-6) and result["norm"] == pytest.approx(
            norm, rel=1e-5
        )
        assert result["gradient"].keys() == gradients.keys()
        for name, gradient in gradients.items():
            scale = norm if name.endswith("w_k.bias") else float(gradient.norm())  # w_k.bias: 0 except for rounding
            assert (torch.tensor(result["gradient"][name], dtype=dtype) - gradient).norm() <= tolerance * scale, name
    size = sum(parameter.numel() for parameter in model.parameters())
    assert sum(result["size"] for result in results) == size
    assert all(abs(result["size"] - size / len(indices)) < 0.1 * size for result in results)


# ---- the same training -------------------------------------------------------------------------------------------


def test_a_sharded_run_equals_an_unsharded_one(run_without_shards: Path, run_with_shards: Path) -> None:
    """Log, checkpoints and model agree. All ranks skip a step in which one has a loss of NaN."""
    assert [line["step"] for line in reports(run_with_shards) if "skipped" in line] == [4, 5]
    assert_close(run_with_shards, run_without_shards)


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(texts: Texts, run_with_shards: Path, tmp_path: Path) -> None:
    """The other rank exits without saving. Both restart with shards."""
    store = new_store()
    run = tmp_path / "run"
    faults = [*NAN, Fault(1, 14, "kill")]
    ranks = Ranks(tmp_path / "killed", store, 2, train_and_record, EMA, texts, run, faults, **SHARD)
    first, second = ranks.outcomes()
    assert (first.code, second.code) == (1, -signal.SIGKILL)
    assert "ConnectionError: rank 0 of 2 has lost the other ranks (" in first.output
    outcomes = Ranks(tmp_path / "again", store, 2, train_and_record, EMA, texts, run, **SHARD).outcomes()
    assert [rank.code for rank in outcomes] == [0, 0], outcomes
    assert differences(ending(run), ending(run_with_shards)) == []


@pytest.mark.slow
def test_a_run_resumes_with_or_without_shards_on_any_number_of_ranks(texts: Texts, tmp_path: Path) -> None:
    without_dropout = replace(EMA.model, dropout=0.0, attention_dropout=0.0)
    plain = replace(EMA, model=without_dropout, train=replace(SHORT, rdrop=0.0))
    run_on_ranks(tmp_path / "alone", 1, train_and_record, plain, texts, tmp_path / "expected")
    for count, last, more in ((3, 7, SHARD), (1, 13, {}), (2, 18, SHARD)):
        config = replace(plain, train=replace(plain.train, max_steps=last))
        more = {**more, "allow_change": ["train.max_steps"]}
        run_on_ranks(tmp_path / f"{count}", count, train_and_record, config, texts, tmp_path / "run", **more)
    weights, expected = (
        safetensors.torch.load_file(tmp_path / run / "model/model.safetensors") for run in ("run", "expected")
    )
    for name in weights.keys() - {name for name in weights if name.endswith("w_k.bias")}:
        torch.testing.assert_close(weights[name], expected[name], rtol=0, atol=1e-4)


# ---- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_is_divided_between_the_ranks(texts: Texts, tmp_path: Path) -> None:
    """A rank stores weights, gradients, moments and moving average, and no other tensors of their size."""
    sizes = {}
    for count, more in ((1, {}), (2, SHARD)):
        sizes[count] = run_on_ranks(
            tmp_path / f"{count}", count, train_and_measure, LARGER, texts, tmp_path / f"run{count}", **more
        )
    model = safetensors.torch.load_file(tmp_path / "run2" / "model" / "model.safetensors")
    size = sum(values.nbytes for values in model.values())
    assert sizes[1][0] == pytest.approx(5 * size, rel=0.1)
    assert sizes[2] == pytest.approx([sizes[1][0] / 2] * 2, rel=0.1)


def test_a_micro_batch_that_does_not_fit_ends_the_run(texts: Texts, tmp_path: Path) -> None:
    fault = Fault(0, 2, "memory")
    outcomes = Ranks(
        tmp_path / "ranks", new_store(), 2, train_and_record, EMA, texts, tmp_path / "run", [fault], **SHARD
    ).outcomes()
    assert [rank.code for rank in outcomes] == [1, 1]
    assert (
        "and --shard does not cut it; use more micro-batches: --resume --set train.accumulate=N" in outcomes[0].output
    )
    assert "ConnectionError: rank 1 of 2 has lost the other ranks (" in outcomes[1].output


# ---- one process -------------------------------------------------------------------------------------------------


def test_shards_of_one_process_are_refused(cli: Callable[..., CommandResult], texts: Texts, tmp_path: Path) -> None:
    words = ["--train", *texts["train"], "--valid", *texts["valid"], "--out", tmp_path / "run"]
    result = cli("train", "--recipe", "mixture", *words, "--shard")
    assert result.code == 2 and not (tmp_path / "run").exists()
    assert result.err.strip().endswith("start them: torchrun --nproc-per-node 2 -m transduce train ...")
