"""The forms of attention that `transduce study attention` compares, their sizes, and the costs of each.

A form is a function of queries, keys and values. Longformer's global positions and tensor product attention have
separate projections, so they are measured as layers: self-attention with its projections. They are compared
with exact layers.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from transduce.family.attention_patterns import fixed, strided, with_pattern
from transduce.family.attention_wrappers import with_rotation
from transduce.family.big_bird import big_bird
from transduce.family.linformer import Linformer
from transduce.family.longformer import LongformerAttention
from transduce.family.online_softmax import online_attention
from transduce.family.performer import Performer
from transduce.family.rope import Rope
from transduce.family.tensor_product_attention import TensorProductAttention, with_products, with_rotation_of_factors
from transduce.family.window import with_window
from transduce.model.attention import Attention, Mask, MultiHeadAttention, fast_attention, reference_attention
from transduce.studies.results import Cost, Figures, PositiveInt
from transduce.training.halves import threads

# ---- sizes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of a study.

    Measurements. lengths: n of each, in ascending order. rounds: of each length. longest_square: above it, a form whose
    memory grows with n^2 is not measured. cost_heads, cost_width: of the heads.

    Forms. reach: of the windows. n_global: global positions. stride: the square root of n; per_summary: positions of
    a stride for each summary of the pattern "fixed". features: of Performer. rank: of Linformer. block, n_random: of
    BigBird. ranks: of queries, keys and values in tensor product attention.

    Trainings. length: tokens of a text. batch: texts. rate: the largest learning rate, after `warmup` steps; then it
    falls to 0. valid_texts: at most, of the validation text. mask_share: of the tokens, where they are masked.
    """

    lengths: tuple[PositiveInt, ...] = (256, 1_024, 4_096, 16_384)
    rounds: tuple[PositiveInt, ...] = (7, 5, 3, 2)
    longest_square: PositiveInt = 4_096
    cost_heads: PositiveInt = 8
    cost_width: PositiveInt = 64
    reach: PositiveInt = 64
    n_global: PositiveInt = 1
    per_summary: PositiveInt = 8
    features: PositiveInt = 256
    rank: PositiveInt = 64
    block: PositiveInt = 32
    n_random: PositiveInt = 3
    ranks: tuple[PositiveInt, PositiveInt, PositiveInt] = (6, 2, 2)
    length: PositiveInt = 512
    d_model: PositiveInt = 128
    n_layers: PositiveInt = 3
    n_heads: PositiveInt = 4
    vocab_size: PositiveInt = 4_000
    steps: PositiveInt = 400
    batch: PositiveInt = 8
    rate: Cost = 1e-3
    warmup: PositiveInt = 40
    largest_gradient: Cost = 1.0
    valid_texts: PositiveInt = 32
    mask_share: Cost = 0.15


SIZES = AttentionSizes()

# ---- forms -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of an attention: positions n, heads H and their width K."""

    n: int
    n_heads: int
    d_k: int

    @property
    def d_model(self) -> int:
        return self.n_heads * self.d_k

    @property
    def stride(self) -> int:
        return max(1, round(math.sqrt(self.n)))

    def angles(self) -> Tensor:
        """Return the angles of RoPE."""
        return Rope().angles(torch.arange(self.n), self.d_k)


class ProjectedAttention(nn.Module):
    """A module of attention, with its projections, under an attention function: (1,n,D) -> (1,n,D)."""

    def __init__(
        self, module: MultiHeadAttention | LongformerAttention | TensorProductAttention, attention: Attention
    ) -> None:
        super().__init__()
        self.module, self.attention = module, attention

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        return self.module.attend(*self.module.projections(x), mask, self.attention)

    def cache_bytes(self, d_model: int) -> int:
        """Return the bytes that a cache holds for each token, in fp32."""
        with torch.no_grad():
            return sum(x.nbytes for x in self.module.keys_values(torch.zeros(1, 1, d_model)))


M = TypeVar("M", bound=Attention | ProjectedAttention)

BOTH_SIDES = ("fused-both", "layer-bert")  # exact forms, and the bases of others, without the causal mask


