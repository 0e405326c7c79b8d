"""Transformer-XL: against loops over numbers, against XLNet of Hugging Face transformers, and in segments."""

import math
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb
from torch import Tensor
from torch.nn import functional as F

from transduce.config.schema import SearchConfig
from transduce.family.configs import TransformerXLConfig
from transduce.family.inference.continuation import continue_ids
from transduce.family.transformer_xl import NO_MEMORY, Memory, TransformerXL, with_distances
from transduce.model.positions import sinusoids

V, D, LAYERS, H = 40, 24, 3, 4


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def small_model(n_memory: int = 8) -> Any:
    return disturb(
        TransformerXL(TransformerXLConfig(vocab_size=V, d_model=D, n_layers=LAYERS, n_heads=H, n_memory=n_memory))
    )


def in_segments(model: Any, ids: Tensor, lengths: list[int]) -> tuple[Tensor, Memory]:
    """Return the logits of all segments, and the last memory."""
    memory, states = NO_MEMORY, []
    for segment in ids.split(lengths, dim=1):
        new, memory = model.states(segment, memory)
        states.append(new)
    return model.output(torch.cat(states, dim=1)), memory


def test_scores_are_of_content_and_of_distance() -> None:
    queries, keys, values = torch.randn(2, H, 3, 6), torch.randn(2, H, 7, 6), torch.randn(2, H, 7, 6)
    rows, u, v = torch.randn(7, H, 6), torch.randn(H, 6), torch.randn(H, 6)
    expected = torch.zeros_like(queries)
    for b in range(2):
        for h in range(H):
            for t in range(3):
                query, weights = queries[b, h, t], []
                for s in range(4 + t + 1):
                    score = (query + u[h]) @ keys[b, h, s] + (query + v[h]) @ rows[4 + t - s, h]
                    weights.append(math.exp(float(score) / math.sqrt(6)))
                for s, weight in enumerate(weights):
                    expected[b, h, t] += weight / sum(weights) * values[b, h, s]
    torch.testing.assert_close(with_distances(rows, u, v)(queries, keys, values, "causal", 0.0), expected)


def test_the_sinusoids_of_a_distance_are_sines_and_then_cosines() -> None:
    row = sinusoids(8, D, "halves")[7].tolist()
    angles = [7 * 10_000 ** (-2 * i / D) for i in range(D // 2)]
    assert row == pytest.approx([math.sin(x) for x in angles] + [math.cos(x) for x in angles], abs=1e-6)


def xlnet_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of XLNet for our model. It has a dimension for heads."""
    parts = {"feed_forward.w_1": "layer_1", "feed_forward.w_2": "layer_2", "residuals.1.norm": "layer_norm"}
    embedding = theirs["transformer.word_embedding.weight"]
    weights = {
        "embedding.weight": embedding,
        "output.weight": embedding,
        "output.bias": theirs["lm_loss.bias"],
    }
    for i in range(LAYERS):
        ours, layer = f"layers.{i}", f"transformer.layer.{i}"
        for letter in "qkv":
            weights[f"{ours}.self_attention.w_{letter}.weight"] = theirs[f"{layer}.rel_attn.{letter}"].flatten(1).T
        weights[f"{ours}.self_attention.w_o.weight"] = theirs[f"{layer}.rel_attn.o"].flatten(1)
        weights[f"{ours}.w_r.weight"] = theirs[f"{layer}.rel_attn.r"].flatten(1).T
        weights[f"{ours}.u"], weights[f"{ours}.v"] = (theirs[f"{layer}.rel_attn.r_{x}_bias"] for x in "wr")
        for x in ("weight", "bias"):
            weights[f"{ours}.residuals.0.norm.{x}"] = theirs[f"{layer}.rel_attn.layer_norm.{x}"]
            weights |= {f"{ours}.{name}.{x}": theirs[f"{layer}.ff.{part}.{x}"] for name, part in parts.items()}
    return weights


def test_a_model_is_xlnet_that_looks_back_only() -> None:
    """Logits in two segments, and the gradients of the second, to which the memory gives none."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    config = transformers.XLNetConfig(
        vocab_size=V,
        d_model=D,
        n_layer=LAYERS,
        n_head=H,
        d_inner=4 * D,
        ff_activation="relu",
        attn_type="uni",
        mem_len=8,
        layer_norm_eps=1e-5,
        dropout=0.0,
    )
    theirs: Any = disturb(transformers.XLNetLMHeadModel(config))
    ours = TransformerXL(TransformerXLConfig(vocab_size=V, d_model=D, n_layers=LAYERS, n_heads=H, n_memory=8)).eval()
    ours.load_state_dict(xlnet_weights(theirs.state_dict()))
    ids = torch.randint(V, (3, 17))
    first, second = ids.split([10, 7], dim=1)
    states, memory = ours.states(first)
    of_theirs = theirs(first, use_mems=True)
    assert difference(ours.output(states), of_theirs.logits) < TOLERANCE
    assert all(layer.shape == (3, 8, D) for layer in memory.layers)
    logits = ours.output(ours.states(second, memory)[0]), theirs(second, mems=of_theirs.mems, use_mems=True).logits
    assert difference(*logits) < TOLERANCE
    for one in logits:
        F.cross_entropy(one[:, :-1].flatten(0, 1), second[:, 1:].flatten()).backward()
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in theirs.named_parameters()}
    expected = xlnet_weights(gradients)
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        assert difference(parameter.grad, expected[name]) < TOLERANCE, name


@pytest.mark.parametrize("lengths", [[1] * 17, [5, 12], [16, 1]])
def test_segments_with_a_whole_memory_are_the_whole(lengths: list[int]) -> None:
    model, ids = small_model(n_memory=17), torch.randint(V, (3, 17))
    logits, memory = in_segments(model, ids, lengths)
    assert difference(logits, in_segments(model, ids, [17])[0]) < TOLERANCE
    assert memory.layers[0].size(1) == 17 and not memory.layers[0].requires_grad


def test_a_memory_reaches_back_by_its_length_in_each_layer() -> None:
    model, ids = small_model(n_memory=2), torch.randint(V, (1, 12))
    other = ids.clone()
    other[0, 0] = (ids[0, 0] + 1) % V
    differs = (in_segments(model, ids, [1] * 12)[0] != in_segments(model, other, [1] * 12)[0]).any(-1)[0]
    assert differs.tolist() == [True] * (1 + 2 * LAYERS) + [False] * (11 - 2 * LAYERS)


def test_a_long_text_is_read_in_segments_of_the_memory() -> None:
    model, ids = small_model(n_memory=8), torch.randint(V, (2, 19))
    torch.testing.assert_close(model(ids), in_segments(model, ids, [8, 8, 3])[0])


def test_without_a_memory_segments_are_separate() -> None:
    model, ids = small_model(n_memory=0), torch.randint(V, (2, 9))
    torch.testing.assert_close(in_segments(model, ids, [5, 4])[0][:, 5:], model(ids[:, 5:]))


def test_the_search_continues_by_it() -> None:
    model, prompt = small_model(n_memory=20), [3, 1, 4]
    for beam in (1, 3):
        settings = SearchConfig(beam_size=beam, length_penalty="none", alpha=0.0, max_extra_tokens=6)
        (best,) = continue_ids(model, [prompt], [], settings)
        log_probs = model(torch.tensor([prompt + best.ids]))[0].detach().log_softmax(-1)
        expected = sum(float(log_probs[2 + i, one]) for i, one in enumerate(best.ids))
        assert len(best.ids) == 6 and best.score == pytest.approx(expected, rel=1e-4)
