"""Scores of translations against references: lines of text in, figures out. No model and no torch.

One output has several BLEU scores, and they differ by more than most papers improve. So every figure here is a
`Score`: a value from 0 to 100, the signature of how it was computed, and a label that says what it compares with.

    name                  text compared                                            computed as by
    bleu                  as it is, tokenised by sacreBLEU's 13a (or `tokenize`)   sacreBLEU
    chrf                  as it is, character n-grams                              sacreBLEU
    bleu_tokenised        Moses-tokenised                                          multi-bleu (no smoothing)
    bleu_compound_split   Moses-tokenised, every x-y split at its hyphen           multi-bleu (no smoothing)
    bleu_as_given         as it is, split at spaces and nothing else               sacreBLEU, tokenize none
    exact_match           as it is                                                 per cent of equal lines

`bleu_compound_split` follows the script published with the paper's code for English-German.
"""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transduce.errors import UserError, nearest

if TYPE_CHECKING:
    import numpy as np
    from sacrebleu.metrics.base import Metric, Signature

TOKENIZERS = ("13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none")
"""What `tokenize` may be: the tokenisers of sacreBLEU that download nothing."""

# Thai and Lao; Burmese; Khmer; kana and Chinese characters.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


@dataclass(frozen=True)
class Score:
    """One figure: a stable name, the value (0 to 100), how it was computed, what it may be compared with."""

    name: str
    value: float
    signature: str
    label: str


@dataclass(frozen=True)
class Bootstrap:
    """System B against system A (the baseline) on the same references; BLEU values are from 0 to 100.

    `delta` is bleu_b - bleu_a; `delta_low` to `delta_high` is its 95 % interval over the resampled test sets.
    `p_value` is two-sided: the chance that two equally good systems differ by |delta| or more on such a test
    set. It is 1 for identical outputs and never below 1 / (samples + 1).
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


def corpus_scores(
    hyps: Sequence[str], refs: Sequence[str], *, language: str = "en", tokenize: str = "13a"
) -> list[Score]:
    """All scores of `hyps` against `refs`, line by line, in the order of the module's table.

    `language` is the code of the target language and chooses the rules of Moses; `tokenize` is one of
    `TOKENIZERS` and concerns `bleu` alone. Without sacremoses the two scores that need it are absent: see
    `left_out`. Raises UserError for unequal counts, no lines, or a language or tokeniser that does not exist.
    """
    check_settings(language=language, tokenize=tokenize)
    _check_lines(hyps, refs, named="the hypotheses")
    return [
        _bleu(hyps, refs, tokenize),
        _chrf(hyps, refs),
        *(_moses_scores(hyps, refs, language) if _has_sacremoses() else []),
        _bleu_as_given(hyps, refs),
        _exact_match(hyps, refs),
    ]


def check_settings(*, language: str, tokenize: str) -> None:
    """Raise UserError, before anything is translated, for settings with which `corpus_scores` could not score it."""
    _check_language(language)
    _check_tokenizer(tokenize)


def bleu(hyps: Sequence[str], refs: Sequence[str]) -> float:
    """sacreBLEU (13a) alone, 0 to 100: what `corpus_scores` calls "bleu"."""
    _check_lines(hyps, refs, named="the hypotheses")
    return _bleu(hyps, refs, "13a").value


def bleu_signature() -> str:
    """How `bleu` counts, as sacreBLEU writes it."""
    from sacrebleu.metrics.bleu import BLEU

    return str(BLEU(references=[[""]], force=True).get_signature())


def left_out() -> str | None:
    """One sentence on the scores that cannot be computed on this machine, and the remedy; None if all can."""
    if _has_sacremoses():
        return None
    return (
        "bleu_tokenised and bleu_compound_split are left out, because they need sacremoses: "
        "pip install 'transduce[eval]'"
    )


def split_compounds(line: str) -> str:
    """`rich-text format` as `rich ##AT##-##AT## text format`, in tokenised text.

    Matches do not overlap, as in the script of the paper's authors: `a-b-c` gives `a ##AT##-##AT## b-c`. That
    script reads bytes, and so does this: a middle letter of two bytes, as in `a-ä-c`, is split off on both sides.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line.encode()).decode()


