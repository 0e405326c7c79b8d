"""Test whether two systems differ in BLEU by more than the choice of test sentences explains.

BLEU is a function of ten counts that add up over lines. A resampled test set therefore costs one matrix product.
This module does not import torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transduce.errors import UserError
from transduce.evaluation.metrics import check_lines, check_tokenizer

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Bootstrap:
    """System B against system A (the baseline) on the same references; BLEU values are from 0 to 100.

    delta: bleu_b - bleu_a. delta_low to delta_high: its 95 % interval over the resampled test sets. p_value:
    two-sided, the chance that two equally good systems differ by |delta| or more on such a test set. It is 1 for
    identical outputs and never below 1 / (samples + 1).
    """

    bleu_a: float
    bleu_b: float
    delta: float
    delta_low: float
    delta_high: float
    p_value: float
    samples: int
    signature: str
    label: str


def paired_bootstrap(
    hyps_a: Sequence[str],
    hyps_b: Sequence[str],
    refs: Sequence[str],
    *,
    more_refs: Sequence[Sequence[str]] = (),
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = "13a",
) -> Bootstrap:
    """Compare the BLEU of systems A and B by the paired bootstrap (Koehn 2004).

    more_refs: more references of each line.
    samples: number of test sets, drawn with replacement from the original one, the same for both systems. seed: equal
    seeds draw equal test sets. tokenize: one of `metrics.TOKENIZERS`.
    The resampled differences minus their mean are the differences of equally good systems. `p_value` is the share of
    them that reach |delta|. The original test set counts as one more sample.
    sacreBLEU's --paired-bs draws the same test sets but counts one tail. Its p is smaller, and for two identical
    outputs it is the smallest possible.
    Raises UserError like `corpus_scores`, and for fewer than 2 lines or fewer than 1 sample.
    """
    import numpy as np

    all_refs = [refs, *more_refs]
    for texts in all_refs:
        check_lines(hyps_a, texts, name="hypotheses A")
        check_lines(hyps_b, texts, name="hypotheses B")
    _check_bootstrap(len(refs), samples, seed)
    check_tokenizer(tokenize)
    stats = np.stack([_line_stats(hyps, all_refs, tokenize) for hyps in (hyps_a, hyps_b)], axis=1)  # (lines, 2, 10)
    bleu_a, bleu_b = _bleu_from_stats(stats.sum(axis=0)).tolist()
    bleus = _bleu_from_stats(_resample(stats, samples, seed))  # (samples, 2)
    deltas = bleus[:, 1] - bleus[:, 0]
    low, high = np.percentile(deltas, [2.5, 97.5]).tolist()
    return Bootstrap(
        bleu_a=bleu_a,
        bleu_b=bleu_b,
        delta=bleu_b - bleu_a,
        delta_low=low,
        delta_high=high,
        p_value=_two_sided_p(deltas, bleu_b - bleu_a),
        samples=samples,
        signature=_bootstrap_signature(all_refs, samples, seed, tokenize),
        label="p, two-sided: the chance that two equally good systems differ this much on such a test set",
    )


def _line_stats(hyps: Sequence[str], refs: Sequence[Sequence[str]], tokenize: str) -> "np.ndarray":
    """Return counts (lines, 10): words of output and reference, n-grams matched, n-grams of the output, n = 1 to 4."""
    import numpy as np
    from sacrebleu.metrics.bleu import BLEU

    # effective_order silences sacreBLEU's warning about scores of single sentences, which are not used here.
    metric = BLEU(tokenize=tokenize, effective_order=True, force=True)
    lines = [metric.sentence_score(hyp, texts) for hyp, *texts in zip(hyps, *refs, strict=True)]
    return np.array([[line.sys_len, line.ref_len, *line.counts, *line.totals] for line in lines])


def _resample(stats: "np.ndarray", samples: int, seed: int) -> "np.ndarray":
    """Return the sums (samples, 2, 10) of stats (lines, 2, 10) over lines drawn with replacement."""
    import numpy as np

    rng = np.random.default_rng(seed)
    n_lines = len(stats)
    per_line = stats.reshape(n_lines, -1)
    draws = (np.bincount(rng.integers(n_lines, size=n_lines), minlength=n_lines) for _ in range(samples))
    return np.stack([times_drawn @ per_line for times_drawn in draws]).reshape(samples, *stats.shape[1:])


def _bleu_from_stats(stats: "np.ndarray") -> "np.ndarray":
    """Return corpus BLEU (...), 0 to 100, of counts (..., 10), with sacreBLEU's default smoothing."""
    import numpy as np

    hyp_len = stats[..., 0]
    ref_len = stats[..., 1]
    matches = stats[..., 2:6]
    totals = stats[..., 6:]
    # "exp" smoothing: the k-th order without a match counts as 1/2^k matches.
    numerators = np.where(matches > 0, matches, 0.5 ** np.cumsum(matches == 0, axis=-1))
    mean_log_precision = np.log(numerators / np.maximum(totals, 1)).mean(axis=-1)
    log_brevity_penalty = np.minimum(0, 1 - ref_len / np.maximum(hyp_len, 1))
    is_defined = (matches > 0).any(axis=-1) & (totals > 0).all(axis=-1)
    return np.where(is_defined, np.minimum(100 * np.exp(log_brevity_penalty + mean_log_precision), 100), 0.0)


def _two_sided_p(deltas: "np.ndarray", delta: float) -> float:
    """Return the share of resampled differences (samples,) at least |delta| from their mean, the original included."""
    import numpy as np

    as_extreme = int(np.sum(np.abs(deltas - deltas.mean()) >= abs(delta)))
    return (as_extreme + 1) / (len(deltas) + 1)


def _bootstrap_signature(refs: Sequence[Sequence[str]], samples: int, seed: int, tokenize: str) -> str:
    from sacrebleu.metrics.bleu import BLEU

    signature = BLEU(tokenize=tokenize, references=refs).get_signature()
    signature.update("bs", samples)
    signature.update("seed", seed)
    signature.update("p", "two-sided")
    return str(signature)


def _check_bootstrap(n_lines: int, samples: int, seed: int) -> None:
    if n_lines < 2:
        raise UserError(f"lines={n_lines}: expected at least 2 for the paired bootstrap; use at least 500")
    if samples < 1:
        raise UserError(f"samples={samples}: expected at least 1; 1000 are usual")
    if seed < 0:
        raise UserError(f"seed={seed}: expected at least 0")
