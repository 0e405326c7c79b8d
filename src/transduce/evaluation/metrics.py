"""Score translations against references: lines of text in, figures out. This module imports no model and no torch.

One output has several BLEU scores. They differ by more than the improvement that most papers report. Every figure is
therefore a `Score`: a value from 0 to 100, a signature of the computation, and a label that names comparable figures.

    name                  text compared                                          computed like
    bleu                  unchanged, tokenised by sacreBLEU's 13a or `tokenize`  sacreBLEU
    bleu_uncased          as bleu, in lower case                                 sacreBLEU, lowercase
    chrf                  unchanged, character n-grams                           sacreBLEU
    bleu_tokenised        Moses-tokenised                                        multi-bleu (no smoothing)
    bleu_compound_split   Moses-tokenised, every x-y split at its hyphen         multi-bleu (no smoothing)
    bleu_as_given         unchanged, split at spaces only                        sacreBLEU, tokenize none
    exact_match           unchanged                                              per cent of equal lines

`bleu_compound_split` follows the script published with the paper's code for English-German.
"""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transduce.errors import UserError, nearest

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Signature
    from sacrebleu.metrics.bleu import BLEU

TOKENIZERS = ("13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none")
"""The values of `tokenize`: the tokenisers of sacreBLEU that download nothing."""

# The codes of two letters, ISO 639-1. Some 8,000 codes of three letters exist, and are not checked.
LANGUAGES = frozenset(
    (
        "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de "
        "dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id "
        "ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu "
        "lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu "
        "rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to "
        "tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
    ).split()
)

# Thai and Lao; Burmese; Khmer; kana and Chinese characters.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_NOT_CHINESE = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff]")


@dataclass(frozen=True)
class Brevity:
    """The brevity penalty of a BLEU score, which is a factor of it, and the tokens of output and references."""

    penalty: float
    hyp_tokens: int
    ref_tokens: int


@dataclass(frozen=True)
class Score:
    """One figure of one output.

    name: stable name, from the table of this module. value: figure from 0 to 100.
    signature: settings of the computation. label: published figures that it compares with.
    brevity: None if the score has no brevity penalty.
    """

    name: str
    value: float
    signature: str
    label: str
    brevity: Brevity | None = None


def corpus_scores(
    hyps: Sequence[str],
    refs: Sequence[str],
    *,
    more_refs: Sequence[Sequence[str]] = (),
    language: str = "en",
    tokenize: str = "13a",
) -> list[Score]:
    """Return all scores of `hyps` against `refs`, line by line, in the order of the module's table.

    more_refs: more references of each line. language: code of the target language; it selects the rules of Moses.
    tokenize: one of `TOKENIZERS`, for `bleu` and `bleu_uncased` only. Without sacremoses the two scores that need it
    are absent: see `missing_scores`.
    Raises UserError for unequal counts, no lines, or a language or tokeniser that does not exist.
    """
    check_settings(language=language, tokenize=tokenize)
    all_refs = [refs, *more_refs]
    for texts in all_refs:
        check_lines(hyps, texts, name="the hypotheses")
    return [
        _bleu(hyps, all_refs, tokenize),
        _bleu_uncased(hyps, all_refs, tokenize),
        _chrf(hyps, all_refs),
        *(_moses_scores(hyps, all_refs, language) if _has_sacremoses() else []),
        _bleu_without_tokenizer(hyps, all_refs),
        _exact_match(hyps, all_refs),
    ]


def check_settings(*, language: str, tokenize: str) -> None:
    """Raise UserError for settings that `corpus_scores` refuses, so that a caller can check before it translates."""
    _check_language(language)
    check_tokenizer(tokenize)


def bleu(hyps: Sequence[str], refs: Sequence[str]) -> float:
    """Return sacreBLEU, 0 to 100, with the tokeniser that fits the references (`fitting_tokenizer`)."""
    check_lines(hyps, refs, name="the hypotheses")
    return _bleu(hyps, [refs], fitting_tokenizer(refs)).value


def chrf(hyps: Sequence[str], refs: Sequence[str]) -> float:
    """Return sacreBLEU's chrF2, 0 to 100."""
    check_lines(hyps, refs, name="the hypotheses")
    return _chrf(hyps, [refs]).value


