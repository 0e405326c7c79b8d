"""`transduce parse`: parse sentences into constituency trees."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

from cyclopts import Parameter

from transduce.cli.options import (
    AlphaOption,
    BeamSizeOption,
    Flag,
    InputOption,
    ModelsArgument,
    OutputOption,
    with_device,
)
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.cli.stream import LineFilter
    from transduce.decoding.options import DecodingOptions
    from transduce.parsing.parse import Parse

AutoPrecisionOption = Annotated[
    Literal["fp32", "bf16", "int8", "auto"],
    Parameter(help="fp32, bf16, int8 (only on CPUs), or auto: the fastest on this machine, printed to stderr."),
]


@with_device
def parse(
    *models: ModelsArgument,
    input: InputOption = None,
    output: OutputOption = None,
    beam_size: BeamSizeOption = None,
    alpha: AlphaOption = None,
    precision: AutoPrecisionOption = "fp32",
    svg: Annotated[Path | None, Parameter(help="Folder for pictures of the trees, one for each line: 1.svg.")] = None,
    json: Annotated[Flag, Parameter(help="Print one JSON object per line, with tree and score.")] = False,
) -> None:
    """Parse sentences: one constituency tree for each input line.

    A line is a sentence, with spaces between its words and before punctuation. Each tree has exactly these words, in
    brackets of the Penn Treebank. Blank lines stay blank. At the end, standard error gets the number of symbols at
    which the most likely one would have broken the tree.

    Examples
    --------
    transduce parse run/model < sentences > trees
    echo "The cat sleeps ." | transduce parse run/model --svg pictures
    """
    from transduce.cli.stream import filter_lines
    from transduce.decoding.options import DecodingOptions

    options = DecodingOptions(beam_size=beam_size, alpha=alpha)
    work = _Parsing(models, precision, options, svg, json)
    filter_lines(input, output, "parsing", work.load)
    work.report()


class _Parsing:
    """The output lines, and the counts over all lines."""

    def __init__(
        self, models: tuple[Path, ...], precision: str, options: "DecodingOptions", svg: Path | None, json: bool
    ) -> None:
        self.models = models
        self.precision = precision
        self.options = options
        self.svg = svg
        self.json = json
        self.n_lines = self.n_trees = self.n_symbols = self.n_overruled = self.n_changed = 0

    def load(self) -> "LineFilter":
        """Load the models, and return the function that answers lines."""
        from transduce.cli.stream import CHUNK_LINES, OutputLine
        from transduce.data.text import arriving_lines
        from transduce.model.cpu_backend import keep_freed_memory
        from transduce.parsing.parse import load_parser

        keep_freed_memory()
        if self.svg is not None:
            if self.svg.exists() and not self.svg.is_dir():
                raise UserError(f"--svg={self.svg}: expected a folder, but it is a file; give another folder")
            self.svg.mkdir(parents=True, exist_ok=True)
        parser = load_parser(*self.models, precision=self.precision)
        if self.precision == "auto":
            print(f"transduce: precision {parser.translator.precision}", file=sys.stderr)
        self.options.resolve(parser.translator.config.search)

        def output_lines(lines: BinaryIO, name: str) -> Iterator[list[OutputLine]]:
            for chunk in arriving_lines(lines, name, at_most=CHUNK_LINES):
                yield [OutputLine(self._line(parse), parse.problem) for parse in parser.parse(chunk, self.options)]

        return output_lines

    def _line(self, result: "Parse") -> bytes:
        """Count a tree, draw it, and return its line."""
        import msgspec

        from transduce.parsing.tree_picture import tree_picture

        self.n_lines += 1
        self.n_trees += result.tree is not None
        self.n_symbols += result.n_symbols
        self.n_overruled += result.n_overruled
        self.n_changed += result.n_overruled > 0
        if self.svg is not None and result.tree is not None:
            (self.svg / f"{self.n_lines}.svg").write_text(tree_picture(result.tree), "utf-8")
        text = "" if result.tree is None else str(result.tree)
        values = {"tree": text or None, "score": result.score, "n_symbols": result.n_symbols}
        values |= {"n_overruled": result.n_overruled, "problem": result.problem}
        return (msgspec.json.encode(values) if self.json else text.encode()) + b"\n"

    def report(self) -> None:
        """Print how often the constraint had to act."""
        if self.n_trees:
            where = f"in {self.n_changed:,} of {self.n_trees:,} trees"
            what = f"at {self.n_overruled:,} of {self.n_symbols:,} symbols, {where}"
            print(f"transduce: the most likely symbol would have broken the tree {what}", file=sys.stderr)
