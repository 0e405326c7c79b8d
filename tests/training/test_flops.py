"""FLOPs: the count of each kind of model equals a formula written by hand, forward and backward."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from transduce.config.schema import ModelConfig
from transduce.data.batches import Batch, collate
from transduce.model.build import build
from transduce.training.flops import ADDED_COUNTS, step_flops

V = 30
D = 8
L = 2
TRANSFORMER = ModelConfig(vocab_size=V, d_model=D, n_layers=L, n_heads=2, d_k=3, d_v=5, d_ff=12, dropout=0.1)


def batch_of(*lengths: tuple[int, int]) -> Batch:
    """Return a batch of pairs. lengths: the tokens of source and target of each pair, end of sentence included."""
    rng = np.random.default_rng(1)
    src, tgt = ([rng.integers(4, V, pair[side] - 1) for pair in lengths] for side in (0, 1))
    return collate(src, tgt)


def projection(tokens: int) -> int:
    """FLOPs of the output projection: logits, and the gradients of its input and weights. Padding has no logits."""
    return 3 * 2 * tokens * D * V


def product(rows: int, *sizes: tuple[int, int]) -> int:
    """FLOPs of matrices applied to `rows` rows: the forward pass, the gradients of input and weights."""
    return 3 * 2 * rows * sum(a * b for a, b in sizes)


def attention(queries: int, keys: int, width: int) -> int:
    """FLOPs of scores and weighted sums of a sentence. width: of queries and values together, over all heads."""
    return 3 * 2 * queries * keys * width


PAIRS = ((5, 7), (3, 4))
B = 2
S = 5
T = 7
TOKENS = 11


def transformer_flops() -> int:
    keys, values = 2 * 3, 2 * 5
    four, ffn = [(D, keys), (D, keys), (D, values), (values, D)], [(D, 12), (12, D)]
    encoder = product(B * S, *four, *ffn) + B * attention(S, S, keys + values)
    to_src = product(B * T, (D, keys), (values, D)) + product(B * S, (D, keys), (D, values))
    decoder = product(B * T, *four, *ffn) + to_src + B * (attention(T, T, 16) + attention(T, S, 16))
    return L * (encoder + decoder) + projection(TOKENS)


def recurrent_flops() -> int:
    half = D // 2
    reader = 2 * product(5 + 3, (D, 4 * half), (half, 4 * half))  # each sentence without its padding
    reader -= 2 * (2 + 1) * half * 4 * half  # the first state is 0: two rows forwards, the longer row backwards
    writer = product(B * T, (D, 4 * D), (D, 4 * D))
    attention_layers = product(B * T, (D, D), (2 * D, D)) + B * attention(T, S, 2 * D)
    return L * (reader + writer) + product(B, (D, 2 * L * D)) + attention_layers + projection(TOKENS)


def convolutional_flops() -> int:
    layer = product(B * S + B * T, (3 * D, 2 * D)) + product(B * T, (D, D)) + B * attention(T, S, 2 * D)
    return L * layer + projection(TOKENS)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TRANSFORMER, transformer_flops()),
        (ModelConfig(kind="recurrent", vocab_size=V, d_model=D, n_layers=L), recurrent_flops()),
        (ModelConfig(kind="convolutional", vocab_size=V, d_model=D, n_layers=L), convolutional_flops()),
    ],
    ids=lambda value: value.kind if isinstance(value, ModelConfig) else "",
)
def test_the_count_equals_the_formula(config: ModelConfig, expected: int) -> None:
    model = build(config).train()
    assert step_flops(model, [batch_of(*PAIRS)], 0.1) == expected
    assert all(p.grad is None for p in model.parameters())
    assert step_flops(model, [batch_of(*PAIRS), batch_of(*PAIRS)], 0.1) == 2 * expected


def test_the_fused_lstm_counts_like_an_unrolled_one() -> None:
    torch.manual_seed(1)
    lstm, x = nn.LSTM(6, 8), torch.randn(5, 3, 6, requires_grad=True)
    with FlopCounterMode(display=False, custom_mapping=ADDED_COUNTS) as fused:
        output, _ = lstm(x)
        output.sum().backward()
    assert torch.ops.aten.mkldnn_rnn_layer in fused.get_flop_counts()["Global"], (
        "without the fused LSTM this test compares nothing"
    )

    cell = nn.LSTMCell(6, 8)
    cell.load_state_dict({name.removesuffix("_l0"): values for name, values in lstm.state_dict().items()})
    state = torch.zeros(3, 8, requires_grad=True), torch.zeros(3, 8)
    outputs = []
    with FlopCounterMode(display=False) as unrolled:
        for step in x:
            state = cell(step, state)
            outputs.append(state[0])
        torch.stack(outputs).sum().backward()
    torch.testing.assert_close(torch.stack(outputs), output)
    assert fused.get_total_flops() == unrolled.get_total_flops() == 3 * 2 * 5 * 3 * 32 * (6 + 8)


def test_fused_attention_counts_like_the_reference() -> None:
    from transduce.model.attention import LONG, fast_attention, reference_attention

    shape = 1, 2, LONG, 4
    queries, keys, values = (torch.randn(shape, requires_grad=True) for _ in range(3))
    mask = torch.ones(1, 1, 1, LONG, dtype=torch.bool)
    forward, both = [], []
    for attention in (fast_attention, reference_attention):
        with FlopCounterMode(display=False, custom_mapping=ADDED_COUNTS) as counter:
            output = attention(queries, keys, values, mask, 0.0)
            forward.append(counter.get_total_flops())
            output.sum().backward()
        both.append(counter.get_total_flops())
    product = 2 * 2 * LONG * LONG * 4
    assert forward == [2 * product, 2 * product]
    assert both == [7 * product, 6 * product], "fused attention computes the scores again in the backward pass"


def test_more_tokens_take_more_flops() -> None:
    model = build(replace(TRANSFORMER, norm="pre")).train()
    few, many = (step_flops(model, [batch_of((4, n))], 0.1) for n in (4, 5))
    assert few < many
