"""Decision Transformer beside Hugging Face transformers with the same random weights, and a game that it learns."""

import runpy
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb
from support.toy_task import ROOT
from torch import Tensor

from transduce.family.configs import DecisionTransformerConfig
from transduce.family.decision_transformer import DecisionTransformer
from transduce.model.transformer import parameter_count

SIZES = DecisionTransformerConfig(n_states=5, n_actions=3, d_model=24, n_layers=2, n_heads=4, max_steps=30)
B, T = 3, 7
TOP = {
    "embed_timestep": "steps",
    "embed_return": "from_return",
    "embed_state": "from_state",
    "embed_action": "from_action",
    "embed_ln": "input_norm",
    "encoder.ln_f": "norm",
    "predict_state": "to_state",
    "predict_action.0": "to_action",
    "predict_return": "to_return",
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    config = transformers.DecisionTransformerConfig(
        state_dim=5, act_dim=3, hidden_size=24, n_layer=2, n_head=4, max_ep_len=30, n_positions=64
    )
    return disturb(transformers.DecisionTransformerModel(config))


def flipped(x: Tensor) -> Tensor:
    return x.T if x.dim() == 2 else x


def our_tensors(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return our names of their tensors. They add one more row to all tokens after their norm: our bias has it."""
    ours = {
        f"{name}.{end}": theirs[f"{their_name}.{end}"]
        for their_name, name in TOP.items()
        for end in ("weight", "bias")
        if f"{their_name}.{end}" in theirs
    }
    ours["input_norm.bias"] = theirs["embed_ln.bias"] + theirs["encoder.wpe.weight"][0]
    for i in range(2):
        their_layer, layer = f"encoder.h.{i}", f"layers.{i}"
        for end in ("weight", "bias"):
            rows = flipped(theirs[f"{their_layer}.attn.c_attn.{end}"]).chunk(3)
            ours |= {f"{layer}.self_attention.w_{x}.{end}": part for x, part in zip("qkv", rows, strict=True)}
            ours[f"{layer}.self_attention.w_o.{end}"] = flipped(theirs[f"{their_layer}.attn.c_proj.{end}"])
            ours[f"{layer}.feed_forward.w_1.{end}"] = flipped(theirs[f"{their_layer}.mlp.c_fc.{end}"])
            ours[f"{layer}.feed_forward.w_2.{end}"] = flipped(theirs[f"{their_layer}.mlp.c_proj.{end}"])
            for n in range(2):
                ours[f"{layer}.residuals.{n}.norm.{end}"] = theirs[f"{their_layer}.ln_{n + 1}.{end}"]
    return ours


@pytest.fixture
def ours(theirs: Any) -> DecisionTransformer:
    model = DecisionTransformer(SIZES).eval()
    model.load_state_dict(our_tensors(theirs.state_dict()))
    return model


def episodes() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return returns, states, actions and the numbers of their time steps."""
    torch.manual_seed(2)
    return torch.randn(B, T, 1), torch.randn(B, T, 5), torch.randn(B, T, 3), torch.randint(30, (B, T))


def predictions_of(theirs: Any, is_real: Tensor | None = None) -> list[Tensor]:
    returns, states, actions, steps = episodes()
    mask = None if is_real is None else is_real.long()
    output = theirs(
        states=states, actions=actions, returns_to_go=returns, timesteps=steps, attention_mask=mask, return_dict=True
    )
    return [output.action_preds, output.state_preds, output.return_preds]


def test_predictions_are_those_of_hugging_face(ours: DecisionTransformer, theirs: Any) -> None:
    for mine, expected in zip(ours(*episodes()), predictions_of(theirs), strict=True):
        assert difference(mine, expected) < TOLERANCE


def test_padding_before_an_episode_is_hidden_as_by_hugging_face(ours: DecisionTransformer, theirs: Any) -> None:
    is_real = torch.arange(T) >= torch.tensor([[0], [2], [5]])
    for mine, expected in zip(ours(*episodes(), is_real), predictions_of(theirs, is_real), strict=True):
        assert difference(mine[is_real], expected[is_real]) < TOLERANCE
    alone = ours(*(x[1:2, 2:] for x in episodes()))
    for mine, expected in zip(ours(*episodes(), is_real), alone, strict=True):
        torch.testing.assert_close(mine[1:2, 2:], expected, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_hugging_face(ours: DecisionTransformer, theirs: Any) -> None:
    theirs.zero_grad()
    sum(part.square().sum() for part in predictions_of(theirs)).backward()
    sum(part.square().sum() for part in ours(*episodes())).backward()  # pyright: ignore[reportAttributeAccessIssue]
    gradients = our_tensors({name: parameter.grad for name, parameter in theirs.named_parameters()})
    gradients["input_norm.bias"] = theirs.embed_ln.bias.grad
    for name, parameter in ours.named_parameters():
        if not name.endswith("w_k.bias"):  # 0 except rounding
            assert parameter.grad is not None
            assert difference(parameter.grad, gradients[name]) < TOLERANCE, name


def test_an_action_depends_on_nothing_after_its_state(ours: DecisionTransformer) -> None:
    returns, states, actions, steps = episodes()
    changed = actions.clone()
    changed[:, 4:] += 1
    later = states.clone()
    later[:, 5:] += 1
    before, after = ours(returns, states, actions, steps), ours(returns, later, changed, steps)
    assert before.actions[:, :5].equal(after.actions[:, :5]) and not before.actions[:, 5:].equal(after.actions[:, 5:])
    assert before.states[:, :4].equal(after.states[:, :4]) and not before.states[:, 4].equal(after.states[:, 4])


def test_discrete_actions_have_scores_without_tanh(ours: DecisionTransformer) -> None:
    discrete = DecisionTransformer(replace(SIZES, is_discrete=True)).eval()
    discrete.load_state_dict(ours.state_dict())
    torch.testing.assert_close(discrete(*episodes()).actions.tanh(), ours(*episodes()).actions)


def test_the_public_size_of_hopper_has_its_number_of_parameters() -> None:
    """The sizes of the paper's Hopper, without a row of a word and the 1,024 rows of positions in transformers.

    It uses one of them, which our bias has.
    """
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    with torch.device("meta"):
        ours = DecisionTransformer(DecisionTransformerConfig(n_states=11, n_actions=3))
        config = transformers.DecisionTransformerConfig(state_dim=11, act_dim=3)
        theirs = transformers.DecisionTransformerModel(config)
    unused = theirs.encoder.wte.weight.numel() + theirs.encoder.wpe.weight.numel()
    assert parameter_count(ours) == parameter_count(theirs) - unused == 1_123_855


@pytest.mark.slow
def test_asking_for_more_reaches_more_than_random_play() -> None:
    """The game of benchmarks/decisions.py, with a third of its training."""
    game = runpy.run_path(str(ROOT / "benchmarks" / "decisions.py"))
    episodes = game["random_play"](3_000, torch.Generator().manual_seed(1))
    mean = float(episodes.returns[:, 0].mean())
    model = game["train"](episodes, 300, seed=1)
    asked = {wish: statistics.mean(game["play"](model, wish, 1, draws=True)) for wish in (0, 2)}
    assert asked[0] < mean and asked[2] > 2 * mean
    assert statistics.mean(game["play"](model, 4, 1, draws=False)) > 4 * mean
