"""The rule "unlikely" of `transduce clean`: sources that a model of the other direction finds least likely."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transduce.cleaning.clean import RULES, Cleaning, read_trimmed, results_file
from transduce.cleaning.progress import JobProgress
from transduce.data.corpora import Corpus
from transduce.data.text import LinePair
from transduce.translate import Translator, load

SHARE = 0.05  # of the pairs that the other rules leave
PORTION = 1_000  # pairs at a time
SIZE = np.dtype(float).itemsize  # bytes of a score


def drop_unlikely(cleaning: Cleaning, corpus: Corpus, backward: Path, work: Path | None = None) -> Cleaning:
    """Return the cleaning in which the least likely of the kept pairs are dropped, too.

    backward: a model that translates from the target language. A pair is unlikely by log P(source | target) for each
    token of the source. work: as in `find_faults`.
    """
    places = np.flatnonzero(cleaning.rules < 0)
    pairs = (pair for pair, rule in zip(read_trimmed(corpus), cleaning.rules.tolist(), strict=True) if rule < 0)
    scores = _all_scores(load(backward), pairs, len(places), work)
    count = int(SHARE * len(places))
    order = np.argsort(scores, kind="stable")
    rules = cleaning.rules.copy()
    rules[places[order[:count]]] = RULES.index("unlikely")
    note = (
        f"unlikely: below {scores[order[count]]:.2f} for each token of the source" if len(places) else "unlikely: none"
    )
    return replace(cleaning, rules=rules, notes=[*cleaning.notes, note])


def _all_scores(
    translator: Translator, pairs: Iterator[LinePair], n_pairs: int, work: Path | None
) -> NDArray[np.float64]:
    """Return the score of each pair, which an earlier call may have stored in the folder `work`."""
    with results_file(work, "unlikely", SIZE) as file:
        results = bytearray(file.read())
        n_earlier = len(results) // SIZE
        rest = islice(pairs, n_earlier, None)
        with JobProgress("unlikely", n_pairs, n_earlier) as progress:
            while portion := [*islice(rest, PORTION)]:
                scores = _scores(translator, [tgt for _, tgt in portion], [src for src, _ in portion])
                content = np.array(scores).tobytes()
                file.write(content)
                file.flush()
                results += content
                progress.advance(len(portion))
    return np.frombuffer(results)


def _scores(translator: Translator, src: list[str], tgt: list[str]) -> list[float]:
    """Return the mean log-probability of a token of each target; minus infinity for a line that is too long."""
    too_long = set[int]()
    while long_line := translator.long_line(src, tgt):
        too_long.add(long_line.index)
        src[long_line.index] = tgt[long_line.index] = ""
    scores = [of_line.log_prob / len(of_line.token_log_probs) for of_line in translator.score(src, tgt)]
    return [-np.inf if i in too_long else score for i, score in enumerate(scores)]
