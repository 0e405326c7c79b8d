"""The rule "unlikely" of `transduce clean`: sources that a model of the other direction finds least likely."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from transduce.cleaning.clean import RULES, Cleaning, read_trimmed
from transduce.cleaning.progress import JobProgress
from transduce.data.corpora import Corpus
from transduce.translate import Translator, load

SHARE = 0.05  # of the pairs that the other rules leave
PORTION = 1_000  # pairs at a time


def drop_unlikely(cleaning: Cleaning, corpus: Corpus, backward: Path) -> Cleaning:
    """Return the cleaning in which the least likely of the kept pairs are dropped, too.

    backward: a model that translates from the target language. A pair is unlikely by log P(source | target) for each
    token of the source.
    """
    translator = load(backward)
    places = np.flatnonzero(cleaning.rules < 0)
    scores = np.zeros(len(places))
    kept = (pair for pair, rule in zip(read_trimmed(corpus), cleaning.rules.tolist(), strict=True) if rule < 0)
    with JobProgress("unlikely", len(places)) as progress:
        for start in range(0, len(places), PORTION):
            pairs = [*islice(kept, PORTION)]
            scores[start : start + PORTION] = _scores(translator, [tgt for _, tgt in pairs], [src for src, _ in pairs])
            progress.advance(len(pairs))
    count = int(SHARE * len(places))
    order = np.argsort(scores, kind="stable")
    rules = cleaning.rules.copy()
    rules[places[order[:count]]] = RULES.index("unlikely")
    note = (
        f"unlikely: below {scores[order[count]]:.2f} for each token of the source" if len(places) else "unlikely: none"
    )
    return replace(cleaning, rules=rules, notes=[*cleaning.notes, note])


def _scores(translator: Translator, src: list[str], tgt: list[str]) -> list[float]:
    """Return the mean log-probability of a token of each target; minus infinity for a line that is too long."""
    too_long = set[int]()
    while long_line := translator.long_line(src, tgt):
        too_long.add(long_line.index)
        src[long_line.index] = tgt[long_line.index] = ""
    scores = [scored.log_prob / len(scored.token_log_probs) for scored in translator.score(src, tgt)]
    return [-np.inf if i in too_long else score for i, score in enumerate(scores)]
