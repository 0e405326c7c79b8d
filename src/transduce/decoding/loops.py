"""Loops: outputs in which the model repeats itself, and their second search. Without torch.

A model that reads text unlike its training text may write one phrase again and again until its output is cut. Such an
output is searched a second time, without repeated tokens (`repetition`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from transduce.config.schema import SearchConfig
from transduce.decoding.constraint import Constraint
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.options import Loops

Outputs = list[list[Hypothesis]]  # for each source, best first
Search = Callable[[Sequence[Sequence[int]], SearchConfig, Constraint | None], Outputs]

LEAST_REPEATS = 5  # of the same tokens one after the other; a loop also has twice as many as its source
NO_LOOPS = 3  # `search.no_repeat_ngram` of the second search
MOST_EXTRA = 20  # `search.max_extra_tokens` of the second search: many loops have no good end


def n_repeats(ids: Sequence[int]) -> int:
    """Return how often the same tokens come one after the other, at most; 1 if nothing is repeated 5 times."""
    if max(Counter(ids).values(), default=0) < LEAST_REPEATS:
        return 1
    tokens = np.asarray(ids)
    most = 1
    for period in range(1, len(tokens) // LEAST_REPEATS + 1):
        differs = np.flatnonzero(tokens[period:] != tokens[:-period])
        runs = np.diff(differs, prepend=-1, append=len(tokens) - period) - 1
        most = max(most, 1 + int(runs.max()) // period)
    return most


def is_loop(source: Sequence[int], output: Sequence[int]) -> bool:
    """Return True for an output that repeats itself as its source does not."""
    count = n_repeats(output)
    return count >= LEAST_REPEATS and count >= 2 * n_repeats(source)


def without_loops(
    search: Search,
    sources: Sequence[Sequence[int]],
    settings: SearchConfig,
    constraint: Constraint | None,
    loops: Loops,
) -> Outputs:
    """Return the outputs of a search, in which those of a source whose best output is a loop have the mark `is_loop`.

    loops: "retry" searches these sources again, with `without_repetition`.
    """
    outputs = search(sources, settings, constraint)
    members = [i for i, source in enumerate(sources) if is_loop(source, outputs[i][0].ids)]
    again = [outputs[i] for i in members]
    if members and loops == "retry":
        of_members = None if constraint is None else constraint.select(members)
        again = search([sources[i] for i in members], without_repetition(settings), of_members)
    for i, of_source in zip(members, again, strict=True):
        outputs[i] = marked(of_source)
    return outputs


def without_repetition(settings: SearchConfig) -> SearchConfig:
    """Return the settings of the second search of a loop."""
    return replace(settings, no_repeat_ngram=NO_LOOPS, max_extra_tokens=min(settings.max_extra_tokens, MOST_EXTRA))


def marked(outputs: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return the outputs of a loop with the mark `is_loop`."""
    return [replace(hypothesis, is_loop=True) for hypothesis in outputs]
