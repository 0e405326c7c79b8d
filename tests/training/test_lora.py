"""LoRA and frozen parameters: what a training of another model changes, and what stays as it is."""

import os
import signal
from pathlib import Path

import pytest
import torch
from support.trainings import CONFIG, Texts, act_at_step, assert_same, train, with_train
from torch.nn import functional as F

from transduce.config.schema import ModelConfig, TrainConfig
from transduce.errors import UserError
from transduce.model.build import build
from transduce.storage.checkpoints import checkpoints, load_checkpoint
from transduce.storage.model_folder import load_model
from transduce.training.lora import LoraAdam, adapted_matrices, freeze
from transduce.training.optimizer import optimizer_of
from transduce.training.weights import trained_parameters, weights

MODEL = ModelConfig(vocab_size=20, d_model=16, n_layers=1, n_heads=2, d_ff=32)
TUNED = with_train(CONFIG, max_steps=9, warmup_steps=3, patience=None, checkpoint_every_steps=4)


# ---- the optimizer -----------------------------------------------------------------------------------------------


def test_a_step_is_a_step_of_adam_on_factors_beside_the_layer() -> None:
    """The paper's layer: x W^T + (x down^T) up^T, in which only the factors have gradients."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(5, 7, bias=False)
    start = layer.weight.detach().clone()
    optimizer = LoraAdam([layer.weight], 2, 0.98)
    factors = optimizer.state[layer.weight]["factors"].clone()
    down, up = (torch.nn.Parameter(part) for part in (factors[:, :5], factors[:, 5:].T.contiguous()))
    assert not up.any() and layer.weight.equal(start)
    expected = torch.optim.Adam([down, up], betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, 5):
        for group in (*optimizer.param_groups, *expected.param_groups):
            group["lr"] = 0.1 * step
        x, target = torch.randn(3, 5), torch.randn(3, 7)
        for outputs in (layer(x), F.linear(x, start) + (x @ down.T) @ up.T):
            F.mse_loss(outputs, target).backward()
        for each in (optimizer, expected):
            each.step()
            each.zero_grad()
        torch.testing.assert_close(layer.weight, start + up @ down, rtol=1e-5, atol=1e-6)


def test_a_step_that_lacks_memory_can_be_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [torch.nn.Linear(5, 7, bias=False) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    optimizers = []
    for layer in layers:
        torch.manual_seed(1)
        optimizers.append(LoraAdam([layer.weight], 2, 0.98))
        optimizers[-1].param_groups[0]["lr"] = 0.1
    for _ in range(3):
        for layer in layers:
            layer.weight.grad = torch.ones(7, 5)
        with monkeypatch.context() as patch:
            patch.setattr(
                "transduce.training.lora.adam_step", lambda *args, **settings: (_ for _ in ()).throw(MemoryError)
            )
            with pytest.raises(MemoryError):
                optimizers[1].step()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(layers[0].weight, layers[1].weight)


def test_only_matrices_of_attention_and_feed_forward_networks_are_trained() -> None:
    model = build(MODEL)
    freeze(model, TrainConfig(lora_rank=2, freeze=("decoder.*",)))
    names = trained_parameters(model)
    assert [*names] == [
        *(f"encoder.0.self_attention.{name}.weight" for name in ("w_q", "w_k", "w_v", "w_o")),
        *(f"encoder.0.feed_forward.{name}.weight" for name in ("w_1", "w_2")),
    ]
    assert adapted_matrices(model) == [*names.values()]
    state = optimizer_of(model, TrainConfig(lora_rank=2)).state
    assert {id(matrix) for matrix in state} == {id(matrix) for matrix in names.values()}


# ---- trainings ---------------------------------------------------------------------------------------------------


def test_a_run_with_lora_resumes_to_the_same_end_and_merges_changes_of_its_rank(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = finished_runs["average"] / "model"
    config = with_train(TUNED, lora_rank=2, use="last")
    train(config, out=tmp_path / "whole", start_from=parent, **run_texts)
    with monkeypatch.context() as patch:
        act_at_step(patch, 5, lambda: os.kill(os.getpid(), signal.SIGTERM))
        train(config, out=tmp_path / "run", start_from=parent, **run_texts)
    train(config, out=tmp_path / "run", start_from=parent, resume=True, **run_texts)
    assert_same(tmp_path / "run", tmp_path / "whole")

    before = weights(load_model(parent).model)
    model = load_model(tmp_path / "run" / "model").model
    adapted = {id(matrix) for matrix in adapted_matrices(model)}
    for name, parameter in model.named_parameters():
        change = parameter.detach() - before[name]
        assert torch.linalg.matrix_rank(change, atol=1e-5) == 2 if id(parameter) in adapted else not change.any(), name
    checkpoint = load_checkpoint(checkpoints(tmp_path / "run")[-1])
    assert {name.partition("/")[0] for name in checkpoint.optimizer} == {"exp_avg", "exp_avg_sq", "factors"}
    assert all(tensor.shape[0] == 2 for tensor in checkpoint.optimizer.values())


def test_what_is_frozen_stays_as_it_is(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tied matrix is frozen by each of its names."""
    parent = finished_runs["average"] / "model"
    config = with_train(TUNED, freeze=("encoder.*", "output.weight"), use="last")
    model = train(config, out=tmp_path / "run", start_from=parent, **run_texts)
    before, after = (weights(load_model(folder).model) for folder in (parent, model))
    changed = {name for name, weight in after.items() if not weight.equal(before[name])}
    assert changed == {name for name in after if name.startswith("decoder")}
    optimizer = load_checkpoint(checkpoints(tmp_path / "run")[-1]).optimizer
    assert {name.partition("/")[2] for name in optimizer} == changed
    assert "parameters, the others stay as they are" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"freeze": ("decoder.*", "encodr.*")},
            r"train.freeze=encodr\.\*: expected a pattern that .*, encoder\.\*\.self",
        ),
        ({"freeze": ("*",)}, r"train.freeze=\*: expected something left to train; freeze less"),
        ({"lora_rank": 2, "freeze": ("*coder.*",)}, "expected something left to train"),
        ({"lora_rank": 2, "optimizer": "muon"}, "expected 'adam' with train.lora_rank; add --set train.optimizer=adam"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_before_anything_is_written(
    changes: dict[str, object], message: str, finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path
) -> None:
    parent = finished_runs["average"] / "model"
    with pytest.raises(UserError, match=message):
        train(with_train(TUNED, **changes), out=tmp_path / "run", start_from=parent, **run_texts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("changes", [{"freeze": ("encoder.*",)}, {"lora_rank": 2}], ids=str)
def test_a_first_training_has_nothing_to_keep(changes: dict[str, object], run_texts: Texts, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must not be set without --from; add --from MODEL"):
        train(with_train(TUNED, **changes), out=tmp_path / "run", **run_texts)
