"""The matrices of weights that a picture can show, and their names: `encoder 3.5`, `cross 6.mean`, counted from 1."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from transduce.decoding.hypothesis import Attended
from transduce.errors import UserError

AttentionPart = Literal["encoder", "decoder", "cross"]
PARTS: tuple[AttentionPart, ...] = get_args(AttentionPart)  # of the decoder's two, "cross" attends to the source
HeadChoice = int | Literal["mean", "rollout"]


def head_name(part: AttentionPart, layer: int, head: HeadChoice) -> str:
    """Return the name of a head, such as `encoder 3.5` of layer 2 and head 4, which count from 0."""
    return f"{part} {layer + 1}.{number_from_1(head)}"


def number_from_1(head: HeadChoice) -> int | str:
    """Return the number of a head, counted from 1, or the choice of no single head."""
    return head + 1 if isinstance(head, int) else head


@dataclass(frozen=True)
class View:
    """One matrix of weights: a head, the mean over the heads of a layer, or the rollout up to this layer.

    layer, head: counted from 0.
    """

    part: AttentionPart
    layer: int
    head: HeadChoice

    @property
    def name(self) -> str:
        """The name, counted from 1."""
        return head_name(self.part, self.layer, self.head)

    def weights(self, attended: Attended) -> np.ndarray:
        """Return the weights (queries, keys). Each row is a distribution."""
        layers = getattr(attended, self.part)
        if self.head == "mean":
            return layers[self.layer].mean(0)
        if self.head == "rollout":
            return _rollout(attended, self.part, self.layer)
        return layers[self.layer, self.head]

    def pieces(self, attended: Attended) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the pieces of the rows and the pieces of the columns."""
        rows = attended.src_pieces if self.part == "encoder" else attended.tgt_pieces
        return rows, attended.tgt_pieces if self.part == "decoder" else attended.src_pieces


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
    shapes = {part: getattr(attended, part).shape for part in PARTS}
    ranges = ", ".join(f"{part} 1.1 to {shape[0]}.{shape[1]}" for part, shape in shapes.items() if shape[0])
    raise UserError(f"head={name!r}: expected a head of the model; use {ranges}, or mean or rollout for the head")


def views(attended: Attended) -> Iterator[View]:
    """Yield all views: by part and layer, each head, then their mean and the rollout."""
    for part in PARTS:
        n_layers, n_heads = getattr(attended, part).shape[:2]
        for layer in range(n_layers):
            yield from (View(part, layer, head) for head in range(n_heads))
            if n_heads > 1:
                yield View(part, layer, "mean")
            if len(attended.encoder):
                yield View(part, layer, "rollout")


def rollout(layers: np.ndarray) -> np.ndarray:
    """Return the attention rollout (N,N) of Abnar and Zuidema (2020) through `layers` (L,H,N,N), all of them.

    Each layer is the mean of its heads, and half of each position stays where it is: the residual connection.
    """
    identity = np.eye(layers.shape[-1], dtype=layers.dtype)
    total = identity
    for layer in layers:
        total = (0.5 * layer.mean(0) + 0.5 * identity) @ total
    return total


def _rollout(attended: Attended, part: AttentionPart, layer: int) -> np.ndarray:
    """Return the rollout up to `layer`. The rollout of cross-attention follows its mean through the whole encoder."""
    if part == "cross":
        return attended.cross[layer].mean(0) @ rollout(attended.encoder)
    return rollout(getattr(attended, part)[: layer + 1])
