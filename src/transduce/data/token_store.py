"""The token store: the training text as ids on disk. It is written once. Memory never holds all of it.

    corpora -> plain text -> token files (`transduce.data.tokenize_corpus`, once) -> TokenStore -> pairs, lengths

Damage is detected in two places:

- `open_store` writes a token file again if its footer, size or position in the text is wrong.
- A later read compares checksums. If one differs, the read removes the file and raises DamagedTokenFile (an OSError).
  The next `open_store` writes the file again. `TokenStore.check` reads everything.
"""

import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from transduce.data import text
from transduce.data.corpora import Corpus, hidden_modes, plain_files
from transduce.data.disk import check_room
from transduce.data.token_file import BLOCK_PAIRS, TokenFile, TokenRows, close_token_files, open_token_file, rows_of
from transduce.data.tokenize_corpus import CorpusScan, plan_jobs, run_jobs, scan_corpora
from transduce.data.vocabulary import TokenizerLike

STORE_VERSION = 2
SIDES = ("src", "tgt")
LINES_IN_MESSAGE = 20


@dataclass(frozen=True)
class TokenStore:
    """The tokens of several corpora, one after the other. Its pairs are numbered from 0.

    key: the hash of texts, weights and tokenizer. corpus_indices: for each token file, the index of its corpus.
    """

    key: str
    corpora: tuple[Corpus, ...]
    files: tuple[TokenFile, ...]
    corpus_indices: tuple[int, ...]

    def __len__(self) -> int:
        return int(self._offsets[-1])

    @property
    def is_one_text(self) -> bool:
        """True if both sides of each pair are the same line, as in the text of a language model."""
        return all(corpus.is_one_text for corpus in self.corpora)

    def read(self, pairs: np.ndarray) -> TokenRows:
        """Return the ids of the pairs with these numbers, in this order. Reads each block once.

        Raises DamagedTokenFile if a checksum differs.
        """
        indices, numbers = self._locate(pairs)
        keys = indices << 32 | numbers // BLOCK_PAIRS
        different, members = np.unique(keys, return_inverse=True)
        places = [(self.files[key >> 32], key & (1 << 32) - 1) for key in different.tolist()]
        blocks = [file.block(number) for file, number in places]
        sizes = [file.block_size(number) for file, number in places]
        return rows_of(blocks, sizes, members, numbers % BLOCK_PAIRS, self.files[0].contents.token_bytes)

    def lengths(self) -> Iterator[tuple[int, np.ndarray, float]]:
        """Yield, for each token file: the number of its first pair, its lengths uint16 (n,2), the weight of its corpus.

        A length counts EOS: 1 is an empty side. `token_file.TOO_LONG` means at least that many tokens.
        """
        for first, file, corpus in zip(self._offsets[:-1].tolist(), self.files, self.corpus_indices, strict=True):
            yield first, file.lengths(), self.corpora[corpus].weight

    def where(self, pairs: np.ndarray, limit: int = LINES_IN_MESSAGE) -> str:
        """Return the lines of `pairs` for a message, at most `limit`: "train.en and train.de, lines 3, 17"."""
        lines: dict[str, list[int]] = {}
        for index, number in zip(*self._locate(pairs), strict=True):
            line = self.files[index].contents.first + int(number) + 1
            lines.setdefault(self.corpora[self.corpus_indices[index]].name, []).append(line)
        return "; ".join(f"{name}, lines {numbers_in_words(numbers, limit)}" for name, numbers in lines.items())

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield all pairs as text, read from the text files."""
        for src, tgt in dict.fromkeys(file.contents.texts for file in self.files):
            yield from text.read_pairs(src, tgt)

    @cached_property
    def _offsets(self) -> np.ndarray:
        """The number of the first pair of each token file, and the number of pairs."""
        return np.cumsum([0, *map(len, self.files)])

    def _locate(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each pair the index of its token file, and its number in that file."""
        indices = np.searchsorted(self._offsets, pairs, side="right") - 1
        return indices, pairs - self._offsets[indices]


def numbers_in_words(numbers: list[int], limit: int) -> str:
    """Return the first `limit` numbers as text, and how many more there are."""
    more = f" and {len(numbers) - limit} more" if len(numbers) > limit else ""
    return ", ".join(map(str, numbers[:limit])) + more


def open_store(folder: Path, corpora: Sequence[Corpus], tokenizer: TokenizerLike) -> TokenStore:
    """Write the missing token files of these corpora and this tokenizer to `folder`, and return the store.

    Removes the token files of other text or another tokenizer from `folder`. The folder is readable only for users who
    can read all texts. With several processes, one must return from this function before the others call it. Raises
    UserError for mistakes in the text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(folder.stat().st_mode & ~hidden_modes(corpora))
    texts = [plain_files(corpus, folder / f"text-{number}") for number, corpus in enumerate(corpora)]
    scans = scan_corpora(folder / "scans.json", texts)
    keys = [_key(scan, tokenizer) for scan in scans]
    close_token_files()
    _remove_others(folder, {"scans.json", *keys, *(f"text-{number}" for number in range(len(corpora)))})
    token_bytes = 2 if tokenizer.vocab_size <= 1 << 16 else 4
    jobs = [
        (number, job)
        for number, (scan, key) in enumerate(zip(scans, keys, strict=True))
        for job in plan_jobs(scan, folder / key, key, token_bytes)
    ]
    missing = [job for _, job in jobs if not open_token_file(Path(job.path), job.contents)]
    check_room(folder, sum(job.estimated_bytes for job in missing))
    run_jobs(missing, tokenizer)
    files = []
    for _, job in jobs:
        file = open_token_file(Path(job.path), job.contents)
        if file is None:
            raise OSError(f"{job.path}: expected the file just written; let no other process write to its folder")
        files.append(file)
    weights = " ".join(f"{corpus.weight:g}" for corpus in corpora)
    return TokenStore(_sha256([*keys, weights]), tuple(corpora), tuple(files), tuple(number for number, _ in jobs))


def _key(scan: CorpusScan, tokenizer: TokenizerLike) -> str:
    """Return the hash of the texts of a corpus and of the tokenizer."""
    return _sha256([f"store {STORE_VERSION}", *(side.sha256 for side in scan), tokenizer.sha256])


def _sha256(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _remove_others(folder: Path, names: set[str]) -> None:
    """Remove what this module wrote to `folder`, except `names`, and the temporary files of a killed process."""
    for path in [*folder.iterdir(), *folder.glob("*/part-*.tmp-*")]:
        if path.name not in names and re.fullmatch(r"[0-9a-f]{64}|text-\d+|part-\d+\.tmp-\d+", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
