"""The forms of attention that `transduce study attention` compares.

A form is a function of queries, keys and values. Longformer's global positions and tensor product attention have
projections of their own, so they are measured as layers: self-attention with its projections, beside exact ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transduce.family.around import with_rotation
from transduce.family.big_bird import big_bird
from transduce.family.linformer import Linformer
from transduce.family.longformer import LongformerAttention
from transduce.family.online import online_attention
from transduce.family.patterns import fixed, strided, with_pattern
from transduce.family.performer import Performer
from transduce.family.rope import Rope
from transduce.family.tpa import TensorProductAttention, with_products, with_rotation_of_factors
from transduce.family.window import with_window
from transduce.model.attention import Attention, Mask, MultiHeadAttention, fast_attention, reference_attention
from transduce.studies.attention_sizes import Sizes


@dataclass(frozen=True)
class Shape:
    """The sizes of an attention: positions n, heads H and their width K."""

    n: int
    n_heads: int
    d_k: int

    @property
    def d_model(self) -> int:
        return self.n_heads * self.d_k


@dataclass(frozen=True)
class Form:
    """A form of attention. make: builds the function. causal: under the causal mask, otherwise each sees both sides.

    is_square: its memory grows with n^2, so that it is not measured at the longest lengths.
    """

    name: str
    title: str
    make: Callable[[Shape], Attention]
    causal: bool = True
    is_square: bool = False

    @property
    def base(self) -> str:
        """The name of the exact form under the same mask."""
        return "fused" if self.causal else "fused-both"


def forms(sizes: Sizes) -> tuple[Form, ...]:
    """Return the forms with their sizes."""
    window = with_window(sizes.reach)

    def fixed_of(shape: Shape) -> Attention:
        stride = _stride(shape.n)
        return with_pattern(fixed(stride, -(-stride // sizes.per_summary)))

    def big_bird_of(shape: Shape) -> Attention:
        return with_pattern(big_bird(sizes.block, sizes.n_random, shape.n_heads))

    def performer(shape: Shape) -> Attention:
        return Performer(shape.d_k, sizes.features)

    def linformer(shape: Shape) -> Attention:
        return Linformer(shape.n, sizes.rank)

    summaries = f"fixed, √n, 1 summary in {sizes.per_summary}"
    features = f"Performer, {sizes.features} features"
    return (
        Form("fused", "exact, torch's fused kernel", lambda _: fast_attention),
        Form("reference", "exact, all weights at once", lambda _: reference_attention, is_square=True),
        Form("online", "exact, online softmax in Python", lambda _: online_attention),
        Form("window", f"window of {sizes.reach + 1}", lambda _: window),
        Form("strided", "strided, √n", lambda shape: with_pattern(strided(_stride(shape.n))), is_square=True),
        Form("fixed", summaries, fixed_of, is_square=True),
        Form("performer", features, performer),
        Form("fused-both", "exact, torch's fused kernel", lambda _: fast_attention, causal=False),
        Form("window-both", f"window of {2 * sizes.reach + 1}", lambda _: window, causal=False),
        Form("bigbird", f"BigBird, blocks of {sizes.block}", big_bird_of, causal=False, is_square=True),
        Form("linformer", f"Linformer, rank {sizes.rank}", linformer, causal=False),
        Form("performer-both", features, performer, causal=False),
    )


def _stride(n: int) -> int:
    return max(1, round(math.sqrt(n)))


# ---- layers ------------------------------------------------------------------------------------------------------


class SelfAttention(nn.Module):
    """A module of attention, with its projections, under an attention function: (1,n,D) -> (1,n,D)."""

    def __init__(
        self, module: MultiHeadAttention | LongformerAttention | TensorProductAttention, attention: Attention
    ) -> None:
        super().__init__()
        self.module, self.attention = module, attention

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        return self.module(x, self.module.keys_values(x), mask, self.attention)

    def cache_bytes(self, d_model: int) -> int:
        """Return the bytes that a cache holds for each token, in fp32."""
        with torch.no_grad():
            return sum(x.nbytes for x in self.module.keys_values(torch.zeros(1, 1, d_model)))


@dataclass(frozen=True)
class Layer:
    """Self-attention with its projections. base: the name of the exact layer. causal: as in `Form`; it has a cache."""

    name: str
    title: str
    base: str
    make: Callable[[Shape], SelfAttention]
    causal: bool = True
    is_square: bool = False


def layers(sizes: Sizes) -> tuple[Layer, ...]:
    """Return the layers with their sizes. The causal ones have no biases, and RoPE, as in Llama and T6."""

    def llama(shape: Shape) -> SelfAttention:
        return SelfAttention(
            MultiHeadAttention(shape.d_model, shape.n_heads, bias=False), with_rotation(_angles(shape))
        )

    def t6(shape: Shape) -> SelfAttention:
        module = TensorProductAttention(shape.d_model, shape.n_heads, ranks=sizes.ranks)
        products = with_products(shape.n_heads)
        return SelfAttention(module, with_rotation_of_factors(_angles(shape), shape.n_heads, products))

    def bert(shape: Shape) -> SelfAttention:
        return SelfAttention(MultiHeadAttention(shape.d_model, shape.n_heads), fast_attention)

    def longformer(shape: Shape) -> SelfAttention:
        module = LongformerAttention(shape.d_model, shape.n_heads, sizes.reach, n_global=sizes.n_global)
        return SelfAttention(module, fast_attention)

    ranks = ", ".join(map(str, sizes.ranks))
    title = f"tensor product attention, ranks {ranks}"
    return (
        Layer("layer-llama", "exact, with RoPE", "layer-llama", llama),
        Layer("layer-tpa", f"{title}, with RoPE", "layer-llama", t6),
        Layer("layer-bert", "exact", "layer-bert", bert, causal=False),
        Layer("layer-longformer", longformer_title(sizes), "layer-bert", longformer, causal=False),
    )


def longformer_title(sizes: Sizes) -> str:
    """Return Longformer's attention in words."""
    positions = "one global position" if sizes.n_global == 1 else f"{sizes.n_global} global positions"
    return f"Longformer, window of {2 * sizes.reach + 1} and {positions}"


def _angles(shape: Shape) -> Tensor:
    return Rope().angles(torch.arange(shape.n), shape.d_k)
