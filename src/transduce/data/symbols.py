"""The tokenizer of models that write symbols, such as tags: subwords or words for the source, symbols for the target.

    <pad> <s> </s> <unk> 0 to 3    the control pieces
    symbols                        the words of the target text, which spaces separate; another word is <unk>
    from then on                   the pieces of the source: the ids of its own tokenizer, moved up

The target uses the first ids only, so the model's softmax is as small as the set of symbols.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from os import PathLike
from pathlib import Path

from transduce.data.vocabulary import CONTROLS, UNK, TokenizerLike
from transduce.data.words import words_of
from transduce.errors import UserError

FORMAT = "transduce subwords and symbols"
MAX_SYMBOLS = 10_000


def is_of_symbols(text: str) -> bool:
    """Return True if a `tokenizer.json` is that of a model that writes symbols."""
    return FORMAT in text[:100]


def parts(text: str) -> tuple[str, list[str]]:
    """Return the `tokenizer.json` of the source, and the symbols. Raises UserError for a text of another form."""
    try:
        content = json.loads(text)
        source, symbols = content["source"], content["symbols"]
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise UserError(f"it has no source and symbols ({problem!r}); use another copy") from None
    is_list = isinstance(symbols, list) and all(isinstance(symbol, str) for symbol in symbols)
    if not isinstance(source, str) or not is_list or problem_of(symbols):
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


class SubwordsAndSymbols:
    """The tokenizer of one side of such a model. source: the tokenizer of the source alone. side: which side."""

    def __init__(self, source: TokenizerLike, symbols: Sequence[str], side: str = "source") -> None:
        n_fixed = len(CONTROLS) + len(symbols)
        self.kind: str = source.kind
        self.vocab_size: int = n_fixed if side == "target" else len(symbols) + source.vocab_size
        self.tags: Sequence[str] = source.tags if side == "source" else []
        self.symbols = [*symbols]
        self._source, self._side = source, side
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

    @property
    def target(self) -> "SubwordsAndSymbols":
        """The tokenizer of the target, with the first ids alone."""
        return self if self._side == "target" else self._of_target

    @cached_property
    def _of_target(self) -> "SubwordsAndSymbols":
        return SubwordsAndSymbols(self._source, self.symbols, "target")

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line of this side, without BOS and EOS."""
        return self.encode_batch([line])[0]

    def split_tag(self, line: str) -> tuple[str, str]:
        """Return the tag that a line begins with, and the rest of the line; "" and the line if it begins with none."""
        return self._source.split_tag(line) if self._side == "source" else ("", line)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return `encode(line)` for each line."""
        if self._side == "target":
            return [[self._ids.get(word, UNK) for word in words_of(line)] for line in lines]
        return [self._moved(ids) for ids in self._source.encode_batch(lines)]

    def encode_dropout(self, line: str, *, p: float, key: str) -> list[int]:
        """Return the ids of a line under BPE-dropout, which changes no symbol."""
        if self._side == "target":
            return self.encode(line)
        return self._moved(self._source.encode_dropout(line, p=p, key=key))

    def decode(self, ids: Iterable[int]) -> str:
        """Return symbols with spaces between them, and pieces of the source as text. Control ids are left out."""
        first, texts = len(CONTROLS) + len(self.symbols), []
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

    @property
    def vocabulary(self) -> list[str]:
        """The pieces by id, of both sides. A piece of the source may be spelled as a symbol."""
        pieces = self._source.vocabulary
        return [*CONTROLS, *self.symbols, *pieces[len(CONTROLS) :]]

    @property
    def sha256(self) -> str:
        """The SHA-256 of `tokenizer.json`, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the text of `tokenizer.json`."""
        content = {"format": FORMAT, "symbols": self.symbols, "source": self._source.to_json()}
        return json.dumps(content, ensure_ascii=False, indent=1) + "\n"

    def save(self, path: str | PathLike[str]) -> None:
        """Write `tokenizer.json` to `path`."""
        Path(path).write_bytes(self.to_json().encode())
