"""Random draws that are functions of a key, for arrays of keys at once.

The generator is SplitMix64 (Steele, Lea and Flood 2014): draw i of a key is a hash of the key plus i times a constant.
"""

import numpy as np

STEP = np.uint64(0x9E3779B97F4A7C15)
SOURCE, TARGET, NOISE = range(3)  # what the keys of a pair are for


def row_keys(seed: int, epoch: int, side: int, pairs: np.ndarray) -> np.ndarray:
    """Return the keys of SOURCE, TARGET or NOISE of pairs. pairs: their numbers in a store."""
    first = np.random.SeedSequence([seed, epoch, side]).generate_state(1, np.uint64)
    return _hash(first + pairs.astype(np.uint64) * STEP)


def times_in_epoch(weight: float, seed: int, epoch: int, first: int, pairs: np.ndarray) -> np.ndarray:
    """Return how often each of the pairs `first` + `pairs` occurs in an epoch (see `Corpus.weight`)."""
    if weight == int(weight):
        return np.full(len(pairs), int(weight))
    start = np.random.default_rng([seed, first]).random(int(pairs[-1]) + 1 if len(pairs) else 0)[pairs]
    return (np.floor(weight * (epoch + 1) + start) - np.floor(weight * epoch + start)).astype(np.int64)


def token_keys(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the keys of all tokens of some rows, from the keys and the lengths of the rows."""
    places = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    return _hash(np.repeat(rows, lengths) + places.astype(np.uint64) * STEP)


def uniform(keys: np.ndarray, number: np.ndarray | int = 0) -> np.ndarray:
    """Return draw `number` of each key, uniform in [0, 1)."""
    numbers = np.atleast_1d(number).astype(np.uint64)
    return (_hash(keys + numbers * STEP) >> np.uint64(11)) * 2.0**-53


def _hash(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