def bleu_signature(refs: Sequence[str]) -> str:
    """Return sacreBLEU's signature of `bleu` with these references."""
    from sacrebleu.metrics.bleu import BLEU

    return str(BLEU(references=[[""]], force=True, tokenize=fitting_tokenizer(refs)).get_signature())


def fitting_tokenizer(refs: Sequence[str]) -> str:
    """Return the tokeniser for a text: 13a, or zh or char for a script without spaces, where 13a finds no words."""
    if not _is_unspaced(refs):
        return "13a"
    return "char" if any(_NOT_CHINESE.search(line) for line in refs) else "zh"


def missing_scores() -> str | None:
    """Return a sentence that names the scores this machine cannot compute, and the remedy; None if there are none."""
    if _has_sacremoses():
        return None
    return (
        "bleu_tokenised and bleu_compound_split are missing, because they need sacremoses: "
        "pip install 'transduce[eval]'"
    )


def split_compounds(line: str) -> str:
    """Return tokenised text with its compounds split: `rich-text format` as `rich ##AT##-##AT## text format`.

    Matches do not overlap, as in the script of the paper's authors: `a-b-c` gives `a ##AT##-##AT## b-c`. That
    script reads bytes, and this function does too. A middle letter of two bytes, as in `a-ä-c`, is therefore split
    off on both sides.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line.encode()).decode()


# ---- one function per score ------------------------------------------------------------------------------

References = Sequence[Sequence[str]]  # one or several texts of references, which match line by line


def _bleu_score(metric: "BLEU", hyps: Sequence[str], refs: References) -> tuple[float, Brevity]:
    """Return the score by `metric`, 0 to 100, and its brevity penalty."""
    score = metric.corpus_score(hyps, refs)
    # sacreBLEU computes with logarithms: a perfect output scores 100.00000000000004 without the limit.
    return min(score.score, 100.0), Brevity(score.bp, score.sys_len, score.ref_len)


def _bleu(hyps: Sequence[str], refs: References, tokenize: str) -> Score:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=tokenize, force=True)
    value, brevity = _bleu_score(metric, hyps, refs)
    label = f"cased, tokenised by {tokenize}: compare it with figures of the same signature"
    if tokenize == "13a":
        label = f"cased, detokenised, 13a: the number to compare between papers since 2018{_caveat(refs[0])}"
    return Score("bleu", value, str(metric.get_signature()), label, brevity)


def _bleu_uncased(hyps: Sequence[str], refs: References, tokenize: str) -> Score:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=tokenize, lowercase=True, force=True)
    value, brevity = _bleu_score(metric, hyps, refs)
    caveat = _caveat(refs[0]) if tokenize == "13a" else ""
    label = f"uncased, tokenised by {tokenize}: compare it with uncased figures only{caveat}"
    return Score("bleu_uncased", value, str(metric.get_signature()), label, brevity)


def _chrf(hyps: Sequence[str], refs: References) -> Score:
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    value = min(metric.corpus_score(hyps, refs).score, 100.0)
    label = "chrF2, character n-grams: needs no tokeniser, so it suits every script"
    return Score("chrf", value, str(metric.get_signature()), label)


def _moses_scores(hyps: Sequence[str], refs: References, language: str) -> list[Score]:
    """Return `bleu_tokenised` and `bleu_compound_split`."""
    import sacremoses

    moses = sacremoses.MosesTokenizer(language)
    straighten = sacremoses.MosesPunctNormalizer(language).replace_unicode_punct

    def tokenise(line: str) -> str:
        # XML escapes would rename the same tokens on both sides, which changes no count.
        return " ".join(moses.tokenize(line, escape=False))

    ref_lines = [[tokenise(line) for line in texts] for texts in refs]
    plain, plain_brevity, plain_signature = _multi_bleu([tokenise(line) for line in hyps], ref_lines)
    # The script of the paper's authors normalises punctuation in the output, not in the reference.
    split, split_brevity, split_signature = _multi_bleu(
        [split_compounds(tokenise(straighten(line))) for line in hyps],
        [[split_compounds(line) for line in texts] for texts in ref_lines],
    )
    has_rules = language in sacremoses.NonbreakingPrefixes().available_langs.values()
    for signature in (plain_signature, split_signature):
        signature.update("lang", language)
        signature.update("tok", f"moses-{language if has_rules else 'default'}")
        signature.update("moses", f"sacremoses-{sacremoses.__version__}")
    plain_signature.update("compounds", "whole")
    split_signature.update("compounds", "split")
    split_signature.update("punct", "ascii-in-output")
    caveat = "" if has_rules else f"; Moses has no rules for {language!r} and used its default"
    caveat += _caveat(refs[0])
    plain_label = f"cased, tokenised, as multi-bleu counts: the number of papers before 2018{caveat}"
    split_label = f"cased, tokenised, compounds split: {_split_comparison(language)}{caveat}"
    return [
        Score("bleu_tokenised", plain, str(plain_signature), plain_label, plain_brevity),
        Score("bleu_compound_split", split, str(split_signature), split_label, split_brevity),
    ]


def _split_comparison(language: str) -> str:
    """Return the published figures that `bleu_compound_split` compares with."""
    if language == "de":
        return "on newstest2014 the number that compares with the paper's 27.3 (base) and 28.4 (big)"
    return "counted like the paper's English-German figures"


def _multi_bleu(hyps: Sequence[str], refs: References) -> "tuple[float, Brevity, Signature]":
    """Return BLEU of tokenised lines like multi-bleu.perl: no smoothing, and 0 if no 4-gram matches."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return *_bleu_score(metric, hyps, refs), metric.get_signature()


