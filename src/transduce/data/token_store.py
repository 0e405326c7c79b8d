"""The token store: the training text as ids on disk, prepared once, in memory never.

    corpora -> plain text -> parts (`transduce.data.tokenize_corpus`, once) -> TokenStore -> pairs, lengths

What detection of damage means here: a part whose footer, size or place is wrong is found when a store is opened, and
is prepared anew. The rest of a part is tested whenever it is read: then `Damaged` is raised (the machine's fault, an
OSError), the part is removed, and the next opening prepares it anew. `TokenStore.check` reads everything.
"""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from transduce.data import text
from transduce.data.corpora import Corpus, plain_files
from transduce.data.token_file import Pair, Part, find_part
from transduce.data.tokenize_corpus import Scan, jobs, prepare, scans
from transduce.data.vocabulary import TokenizerLike

STORE_VERSION = 2
SIDES = ("src", "tgt")
SHOWN = 20  # line numbers in a message


@dataclass(frozen=True)
class TokenStore:
    """The tokens of some corpora, one after the other: pair i is `store[i]`.

    key: hash of texts, weights and tokenizer. owners: for each part the number of its corpus.
    """

    key: str
    corpora: tuple[Corpus, ...]
    parts: tuple[Part, ...]
    owners: tuple[int, ...]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, pair: int) -> Pair:
        place, number = self._place(pair)
        return self.parts[place].read(number)

    def lengths(self) -> Iterator[tuple[int, np.ndarray, float]]:
        """Part by part: the number of its first pair, its lengths uint16 (n,2), and the weight of its corpus.

        A length counts EOS, so 1 is an empty side; `part.TOO_LONG` stands for all over it, too.
        """
        for end, part, owner in zip(self._ends.tolist(), self.parts, self.owners, strict=True):
            yield end - len(part), part.lengths(), self.corpora[owner].weight

    def where(self, pairs: np.ndarray, shown: int = SHOWN) -> str:
        """Where the text of `pairs` is, for a message: "train.en and train.de, lines 3, 17" (at most `shown`)."""
        lines: dict[str, list[int]] = {}
        for pair in pairs:
            place, number = self._place(pair)
            line = self.parts[place].contents.first + number + 1
            lines.setdefault(self.corpora[self.owners[place]].name, []).append(line)
        return "; ".join(f"{name}, lines {_some(numbers, shown)}" for name, numbers in lines.items())

    def lines(self) -> Iterator[tuple[str, str]]:
        """All pairs as text, from the files."""
        for src, tgt in dict.fromkeys(part.contents.texts for part in self.parts):
            yield from text.read_pairs(src, tgt)

    def check(self) -> None:
        """Read everything. Raises Damaged for the first part that is not as it was written."""
        for part in self.parts:
            part.check()

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(part) for part in self.parts])

    def _place(self, pair: int) -> tuple[int, int]:
        """Which part holds a pair, and the number of the pair there."""
        place = int(np.searchsorted(self._ends, pair, side="right"))
        return place, int(pair) - int(self._ends[place]) + len(self.parts[place])


def _some(numbers: list[int], shown: int) -> str:
    more = f" and {len(numbers) - shown} more" if len(numbers) > shown else ""
    return ", ".join(map(str, numbers[:shown])) + more


def open_store(folder: Path, corpora: Sequence[Corpus], tokenizer: TokenizerLike) -> TokenStore:
    """The store of these corpora and this tokenizer under `folder`; what is missing there is prepared first.

    Whatever else lies in `folder` belongs to other text or another tokenizer, and is removed. Of several processes one
    opens it first, and the others when that one is done. Raises UserError for what is wrong with the text.
    """
    texts = [plain_files(corpus, folder / f"text-{number}") for number, corpus in enumerate(corpora)]
    scanned = scans(folder / "scans.json", texts)
    keys = [_key(scan, tokenizer) for scan in scanned]
    _remove_others(folder, {"scans.json", *keys, *(f"text-{number}" for number in range(len(corpora)))})
    token_bytes = 2 if tokenizer.vocab_size <= 1 << 16 else 4
    wanted = [jobs(scan, folder / key, key, token_bytes) for scan, key in zip(scanned, keys, strict=True)]
    prepare([job for of_one in wanted for job in of_one if not find_part(Path(job.path), job.contents)], tokenizer)
    parts, owners = [], []
    for number, job in ((number, job) for number, of_one in enumerate(wanted) for job in of_one):
        part = find_part(Path(job.path), job.contents)
        if part is None:
            raise OSError(f"{job.path} was prepared and is gone; is another process at work in its folder?")
        parts.append(part)
        owners.append(number)
    weights = " ".join(f"{corpus.weight:g}" for corpus in corpora)
    return TokenStore(_sha256([*keys, weights]), tuple(corpora), tuple(parts), tuple(owners))


def _key(scan: Scan, tokenizer: TokenizerLike) -> str:
    return _sha256([f"store {STORE_VERSION}", *(side.sha256 for side in scan), tokenizer.sha256])


def _sha256(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _remove_others(folder: Path, ours: set[str]) -> None:
    """Remove what belongs to no store of `ours`, and what a killed preparation left unfinished."""
    for path in [*folder.iterdir(), *folder.glob("*/part-*.tmp-*")]:
        if path.name not in ours:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
