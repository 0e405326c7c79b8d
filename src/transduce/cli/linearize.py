"""`transduce linearize`: turn a treebank into text to train a parser on."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from transduce.cli.output import check_output, output_file
from transduce.errors import UserError


def linearize(
    *treebank: Annotated[Path, Parameter(required=True)],
    out: Path,
    form: Literal["by-word", "top-down"] = "by-word",
) -> None:
    """Turn a treebank into text to train a parser on.

    The command writes three files that match line by line: OUT.words, the sentences; OUT.symbols, the trees as a model
    writes them; and OUT.trees, the trees in brackets. Function tags and empty elements are removed.

    Parameters
    ----------
    treebank
        Files with brackets of the Penn Treebank, one after the other. A tree may span several lines.
    out
        Path of the new files, without their endings.
    form
        by-word writes two symbols for each word, which a model learns faster. top-down writes a symbol for each begin
        and end of a phrase, and for each tag, as the 2017 code does.

    Examples
    --------
    transduce linearize wsj/0[2-9]/*.mrg wsj/1*/*.mrg wsj/2[01]/*.mrg --out train
    transduce linearize wsj/22/*.mrg --out dev
    transduce linearize wsj/22/*.mrg --out dev.top-down --form top-down
    """
    from transduce.parsing.linearize import linearize as symbols_of
    from transduce.parsing.trees import read_trees, sentence_of

    paths = [Path(f"{out}.{ending}") for ending in ("words", "symbols", "trees")]
    for path in paths:
        for source in treebank:
            check_output(path, source, option="--out")
    symbols: set[str] = set()
    n_trees = n_words = longest = 0
    with ExitStack() as stack:
        files = [stack.enter_context(output_file(path)) for path in paths]
        for source in treebank:
            for tree in read_trees(source):
                of_tree = symbols_of(tree, form)
                texts = (sentence_of(tree.words), " ".join(of_tree), str(tree))
                for file, text in zip(files, texts, strict=True):
                    file.write(text.encode() + b"\n")
                symbols.update(of_tree)
                n_trees, n_words = n_trees + 1, n_words + len(tree.words)
                longest = max(longest, len(of_tree))
        if not n_trees:  # an error leaves the old files as they are
            names = " ".join(map(str, treebank))
            raise UserError(f"{names}: expected at least 1 tree in brackets; give a treebank")
    print(f"{n_trees:,} trees, {n_words:,} words, {len(symbols):,} different symbols, at most {longest:,} in a tree")
