"""The tokenizer of models that write symbols, such as tags: subwords or words for the source, symbols for the target.

    <pad> <s> </s> <unk> 0 to 3    the control pieces
    symbols                        the words of the target text, which spaces separate; another word is <unk>
    from then on                   the pieces of the source: the ids of the source tokenizer, moved up

The target uses the first ids only, so the model's softmax is as small as the set of symbols.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np

from transduce.data.vocabulary import CONTROLS, UNK, TokenizerLike, are_different_texts, fields_of, json_of
from transduce.data.words import words_of
from transduce.errors import UserError

FORMAT = "transduce subwords and symbols"
MAX_SYMBOLS = 10_000


def parts(text: str) -> tuple[str, list[str]]:
    """Return the `tokenizer.json` of the source, and the symbols. Raises UserError for a text of another form."""
    source, symbols = fields_of(text, "source", "symbols")
    if type(source) is not str or not are_different_texts(symbols) or problem_of(symbols):
        raise UserError("its symbols are not different words; use another copy")
    return source, symbols


def problem_of(symbols: Sequence[str]) -> str | None:
    """Return the expectation that a set of symbols does not meet, or None."""
    if not 0 < len(symbols) <= MAX_SYMBOLS:
        return f"1 to {MAX_SYMBOLS:,} different words in the target text, not {len(symbols):,}"
    if len({*symbols, *CONTROLS}) < len(symbols) + len(CONTROLS):
        return f"different words, and none of {' '.join(CONTROLS)}, in the target text"
    if not all(symbol and " " not in symbol for symbol in symbols):
        return "words without a space in the target text"
    return None


class SubwordsAndSymbols(TokenizerLike):
    """The tokenizer of one side of such a model. source: the tokenizer of the source text."""

    def __init__(self, source: TokenizerLike, symbols: Sequence[str], side: str = "source") -> None:
        n_fixed = len(CONTROLS) + len(symbols)
        self.kind: str = source.kind
        self.vocab_size: int = n_fixed if side == "target" else len(symbols) + source.vocab_size
        self.vocabulary = [*CONTROLS, *symbols, *source.vocabulary[len(CONTROLS) :]]
        self.tags = source.tags if side == "source" else ()
        self.symbols = [*symbols]
        self.side = side
        self._source = source
        self._arguments = (source, self.symbols)
        self._ids = {symbol: i for i, symbol in enumerate(symbols, start=len(CONTROLS))}

    @classmethod
    def learn(
        cls, pairs: Iterable[tuple[str, str]], learn: Callable[[Iterable[str]], TokenizerLike]
    ) -> "SubwordsAndSymbols":
        """Return the tokenizer of training text. learn: makes the tokenizer of the source lines.

        Reads the pairs once. Raises UserError if the target text has too many different words to be symbols.
        """
        symbols: set[str] = set()

        def sources() -> Iterator[str]:
            for src, tgt in pairs:
                symbols.update(words_of(tgt))
                yield src

        source = learn(sources())
        if problem := problem_of(sorted(symbols)):
            raise UserError(f"data.target_tokens='symbols': expected {problem}; use data.target_tokens=subwords")
        return cls(source, sorted(symbols))

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return `encode(line)` for each line."""
        if self.side == "target":
            return [[self._ids.get(word, UNK) for word in words_of(line)] for line in lines]
        return [self._moved(ids) for ids in self._source.encode_batch(lines)]

    def drop_merges(self, rows: Sequence[np.ndarray], *, p: float, keys: np.ndarray) -> list[np.ndarray]:
        """Return rows of ids of this side under BPE-dropout, which changes no symbol."""
        if self.side == "target":
            return [*rows]
        own = [np.array(self._moved(row.tolist(), -1), int) for row in rows]
        return [np.array(self._moved(row.tolist()), int) for row in self._source.drop_merges(own, p=p, keys=keys)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return symbols with spaces between them, and pieces of the source as text. Control ids are left out."""
        first = len(CONTROLS) + len(self.symbols)
        texts = []
        for is_source, run in groupby((i for i in ids if i >= len(CONTROLS)), lambda i: i >= first):
            own = [*run]
            texts += [self._source.decode(self._moved(own, -1))] if is_source else [self._symbol(i) for i in own]
        return " ".join(texts)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id in printable form. A piece of the source may be spelled as a symbol."""
        first = len(CONTROLS) + len(self.symbols)
        own = [*ids]
        source = self._source.pieces([i if i < len(CONTROLS) else max(i - len(self.symbols), 0) for i in own])
        is_symbol = [len(CONTROLS) <= i < first for i in own]
        return [self._symbol(i) if at else piece for i, at, piece in zip(own, is_symbol, source, strict=True)]

    def _symbol(self, i: int) -> str:
        return self.symbols[i - len(CONTROLS)]

    def _moved(self, ids: Iterable[int], direction: int = 1) -> list[int]:
        """Return ids of the source's own tokenizer as ids of this one; with direction -1 the other way."""
        distance = direction * len(self.symbols)
        return [i if i < len(CONTROLS) else i + distance for i in ids]

    def to_json(self) -> str:
        """Return the text of `tokenizer.json`."""
        return json_of({"format": FORMAT, "symbols": self.symbols, "source": self._source.to_json()})
