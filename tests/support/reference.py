"""Slow reference versions of the model: plain loops over lists of Python floats, for one sentence.

Nothing here uses the package or torch. It is an independent reading of the paper, and the tests compare the package
with it.

A matrix is a list of rows. Weights are nested lists under the names of the model's parameters. A mask is True where a
position is visible. A hidden position gets no low score here; the loops skip it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Vector = list[float]
Matrix = list[Vector]
Mask = Sequence[Sequence[bool]]
Weights = Mapping[str, Any]

# ---- section 3: the model ----------------------------------------------------------------------------------------


def softmax(scores: Vector) -> Vector:
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    return [power / sum(powers) for power in powers]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def plus(a: Matrix, b: Matrix) -> Matrix:
    return [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]


def attention(queries: Matrix, keys: Matrix, values: Matrix, mask: Mask) -> Matrix:
    """Equation 1, for one head."""
    rows = []
    for query, query_mask in zip(queries, mask, strict=True):
        visible = [i for i in range(len(keys)) if query_mask[i]]
        weights = softmax([dot(query, keys[i]) / math.sqrt(len(query)) for i in visible])
        rows.append([dot(weights, [values[i][j] for i in visible]) for j in range(len(values[0]))])
    return rows


def part(weights: Weights, prefix: str) -> Weights:
    """Return the weights whose names begin with `prefix`, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def linear(x: Matrix, weights: Weights, name: str) -> Matrix:
    matrix = weights[f"{name}.weight"]
    bias = weights.get(f"{name}.bias", [0.0] * len(matrix))
    return [[dot(row, column) + b for column, b in zip(matrix, bias, strict=True)] for row in x]


def layer_norm(x: Matrix, weights: Weights, eps: float) -> Matrix:
    rows = []
    for row in x:
        mean = sum(row) / len(row)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in row) / len(row) + eps)
        normal = [(value - mean) / deviation for value in row]
        rows.append([g * n + b for g, n, b in zip(weights["weight"], normal, weights["bias"], strict=True)])
    return rows


def multi_head(x: Matrix, memory: Matrix, weights: Weights, n_heads: int, mask: Mask) -> Matrix:
    """Section 3.2.2: each head has its own columns of the projections, and W^O gets the heads side by side."""

    def of_head(matrix: Matrix, head: int) -> Matrix:
        width = len(matrix[0]) // n_heads
        return [row[head * width : (head + 1) * width] for row in matrix]

    queries = linear(x, weights, "w_q")
    keys = linear(memory, weights, "w_k")
    values = linear(memory, weights, "w_v")
    concatenation: Matrix = [[] for _ in x]
    for head in range(n_heads):
        output = attention(of_head(queries, head), of_head(keys, head), of_head(values, head), mask)
        for row, columns in zip(concatenation, output, strict=True):
            row += columns
    return linear(concatenation, weights, "w_o")


def feed_forward(x: Matrix, weights: Weights) -> Matrix:
    """Equation 2."""
    inner = [[max(0.0, value) for value in row] for row in linear(x, weights, "w_1")]
    return linear(inner, weights, "w_2")


def residual(x: Matrix, sublayer: Callable[[Matrix], Matrix], weights: Weights, norm: str, eps: float) -> Matrix:
    """Section 3.1: LayerNorm(x + f(x)), or with norm "pre" x + f(LayerNorm(x))."""
    if norm == "post":
        return layer_norm(plus(x, sublayer(x)), part(weights, "norm."), eps)
    return plus(x, sublayer(layer_norm(x, part(weights, "norm."), eps)))


def encoder_layer(x: Matrix, weights: Weights, mask: Mask, n_heads: int, *, norm: str, eps: float) -> Matrix:
    def attend(y: Matrix) -> Matrix:
        return multi_head(y, y, part(weights, "self_attention."), n_heads, mask)

    x = residual(x, attend, part(weights, "residuals.0."), norm, eps)
    return residual(
        x, lambda y: feed_forward(y, part(weights, "feed_forward.")), part(weights, "residuals.1."), norm, eps
    )


def decoder_layer(
    x: Matrix, memory: Matrix, weights: Weights, masks: tuple[Mask, Mask], n_heads: int, *, norm: str, eps: float
) -> Matrix:
    """One decoder layer. masks: of the decoder's positions, and of the encoder's."""

    def attend_self(y: Matrix) -> Matrix:
        return multi_head(y, y, part(weights, "self_attention."), n_heads, masks[0])

    def attend_cross(y: Matrix) -> Matrix:
        return multi_head(y, memory, part(weights, "cross_attention."), n_heads, masks[1])

    x = residual(x, attend_self, part(weights, "residuals.0."), norm, eps)
    x = residual(x, attend_cross, part(weights, "residuals.1."), norm, eps)
    return residual(
        x, lambda y: feed_forward(y, part(weights, "feed_forward.")), part(weights, "residuals.2."), norm, eps
    )


