"""Leaks: sentences of the validation text that are in the training text, too, and make its scores look better."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from transduce.data.token_store import TokenStore


@dataclass(frozen=True)
class Leaks:
    """Which lines of the validation text (numbers from 1) occur in training: as a pair, and as a source alone."""

    pairs: list[int]
    sources: list[int]


def find_leaks(training: Iterable[tuple[str, str]], valid: Iterable[tuple[str, str]]) -> Leaks:
    """Compare without the white space around lines; pairs with a blank source count nowhere. Training may stream."""
    judged = [(src.strip(), tgt.strip()) for src, tgt in valid]
    sources, pairs = {src for src, _ in judged if src}, set(judged)
    seen_sources, seen_pairs = set(), set()
    for src, tgt in training:
        if (stripped := src.strip()) in sources:
            seen_sources.add(stripped)
            if (pair := (stripped, tgt.strip())) in pairs:
                seen_pairs.add(pair)
    numbered = list(enumerate(judged, start=1))
    return Leaks(
        [number for number, pair in numbered if pair in seen_pairs],
        [number for number, (src, _) in numbered if src in seen_sources],
    )


def leaks_into(valid: Sequence[tuple[str, str]], store: TokenStore, path: Path) -> Leaks:
    """The leaks into the texts of a store. The answer is kept in `path`, for as long as neither text changes."""
    key = hashlib.sha256(msgspec.json.encode([store.key, valid])).hexdigest()
    with suppress(OSError, msgspec.MsgspecError):
        kept_key, leaks = msgspec.json.decode(path.read_bytes(), type=tuple[str, Leaks])
        if kept_key == key:
            return leaks
    leaks = find_leaks(store.lines(), valid)
    path.write_bytes(msgspec.json.encode((key, leaks)))
    return leaks
