"""The matrices of weights that a picture can show, and their names: `encoder 3.5`, `cross 6.mean`, counted from 1."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from transduce.decoding.hypothesis import Attended
from transduce.errors import UserError

KINDS = ("encoder", "decoder", "cross")
Head = int | Literal["mean", "rollout"]


def head_name(kind: str, layer: int, head: Head) -> str:
    """Return the name of a head, such as `encoder 3.5` of layer 2 and head 4, which count from 0."""
    return f"{kind} {layer + 1}.{head + 1 if isinstance(head, int) else head}"


@dataclass(frozen=True)
class View:
    """One matrix of weights: a head, the mean over the heads of a layer, or the rollout up to this layer.

    layer, head: counted from 0.
    """

    kind: str
    layer: int
    head: Head

    @property
    def name(self) -> str:
        """The name, counted from 1."""
        return head_name(self.kind, self.layer, self.head)

    def weights(self, attended: Attended) -> np.ndarray:
        """Return the weights (queries, keys). Each row is a distribution."""
        layers = getattr(attended, self.kind)
        if self.head == "mean":
            return layers[self.layer].mean(0)
        if self.head == "rollout":
            return _rollout(attended, self.kind, self.layer)
        return layers[self.layer, self.head]

    def pieces(self, attended: Attended) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the pieces of the rows and the pieces of the columns."""
        rows = attended.src_pieces if self.kind == "encoder" else attended.tgt_pieces
        return rows, attended.tgt_pieces if self.kind == "decoder" else attended.src_pieces


def find_view(attended: Attended, name: str | None = None) -> View:
    """Return the view with this name; None: the last cross-attention, the mean of its heads.

    Raises UserError for a name that the model does not have.
    """
    if name is None:
        n_layers, n_heads = attended.cross.shape[:2]
        return View("cross", n_layers - 1, "mean" if n_heads > 1 else 0)
    by_name = {view.name: view for view in views(attended)}
    if name in by_name:
        return by_name[name]
    shapes = {kind: getattr(attended, kind).shape for kind in KINDS}
    ranges = ", ".join(f"{kind} 1.1 to {shape[0]}.{shape[1]}" for kind, shape in shapes.items() if shape[0])
    raise UserError(f"head={name!r}: expected a head of the model; use {ranges}, or mean or rollout for the head")


def views(attended: Attended) -> Iterator[View]:
    """Yield all views: by kind and layer, each head, then their mean and the rollout."""
    for kind in KINDS:
        n_layers, n_heads = getattr(attended, kind).shape[:2]
        for layer in range(n_layers):
            yield from (View(kind, layer, head) for head in range(n_heads))
            if n_heads > 1:
                yield View(kind, layer, "mean")
            if len(attended.encoder):
                yield View(kind, layer, "rollout")


def rollout(layers: np.ndarray) -> np.ndarray:
    """Return the attention rollout (N,N) of Abnar and Zuidema (2020) through `layers` (L,H,N,N), all of them.

    Each layer is the mean of its heads, and half of each position stays where it is: the residual connection.
    """
    identity = np.eye(layers.shape[-1], dtype=layers.dtype)
    total = identity
    for layer in layers:
        total = (0.5 * layer.mean(0) + 0.5 * identity) @ total
    return total


def _rollout(attended: Attended, kind: str, layer: int) -> np.ndarray:
    """Return the rollout up to `layer`. The rollout of cross-attention follows its mean through the whole encoder."""
    if kind == "cross":
        return attended.cross[layer].mean(0) @ rollout(attended.encoder)
    return rollout(getattr(attended, kind)[: layer + 1])
