"""Parsing: sentence -> tokens -> search under the constraint of trees -> symbols -> tree. The API of a trained parser.

parser = load_parser("run/model")
print(parser.parse(["The cat sleeps ."])[0].tree)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transduce.data.vocabulary import CONTROLS
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.options import DEFAULTS, DecodingOptions
from transduce.decoding.segmentation import check_lines, encode_lines, excess
from transduce.parsing.linearize import tree_of
from transduce.parsing.tree_constraint import symbols_of, tree_constraint
from transduce.parsing.trees import Tree, sentence_of, words_of
from transduce.translate import Translator, load

# Options of translation only.
NEEDLESS = ("sampling", "mbr", "tag", "shortlist", "n_best", "loops", "split", "numbers", "capitals", "placeholders")
NEEDLESS += ("alignment",)


@dataclass(frozen=True)
class Parse:
    """The tree of a line.

    tree: None for a blank line, and for one with a problem. problem: the reason for no tree, or None.
    score: log-probability over length penalty, by which the search ranks trees. n_symbols: number of symbols that the
    model wrote for the tree, its end included. n_overruled: number of these symbols at which the most likely symbol
    would have broken the tree.
    """

    tree: Tree | None
    score: float = 0.0
    n_symbols: int = 0
    n_overruled: int = 0
    problem: str | None = None


class Parser:
    """A model that writes trees, or an ensemble of several. Raises UserError for a model that writes other text."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        tokenizer = translator.tokenizer
        n_symbols = tokenizer.target.vocab_size if tokenizer.target is not tokenizer else len(CONTROLS)
        self.table = symbols_of(tokenizer.vocabulary[:n_symbols])

    def parse(self, lines: Sequence[str], options: DecodingOptions = DEFAULTS) -> list[Parse]:
        """Return the tree of each line, whose words are between white space. On a CPU, other lines change nothing.

        A line is one sentence, however long it is. A line of more than 8,192 tokens has no tree, and a `problem`. A
        blank line has neither. options: settings of the search. Raises UserError for options that cannot be met.
        """
        check_lines(lines=lines)
        for name in NEEDLESS:
            options.refuse([name], "for trees; leave it out")
        settings = replace(options.resolve(self.translator.config.search), min_tokens=0)
        parses = [Parse(None)] * len(lines)
        words = [words_of(line) for line in lines]
        ids_of_lines = encode_lines(map(sentence_of, words), self.translator.tokenizer)
        sources: dict[int, list[int]] = {}
        for i, ids in enumerate(ids_of_lines):
            if not words[i]:
                continue
            problem = excess(sentence_of(words[i]), ids, self.translator.longest_source)
            most = 0 if problem or ids is None else self.translator.max_lengths([ids], settings)[0]
            shortest = self.table.shortest(len(words[i]))
            if ids is None or problem or most < shortest:
                need = f"the {shortest - 1:,} of {len(words[i]):,} words"
                problem = problem or f"expected a tree of at most {most - 1:,} symbols, not {need}; split the line"
                parses[i] = Parse(None, problem=problem)
            else:
                sources[i] = ids
        most = self.translator.max_lengths([*sources.values()], settings)
        constraint = tree_constraint(self.table, [len(words[i]) for i in sources], most)
        outputs = self.translator.search([*sources.values()], settings, constraint=constraint)
        for i, (best, *_) in zip(sources, outputs, strict=True):
            parses[i] = self._parse(best, words[i])
        return parses

    def _parse(self, hypothesis: Hypothesis, words: Sequence[str]) -> Parse:
        assert hypothesis.finished  # the constraint leaves room for the end
        tree = tree_of([self.table.symbols[i] for i in hypothesis.ids], words)
        return Parse(tree, hypothesis.score, len(hypothesis.token_log_probs), hypothesis.n_overruled)


def load_parser(*paths: str | Path, precision: str = "fp32", device: str = "auto") -> Parser:
    """Load the model of a folder, ready to parse; arguments as of `transduce.load`. UserError for another model."""
    return Parser(load(*paths, precision=precision, device=device))
