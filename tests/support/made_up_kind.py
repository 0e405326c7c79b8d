"""A kind of model that the package does not know, with its own configuration."""

from dataclasses import dataclass

from torch import Tensor, nn

from transduce.config.kinds import Kind


@dataclass(frozen=True)
class WindowConfig:
    """A model that predicts the next token from the mean of the embeddings of the last `window` tokens."""

    kind: str = "window"
    vocab_size: int | None = None
    d_model: int = 8
    window: int = 3
    bias: bool = True

    n_layers = 0
    max_positions = None

    def problems(self) -> list[str]:
        return [f"model.window={self.window}: expected 1 to 100"] if not 1 <= self.window <= 100 else []


class Window(nn.Module):
    def __init__(self, config: WindowConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=config.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """(B,T) -> the logits (B,V) of the token that follows."""
        return self.output(self.embedding(ids[:, -self.config.window :]).mean(dim=1))


WINDOW = Kind(f"{__name__}:WindowConfig", f"{__name__}:Window")