def position(pos: int, d_model: int, layout: str = "interleaved") -> Vector:
    """Return one row of the table of section 3.5, or of the two other layouts."""
    half = d_model // 2
    steps = half - 1 if layout == "tensor2tensor" else half
    angles = [pos / 10000 ** (i / steps) for i in range(half)]
    if layout == "interleaved":
        return [f(angle) for angle in angles for f in (math.sin, math.cos)]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


def embed(ids: Sequence[int], table: Matrix) -> Matrix:
    """Section 3.4 and 3.5: rows of the table times sqrt(d_model), plus the positions."""
    d_model = len(table[0])
    return plus(
        [[math.sqrt(d_model) * value for value in table[i]] for i in ids],
        [position(pos, d_model) for pos in range(len(ids))],
    )


def transformer(
    src: Sequence[int],
    tgt_in: Sequence[int],
    weights: Weights,
    *,
    depths: tuple[int, int],
    n_heads: int,
    norm: str,
    eps: float,
) -> Matrix:
    """Return the logits of every target position of one pair without padding. depths: of encoder and decoder."""
    x = embed(src, weights["src_embedding.weight"])
    source_mask = [[True] * len(src)] * max(len(src), len(tgt_in))
    for i in range(depths[0]):
        x = encoder_layer(x, part(weights, f"encoder.{i}."), source_mask[: len(src)], n_heads, norm=norm, eps=eps)
    memory = layer_norm(x, part(weights, "encoder_norm."), eps) if norm == "pre" else x
    y = embed(tgt_in, weights["tgt_embedding.weight"])
    masks = [[i <= t for i in range(len(tgt_in))] for t in range(len(tgt_in))], source_mask[: len(tgt_in)]
    for i in range(depths[1]):
        y = decoder_layer(y, memory, part(weights, f"decoder.{i}."), masks, n_heads, norm=norm, eps=eps)
    return linear(layer_norm(y, part(weights, "decoder_norm."), eps) if norm == "pre" else y, weights, "output")


def parameter_count(
    *, vocab_size: int, d_model: int, n_layers: int, n_heads: int, d_k: int, d_v: int, d_ff: int
) -> int:
    """Count the parameters of the paper's model. Only the last projection, the embedding matrix, has no bias."""
    queries_and_keys = 2 * (d_model + 1) * n_heads * d_k
    values_and_output = (d_model + 1) * n_heads * d_v + (n_heads * d_v + 1) * d_model
    attentions = 3 * (queries_and_keys + values_and_output)  # one in the encoder, two in the decoder
    feed_forwards = 2 * ((d_model + 1) * d_ff + (d_ff + 1) * d_model)
    norms = 5 * 2 * d_model
    return vocab_size * d_model + n_layers * (attentions + feed_forwards + norms)


# ---- section 5: training -----------------------------------------------------------------------------------------


def target_distribution(truth: int, vocab_size: int, label_smoothing: float) -> Vector:
    """Return the smoothed target distribution of section 5.4."""
    share = label_smoothing / (vocab_size - 1)
    return [1 - label_smoothing if token == truth else share for token in range(vocab_size)]


def smoothed_loss(logits: Matrix, targets: Sequence[int], label_smoothing: float) -> float:
    """Return the cross entropy of the rows of `logits` with `target_distribution`, summed, in nats."""
    total = 0.0
    for row, truth in zip(logits, targets, strict=True):
        for target, probability in zip(
            target_distribution(truth, len(row), label_smoothing), softmax(row), strict=True
        ):
            total -= target * math.log(probability)
    return total


def learning_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """Return equation 3 in two parts: a straight line to the peak, then the inverse square root."""
    peak = 1 / math.sqrt(d_model * warmup_steps)
    return peak * step / warmup_steps if step <= warmup_steps else peak * math.sqrt(warmup_steps / step)


def adam(weight: float, gradients: Vector, rates: Vector, *, beta1: float, beta2: float, eps: float) -> float:
    """Return one weight after Algorithm 1 of Kingma and Ba (2015)."""
    first = second = 0.0
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        weight -= rate * (first / (1 - beta1**step)) / (math.sqrt(second / (1 - beta2**step)) + eps)
    return weight