def paired_bootstrap(
    hyps_a: Sequence[str],
    hyps_b: Sequence[str],
    refs: Sequence[str],
    *,
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = "13a",
) -> Bootstrap:
    """Does B's BLEU differ from A's by more than the choice of test sentences explains? (Koehn 2004)

    Draws `samples` test sets from the given one, with replacement and alike for both systems. Their
    differences, less the mean difference, are what to expect between equally good systems; `p_value` is the
    share of these that reach |delta|, the given test set counted as one more. The same seed draws the same.
    (sacreBLEU's --paired-bs draws the same test sets but counts one tail: its p is smaller, and the smallest of
    all for two identical outputs.)
    Raises UserError as `corpus_scores` does, and for fewer than 2 lines or fewer than 1 sample.
    """
    import numpy as np

    _check_lines(hyps_a, refs, named="hypotheses A")
    _check_lines(hyps_b, refs, named="hypotheses B")
    _check_bootstrap(len(refs), samples, seed)
    _check_tokenizer(tokenize)
    stats = np.stack([_line_stats(hyps, refs, tokenize) for hyps in (hyps_a, hyps_b)], axis=1)  # (lines, 2, 10)
    bleu_a, bleu_b = _bleu_from_stats(stats.sum(axis=0)).tolist()
    resampled = _bleu_from_stats(_resample(stats, samples, seed))  # (samples, 2)
    deltas = resampled[:, 1] - resampled[:, 0]
    low, high = np.percentile(deltas, [2.5, 97.5]).tolist()
    return Bootstrap(
        bleu_a=bleu_a,
        bleu_b=bleu_b,
        delta=bleu_b - bleu_a,
        delta_low=low,
        delta_high=high,
        p_value=_two_sided_p(deltas, bleu_b - bleu_a),
        samples=samples,
        signature=_bootstrap_signature(refs, samples, seed, tokenize),
        label="p, two-sided: the chance that two equally good systems differ so much on such a test set",
    )


# ---- the scores, one by one -------------------------------------------------------------------------------


def _corpus_score(metric: "Metric", hyps: Sequence[str], refs: Sequence[str]) -> float:
    """What `metric` finds, 0 to 100. (It goes by logarithms, and a perfect output comes out as 100.00000000000004.)"""
    return min(metric.corpus_score(hyps, [refs]).score, 100.0)


def _bleu(hyps: Sequence[str], refs: Sequence[str], tokenize: str) -> Score:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=tokenize, force=True)
    value = _corpus_score(metric, hyps, refs)
    label = f"cased, tokenised by {tokenize}: compares with figures of the same signature"
    if tokenize == "13a":
        label = f"cased, detokenised, 13a: the number to compare between papers since 2018{_caveat(refs)}"
    return Score("bleu", value, str(metric.get_signature()), label)


def _chrf(hyps: Sequence[str], refs: Sequence[str]) -> Score:
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    value = _corpus_score(metric, hyps, refs)
    label = "chrF2, character n-grams: needs no tokeniser, so it suits every script"
    return Score("chrf", value, str(metric.get_signature()), label)


