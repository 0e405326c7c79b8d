"""From token ids to batches (§5.1): a memory-mapped token store, and an order that is a function of (seed, epoch).

    text -> TokenStore (once, on disk) -> plan(seed, epoch) -> Batch, state

Everything a restart needs is `State(epoch, index)`: which epoch, and how many of its batches are done.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from transduce import text
from transduce.config import DataConfig
from transduce.errors import UserError
from transduce.tokens import BOS, EOS, PAD, Tokenizer

# ---- the token store ---------------------------------------------------------------------------------------------

SIDES = ("src", "tgt")
STORE_FILES = tuple(f"{side}.{part}" for side in SIDES for part in ("tokens", "offsets", "spans"))
STORE_VERSION = 1


@dataclass(frozen=True)
class TokenStore:
    """The tokens of a corpus, memory-mapped: pair i is tokens[offsets[i]:offsets[i+1]] on either side.

    tokens: uint16 or uint32, without BOS and EOS; offsets: uint64, one more than there are pairs.
    spans: where line i begins and ends in the text file, uint64 (n, 2), for BPE-dropout, which needs the text again.
    key: hash of both texts and the tokenizer.
    """

    key: str
    tokens: tuple[np.ndarray, np.ndarray]
    offsets: tuple[np.ndarray, np.ndarray]
    spans: tuple[np.ndarray, np.ndarray]
    paths: tuple[Path, Path]

    def __len__(self) -> int:
        return len(self.offsets[0]) - 1

    def ids(self, side: int, pair: int) -> np.ndarray:
        """The token ids of one side (0 source, 1 target) of pair number `pair`."""
        return self.tokens[side][int(self.offsets[side][pair]) : int(self.offsets[side][pair + 1])]

    def lengths(self, side: int) -> np.ndarray:
        """The number of tokens of every line of one side, EOS included, int64 (n,)."""
        return np.diff(self.offsets[side].astype(np.int64)) + 1


def open_store(folder: Path, src: Path, tgt: Path, tokenizer: Tokenizer) -> TokenStore:
    """The store of this text and this tokenizer under `folder`, built if it is not there yet, or damaged.

    Whatever else lies in `folder` is a store of other text or another tokenizer, and is removed.
    """
    digest = hashlib.sha256()
    for part in (f"store {STORE_VERSION}", text.file_sha256(src), text.file_sha256(tgt), tokenizer.sha256):
        digest.update(part.encode() + b"\n")
    key = digest.hexdigest()
    path = folder / key[:16]
    if not _is_whole(path):
        shutil.rmtree(folder, ignore_errors=True)
        _build(path, src, tgt, tokenizer)
    dtype = _token_dtype(tokenizer)
    return TokenStore(
        key,
        tokens=(_map(path / "src.tokens", dtype), _map(path / "tgt.tokens", dtype)),
        offsets=(_map(path / "src.offsets", "uint64"), _map(path / "tgt.offsets", "uint64")),
        spans=(_map(path / "src.spans", "uint64").reshape(-1, 2), _map(path / "tgt.spans", "uint64").reshape(-1, 2)),
        paths=(src, tgt),
    )


def _token_dtype(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"


def _map(path: Path, dtype: str) -> np.ndarray:
    """The array in `path`, mapped. A plain ndarray view: indexing a np.memmap is several times slower."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def _is_whole(path: Path) -> bool:
    """Whether every file of a store is there and is what `_build` wrote."""
    try:
        written = msgspec.json.decode((path / "sha256.json").read_bytes())
        return written == _hashes(path)
    except (OSError, msgspec.DecodeError, UserError):
        return False


def _hashes(path: Path) -> dict[str, str]:
    return {name: text.file_sha256(path / name) for name in STORE_FILES}


