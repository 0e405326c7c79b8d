"""How good translations are: likelihood of the references under a model, and scores, each with its signature."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.config.schema import SearchConfig
from transduce.data.text import is_blank, read_lines, read_pairs
from transduce.errors import UserError
from transduce.evaluation.metrics import (
    Bootstrap,
    Score,
    bleu,
    check_settings,
    corpus_scores,
    left_out,
    paired_bootstrap,
)

if TYPE_CHECKING:  # for which given translations need not wait: it loads torch
    from transduce.data.tokenizer import Tokenizer
    from transduce.translate import Translator


@dataclass(frozen=True)
class Judged:
    """One or two systems on one test set.

    scores: for each system, as `scores.corpus_scores` gives them. perplexity: of the references under the model, per
    subword, unsmoothed, EOS included; None without a model. search: the model's settings. significance: of the second
    system against the first. missing: what could not be computed, and the remedy.
    """

    lines: int
    systems: dict[str, list[Score]]
    perplexity: float | None = None
    search: SearchConfig | None = None
    significance: Bootstrap | None = None
    missing: str | None = None


def judge_model(
    translator: "Translator", src: Path, ref: Path, *, language: str, tokenize: str, ask: SearchConfig
) -> Judged:
    """Translate the lines of `src` and judge them against `ref`.

    Raises UserError, before anything is translated, if the texts do not match line by line or the settings are wrong.
    """
    check_settings(language=language, tokenize=tokenize)
    pairs = list(read_pairs(src, ref))
    sources, references = [s for s, _ in pairs], [r for _, r in pairs]
    found = perplexity(mean_loss(translator, sources, references))
    translated = translator.translate(sources, beam_size=ask.beam_size, alpha=ask.alpha, lookahead=ask.lookahead)
    translations = [t.text for t in translated]
    scores = corpus_scores(translations, references, language=language, tokenize=tokenize)
    return Judged(len(pairs), {"model": scores}, perplexity=found, search=ask, missing=left_out())


def judge_hypotheses(hyps: Sequence[Path], ref: Path, *, language: str, tokenize: str) -> Judged:
    """Judge one or two files of translations against `ref`; two are compared by paired bootstrap.

    Raises UserError if there are more, one does not match `ref` line by line, or the settings are wrong.
    """
    check_settings(language=language, tokenize=tokenize)
    if len(hyps) > 2:
        raise UserError(f"{len(hyps)} --hyp files; expected one, or two to compare")
    for hyp in hyps:
        for _ in read_pairs(hyp, ref):
            pass
    references, outputs = list(read_lines(ref)), [list(read_lines(hyp)) for hyp in hyps]
    systems = {
        str(hyp): corpus_scores(output, references, language=language, tokenize=tokenize)
        for hyp, output in zip(hyps, outputs, strict=True)
    }
    significance = paired_bootstrap(outputs[0], outputs[1], references, tokenize=tokenize) if len(hyps) == 2 else None
    return Judged(len(references), systems, significance=significance, missing=left_out())


def mean_loss(translator: "Translator", src: Sequence[str], ref: Sequence[str]) -> float:
    """The mean negative log-likelihood of a reference token, in nats; pairs with a blank source have none.

    Raises UserError if there is no pair left.
    """
    pairs = [(s, r) for s, r in zip(src, ref, strict=True) if not is_blank(s)]
    if not pairs:
        raise UserError("there is no line to judge: every source line is blank")
    scored = translator.score([s for s, _ in pairs], [r for _, r in pairs])
    return -sum(one.log_prob for one in scored) / sum(len(one.token_log_probs) for one in scored)


def validation_scores(translator: "Translator", pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """What training looks at: loss and perplexity per token (unsmoothed), and BLEU (sacreBLEU 13a) of greedy search."""
    src, ref = [src for src, _ in pairs], [ref for _, ref in pairs]
    loss = mean_loss(translator, src, ref)
    hypotheses = [translation.text for translation in translator.translate(src, beam_size=1)]
    return {"loss": round(loss, 5), "perplexity": round(perplexity(loss), 4), "bleu": round(bleu(hypotheses, ref), 2)}


def check_validation(pairs: Sequence[tuple[str, str]], tokenizer: "Tokenizer", longest: int, name: str) -> None:
    """Raise UserError, before training, for what `validation_scores` could not judge.

    longest: the most tokens that the model takes. name: of the text, for the message.
    """
    if all(is_blank(src) for src, _ in pairs):
        raise UserError(f"there is no line to judge by: every line of {name} is blank")
    for number, pair in enumerate(pairs, start=1):
        length = max(len(ids) for ids in tokenizer.encode_batch(pair))
        if length > longest:
            where = f"line {number} of {name}, or its reference,"
            raise UserError(f"{where} has {length:,} tokens; expected at most {longest:,}: leave the pair out")


def perplexity(loss: float) -> float:
    """exp of a mean loss in nats; infinite where that is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def show(judged: Judged) -> str:
    """`judged` as text for a person: every figure with its signature and what it compares with."""
    lines = [f"{judged.lines:,} lines"]
    if judged.search is not None:
        search = judged.search
        lines[0] += f", beam {search.beam_size}, alpha {search.alpha:g} ({search.length_penalty})"
        lines[0] += f", lookahead {search.lookahead}" if search.lookahead is not None else ""
    if judged.perplexity is not None:
        lines += [
            "",
            f"perplexity           {judged.perplexity:7.3f}  per subword of the reference, unsmoothed, EOS included",
        ]
    for name, scores in judged.systems.items():
        lines += ["", f"{name}:"]
        for score in scores:
            lines += [f"{score.name:20} {score.value:7.2f}  {score.label}", f"{'':30}{score.signature}"]
    if judged.significance is not None:
        found = judged.significance
        interval = f"95 % interval {found.delta_low:+.2f} to {found.delta_high:+.2f}"
        lines += ["", f"difference in BLEU   {found.delta:+7.2f}  {interval}, p = {found.p_value:.4f}"]
        lines += [f"{'':30}{found.label}", f"{'':30}{found.signature}"]
    if judged.missing:
        lines += ["", judged.missing]
    return "\n".join(lines)
