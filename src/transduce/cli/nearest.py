"""The output of each line that is nearest to its reference, as `translate --nearest` prints it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from transduce.data.text import read_lines, unequal
from transduce.decoding.hypothesis import Translation
from transduce.decoding.mbr import nearest
from transduce.decoding.options import MbrMetric


@dataclass(frozen=True)
class Nearest:
    """References, one for each line, and the score of a sentence that says how near an output is."""

    path: Path
    metric: MbrMetric = "bleu"

    def first(self, chunks: Iterable[list[Translation]], name: str, start: int = 0) -> Iterator[list[Translation]]:
        """Yield the translations, each with its nearest output before the others.

        name: the name of the source text. start: lines of it that come before. Raises UserError, after the last line
        that both texts have, for texts with different numbers of lines.
        """
        references = islice(read_lines(self.path), start, None)
        number = start
        for chunk in chunks:
            lines = [*islice(references, len(chunk))]
            yield [_nearest_first(*pair, self.metric) for pair in zip(chunk, lines, strict=False)]
            number += len(chunk)
            if len(lines) < len(chunk):
                raise unequal((f"{self.path}", name), (number - len(chunk) + len(lines), number))
        more = sum(1 for _ in references)
        if more:
            raise unequal((name, f"{self.path}"), (number, number + more))


def _nearest_first(translation: Translation, reference: str, metric: MbrMetric) -> Translation:
    """Return the output that is nearest to the reference, with the others as alternatives."""
    if not translation.alternatives:
        return translation
    outputs = [replace(translation, alternatives=()), *translation.alternatives]
    best = outputs.pop(nearest([output.text for output in outputs], reference, metric))
    return replace(best, alternatives=tuple(outputs))