def _build(path: Path, src: Path, tgt: Path, tokenizer: Tokenizer) -> None:
    """Tokenise the corpus in pieces of constant size into a folder beside `path`, then rename it to `path`."""
    building = path.with_name(path.name + f".tmp-{os.getpid()}")
    building.mkdir(parents=True)
    dtype = _token_dtype(tokenizer)
    ends = [np.uint64(0), np.uint64(0)]
    with ExitStack() as stack:
        tokens, offsets = (
            [stack.enter_context((building / f"{side}.{part}").open("wb")) for side in SIDES]
            for part in ("tokens", "offsets")
        )
        for file in offsets:
            np.zeros(1, np.uint64).tofile(file)
        pairs = text.read_pairs(src, tgt)
        while chunk := list(islice(pairs, 10_000)):
            for side in (0, 1):
                lines = ["" if text.is_blank(pair[side]) else pair[side] for pair in chunk]  # blank is empty: left out
                encoded = tokenizer.encode_batch(lines)
                lengths = np.cumsum([len(ids) for ids in encoded], dtype=np.uint64)
                np.concatenate([np.asarray(ids, dtype) for ids in encoded]).tofile(tokens[side])
                (ends[side] + lengths).tofile(offsets[side])
                ends[side] += lengths[-1]
    for side, corpus in zip(SIDES, (src, tgt), strict=True):
        np.asarray(text.line_spans(corpus)).tofile(building / f"{side}.spans")
    (building / "sha256.json").write_bytes(msgspec.json.encode(_hashes(building)))
    building.rename(path)


# ---- the plan of an epoch ----------------------------------------------------------------------------------------


def usable(store: TokenStore, max_tokens: int) -> np.ndarray:
    """The numbers of the pairs that training uses: neither side empty, neither longer than `max_tokens`, int64 (m,)."""
    src, tgt = store.lengths(0), store.lengths(1)
    keep = (src > 1) & (tgt > 1) & (src <= max_tokens) & (tgt <= max_tokens)
    return np.flatnonzero(keep)


BAND = 2  # target lengths that are sorted together by source length


