"""The tokenizer of a source whose words are tokens, as for tagging and parsing: token i is word i.

    <pad> <s> </s> <unk> 0 to 3    the control pieces; <unk> is a word of no class
    words                          those that the training text has at least twice, the most frequent first
    classes                        of the other words

A class is what the spelling of a rare word tells: the kinds of its characters and its last letters. A word belongs to
the first of its classes that the vocabulary has: with three last letters, with two, or with none.

    Phosphorylation    Aa -ion     Aa -on     Aa
    p53-dependent      a0- -ent    a0- -nt    a0-
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from transduce.data.draws import token_keys, uniform
from transduce.data.vocabulary import CONTROLS, UNK, TokenizerLike, are_different_texts, fields_of, json_of
from transduce.errors import UserError

FORMAT = "transduce words"
RARE = 1  # a word that the training text has so often gets no separate id
LEAST = 10  # rare words that a class must have for a separate id


def classes_of(word: str) -> tuple[str, str, str]:
    """Return the classes of a word, the narrowest first. A class has a space, so no word is spelled as one."""
    kinds = (
        ("A", word[:1].isupper()),
        ("a", any(c.islower() for c in word)),
        ("B", any(c.isupper() for c in word[1:])),
        ("0", any(c.isdigit() for c in word)),
        ("-", "-" in word[1:]),
    )
    shape = " " + "".join(letter for letter, has in kinds if has)
    return f"{shape} -{word[-3:].lower()}", f"{shape} -{word[-2:].lower()}", shape


class Words(TokenizerLike):
    """The tokenizer of a text whose words, between spaces, are tokens. Another word gets the id of its class.

    words, classes: parts of the vocabulary, in the order of their ids.
    """

    kind = "words"

    def __init__(self, words: Sequence[str], classes: Sequence[str], side: str = "source") -> None:
        self.words = [*words]
        self.classes = [*classes]
        self.side = side
        self.vocabulary = [*CONTROLS, *words, *classes]
        self._arguments = (self.words, self.classes)
        self._ids = {token: i for i, token in enumerate(self.vocabulary)}
        self.vocab_size: int = len(self._ids)

    @classmethod
    def learn(cls, lines: Iterable[str], *, vocab_size: int) -> "Words":
        """Return the tokenizer of training text, with at most `vocab_size` ids."""
        counts = Counter(word for line in lines for word in words_of(line))
        rare = Counter(name for word, n in counts.items() if n <= RARE for name in classes_of(word))
        common = [(word, n) for word, n in counts.items() if n > RARE and word not in CONTROLS]
        classes = [name for name, n in sorted(rare.items(), key=_most_first) if n >= LEAST]
        classes = classes[: max(0, vocab_size - len(CONTROLS)) // 4]
        room = max(0, vocab_size - len(CONTROLS) - len(classes))
        return cls([word for word, _ in sorted(common, key=_most_first)[:room]], sorted(classes))

    @classmethod
    def from_json(cls, text: str) -> "Words":
        """Return the tokenizer of a text that `to_json` returned. Raises UserError for any other text."""
        words, classes = fields_of(text, "words", "classes")
        are_texts = are_different_texts(words) and are_different_texts(classes)
        if not are_texts or not are_different_texts([*CONTROLS, *words, *classes]):
            raise UserError("its words and classes are not different texts; use another copy")
        return cls(words, classes)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, without BOS and EOS: one for each word."""
        return [[self._id(word) for word in words_of(line)] for line in lines]

    def _id(self, word: str) -> int:
        number = self._ids.get(word, UNK)
        return number if number > UNK else self._class_id(word)

    def _class_id(self, word: str) -> int:
        return next((self._ids[name] for name in classes_of(word) if name in self._ids), UNK)

    def drop_merges(self, rows: Sequence[np.ndarray], *, p: float, keys: np.ndarray) -> list[np.ndarray]:
        """Return rows of ids in which each word, with probability `p`, has the id of its class.

        A row is a function of its ids, `p` and its key. So the classes of unknown words are learned from all words and
        not only from rare ones.
        """
        lengths = np.array([len(row) for row in rows])
        ids = np.concatenate(rows)
        dropped = np.where(uniform(token_keys(keys, lengths)) < p, self._class_ids[ids], ids)
        return np.split(dropped, lengths.cumsum()[:-1])

    @cached_property
    def _class_ids(self) -> np.ndarray:
        """The id of the class of each token; of a class its own id."""
        return np.array(
            [
                i if i < len(CONTROLS) or " " in token else self._class_id(token)
                for i, token in enumerate(self.vocabulary)
            ]
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Return the words and classes with spaces between them. Control ids are left out."""
        return " ".join(self.pieces(i for i in ids if i >= len(CONTROLS)))

    def to_json(self) -> str:
        """Return the text of `tokenizer.json`."""
        return json_of({"format": FORMAT, "words": self.words, "classes": self.classes})


def words_of(line: str) -> list[str]:
    """Return the words of a line, which are between spaces."""
    return [word for word in line.split(" ") if word]


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    """Order by falling count, then by the text."""
    return -item[1], item[0]
