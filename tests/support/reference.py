"""Slow, obvious versions of what the package does fast: plain loops over lists of Python floats, a sentence at a time.

Nothing here uses the package or torch. It is a second reading of the paper, and the tests hold the first against it.

A matrix is a list of rows. Weights are nested lists under the names that the model's parameters have. A mask is True
where a position may be seen; a hidden position is not given a low score here, it is left out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = list[float]
Matrix = list[Row]
Mask = Sequence[Sequence[bool]]
Weights = Mapping[str, Any]

# ---- section 3: the model ----------------------------------------------------------------------------------------


def softmax(scores: Row) -> Row:
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    return [power / sum(powers) for power in powers]


def dot(a: Row, b: Row) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def plus(a: Matrix, b: Matrix) -> Matrix:
    return [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]


def attention(queries: Matrix, keys: Matrix, values: Matrix, mask: Mask) -> Matrix:
    """Equation 1, for one head."""
    found = []
    for query, seen in zip(queries, mask, strict=True):
        visible = [i for i in range(len(keys)) if seen[i]]
        weights = softmax([dot(query, keys[i]) / math.sqrt(len(query)) for i in visible])
        found.append([dot(weights, [values[i][j] for i in visible]) for j in range(len(values[0]))])
    return found


def part(weights: Weights, prefix: str) -> Weights:
    """The weights whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def linear(x: Matrix, weights: Weights, name: str) -> Matrix:
    matrix = weights[f"{name}.weight"]
    bias = weights.get(f"{name}.bias", [0.0] * len(matrix))
    return [[dot(row, column) + b for column, b in zip(matrix, bias, strict=True)] for row in x]


def layer_norm(x: Matrix, weights: Weights, eps: float) -> Matrix:
    found = []
    for row in x:
        mean = sum(row) / len(row)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in row) / len(row) + eps)
        normal = [(value - mean) / deviation for value in row]
        found.append([g * n + b for g, n, b in zip(weights["weight"], normal, weights["bias"], strict=True)])
    return found


def multi_head(x: Matrix, memory: Matrix, weights: Weights, n_heads: int, mask: Mask) -> Matrix:
    """Section 3.2.2: each head has its own columns of the projections; the heads stand side by side before W^O."""

    def of_head(matrix: Matrix, head: int) -> Matrix:
        width = len(matrix[0]) // n_heads
        return [row[head * width : (head + 1) * width] for row in matrix]

    queries, keys, values = linear(x, weights, "w_q"), linear(memory, weights, "w_k"), linear(memory, weights, "w_v")
    concatenated: Matrix = [[] for _ in x]
    for head in range(n_heads):
        found = attention(of_head(queries, head), of_head(keys, head), of_head(values, head), mask)
        for row, more in zip(concatenated, found, strict=True):
            row += more
    return linear(concatenated, weights, "w_o")


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
    """masks: of the decoder's own positions, and of the encoder's."""

    def attend_self(y: Matrix) -> Matrix:
        return multi_head(y, y, part(weights, "self_attention."), n_heads, masks[0])

    def attend_cross(y: Matrix) -> Matrix:
        return multi_head(y, memory, part(weights, "cross_attention."), n_heads, masks[1])

    x = residual(x, attend_self, part(weights, "residuals.0."), norm, eps)
    x = residual(x, attend_cross, part(weights, "residuals.1."), norm, eps)
    return residual(
        x, lambda y: feed_forward(y, part(weights, "feed_forward.")), part(weights, "residuals.2."), norm, eps
    )


def position(pos: int, d_model: int, layout: str = "interleaved") -> Row:
    """Section 3.5, and the two other layouts: one row of the table."""
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
    src: Sequence[int], tgt_in: Sequence[int], weights: Weights, *, n_layers: int, n_heads: int, norm: str, eps: float
) -> Matrix:
    """The logits of every target position of one pair without padding."""
    x = embed(src, weights["src_embedding.weight"])
    sees_source = [[True] * len(src)] * max(len(src), len(tgt_in))
    for i in range(n_layers):
        x = encoder_layer(x, part(weights, f"encoder.{i}."), sees_source[: len(src)], n_heads, norm=norm, eps=eps)
    memory = layer_norm(x, part(weights, "encoder_norm."), eps) if norm == "pre" else x
    y = embed(tgt_in, weights["tgt_embedding.weight"])
    masks = [[i <= t for i in range(len(tgt_in))] for t in range(len(tgt_in))], sees_source[: len(tgt_in)]
    for i in range(n_layers):
        y = decoder_layer(y, memory, part(weights, f"decoder.{i}."), masks, n_heads, norm=norm, eps=eps)
    return linear(layer_norm(y, part(weights, "decoder_norm."), eps) if norm == "pre" else y, weights, "output")


def parameter_count(
    *, vocab_size: int, d_model: int, n_layers: int, n_heads: int, d_k: int, d_v: int, d_ff: int
) -> int:
    """The paper's model with biases in all projections but the last, which is the one embedding matrix."""
    queries_and_keys = 2 * (d_model + 1) * n_heads * d_k
    values_and_output = (d_model + 1) * n_heads * d_v + (n_heads * d_v + 1) * d_model
    attentions = 3 * (queries_and_keys + values_and_output)  # one in the encoder, two in the decoder
    feed_forwards = 2 * ((d_model + 1) * d_ff + (d_ff + 1) * d_model)
    norms = 5 * 2 * d_model
    return vocab_size * d_model + n_layers * (attentions + feed_forwards + norms)


# ---- section 5: training -----------------------------------------------------------------------------------------


def smoothed(truth: int, vocab_size: int, label_smoothing: float) -> Row:
    """Section 5.4: what the model is asked to predict instead of certainty."""
    share = label_smoothing / (vocab_size - 1)
    return [1 - label_smoothing if token == truth else share for token in range(vocab_size)]


def smoothed_loss(logits: Matrix, targets: Sequence[int], label_smoothing: float) -> float:
    """The cross entropy of the rows of `logits` against `smoothed`, summed, in nats."""
    total = 0.0
    for row, truth in zip(logits, targets, strict=True):
        for wanted, predicted in zip(smoothed(truth, len(row), label_smoothing), softmax(row), strict=True):
            total -= wanted * math.log(predicted)
    return total


def learning_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """Equation 3 in two pieces: a straight line up to the peak, then the inverse square root."""
    peak = 1 / math.sqrt(d_model * warmup_steps)
    return peak * step / warmup_steps if step <= warmup_steps else peak * math.sqrt(warmup_steps / step)


def adam(weight: float, gradients: Row, rates: Row, *, beta1: float, beta2: float, eps: float) -> float:
    """One weight after Algorithm 1 of Kingma and Ba (2015)."""
    first = second = 0.0
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        weight -= rate * (first / (1 - beta1**step)) / (math.sqrt(second / (1 - beta2**step)) + eps)
    return weight