def plan(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, *, batch_tokens: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """One epoch as a list of batches, each an array of indices into the lengths: a pure function of its arguments.

    Pairs of like length share a batch, with at most `batch_tokens` tokens on either side (one that has more is alone);
    which pairs of equal length meet, and the order of the batches, are drawn anew for each (seed, epoch).
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(src_lengths))
    bands = tgt_lengths[order] // BAND
    there_and_back = np.where(bands % 2 == 0, src_lengths[order], -src_lengths[order])  # no jump from band to band
    order = order[np.lexsort((tgt_lengths[order], there_and_back, bands))]
    batches, begin = [], 0
    src_ends, tgt_ends = np.cumsum(src_lengths[order]), np.cumsum(tgt_lengths[order])
    while begin < len(order):
        before = (src_ends[begin - 1], tgt_ends[begin - 1]) if begin else (0, 0)
        end = min(
            np.searchsorted(src_ends, before[0] + batch_tokens, side="right"),
            np.searchsorted(tgt_ends, before[1] + batch_tokens, side="right"),
        )
        end = max(int(end), begin + 1)
        batches.append(order[begin:end])
        begin = end
    return [batches[i] for i in generator.permutation(len(batches))]


# ---- batches -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """Where the data is: the epoch, and the number of its batches already used."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Batch:
    """Padded ids of pairs. src (B,S) ends in EOS; tgt_in (B,T) is BOS and the target; tgt_out (B,T) target and EOS.

    src_mask (B,S) and tgt_mask (B,T) are True where a token is real. pairs: their numbers in the store, int64 (B,).
    """

    src: Tensor
    src_mask: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    tgt_mask: Tensor
    pairs: np.ndarray

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`."""
        parts = (self.src, self.src_mask, self.tgt_in, self.tgt_out, self.tgt_mask)
        return Batch(*(part.to(device, non_blocking=True) for part in parts), self.pairs)


def pad(rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Rows of ids of any lengths as one int64 tensor (B, longest), and its mask."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, PAD, np.int64)
    ids[mask] = np.concatenate(rows)
    return torch.from_numpy(ids), torch.from_numpy(mask)


def collate(src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray | None = None) -> Batch:
    """A batch of pairs given as ids without BOS and EOS. pairs: their numbers in a store; None: they count from 0."""
    src_ids, src_mask = pad([np.append(ids, EOS) for ids in src])
    tgt_in, tgt_mask = pad([np.concatenate(([BOS], ids)) for ids in tgt])
    tgt_out, _ = pad([np.append(ids, EOS) for ids in tgt])
    numbers = np.arange(len(src)) if pairs is None else pairs.astype(np.int64)
    return Batch(src_ids, src_mask, tgt_in, tgt_out, tgt_mask, numbers)


GROWTH = 3  # BPE-dropout with probability p lengthens text by about 2.8 p (docs/log.md); batches leave room for it


SHOWN = 20  # line numbers in a message


class Batches:
    """The endless stream of training batches of a store.

    Each item is this rank's micro-batches of one optimizer step, and the state after it. The pairs of a step are dealt
    like cards, first to the ranks, then to the micro-batches of each: all ranks together see what one alone would. The
    last ranks may get none. Raises UserError if `config` leaves no pair to train on.
    """

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        config: DataConfig,
        *,
        seed: int,
        accumulate: int = 1,
        rank: int = 0,
        ranks: int = 1,
    ):
        self.store, self.tokenizer, self.config = store, tokenizer, config
        self.seed, self.accumulate, self.rank, self.ranks = seed, accumulate, rank, ranks
        self.pairs = usable(store, config.max_tokens)
        if not len(self.pairs):
            raise UserError(
                f"no pair of {store.paths[0]} and {store.paths[1]} can be used for training: all {len(store)} have an "
                f"empty side or more than data.max_tokens={config.max_tokens} tokens on one side"
            )
        self.src_lengths, self.tgt_lengths = (store.lengths(side)[self.pairs] for side in (0, 1))

    def stream(self, state: State) -> Iterator[tuple[list[Batch], State]]:
        """All batches from `state` on."""
        epoch, index = state.epoch, state.index
        while True:
            epoch_plan = self.plan(epoch)
            for i in range(index, len(epoch_plan)):
                after = State(epoch, i + 1) if i + 1 < len(epoch_plan) else State(epoch + 1, 0)
                yield self._step(self.pairs[epoch_plan[i]], epoch), after
            epoch, index = epoch + 1, 0

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, as indices into `self.pairs`, by the lengths without BPE-dropout."""
        budget = int(self.config.batch_tokens / (1 + GROWTH * self.config.bpe_dropout))
        return plan(self.src_lengths, self.tgt_lengths, batch_tokens=budget, seed=self.seed, epoch=epoch)

    def where(self, pairs: np.ndarray) -> str:
        """Where the text of `pairs` is, for a message: "train.en and train.de, lines 3, 17"."""
        shown = ", ".join(f"{pair + 1}" for pair in pairs[:SHOWN])
        more = f" and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
        return f"{self.store.paths[0]} and {self.store.paths[1]}, lines {shown}{more}"

    def _step(self, members: np.ndarray, epoch: int) -> list[Batch]:
        """This rank's micro-batches of one step: part p of all is every pair p, p + parts, ..., so of like size."""
        src, tgt = self._side(0, members, epoch), self._side(1, members, epoch)
        parts = self.ranks * self.accumulate
        mine = range(self.rank, min(parts, len(members)), self.ranks)
        return [collate(src[part::parts], tgt[part::parts], members[part::parts]) for part in mine]

    def _side(self, side: int, members: np.ndarray, epoch: int) -> list[np.ndarray]:
        """The ids of one side of `members`; if BPE-dropout makes them too many, the last ones go without it."""
        rows = [self._ids(side, pair, epoch) for pair in members]
        excess = sum(len(row) + 1 for row in rows) - self.config.batch_tokens
        for place in reversed(range(len(rows))):
            if excess <= 0:
                break
            plain = self.store.ids(side, members[place])
            excess -= len(rows[place]) - len(plain)
            rows[place] = plain
        return rows

    def _ids(self, side: int, pair: int, epoch: int) -> np.ndarray:
        """The ids of one side of a pair; with BPE-dropout encoded anew, unless that makes it longer than the cap."""
        plain = self.store.ids(side, pair)
        if not self.config.bpe_dropout:
            return plain
        begin, end = self.store.spans[side][pair]
        line = text.read_span(self.store.paths[side], int(begin), int(end))
        key = f"{self.seed}:{epoch}:{pair}:{SIDES[side]}"
        ids = self.tokenizer.encode_dropout(line, p=self.config.bpe_dropout, key=key)
        return np.asarray(ids) if len(ids) < self.config.max_tokens else plain