def _moses_scores(hyps: Sequence[str], refs: Sequence[str], language: str) -> list[Score]:
    """`bleu_tokenised` and `bleu_compound_split`."""
    import sacremoses

    moses = sacremoses.MosesTokenizer(language)
    straighten = sacremoses.MosesPunctNormalizer(language).replace_unicode_punct

    def tokenised(line: str) -> str:
        # Without XML escapes: they rename tokens alike on both sides, and so change no count.
        return " ".join(moses.tokenize(line, escape=False))

    ref_lines = [tokenised(line) for line in refs]
    plain, plain_signature = _multi_bleu([tokenised(line) for line in hyps], ref_lines)
    # The script of the paper's authors straightens quotes and the like in the output, not in the reference.
    split, split_signature = _multi_bleu(
        [split_compounds(tokenised(straighten(line))) for line in hyps],
        [split_compounds(line) for line in ref_lines],
    )
    known = language in sacremoses.NonbreakingPrefixes().available_langs.values()
    for signature in (plain_signature, split_signature):
        signature.update("lang", language)
        signature.update("tok", f"moses-{language if known else 'default'}")
        signature.update("moses", f"sacremoses-{sacremoses.__version__}")
    plain_signature.update("compounds", "whole")
    split_signature.update("compounds", "split")
    split_signature.update("punct", "ascii-in-output")
    caveat = "" if known else f"; Moses has no rules for {language!r} and used its default"
    caveat += _caveat(refs)
    plain_label = f"cased, tokenised, as multi-bleu counts: the number of papers before 2018{caveat}"
    split_label = f"cased, tokenised, compounds split: {_what_split_compares_with(language)}{caveat}"
    return [
        Score("bleu_tokenised", plain, str(plain_signature), plain_label),
        Score("bleu_compound_split", split, str(split_signature), split_label),
    ]


def _what_split_compares_with(language: str) -> str:
    if language == "de":
        return "on newstest2014 the number that compares with the paper's 27.3 (base) and 28.4 (big)"
    return "how the paper's English-German figures were counted"


def _multi_bleu(hyps: Sequence[str], refs: Sequence[str]) -> "tuple[float, Signature]":
    """BLEU of tokenised lines as multi-bleu.perl counts it: no smoothing, 0 if no 4-gram matches."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return _corpus_score(metric, hyps, refs), metric.get_signature()


def _bleu_as_given(hyps: Sequence[str], refs: Sequence[str]) -> Score:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", force=True)
    value = _corpus_score(metric, hyps, refs)
    label = "split at spaces only: the number to compare on text tokenised beforehand, such as Multi30k's"
    return Score("bleu_as_given", value, str(metric.get_signature()), label)


def _exact_match(hyps: Sequence[str], refs: Sequence[str]) -> Score:
    equal = sum(hyp == ref for hyp, ref in zip(hyps, refs, strict=True))
    label = "per cent of lines that equal their reference, character by character"
    return Score("exact_match", 100 * equal / len(refs), "nrefs:1|case:mixed|tok:none", label)


def _caveat(refs: Sequence[str]) -> str:
    """What a label has to add when the references are no text for 13a or Moses; empty if they are."""
    unspaced = sum(len(_UNSPACED.findall(line)) for line in refs)
    if 2 * unspaced > sum(len(line) for line in refs):
        return "; but it finds no words in a script without spaces: choose ja-mecab, zh or char, or read chrF"
    if 2 * sum(line.endswith(" .") for line in refs) > len(refs):
        return "; but the text looks tokenised already: see bleu_as_given"
    return ""


# ---- the bootstrap: BLEU is a function of ten counts that add up over lines -------------------------------


def _line_stats(hyps: Sequence[str], refs: Sequence[str], tokenize: str) -> "np.ndarray":
    """(lines, 10): words of the output, words of the reference; n-grams matched, n-grams made, n = 1 to 4."""
    import numpy as np
    from sacrebleu.metrics.bleu import BLEU

    # effective_order only keeps sacreBLEU from warning about single sentences, whose scores nobody reads.
    metric = BLEU(tokenize=tokenize, effective_order=True, force=True)
    lines = [metric.sentence_score(hyp, [ref]) for hyp, ref in zip(hyps, refs, strict=True)]
    return np.array([[line.sys_len, line.ref_len, *line.counts, *line.totals] for line in lines])


def _resample(stats: "np.ndarray", samples: int, seed: int) -> "np.ndarray":
    """Sums of stats (lines, 2, 10) over as many lines drawn with replacement: (samples, 2, 10)."""
    import numpy as np

    rng = np.random.default_rng(seed)
    n_lines = len(stats)
    per_line = stats.reshape(n_lines, -1)
    draws = (np.bincount(rng.integers(n_lines, size=n_lines), minlength=n_lines) for _ in range(samples))
    return np.stack([times_drawn @ per_line for times_drawn in draws]).reshape(samples, *stats.shape[1:])


def _bleu_from_stats(stats: "np.ndarray") -> "np.ndarray":
    """Corpus BLEU (0 to 100) from counts (..., 10), with sacreBLEU's default smoothing: (...)."""
    import numpy as np

    hyp_len, ref_len, matched, made = stats[..., 0], stats[..., 1], stats[..., 2:6], stats[..., 6:]
    # "exp" smoothing: the k-th order without a match counts as 1/2^k matches.
    smoothed = np.where(matched > 0, matched, 0.5 ** np.cumsum(matched == 0, axis=-1))
    mean_log_precision = np.log(smoothed / np.maximum(made, 1)).mean(axis=-1)
    log_brevity_penalty = np.minimum(0, 1 - ref_len / np.maximum(hyp_len, 1))
    defined = (matched > 0).any(axis=-1) & (made > 0).all(axis=-1)
    return np.where(defined, np.minimum(100 * np.exp(log_brevity_penalty + mean_log_precision), 100), 0.0)


