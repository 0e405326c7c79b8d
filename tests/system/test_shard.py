"""A model of which each rank has only a part: the same training as with the whole of it on each, and less memory."""

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
    Mishap,
    Ranks,
    everywhere,
    gradient_in_shards,
    new_store,
    tiny_model,
    tiny_pairs,
    train_watched,
    train_weighed,
)
from support.small_runs import CONFIGS, Texts, differences, ending
from support.toy_task import Finished

from transduce.config.schema import ModelConfig
from transduce.data.batches import collate
from transduce.storage.run_log import read_log
from transduce.training.loss import label_smoothed_cross_entropy

SHARD = {"shard": True}
SHORT = replace(CONFIGS["ema"].train, max_steps=18)
EMA = replace(CONFIGS["ema"], train=SHORT)  # with dropout, which each rank draws alike in shards and without
LARGER = replace(
    EMA,
    model=replace(EMA.model, d_model=64, d_ff=512),
    train=replace(SHORT, max_steps=5, evaluate_every_steps=3, checkpoint_every_steps=2),
)
BAD = [Mishap(1, 4, "nan"), Mishap(1, 5, "nan")]


@pytest.fixture(scope="module")
def whole(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that have the whole model, of which one finds numbers in two steps that are not finite."""
    return run_of_two(tmp_path_factory.mktemp("whole"), texts, {})


@pytest.fixture(scope="module")
def shards(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with the model in shards."""
    return run_of_two(tmp_path_factory.mktemp("shards"), texts, SHARD)


def run_of_two(folder: Path, texts: Texts, more: dict[str, Any]) -> Path:
    everywhere(folder / "ranks", 2, train_watched, EMA, texts, folder / "run", BAD, **more)
    return folder / "run"


def assert_close(found: Path, expected: Path) -> None:
    """Two runs that differ by rounding alone, in the log and in each tensor of model and checkpoints."""
    for mine, theirs in zip(read_log(found), read_log(expected), strict=True):
        assert mine.keys() == theirs.keys() and mine["step"] == theirs["step"]
        assert mine.get("lines") == theirs.get("lines")
        for name in mine.keys() & {"loss", "gradient_norm", "valid_loss"}:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5, abs=2e-5)
    files = {
        folder: sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in (found, expected)
    }
    assert files[found] == files[expected]
    for name in (name for name in files[found] if name.endswith(".safetensors")):
        mine, theirs = (safetensors.torch.load_file(folder / name) for folder in (found, expected))
        assert mine.keys() == theirs.keys()
        for key in mine.keys() - {key for key in mine if key.endswith("w_k.bias")}:  # whose gradient is only rounding
            torch.testing.assert_close(mine[key], theirs[key], rtol=0, atol=1e-4)


# ---- the same gradient -------------------------------------------------------------------------------------------

UNTIED = replace(TINY, norm="pre", tie_src_tgt=False, tie_output=False, positions="learned", max_positions=16)


@pytest.mark.parametrize(
    ("config", "dtype", "tolerance", "hands"),
    [
        pytest.param(TINY, torch.float64, 1e-6, [[[0, 1, 2], [3, 4]], [[5, 6, 7, 8]]], id="two-ranks"),
        pytest.param(TINY, torch.float32, 1e-5, [[[0, 1, 2, 3], [4]], [[5, 6, 7], [8]], []], id="one-has-no-pair"),
        pytest.param(UNTIED, torch.float64, 1e-6, [[], [[8, 7], [6], [5, 4, 3, 2]], [[1, 0]]], id="nothing-tied"),
    ],
)
def test_the_gradient_is_that_of_the_whole_batch(
    config: ModelConfig, dtype: torch.dtype, tolerance: float, hands: list[list[list[int]]], tmp_path: Path
) -> None:
    """However pairs are dealt, also to no micro-batch of a rank: relative to each parameter's gradient norm."""
    found = everywhere(tmp_path / "ranks", len(hands), gradient_in_shards, config, dtype, hands)
    model, batch = tiny_model(config, dtype), collate(*tiny_pairs())
    targets = batch.tgt_out[batch.tgt_mask]
    loss = label_smoothed_cross_entropy(model(batch.src, batch.src_mask, batch.tgt_in)[batch.tgt_mask], targets, 0.1)
    (loss / len(targets)).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = math.sqrt(sum(float(gradient.norm()) ** 2 for gradient in gradients.values()))
    for one in found:
        assert one["loss"] == pytest.approx(loss.item(), rel=1e-6) and one["norm"] == pytest.approx(norm, rel=1e-5)
        assert one["gradient"].keys() == gradients.keys()
        for name, gradient in gradients.items():
            scale = norm if name.endswith("w_k.bias") else float(gradient.norm())  # the former is 0 but for rounding
            assert (torch.tensor(one["gradient"][name], dtype=dtype) - gradient).norm() <= tolerance * scale, name
    size = sum(parameter.numel() for parameter in model.parameters())
    assert sum(one["here"] for one in found) == size
    assert all(abs(one["here"] - size / len(hands)) < 0.1 * size for one in found)


