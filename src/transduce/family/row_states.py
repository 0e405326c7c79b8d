"""The memory of a recurrent model: a state of fixed size for each text, where attention has a cache that grows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

PartState = tuple[Tensor, ...]  # of one part of a model; each tensor has N rows
StatefulPart = Callable[[Tensor, PartState | None], tuple[Tensor, PartState]]


@dataclass(frozen=True)
class RowStates:
    """The state of each part of a model after the tokens so far of N texts; () before the first token."""

    parts: Sequence[PartState] = ()

    def of_part(self, number: int) -> PartState | None:
        """Return the state of a part; None before the first token."""
        return self.parts[number] if self.parts else None

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "RowStates":
        """Return the states whose row i is row rows[i] of these. `sentences` has no effect."""
        return RowStates([tuple(tensor[rows] for tensor in state) for state in self.parts])


NO_STATES = RowStates()


def with_state(part: StatefulPart, past: PartState | None, so_far: list[PartState]) -> Callable[[Tensor], Tensor]:
    """Return the function of new positions (N,T,D) that `part` is after `past`; it appends the new state to `so_far`.

    What `with_cache` is for attention, so that a residual takes it.
    """

    def apply(x: Tensor) -> Tensor:
        output, state = part(x, past)
        so_far.append(state)
        return output

    return apply