def _bleu_without_tokenizer(hyps: Sequence[str], refs: References) -> Score:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", force=True)
    value, brevity = _bleu_score(metric, hyps, refs)
    label = "split at spaces only: the number to compare on text tokenised beforehand, such as Multi30k's"
    return Score("bleu_as_given", value, str(metric.get_signature()), label, brevity)


def _exact_match(hyps: Sequence[str], refs: References) -> Score:
    equal = sum(hyp in texts for hyp, *texts in zip(hyps, *refs, strict=True))
    label = "per cent of lines that equal their reference, character by character"
    return Score("exact_match", 100 * equal / len(hyps), f"nrefs:{len(refs)}|case:mixed|tok:none", label)


def _is_unspaced(lines: Sequence[str]) -> bool:
    """Return True if most characters are of a script without spaces."""
    return 2 * sum(len(_UNSPACED.findall(line)) for line in lines) > sum(len(line) for line in lines)


def _caveat(refs: Sequence[str]) -> str:
    """Return a warning for the labels if 13a and Moses do not suit the references; empty if they do."""
    if _is_unspaced(refs):
        return "; but it finds no words in a script without spaces: give --tokenize char, zh or ja-mecab, or read chrF"
    if 2 * sum(line.endswith(" .") for line in refs) > len(refs):
        return "; but the text looks tokenised already: see bleu_as_given"
    return ""


# ---- checks ----------------------------------------------------------------------------------------------


def check_lines(hyps: Sequence[str], refs: Sequence[str], *, name: str) -> None:
    """Raise UserError if `hyps` do not match `refs` line by line, or are empty. name: name of `hyps` in messages."""
    if len(hyps) != len(refs):
        raise UserError(
            f"{name}: expected {len(refs):,} lines, as many as the references, not {len(hyps):,}; "
            "write an empty translation as an empty line"
        )
    if not refs:
        raise UserError(f"{name} and the references: expected at least 1 line, not 0; give a text to score")


def _check_language(language: str) -> None:
    if not re.fullmatch("[a-z]{2,3}", language):
        raise UserError(
            f"language={language!r}: expected a code of two or three lower-case letters, such as en, de or fr"
        )
    if len(language) == 2 and language not in LANGUAGES:
        raise UserError(f"language={language!r}: expected a code of ISO 639, such as en, de or fr; no language has it")


def check_tokenizer(tokenize: str) -> None:
    """Raise UserError if `tokenize` is not one of `TOKENIZERS`, or needs a package that is not installed."""
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in TOKENIZERS:
        hint = nearest(tokenize, TOKENIZERS)
        raise UserError(f"tokenize={tokenize!r}: expected one of {', '.join(TOKENIZERS)}{hint}")
    try:
        BLEU(tokenize=tokenize)
    except RuntimeError as error:  # MeCab or its dictionary is missing
        extra = tokenize.removesuffix("-mecab")
        message = f"tokenize={tokenize!r}: expected MeCab and its dictionary; pip install 'sacrebleu[{extra}]'"
        raise UserError(message) from error


def _has_sacremoses() -> bool:
    return importlib.util.find_spec("sacremoses") is not None
