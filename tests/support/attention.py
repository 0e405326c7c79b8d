"""Attention weights without a model, and the weights and texts of a page of them."""

import base64
import json
import math
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from transduce.decoding.hypothesis import Attended

HOSTILE = [
    "▁</script><script>alert(1)</script>",
    "▁<!--",
    "▁\"'",
    "▁\u2028",
    "▁\u202eabc\u202c",
    "\u200f",
    "▁<img",
    "▁&lt;",
    "▁$title",
    "▁${1+1}",
    "▁\x00\x1b[2J",
    "▁שלום",
    "</s>",
]


def random_attended(
    src: Sequence[str] = ("▁a", "▁b", "</s>"),
    tgt: Sequence[str] = ("▁x", "y", "▁z", "</s>"),
    *,
    layers: int = 2,
    heads: int = 2,
    self_layers: int | None = None,
) -> Attended:
    """Return random weights whose rows sum to 1. self_layers: of encoder and decoder; None: `layers`."""
    rng = np.random.default_rng(0)
    n_self = layers if self_layers is None else self_layers

    def weights(n_layers: int, rows: int, columns: int, *, is_causal: bool = False) -> np.ndarray:
        scores = rng.exponential(size=(n_layers, heads, rows, columns)) ** 3
        scores = np.tril(scores) if is_causal else scores
        return (scores / scores.sum(-1, keepdims=True)).astype("f4")

    n, t = len(src), len(tgt)
    log_probs = np.log(np.linspace(0.3, 1, t, dtype="f4"))
    encoder = weights(n_self, n, n)
    decoder = weights(n_self, t, t, is_causal=True)
    cross = weights(layers, t, n)
    return Attended(tuple(src), tuple(tgt), encoder, decoder, cross, log_probs)


def long_attended(length: int, *, layers: int, heads: int) -> Attended:
    """Return random weights of a sentence and a translation of `length` tokens each."""
    pieces = [*(f"▁w{i}" for i in range(length - 1)), "</s>"]
    return random_attended(pieces, pieces, layers=layers, heads=heads)


def data_of(page: str) -> dict[str, Any]:
    """Return the description that the script of a page reads."""
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert block
    return json.loads(block[1])


def weights_of(page: str) -> dict[str, np.ndarray]:
    """Return the weights in a page, by kind: (layers of the page, heads, rows, columns)."""
    block = re.search(r'<script type="text/plain" id="weights">(.*?)</script>', page, re.DOTALL)
    assert block
    codes = np.frombuffer(zlib.decompress(base64.b64decode(block[1], validate=True)), dtype=np.uint8)
    data = data_of(page)
    source, target = (len(data[side]["labels"]) for side in ("source", "target"))
    sizes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    weights, begin = {}, 0
    for kind in data["kinds"]:
        shape = (len(kind["layers"]), kind["heads"], *sizes[kind["name"]])
        end = begin + math.prod(shape)
        weights[kind["name"]] = np.sin(np.pi / 2 * codes[begin:end].reshape(shape) / 255.0) ** 2
        begin = end
    assert begin == len(codes)
    return weights
