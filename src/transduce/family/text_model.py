"""A member that continues text: what its training, its search and its scores need of it."""

from typing import Any, ClassVar

from torch import Tensor, nn


class TextModel(nn.Module):
    """A model that predicts each token of a text from the tokens before it.

    n_positions: maximum number of tokens of a text. no_past: the past of a text before its first token; it has the
    method `select(rows, sentences)`, which returns the past whose row i is row rows[i].
    """

    embedding: nn.Embedding
    output: nn.Linear
    n_positions: int
    no_past: ClassVar[Any]

    def states(self, ids: Tensor, past: Any, /) -> tuple[Tensor, Any]:
        """Return what `output` makes logits of, (N,T,D), for new ids (N,T), and the past with them."""
        raise NotImplementedError

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (N,T,V) of the id after each of `ids` (N,T)."""
        return self.output(self.states(ids, self.no_past)[0])
