"""The filters of models that read whole lines: `transduce fill`, `embed` and `classify`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Generic, TypeVar

import msgspec
from cyclopts import Parameter

if TYPE_CHECKING:
    from transduce.cli import stream
    from transduce.family.inference.text_encoder import Answer

T = TypeVar("T")
BertArgument = Annotated[
    Path, Parameter(help="Folder of a BERT: in Hugging Face's form with tokenizer.json, or RUN/model.")
]


@dataclass(frozen=True)
class LineWork(Generic[T]):
    """The work of a loaded model on lines.

    answers: takes lines and the number of the first one, and returns their answers. text: returns the line of output
    for a value. record: returns the JSON value for a value.
    """

    answers: "Callable[[Sequence[str], int], Sequence[Answer[T]]]"
    text: Callable[[T], str]
    record: Callable[[T], object] = lambda value: value


def answer_lines(load_work: Callable[[], LineWork[T]], source: Path | None, target: Path | None, *, json: bool) -> None:
    """Write a line for each line of `source` into `target`, each as soon as it is ready.

    source, target: None is standard input or standard output. The line of a blank line is blank, or null with `json`.
    """
    from transduce.cli.stream import CHUNK_LINES, OutputLine, filter_lines
    from transduce.data.text import arriving_lines

    def load() -> "stream.LineFilter":
        from transduce.model.cpu_backend import keep_freed_memory

        keep_freed_memory()
        work = load_work()
        work.answers([], 1)  # an error of the folder or of an option comes before the first line is read

        def line_of(value: T | None) -> bytes:
            if json:
                return msgspec.json.encode(None if value is None else work.record(value)) + b"\n"
            return ("" if value is None else work.text(value)).encode() + b"\n"

        def output_lines(lines: BinaryIO, name: str) -> Iterator[list[OutputLine]]:
            number = 1
            for chunk in arriving_lines(lines, name, at_most=CHUNK_LINES):
                yield [OutputLine(line_of(answer.value), answer.problem) for answer in work.answers(chunk, number)]
                number += len(chunk)

        return output_lines

    filter_lines(source, target, "encoding", load)
