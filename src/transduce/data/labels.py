"""The tokenizer of a classifier: the tokens of a pre-trained encoder for the sentence, and one token for its label.

    source    ids of the encoder's own tokenizer.json, with the tokens that it puts before and after a text
    target    a line is a label, and label i has the id i

The labels come from the training text, sorted. White space before and after a label does not count.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from tokenizers import Tokenizer as LibraryTokenizer

from transduce.console import printable
from transduce.data import corpora
from transduce.data.corpora import Corpus
from transduce.data.engine import encode_texts, library_errors
from transduce.data.text import is_blank
from transduce.data.vocabulary import TokenizerLike, are_different_texts, fields_of, json_of
from transduce.errors import UserError

FORMAT = "transduce encoder and labels"
TOKENIZER = "tokenizer.json"
WHERE = f"the {TOKENIZER} of the encoder"
MAX_LABELS, MAX_CHARACTERS = 1_000, 100  # different labels, and the length of one


def label_of(line: str) -> str:
    """Return the label of a line: the line without white space around it."""
    return line.strip()


def problem_of(line: str) -> str | None:
    """Return the expectation that the line of a label does not meet, or None."""
    if is_blank(line):
        return "expected a label, not a blank line; give the label, or leave out this line of both texts"
    if len(line) > MAX_CHARACTERS or "\t" in line.strip():
        return f"expected a label of at most {MAX_CHARACTERS} characters without a tab; give the sentences first"
    return None


def learn_labels(texts: Sequence[Corpus]) -> list[str]:
    """Return the labels of training text, sorted. Raises UserError, with file and line, for a line that is none.

    Raises UserError also for a single label, and for more than MAX_LABELS.
    """
    labels: set[str] = set()
    names = printable(", ".join(str(corpus.tgt or corpus.src) for corpus in texts))
    for corpus in texts:
        name = printable(corpus.tgt or corpus.src)
        for number, (_, line) in enumerate(corpora.read_pairs(corpus), start=1):
            if problem := problem_of(line):
                raise UserError(f"{name}:{number}: {problem}")
            labels.add(label_of(line))
            if len(labels) > MAX_LABELS:
                raise UserError(
                    f"{name}:{number}: expected at most {MAX_LABELS:,} different labels, and this is one more; "
                    "give the sentences first, then the labels"
                )
    if len(labels) < 2:
        raise UserError(
            f"{names}: expected at least 2 different labels, not {printable(', '.join(labels)) or 'none'} alone; "
            "add sentences of another class"
        )
    return sorted(labels)


class TextAndLabels(TokenizerLike):
    """The tokenizer of one side of a classifier.

    files: texts of `tokenizer.json` and of other files in the encoder's folder, by name. labels: by id. vocab_size:
    rows of the encoder's embedding, which may be more than the tokens. A row without a token has a name that no token
    has. Raises UserError for a `tokenizer.json` that the library tokenizers refuses, or with an id that has no row.
    """

    def __init__(self, files: Mapping[str, str], labels: Sequence[str], vocab_size: int, side: str = "source") -> None:
        self.files = dict(files)
        self.labels = [*labels]
        self.side = side
        self._n_rows = vocab_size
        self._arguments = (self.files, self.labels, vocab_size)
        self._ids = {label: i for i, label in enumerate(labels)}
        self._engine = _engine(self.files.get(TOKENIZER, ""), vocab_size)
        tokens = [self._engine.id_to_token(i) or f"<row {i}>" for i in range(vocab_size)]
        self.vocabulary = self.labels if side == "target" else tokens
        self.vocab_size: int = len(self.vocabulary)
        is_wordpiece = json.loads(self.files[TOKENIZER])["model"].get("type") == "WordPiece"
        self.kind: str = "wordpiece" if is_wordpiece else "bpe"

    @classmethod
    def from_json(cls, text: str) -> "TextAndLabels":
        """Return the tokenizer of a text that `to_json` returned. Raises UserError for any other text."""
        files, labels, vocab_size = fields_of(text, "files", "labels", "vocab_size")
        are_files = isinstance(files, dict) and TOKENIZER in files and all(type(file) is str for file in files.values())
        are_labels = are_different_texts(labels) and 2 <= len(labels) <= MAX_LABELS
        if not are_files or not are_labels or type(vocab_size) is not int:
            raise UserError("its files, labels or vocab_size are of another form; use another copy")
        return cls(files, labels, vocab_size)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line of this side. A blank line, and a label that is not known, has none."""
        if self.side == "target":
            labels = map(label_of, lines)
            return [[self._ids[label]] if label in self._ids else [] for label in labels]
        encodings = encode_texts(self._engine, lines, self._n_rows, WHERE)
        return [[] if is_blank(line) else encoding.ids for line, encoding in zip(lines, encodings, strict=True)]

    def drop_merges(self, rows: Sequence[np.ndarray], *, p: float, keys: np.ndarray) -> list[np.ndarray]:
        """Raise UserError: the encoder knows no other tokens."""
        raise UserError(f"data.bpe_dropout={p}: expected 0 with labels")

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids of this side."""
        if self.side == "target":
            return " ".join(self.pieces(ids))
        return self._engine.decode([*ids], skip_special_tokens=True)

    def to_json(self) -> str:
        """Return the text of `tokenizer.json`."""
        return json_of({"format": FORMAT, "vocab_size": self._n_rows, "labels": self.labels, "files": self.files})


def _engine(text: str, vocab_size: int) -> LibraryTokenizer:
    """Return the library's tokenizer, which neither cuts nor pads. Raises UserError if it does not fit the encoder."""
    with library_errors(f"the package tokenizers refuses its {TOKENIZER}"):
        engine = LibraryTokenizer.from_str(text)
    most = max(engine.get_vocab().values(), default=-1)
    if most >= vocab_size:
        raise UserError(f"its ids go up to {most:,}, not below vocab_size={vocab_size:,}; use another copy")
    engine.no_padding()
    engine.no_truncation()
    encode_texts(engine, [""], vocab_size, WHERE)  # its special tokens
    return engine
