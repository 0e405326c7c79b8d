"""Scaled rotary positions: against their formulas number by number, and against Hugging Face transformers."""

import math
from typing import Any

import pytest
import torch

from transduce.errors import UserError
from transduce.family.hugging_face.rope import rope_of, rope_settings
from transduce.family.hugging_face.settings import Settings
from transduce.family.rope import DynamicRope, LinearRope, Llama3Rope, Rope, YarnRope, ntk_theta

K, THETA, S, L = 64, 10_000.0, 8.0, 2_048
LENGTH = torch.tensor([1])

PARAMETERS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": S, "original_max_position_embeddings": L},
    "yarn, all values": {
        "factor": 2.5,
        "original_max_position_embeddings": 700,
        "attention_factor": 1.5,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "yarn, as in DeepSeek": {
        "factor": 40.0,
        "original_max_position_embeddings": 4_096,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "yarn, a text shorter than a turn": {"factor": 4.0, "original_max_position_embeddings": 5},
    "llama3": {
        "factor": S,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1_024,
    },
}


def unscaled(i: int, theta: float = THETA) -> float:
    return theta ** (-2 * i / K)


def test_linear_frequencies_are_divided() -> None:
    expected = [unscaled(i) / S for i in range(K // 2)]
    assert LinearRope(THETA, S).frequencies(K, LENGTH).tolist() == pytest.approx(expected)


def test_ntk_keeps_the_fastest_pair_and_divides_the_slowest() -> None:
    theta = ntk_theta(THETA, 2, K)
    assert theta == pytest.approx(20_452, abs=1)
    frequencies = Rope(theta).frequencies(K, LENGTH)
    assert float(frequencies[0]) == 1
    assert float(frequencies[-1]) == pytest.approx(unscaled(K // 2 - 1) / 2)


def test_dynamic_frequencies_depend_on_the_length_of_each_row() -> None:
    rows = DynamicRope(THETA, 2.0, L).frequencies(K, torch.tensor([[5], [L], [3 * L]]))
    assert rows.shape == (3, 1, K // 2)
    for row, growth in zip(rows[:, 0], (1, 1, 5), strict=True):  # 2 * 3 - 1
        expected = [unscaled(i, ntk_theta(THETA, growth, K)) for i in range(K // 2)]
        assert row.tolist() == pytest.approx(expected)


def test_yarn_frequencies_follow_a_ramp() -> None:
    rope = YarnRope(THETA, S, L)
    assert rope.ramp(K) == (8, 21)
    assert rope.amplitude == pytest.approx(1.2079, abs=1e-4)
    expected = []
    for i in range(K // 2):
        divided = min(max((i - 8) / 13, 0), 1)
        expected.append(unscaled(i) / S * divided + unscaled(i) * (1 - divided))
    assert rope.frequencies(K, LENGTH).tolist() == pytest.approx(expected)


def test_llama_3_frequencies_depend_on_their_turns_within_the_training_length() -> None:
    expected = []
    for i in range(K // 2):
        turns = L * unscaled(i) / (2 * math.pi)
        if turns < 1:
            expected.append(unscaled(i) / S)
        elif turns > 4:
            expected.append(unscaled(i))
        else:
            kept = (turns - 1) / 3
            expected.append(unscaled(i) / S * (1 - kept) + unscaled(i) * kept)
    assert Llama3Rope(THETA, S, 1.0, 4.0, L).frequencies(K, LENGTH).tolist() == pytest.approx(expected)


def test_angles_are_positions_times_frequencies_with_a_dimension_for_heads() -> None:
    positions = torch.tensor([[0, 1, 2], [5, 6, 7]])
    angles = Rope().angles(positions, K)
    assert angles.shape == (2, 1, 3, K // 2)
    assert float(angles[1, 0, 2, 3]) == pytest.approx(7 * unscaled(3))
    assert torch.equal(Rope().angles(positions[1], K), angles[1, 0])
    rows = DynamicRope(THETA, 2.0, 4).angles(positions, K)  # the first row is short
    assert torch.equal(rows[0], angles[0]) and not torch.equal(rows[1], angles[1])


def config(name: str) -> dict[str, Any]:
    rope = {"rope_type": name.split(",")[0], "rope_theta": 500.0, **PARAMETERS[name]}
    return {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 4_096, "rope_parameters": rope}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("length", [None, 9_000])
def test_frequencies_are_those_of_hugging_face(name: str, length: int | None) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    functions = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    values = config(name)
    theirs = transformers.LlamaConfig(**values)
    expected, amplitude = functions[theirs.rope_parameters["rope_type"]](theirs, seq_len=length)
    rope = rope_of(Settings(values, "config.json"))
    frequencies = rope.frequencies(32, torch.tensor([length or 1]))
    torch.testing.assert_close(frequencies.flatten(), expected, rtol=1e-6, atol=1e-8)
    assert rope.amplitude == pytest.approx(amplitude)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_config_is_written_as_it_was_read(name: str) -> None:
    rope = rope_of(Settings(config(name), "config.json"))
    assert rope_of(Settings(config(name) | {"rope_parameters": rope_settings(rope)}, "config.json")) == rope


def test_an_older_config_is_read() -> None:
    old = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}, "max_position_embeddings": 64}
    assert rope_of(Settings(old, "config.json")) == LinearRope(500.0, 4.0)
    beside = {"rope_parameters": {"rope_type": "default"}, "original_max_position_embeddings": 32}
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": None}, "max_position_embeddings": 64}
    assert rope_of(Settings(beside | yarn, "config.json")) == YarnRope(10_000.0, 2.0, 32)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "longrope"}, "rope_parameters=.*expected rope_type 'default', 'linear', 'dynamic', 'yarn'"),
        ({"rope_type": ["linear"]}, "rope_parameters=.*expected rope_type 'default'"),
        ({"rope_type": "linear"}, r"factor=\(absent\): expected a number above 0"),
        ({"rope_type": "linear", "factor": 0}, "factor=0: expected a number above 0"),
        ({"rope_type": "linear", "factor": "2"}, "factor='2': expected a number"),
        ({"rope_type": "linear", "factor": math.nan}, "factor=nan: expected a number"),
        ({"rope_type": "dynamic", "factor": 0.5}, "factor=0.5: expected a number of at least 1"),
        ({"rope_type": "yarn", "factor": 2, "rope_theta": 1}, "rope_theta=1: expected a number above 1"),
        ({"rope_type": "yarn", "factor": 2, "beta_slow": 40}, r"beta_fast=\(absent\): expected at least beta_slow=40"),
        ({"rope_type": "yarn", "factor": 2, "truncate": 1}, "truncate=1: expected True or False"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 0}, "embeddings=0: expected an integer from 1"),
        ({"rope_type": "llama3", "factor": 2, "low_freq_factor": 2}, r"high_freq_factor=\(absent\): expected .* above"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: expected 1"),
    ],
)
def test_values_that_are_not_supported_are_refused(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rope_of(Settings({"rope_parameters": rope}, "config.json"))
