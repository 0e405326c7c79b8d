"""Fill in the middle: how a decoder learns to insert (Bavarian et al. 2022, section 3), as a change of only its texts.

    text    prefix middle suffix
    PSM     <PRE> prefix <SUF> suffix <MID> middle <END>
    SPM     <PRE> <SUF> suffix <MID> prefix middle <END>

The cuts are between characters, and each part has its own tokens. All tokens count in the loss, as in any text.
StarCoder and CodeLlama have learned both orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Encode = Callable[[str], Sequence[int]]  # the ids of a text, without special tokens


@dataclass(frozen=True)
class Marks:
    """The ids of the tokens before the parts of a text, and the id of the end."""

    prefix: int
    suffix: int
    middle: int
    end: int

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int], *, suffix_first: bool = False) -> list[int]:
        """Return the ids after which a model writes the middle: PSM, or SPM with `suffix_first`."""
        if suffix_first:
            return [self.prefix, self.suffix, *suffix, self.middle, *prefix]
        return [self.prefix, *prefix, self.suffix, *suffix, self.middle]


def training_ids(
    text: str, encode: Encode, marks: Marks, generator: np.random.Generator, *, rate: float = 0.5, spm_rate: float = 0.5
) -> list[int]:
    """Return the ids of a text for the training, and the end.

    rate: probability that the text is cut; otherwise it stays as it is. spm_rate: probability of SPM for a text that is
    cut. All cuts have the same probability, and a part may be empty.
    """
    if generator.random() >= rate:
        return [*encode(text), marks.end]
    start, end = sorted(generator.integers(0, len(text) + 1, size=2))
    prompt = marks.prompt(encode(text[:start]), encode(text[end:]), suffix_first=generator.random() < spm_rate)
    return [*prompt, *encode(text[start:end]), marks.end]
