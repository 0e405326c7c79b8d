"""The word error rate of speech recognition. This module imports no torch."""

from collections.abc import Sequence


def word_error_rate(hyps: Sequence[str], refs: Sequence[str]) -> float:
    """Return the words to replace, insert or delete in `hyps` to get `refs`, in percent of the words of `refs`.

    Spaces separate words; capitals and punctuation count. It can exceed 100. 0.0 if there are no words at all.
    """
    pairs = [(hyp.split(), ref.split()) for hyp, ref in zip(hyps, refs, strict=True)]
    errors = sum(edit_distance(hyp, ref) for hyp, ref in pairs)
    return 100 * errors / max(1, sum(len(ref) for _, ref in pairs))


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the smallest number of elements to replace, insert or delete that makes `second` of `first`."""
    row = [*range(len(second) + 1)]
    for i, a in enumerate(first, start=1):
        above, row = row, [i]
        for j, b in enumerate(second, start=1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b)))
    return row[-1]