@dataclass(frozen=True)
class TrainedForm:
    """A form that a model is trained with. base: the name of the form with exact attention that it is compared with."""

    name: str
    title: str
    base: str
    seeds: tuple[int, ...] = field(default=(1,), kw_only=True)

    @property
    def causal(self) -> bool:
        """True for a form with the causal mask; otherwise each position sees both sides."""
        return self.base not in BOTH_SIDES


@dataclass(frozen=True)
class AttentionForm(TrainedForm, Generic[M]):
    """A form of attention, as a function or as a layer with projections. make: builds it.

    is_square: its memory grows with n^2, so that it is not measured at the longest lengths.
    """

    make: Callable[[AttentionShape], M]
    is_square: bool = False


def forms(sizes: AttentionSizes) -> tuple[AttentionForm[Attention], ...]:
    """Return the forms that are functions, with their sizes."""
    window = with_window(sizes.reach)
    exact = "exact, torch's fused kernel"
    summaries = f"fixed, √n, 1 summary in {sizes.per_summary}"
    features = f"Performer, {sizes.features} features"

    def fixed_of(shape: AttentionShape) -> Attention:
        return with_pattern(fixed(shape.stride, -(-shape.stride // sizes.per_summary)))

    def performer(shape: AttentionShape) -> Attention:
        return Performer(shape.d_k, sizes.features)

    def big_bird_of(shape: AttentionShape) -> Attention:
        return with_pattern(big_bird(sizes.block, sizes.n_random, shape.n_heads))

    blocks, rank = f"BigBird, blocks of {sizes.block}", f"Linformer, rank {sizes.rank}"
    weights, softmax = "exact, all weights at once", "exact, online softmax in Python"
    return (
        AttentionForm("fused", exact, "fused", lambda _: fast_attention, seeds=(1, 2, 3)),
        AttentionForm("reference", weights, "fused", lambda _: reference_attention, is_square=True),
        AttentionForm("online", softmax, "fused", lambda _: online_attention),
        AttentionForm("window", f"window of {sizes.reach + 1}", "fused", lambda _: window),
        AttentionForm("strided", "strided, √n", "fused", lambda shape: with_pattern(strided(shape.stride)), True),
        AttentionForm("fixed", summaries, "fused", fixed_of, is_square=True),
        AttentionForm("performer", features, "fused", performer),
        AttentionForm("fused-both", exact, "fused-both", lambda _: fast_attention, seeds=(1, 2, 3)),
        AttentionForm("window-both", f"window of {2 * sizes.reach + 1}", "fused-both", lambda _: window),
        AttentionForm("bigbird", blocks, "fused-both", big_bird_of, is_square=True),
        AttentionForm("linformer", rank, "fused-both", lambda shape: Linformer(shape.n, sizes.rank)),
        AttentionForm("performer-both", features, "fused-both", performer),
    )


# ---- layers ------------------------------------------------------------------------------------------------------


def layers(sizes: AttentionSizes) -> tuple[AttentionForm[ProjectedAttention], ...]:
    """Return the layers with their sizes. The causal ones have no biases, and RoPE, as in Llama and T6."""

    def llama(shape: AttentionShape) -> ProjectedAttention:
        module = MultiHeadAttention(shape.d_model, shape.n_heads, bias=False)
        return ProjectedAttention(module, with_rotation(shape.angles()))

    def t6(shape: AttentionShape) -> ProjectedAttention:
        module = TensorProductAttention(shape.d_model, shape.n_heads, ranks=sizes.ranks)
        products = with_products(shape.n_heads)
        return ProjectedAttention(module, with_rotation_of_factors(shape.angles(), shape.n_heads, products))

    def bert(shape: AttentionShape) -> ProjectedAttention:
        return ProjectedAttention(MultiHeadAttention(shape.d_model, shape.n_heads), fast_attention)

    def longformer(shape: AttentionShape) -> ProjectedAttention:
        module = LongformerAttention(shape.d_model, shape.n_heads, sizes.reach, n_global=sizes.n_global)
        return ProjectedAttention(module, fast_attention)

    ranks = ", ".join(map(str, sizes.ranks))
    title = f"tensor product attention, ranks {ranks}"
    return (
        AttentionForm("layer-llama", "exact, with RoPE", "layer-llama", llama),
        AttentionForm("layer-tpa", f"{title}, with RoPE", "layer-llama", t6),
        AttentionForm("layer-bert", "exact", "layer-bert", bert),
        AttentionForm("layer-longformer", longformer_title(sizes), "layer-bert", longformer),
    )


def longformer_title(sizes: AttentionSizes) -> str:
    """Return Longformer's attention in words."""
    positions = "one global position" if sizes.n_global == 1 else f"{sizes.n_global} global positions"
    return f"Longformer, window of {2 * sizes.reach + 1} and {positions}"


# ---- trainings -----------------------------------------------------------------------------------------------------


def rows(sizes: AttentionSizes) -> tuple[TrainedForm, ...]:
    """Return the rows. Exact attention has several seeds, whose spread is the scale of all differences."""
    form = {form.name: form for form in forms(sizes)}
    return (
        *(form[name] for name in ("fused", "online", "window", "strided", "fixed", "performer")),
        TrainedForm("llama", "Llama, exact", "llama", seeds=(1, 2)),
        TrainedForm("tpa", "T6: tensor product attention", "llama"),
        form["fused-both"],
        TrainedForm("longformer", longformer_title(sizes), "fused-both"),
        *(form[name] for name in ("bigbird", "linformer", "performer-both")),
    )


# ---- costs -------------------------------------------------------------------------------------------------------


class Pass:
    """A forward and a backward pass of a form, or of a layer, over one text, which can be repeated."""

    def __init__(
        self, form: AttentionForm[Attention] | AttentionForm[ProjectedAttention], shape: AttentionShape
    ) -> None:
        torch.manual_seed(1)
        mask: Mask = "causal" if form.causal else torch.ones(1, 1, 1, shape.n, dtype=torch.bool)
        function = form.make(shape)
        is_layer = isinstance(function, ProjectedAttention)
        size = (1, shape.n, shape.d_model) if is_layer else (1, shape.n_heads, shape.n, shape.d_k)
        self.inputs = [torch.randn(size, requires_grad=True) for _ in range(1 if is_layer else 3)]
        self.forward: Callable[[], Tensor] = partial(function, *self.inputs, mask, *([] if is_layer else [0.0]))
        self.parameters = [*function.parameters()] if isinstance(function, nn.Module) else []
        self.gradient = torch.randn_like(self.inputs[0])

    def backward(self, output: Tensor) -> None:
        output.backward(self.gradient)
        for x in (*self.inputs, *self.parameters):
            x.grad = None

    def seconds(self) -> tuple[float, float]:
        """Return the processor seconds of the forward and of the backward pass."""
        start = time.process_time()
        output = self.forward()
        middle = time.process_time()
        self.backward(output)
        return middle - start, time.process_time() - middle

    def peak_bytes(self) -> int:
        """Return the most bytes that both passes hold at once, above inputs, weights and the output's gradient."""
        return peak_bytes(lambda: self.backward(self.forward()))


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most bytes that torch has allocated at once during `work`, above those before it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints its stages
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    kineto: Any = profiler.profiler
    current = most = 0
    for event in kineto.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            most = max(most, current)
    return most


@threads(1)
def measure(n: int, sizes: AttentionSizes) -> Figures:
    """Return `forms`, the costs of each form and layer at length n: forward_seconds, backward_seconds and peak_bytes.

    A causal layer also has cache_bytes_per_token.
    The forms take turns, so that another program on the machine delays all of them. The seconds are the minimum of all
    rounds: other programs can only add time. The first pass, which measures memory, warms up.
    """
    shape = AttentionShape(n, sizes.cost_heads, sizes.cost_width)
    items = [item for item in (*forms(sizes), *layers(sizes)) if n <= sizes.longest_square or not item.is_square]
    passes = {item.name: Pass(item, shape) for item in items}
    costs: dict[str, dict[str, float]] = {name: {"peak_bytes": form.peak_bytes()} for name, form in passes.items()}
    for _ in range(dict(zip(sizes.lengths, sizes.rounds, strict=True)).get(n, 1)):
        for name, measured in passes.items():
            for key, seconds in zip(("forward_seconds", "backward_seconds"), measured.seconds(), strict=True):
                costs[name][key] = min(seconds, costs[name].get(key, seconds))
    for layer in layers(sizes):
        if layer.causal:
            costs[layer.name]["cache_bytes_per_token"] = layer.make(shape).cache_bytes(shape.d_model)
    return {"forms": costs}
