"""The Evoformer block of AlphaFold 2: against plain loops, and its triangles beside Hugging Face's ESMFold."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.gradients import assert_same_with_gradients
from support.hugging_face import TOLERANCE, difference, disturb
from torch import Tensor

from transduce.family.evoformer import EvoformerBlock, OuterProductMean, TriangleUpdate, transition
from transduce.family.row_attention import GatedAttention, RowAttention
from transduce.model.transformer import parameter_count

M, Z, S, R, K = 8, 6, 3, 4, 5  # widths, sequences, positions, width of a head


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def table(*shape: int) -> Tensor:
    return torch.randn(*shape)


def linear(layer: Any, x: Tensor) -> Tensor:
    return layer.weight @ x if layer.bias is None else layer.weight @ x + layer.bias


def gated_attention_by_loop(attention: GatedAttention, rows: Tensor, bias: Tensor) -> Tensor:
    """Return the attention of each row (B,T,D) to itself, number by number. bias: (H,T,T)."""
    output, n_heads = torch.zeros_like(rows), attention.n_heads
    for b, row in enumerate(rows):
        queries, keys, values, gates = (
            [linear(layer, x).view(n_heads, -1) for x in row]
            for layer in (attention.w_q, attention.w_k, attention.w_v, attention.w_g)
        )
        for t in range(len(row)):
            heads = []
            for h in range(n_heads):
                scores = [queries[t][h] @ keys[u][h] / math.sqrt(K) + bias[h, t, u] for u in range(len(row))]
                total = sum((score.exp() for score in scores), torch.zeros(()))
                head = sum((score.exp() / total * values[u][h] for u, score in enumerate(scores)), torch.zeros(K))
                heads.append(gates[t][h].sigmoid() * head)
            output[b, t] = linear(attention.w_o, torch.cat(heads))
    return output


def test_row_attention_has_a_bias_of_pairs() -> None:
    """Algorithm 7, with gradients."""
    attention: Any = disturb(RowAttention(M, Z, 2, K))
    m, z = (x.requires_grad_() for x in (table(S, R, M), table(R, R, Z)))
    bias = torch.stack([torch.stack([linear(attention.bias, z[i, j]) for j in range(R)]) for i in range(R)])
    expected = gated_attention_by_loop(attention.attention, attention.norm(m), bias.permute(2, 0, 1))
    assert_same_with_gradients(attention(m, z), expected, [m, z, *attention.parameters()])


@torch.no_grad()
def test_triangle_attention_is_that_of_edges_in_one_corner() -> None:
    """Algorithms 13 and 14, with their indices: q_ij k_ik + b_jk, and q_ij k_kj + b_ki."""
    block: Any = disturb(EvoformerBlock(M, Z, d_k=K))
    z = table(R, R, Z)
    starting, ending = block.starting, block.ending
    x, y = starting.norm(z), ending.norm(z)
    expected = gated_attention_by_loop(starting.attention, x, starting.bias(x).permute(2, 0, 1))
    torch.testing.assert_close(starting(z), expected)
    output = ending(z.transpose(0, 1)).transpose(0, 1)
    for j in range(R):  # edges ij and kj that end in j; the third edge is ki
        bias = torch.stack([torch.stack([linear(ending.bias, y[k, i]) for k in range(R)]) for i in range(R)])
        column = gated_attention_by_loop(ending.attention, y[:, j][None], bias.permute(2, 0, 1))
        torch.testing.assert_close(output[:, j], column[0])


@torch.no_grad()
@pytest.mark.parametrize("edges", ["ik,jk", "ki,kj"])
def test_a_triangle_update_sums_over_the_third_corner(edges: str) -> None:
    """Algorithms 11 and 12."""
    update: Any = disturb(TriangleUpdate(Z, edges, width=7))
    z = table(R, R, Z)
    x = update.norm(z)

    def side(matrix: Any, gate: Any, i: int, j: int) -> Tensor:
        return linear(gate, x[i, j]).sigmoid() * linear(matrix, x[i, j])

    for i in range(R):
        for j in range(R):
            total = torch.zeros(7)
            for k in range(R):
                a, b = ((i, k), (j, k)) if edges == "ik,jk" else ((k, i), (k, j))
                total += side(update.a, update.gate_a, *a) * side(update.b, update.gate_b, *b)
            expected = linear(update.gate, x[i, j]).sigmoid() * linear(update.output, update.inner_norm(total))
            torch.testing.assert_close(update(z)[i, j], expected)


def test_the_outer_product_is_a_mean_over_sequences() -> None:
    """Algorithm 10, with gradients."""
    outer: Any = disturb(OuterProductMean(M, Z, width=3))
    m = table(S, R, M).requires_grad_()
    x, pairs = outer.norm(m), list[Tensor]()
    for i in range(R):
        for j in range(R):
            products = [torch.outer(linear(outer.a, x[s, i]), linear(outer.b, x[s, j])) for s in range(S)]
            pairs.append(linear(outer.output, (sum(products, torch.zeros(3, 3)) / S).flatten()))
    assert_same_with_gradients(outer(m), torch.stack(pairs).view(R, R, Z), [m, *outer.parameters()])


def test_a_transition_has_four_times_the_width() -> None:
    """Algorithm 9, with gradients."""
    network: Any = disturb(transition(M))
    m = table(S, R, M).requires_grad_()
    norm, inner = network
    assert inner.w_1.out_features == 4 * M
    rows = [linear(inner.w_2, linear(inner.w_1, x).relu()) for x in norm(m).flatten(0, 1)]
    assert_same_with_gradients(network(m), torch.stack(rows).view(S, R, M), [m, *network.parameters()])


@torch.no_grad()
def test_a_block_adds_its_parts_in_the_order_of_algorithm_6() -> None:
    block: Any = disturb(EvoformerBlock(M, Z, d_k=K))
    m, z = table(S, R, M), table(R, R, Z)
    new_m, new_z = block(m, z)
    m = m + block.rows(m, block.pair_norm(z))
    columns = block.column_norm(m).transpose(0, 1)
    m = m + gated_attention_by_loop(block.columns, columns, torch.zeros(8, S, S)).transpose(0, 1)  # algorithm 8
    m = m + block.row_transition(m)
    z = z + block.outer(m)
    for part in (block.leaving, block.entering, block.starting):
        z = z + part(z)
    z = z + block.ending(z.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(new_m, m)
    torch.testing.assert_close(new_z, z + block.pair_transition(z))


def test_a_block_does_not_depend_on_the_order_of_sequences_or_positions() -> None:
    block: Any = disturb(EvoformerBlock(M, Z, d_k=K))
    m, z = table(S, R, M), table(R, R, Z)
    new_m, new_z = block(m, z)
    sequences, positions = torch.randperm(S), torch.randperm(R)
    other_m, other_z = block(m[sequences][:, positions], z[positions][:, positions])
    torch.testing.assert_close(other_m, new_m[sequences][:, positions])
    torch.testing.assert_close(other_z, new_z[positions][:, positions])
    assert not new_z.equal(new_z.transpose(0, 1))


# ---- Hugging Face ------------------------------------------------------------------------------------------------


def copy_weights(ours: Any, theirs: Any, names: dict[str, str]) -> None:
    """Give our modules the weights of theirs. names: ours, by theirs."""
    for their_name, name in names.items():
        ours.get_submodule(name).load_state_dict(theirs.get_submodule(their_name).state_dict())


def assert_same(ours: Any, theirs: Any, names: dict[str, str], transposed: bool = False) -> None:
    """Compare outputs, and gradients of inputs and weights."""
    z = table(R, R, Z)
    mine, other = z.clone().requires_grad_(), z.clone().requires_grad_()
    output = ours(mine.transpose(0, 1)).transpose(0, 1) if transposed else ours(mine)
    expected = theirs(other[None])[0]
    assert difference(output, expected) < TOLERANCE
    for result in (output, expected):
        result.square().sum().backward()
    assert mine.grad is not None and other.grad is not None
    assert difference(mine.grad, other.grad) < TOLERANCE
    for their_name, name in names.items():
        for (end, parameter), their_parameter in zip(
            ours.get_submodule(name).named_parameters(), theirs.get_submodule(their_name).parameters(), strict=True
        ):
            assert difference(parameter.grad, their_parameter.grad) < TOLERANCE, (name, end)


@pytest.mark.parametrize("edges", ["ik,jk", "ki,kj"])
def test_triangle_updates_are_those_of_esmfold(edges: str) -> None:
    esmfold = pytest.importorskip("transformers.models.esm.modeling_esmfold", reason="needs transduce[export]")
    config = SimpleNamespace(pairwise_state_dim=Z)
    theirs = disturb(esmfold.EsmFoldTriangleMultiplicativeUpdate(config, _outgoing=edges == "ik,jk"))
    ours = TriangleUpdate(Z, edges, width=Z)
    names = {"layer_norm_in": "norm", "layer_norm_out": "inner_norm", "linear_z": "output", "linear_g": "gate"}
    names |= {f"linear_{x}_p": x for x in "ab"} | {f"linear_{x}_g": f"gate_{x}" for x in "ab"}
    copy_weights(ours, theirs, names)
    assert_same(ours, theirs, names)


@pytest.mark.parametrize("starting", [True, False])
def test_triangle_attention_is_that_of_esmfold(starting: bool) -> None:
    esmfold = pytest.importorskip("transformers.models.esm.modeling_esmfold", reason="needs transduce[export]")
    theirs = disturb(esmfold.EsmFoldTriangleAttention(Z, K, 4, starting=starting))
    ours = RowAttention(Z, Z, 4, K)
    names = {"layer_norm": "norm", "linear": "bias"} | {f"mha.linear_{x}": f"attention.w_{x}" for x in "qkvog"}
    copy_weights(ours, theirs, names)
    assert_same(ours, theirs, names, transposed=not starting)


def test_a_block_of_alphafold_has_its_number_of_parameters() -> None:
    """The widths of the supplement, 1.6: 256 and 128, heads of 32 and 128 for triangles; 48 blocks."""

    def attention(width: int, n_heads: int) -> int:
        """Count five matrices, of which gate and output have a bias, and the norm."""
        return 5 * width * n_heads * 32 + n_heads * 32 + width + 2 * width

    def network(width: int) -> int:
        return 8 * width**2 + 5 * width + 2 * width

    of_rows = attention(256, 8) + 128 * 8 + 2 * 128 + attention(256, 8) + network(256)
    outer = 2 * 256 + 2 * (256 * 32 + 32) + 32 * 32 * 128 + 128
    of_pairs = 2 * (6 * (128 * 128 + 128) + 4 * 128) + 2 * (attention(128, 4) + 128 * 4) + network(128)
    with torch.device("meta"):
        count = parameter_count(EvoformerBlock())
    assert count == of_rows + outer + of_pairs == 1_829_952