def _two_sided_p(deltas: "np.ndarray", delta: float) -> float:
    """Share of resampled differences (samples,) at least |delta| from their mean, and the given one with them."""
    import numpy as np

    as_extreme = int(np.sum(np.abs(deltas - deltas.mean()) >= abs(delta)))
    return (as_extreme + 1) / (len(deltas) + 1)


def _bootstrap_signature(refs: Sequence[str], samples: int, seed: int, tokenize: str) -> str:
    from sacrebleu.metrics.bleu import BLEU

    signature = BLEU(tokenize=tokenize, references=[refs]).get_signature()
    signature.update("bs", samples)
    signature.update("seed", seed)
    signature.update("p", "two-sided")
    return str(signature)


# ---- what a user may get wrong ----------------------------------------------------------------------------


def _check_lines(hyps: Sequence[str], refs: Sequence[str], *, named: str) -> None:
    if len(hyps) != len(refs):
        raise UserError(
            f"{named} have {len(hyps):,} lines but the references have {len(refs):,}; "
            "they must match line by line (an empty translation is an empty line)"
        )
    if not refs:
        raise UserError("there is nothing to score: the hypotheses and the references have 0 lines")


def _check_bootstrap(n_lines: int, samples: int, seed: int) -> None:
    if n_lines < 2:
        raise UserError(f"the paired bootstrap draws test sets from at least 2 lines, better 500; got {n_lines}")
    if samples < 1:
        raise UserError(f"the paired bootstrap needs at least 1 sample, 1000 are usual; got {samples}")
    if seed < 0:
        raise UserError(f"the seed of the paired bootstrap must be 0 or more; got {seed}")


def _check_language(language: str) -> None:
    if not re.fullmatch("[a-z]{2,3}", language):
        raise UserError(f"language {language!r} is no code of two or three small letters, such as en, de or fr")


def _check_tokenizer(tokenize: str) -> None:
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in TOKENIZERS:
        hint = nearest(tokenize, TOKENIZERS)
        raise UserError(f"tokenize {tokenize!r} is none of {', '.join(TOKENIZERS)}{hint}")
    try:
        BLEU(tokenize=tokenize)
    except RuntimeError as error:  # MeCab or its dictionary is missing
        extra = tokenize.removesuffix("-mecab")
        message = f"tokenize {tokenize!r} needs one more package: pip install 'sacrebleu[{extra}]'"
        raise UserError(message) from error


def _has_sacremoses() -> bool:
    return importlib.util.find_spec("sacremoses") is not None
