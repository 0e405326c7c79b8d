"""The configurations of members that hear, whose samples are the input, 16,000 a second."""

import math
from dataclasses import dataclass
from typing import Literal

from transduce.config.schema import use_python_numbers
from transduce.family.configs import size_problems, width_problems


@dataclass(frozen=True)
class Wav2Vec2Config:
    """The sizes of a wav2vec 2.0 with a layer for CTC. The defaults make the base model, except the vocabulary."""

    kind: Literal["wav2vec2"] = "wav2vec2"
    vocab_size: int | None = None  # tokens and the blank; None: filled from the tokenizer
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    n_channels: int = 512  # of each convolution of the samples
    kernels: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)  # width of each convolution
    strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)  # their product is the number of samples of a frame
    position_width: int = 128  # frames that the positional convolution sees
    position_groups: int = 16  # parts of its channels
    norm: Literal["post", "pre"] = "post"  # pre: before each part, and a norm and biases in each convolution
    norm_eps: float = 1e-5  # added to the variances
    dropout: float = 0.1  # of the frames, the attention weights and the residuals

    __post_init__ = use_python_numbers
    max_positions = None  # its positions are relative, without a limit; no key of config.json

    @property
    def frame(self) -> int:
        """The number of samples from the start of a frame to the start of the next one."""
        return math.prod(self.strides)

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        lines = width_problems(self.d_model, self.n_heads)
        lines += size_problems(n_channels=self.n_channels, position_width=self.position_width)
        for key, sizes in {"kernels": self.kernels, "strides": self.strides}.items():
            if not sizes or not all(1 <= size <= 1_000 for size in sizes) or len(sizes) != len(self.kernels):
                expected = "expected as many numbers as model.kernels has, each from 1 to 1,000"
                lines.append(f"model.{key}={','.join(map(str, sizes))}: {expected}")
        if self.position_groups < 1 or self.d_model % self.position_groups:
            lines.append(
                f"model.position_groups={self.position_groups}: expected a divisor of model.d_model={self.d_model}"
            )
        return lines
