"""The positions of a decoder: against loops over numbers, against Hugging Face transformers, and with a cache."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.gradients import assert_same_with_gradients
from support.hugging_face import TOLERANCE, difference, disturb
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from transduce.config.schema import SearchConfig
from transduce.family.attention_wrappers import NO_PAST, Past, with_bias
from transduce.family.configs import DecoderConfig
from transduce.family.decoder_only import DecoderOnly
from transduce.family.inference.continuation import continue_ids
from transduce.family.positions import (
    Alibi,
    Bucketed,
    Learned,
    Positions,
    Rotary,
    Shaw,
    Sinusoids,
    Skewed,
    alibi_slopes,
    distances,
    relative_attention,
    skewed,
)
from transduce.family.rope import YarnRope
from transduce.model.attention import MultiHeadAttention

V, D, LAYERS, H = 40, 24, 2, 4
KINDS: dict[str, Callable[[], Positions]] = {
    "none": Positions,
    "sinusoids": lambda: Sinusoids(D),
    "learned": lambda: Learned(64, D),
    "rotary": lambda: Rotary(D // H, YarnRope(50.0, 4.0, 16)),
    "alibi": lambda: Alibi(H),
    "bucketed": lambda: Bucketed(H, n_buckets=8, longest=12),
    "shaw": lambda: Shaw(LAYERS, D // H, reach=3),
    "skewed": lambda: Skewed(LAYERS, H, 64, D // H),
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    return disturb(
        DecoderOnly(
            DecoderConfig(vocab_size=V, d_model=D, n_layers=LAYERS, n_heads=H, max_positions=64),
            positions=KINDS[request.param](),
        )
    )


def random_inputs(n_queries: int, n_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, H, n_queries, 6), torch.randn(2, H, n_keys, 6), torch.randn(2, H, n_keys, 6)


def attention_by_loop(
    inputs: tuple[Tensor, Tensor, Tensor],
    score: Callable[[Tensor, Tensor, int, int], float],
    value: Callable[[Tensor, int], Tensor] = lambda value, distance: value,
) -> Tensor:
    """Return causal attention number by number, where the queries are the last of the positions of the keys.

    score: of a query and a key, their distance and the number of the head. value: of a value and its distance.
    """
    queries, keys, values = inputs
    output, first = torch.zeros_like(queries), keys.size(2) - queries.size(2)
    for b in range(queries.size(0)):
        for h in range(H):
            for t in range(queries.size(2)):
                seen = range(first + t + 1)
                away = [s - first - t for s in seen]
                weights = [math.exp(score(queries[b, h, t], keys[b, h, s], away[s], h)) for s in seen]
                for s in seen:
                    output[b, h, t] += weights[s] / sum(weights) * value(values[b, h, s], away[s])
    return output


def test_sinusoids_are_added_to_embeddings() -> None:
    x = torch.randn(1, 3, 4)
    output = Sinusoids(4, scale=0.5).add_to(x, torch.tensor([7, 8, 300]))
    for t, position in enumerate([7, 8, 300]):
        for i in range(2):
            angle = position / 10_000 ** (2 * i / 4)
            pair = 0.5 * math.sin(angle), 0.5 * math.cos(angle)
            assert (output - x)[0, t, 2 * i : 2 * i + 2].tolist() == pytest.approx(pair, abs=1e-6)


def test_alibi_subtracts_a_slope_for_each_position_of_the_distance() -> None:
    inputs = random_inputs(3, 7)
    slopes = [1 / 4, 1 / 16, 1 / 64, 1 / 256]

    def score(query: Tensor, key: Tensor, distance: int, head: int) -> float:
        return float(query @ key) / math.sqrt(6) + slopes[head] * distance

    alibi = Alibi(H).attention_of(0, lambda attention: attention, torch.arange(4, 7), 7)
    torch.testing.assert_close(alibi(*inputs, "causal", 0.0), attention_by_loop(inputs, score))


def test_slopes_of_12_heads_continue_those_of_8() -> None:
    slopes = alibi_slopes(12)
    assert slopes[:8] == [2.0**-i for i in range(1, 9)]
    assert slopes[8:] == pytest.approx([0.7071, 0.3536, 0.1768, 0.0884], abs=1e-4)
    assert alibi_slopes(1) == [1 / 256]


@pytest.mark.parametrize("n_heads", [1, 2, 3, 6, 8, 12, 13, 40])
def test_slopes_are_those_of_bloom_and_mpt(n_heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason="needs transduce[export]")
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    biases = [
        bloom.build_alibi_tensor(torch.ones(1, 9), n_heads, torch.float32)[:, 0],
        mpt.build_mpt_alibi_tensor(n_heads, 9)[:, 0],
    ]
    for bias in biases:  # without the part that is the same for all keys of a query
        expected = torch.tensor(alibi_slopes(n_heads))[:, None] * distances(1, 9)
        torch.testing.assert_close(bias - bias[:, -1:], expected)


@pytest.mark.parametrize("with_values", [True, False])
def test_shaw_adds_a_vector_of_the_distance_to_keys_and_values(with_values: bool) -> None:
    inputs, reach = random_inputs(4, 7), 2
    a, b = torch.randn(5, 6), torch.randn(5, 6)

    def row(distance: int) -> int:
        return max(-reach, min(reach, distance)) + reach

    output = relative_attention(a, b if with_values else None)(*inputs, "causal", 0.0)
    expected = attention_by_loop(
        inputs,
        lambda query, key, distance, _: float(query @ (key + a[row(distance)])) / math.sqrt(6),
        lambda value, distance: value + b[row(distance)] * with_values,
    )
    torch.testing.assert_close(output, expected)


def test_shaw_with_tables_of_zeros_is_attention() -> None:
    inputs = random_inputs(7, 7)
    output = relative_attention(torch.zeros(5, 6), torch.zeros(5, 6))(*inputs, "causal", 0.0)
    torch.testing.assert_close(output, with_bias(torch.zeros(H, 7, 7))(*inputs, "causal", 0.0))


def test_shaws_keys_are_those_of_wav2vec2_bert() -> None:
    module = pytest.importorskip(
        "transformers.models.wav2vec2_bert.modeling_wav2vec2_bert", reason="needs transduce[export]"
    )
    config = module.Wav2Vec2BertConfig(
        hidden_size=D,
        num_attention_heads=H,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=3,
        right_max_position_embeddings=3,
        attn_implementation="eager",
    )
    theirs, ours = disturb(module.Wav2Vec2BertSelfAttention(config)), MultiHeadAttention(D, H)
    names = {"w_q": "linear_q", "w_k": "linear_k", "w_v": "linear_v", "w_o": "linear_out"}
    ours.load_state_dict({f"{x}.{p}": getattr(getattr(theirs, y), p) for x, y in names.items() for p in STATE})
    table = theirs.state_dict()["distance_embedding.weight"]
    x, everywhere = torch.randn(2, 9, D), torch.ones(9, 9, dtype=torch.bool)
    output, _ = theirs(x)
    assert difference(ours(x, ours.keys_values(x), everywhere, relative_attention(table)), output) < TOLERANCE


STATE = ("weight", "bias")


class BloomPositions(Alibi):
    """Bloom also has a norm after the embedding."""

    def __init__(self) -> None:
        super().__init__(H)
        self.norm = nn.LayerNorm(D)

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.norm(x)


def bloom_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of Bloom for a `DecoderOnly`. It has queries, keys and values of a head side by side."""
    names = {"embedding.weight": "word_embeddings.weight", "output.weight": "word_embeddings.weight"}
    names |= {f"norm.{x}": f"ln_f.{x}" for x in STATE}
    names |= {f"positions.norm.{x}": f"word_embeddings_layernorm.{x}" for x in STATE}
    parts = {
        "self_attention.w_o": "self_attention.dense",
        "feed_forward.w_1": "mlp.dense_h_to_4h",
        "feed_forward.w_2": "mlp.dense_4h_to_h",
        "residuals.0.norm": "input_layernorm",
        "residuals.1.norm": "post_attention_layernorm",
    }
    names |= {f"layers.{i}.{a}.{x}": f"h.{i}.{b}.{x}" for i in range(LAYERS) for a, b in parts.items() for x in STATE}
    weights = {ours: theirs[f"transformer.{name}"] for ours, name in names.items()}
    for i in range(LAYERS):
        for x in STATE:
            whole = theirs[f"transformer.h.{i}.self_attention.query_key_value.{x}"].unflatten(0, (H, 3, D // H))
            for letter, part in zip("qkv", whole.unbind(1), strict=True):
                weights[f"layers.{i}.self_attention.w_{letter}.{x}"] = part.flatten(0, 1)
    return weights


def test_a_decoder_with_alibi_is_bloom() -> None:
    """Logits, also after a cache, and gradients."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    config = transformers.BloomConfig(vocab_size=V, hidden_size=D, n_layer=LAYERS, n_head=H)
    theirs = disturb(transformers.BloomForCausalLM(config))
    ours = DecoderOnly(
        DecoderConfig(vocab_size=V, d_model=D, n_layers=LAYERS, n_heads=H), positions=BloomPositions()
    ).eval()
    ours.load_state_dict(bloom_weights(theirs.state_dict()))
    ids = torch.randint(V, (3, 19))
    expected = theirs(ids).logits
    assert difference(ours(ids), expected) < TOLERANCE
    past, states = NO_PAST, []
    for chunk in ids.split([5, 1, 13], dim=1):
        new, past = ours.states(chunk, past)
        states.append(new)
    assert difference(ours.output(torch.cat(states, dim=1)), expected) < TOLERANCE
    for logits in (ours(ids), expected):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in theirs.named_parameters()}
    of_theirs = bloom_weights(gradients)
    for name, parameter in ours.named_parameters():
        if not name.endswith("w_k.bias"):  # 0 but for rounding
            assert parameter.grad is not None
            assert difference(parameter.grad, of_theirs[name]) < TOLERANCE, name


@pytest.mark.parametrize("chunks", [[1] * 17, [5, 12], [16, 1]])
def test_chunks_after_a_cache_are_the_whole(model: Any, chunks: list[int]) -> None:
    ids = torch.randint(V, (3, 17))
    past, states = NO_PAST, []
    for chunk in ids.split(chunks, dim=1):
        new, past = model.states(chunk, past)
        states.append(new)
    assert difference(model.output(torch.cat(states, dim=1)), model(ids)) < TOLERANCE


def test_padding_before_a_row_changes_nothing(model: Any) -> None:
    ids = torch.randint(V, (3, 13))
    padded = torch.cat([torch.full((3, 4), 7), ids[:, :10]], dim=1)
    _, past = model.states(padded, Past(padding=torch.tensor([0, 4, 4])))
    states, _ = model.states(ids[:, 10:], past)
    alone, _ = model.states(ids[1:])
    torch.testing.assert_close(states[1:], alone[:, 10:], rtol=1e-4, atol=1e-5)


def test_every_parameter_has_a_gradient_and_order_matters(model: Any) -> None:
    ids = torch.randint(V, (2, 9))
    logits = model(ids)
    F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    assert all(p.grad is not None and p.grad.any() for n, p in model.named_parameters() if not n.endswith("w_k.bias"))
    swapped = ids[:, [1, 0, *range(2, 9)]]
    assert not torch.allclose(model(swapped)[:, -1], logits[:, -1], atol=1e-4)


def test_the_search_continues_by_a_decoder(model: Any) -> None:
    prompt = [3, 1, 4]
    for beam in (1, 3):
        settings = SearchConfig(beam_size=beam, length_penalty="none", alpha=0.0, max_extra_tokens=6)
        (best,) = continue_ids(model, [prompt], [], settings)
        log_probs = model(torch.tensor([prompt + best.ids]))[0].detach().log_softmax(-1)
        expected = sum(float(log_probs[2 + i, token]) for i, token in enumerate(best.ids))
        assert len(best.ids) == 6 and best.score == pytest.approx(expected, rel=1e-4)


def test_skewed_is_shaw_with_a_vector_for_each_distance() -> None:
    """And for all texts up to the longest: the last 4 of 7 positions, and all of them. Gradients are compared too."""
    positions = Skewed(n_layers=2, n_heads=H, n_positions=9, d_k=6)
    nn.init.normal_(positions.to_keys)
    for n_queries in (1, 4, 7):
        inputs = [x.requires_grad_() for x in random_inputs(n_queries, 7)]
        mask = torch.ones(n_queries, 7, dtype=torch.bool).tril(7 - n_queries)
        function = positions.attention_of(1, lambda attention: attention, torch.arange(7 - n_queries, 7), 7)
        output = function(*inputs, mask, 0.0)
        heads = []
        for head in range(H):
            rows = positions.to_keys[1, head, 9 - 7 :]  # for the distances -6 to 0
            table = torch.cat([rows, torch.zeros(6, 6)])  # and none for keys after the query, which the mask hides
            parts = [x[:, head : head + 1] for x in inputs]
            heads.append(relative_attention(table)(*parts, mask, 0.0))
        assert_same_with_gradients(output, torch.cat(heads, dim=1), [*inputs, positions.to_keys])


def test_skewing_moves_numbers_of_distances_to_their_keys() -> None:
    """Number -d of query i becomes number i - d of its row."""
    by_distance = torch.tensor([[-3.0, -2, -1, 0]]).expand(4, 4)[None, None]
    rows = skewed(by_distance)[0, 0]
    assert [rows[i, : i + 1].tolist() for i in range(4)] == [[0], [-1, 0], [-2, -1, 0], [-3, -2, -1, 0]]
    assert skewed(by_distance[:, :, :1])[0, 0].tolist() == [[-3, -2, -1, 0]]


def test_skewed_holds_no_vector_for_each_pair() -> None:
    """The largest tensor has a number for each head and pair, not d_k of them."""
    n, d_k = 64, 32
    positions, sizes = Skewed(1, 2, n, d_k), []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = function(*args, **(kwargs or {}))
            sizes.append(output.numel() if isinstance(output, Tensor) else 0)
            return output

    queries, keys, values = torch.randn(3, 1, 2, n, d_k)
    with Sizes():
        positions.attention_of(0, lambda attention: attention, torch.arange(n), n)(queries, keys, values, "causal", 0.0)
    assert max(sizes) <= 2 * n * (n + 1) < 2 * n * n * d_k