# ---- the same training -------------------------------------------------------------------------------------------


def test_a_run_is_the_same_with_and_without_shards(whole: Path, shards: Path) -> None:
    """Log, checkpoints and model; steps that bad numbers on one rank spoil are skipped on all."""
    assert [line["step"] for line in read_log(shards) if "skipped" in line] == [4, 5]
    assert_close(shards, whole)


def test_a_killed_run_ends_in_the_same_bits(texts: Texts, shards: Path, tmp_path: Path) -> None:
    """The other rank leaves without saving; both are started again, in shards."""
    store, run, mishaps = new_store(), tmp_path / "run", [*BAD, Mishap(1, 14, "kill")]
    ranks = Ranks(tmp_path / "killed", store, 2, train_watched, EMA, texts, run, mishaps, **SHARD)
    first, second = ranks.ended()
    assert (first.code, second.code) == (1, -signal.SIGKILL)
    assert "ConnectionError: rank 0 of 2 has lost the other ranks (" in first.said
    again = Ranks(tmp_path / "again", store, 2, train_watched, EMA, texts, run, **SHARD).ended()
    assert [one.code for one in again] == [0, 0], again
    assert differences(ending(run), ending(shards)) == []


def test_a_run_goes_on_with_shards_or_without_on_any_number_of_ranks(texts: Texts, tmp_path: Path) -> None:
    plain = replace(EMA, model=replace(EMA.model, dropout=0.0, attention_dropout=0.0))
    everywhere(tmp_path / "alone", 1, train_watched, plain, texts, tmp_path / "expected")
    for count, last, more in ((3, 7, SHARD), (1, 13, {}), (2, 18, SHARD)):
        config = replace(plain, train=replace(plain.train, max_steps=last))
        more = {**more, "allow_change": ["train.max_steps"]}
        everywhere(tmp_path / f"{count}", count, train_watched, config, texts, tmp_path / "run", **more)
    found, expected = (
        safetensors.torch.load_file(tmp_path / run / "model/model.safetensors") for run in ("run", "expected")
    )
    for name in found.keys() - {name for name in found if name.endswith("w_k.bias")}:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-4)


# ---- memory ------------------------------------------------------------------------------------------------------


def test_each_rank_holds_its_part_of_the_memory(texts: Texts, tmp_path: Path) -> None:
    """Weights, gradients, moments and moving average, and nothing else of their size, also after checkpoints."""
    held = {}
    for count, more in ((1, {}), (2, SHARD)):
        held[count] = everywhere(
            tmp_path / f"{count}", count, train_weighed, LARGER, texts, tmp_path / f"run{count}", **more
        )
    model = safetensors.torch.load_file(tmp_path / "run2" / "model" / "model.safetensors")
    size = sum(values.nbytes for values in model.values())
    assert held[1][0] == pytest.approx(5 * size, rel=0.1)
    assert held[2] == pytest.approx([held[1][0] / 2] * 2, rel=0.1)


def test_a_micro_batch_that_does_not_fit_ends_the_run_with_a_remedy(texts: Texts, tmp_path: Path) -> None:
    mishap = Mishap(0, 2, "memory")
    ended = Ranks(
        tmp_path / "ranks", new_store(), 2, train_watched, EMA, texts, tmp_path / "run", [mishap], **SHARD
    ).ended()
    assert [one.code for one in ended] == [1, 1]
    assert "with --shard none is cut; go on with more of them: --resume --set train.accumulate=N" in ended[0].said
    assert "ConnectionError: rank 1 of 2 has lost the other ranks (" in ended[1].said


# ---- one process -------------------------------------------------------------------------------------------------


def test_one_process_has_nothing_to_share(cli: Callable[..., Finished], texts: Texts, tmp_path: Path) -> None:
    given = ["--train", *texts["train"], "--valid", *texts["valid"], "--out", tmp_path / "run"]
    done = cli("train", "--recipe", "small", *given, "--shard")
    assert done.code == 2 and not (tmp_path / "run").exists()
    assert done.err.strip().endswith("start them: torchrun --nproc-per-node 2 -m transduce train ...")
