"""Evaluate a model or given translations: perplexity of the references, and scores with their signatures."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from transduce.config.schema import NoiseKind, SearchConfig
from transduce.console import printable
from transduce.data.corpora import Corpus, read_pairs
from transduce.data.noise import add_noise
from transduce.data.tags import TagCount
from transduce.data.text import empty, is_blank, read_lines, unequal
from transduce.decoding.options import DecodingOptions
from transduce.decoding.segmentation import with_tag
from transduce.errors import UserError
from transduce.evaluation.metrics import Score, bleu, check_settings, chrf, corpus_scores, missing_scores
from transduce.evaluation.output_checks import blank_lines, remarks
from transduce.evaluation.significance import Bootstrap, paired_bootstrap

if TYPE_CHECKING:  # the translator imports torch, which the scoring of a file does not need
    from transduce.data.vocabulary import TokenizerLike
    from transduce.translate import Translator


MoreScores = Callable[[Sequence[str], Sequence[str], Sequence[str]], list[Score]]
"""A function from sources, without tags, outputs and references to further scores of the outputs."""


@dataclass(frozen=True)
class TestSet:
    """A source text and its references, which match line by line, and how to score translations of it.

    ref: None if `src` is a table that holds both. more_refs: more references of each line. language: code of the target
    language; it selects the rules of Moses. tokenize: one of `metrics.TOKENIZERS`.
    """

    src: Path
    ref: Path | None
    language: str = "en"
    tokenize: str = "13a"
    more_refs: Sequence[Path] = ()

    def read(self) -> tuple[list[str], list[str], list[list[str]]]:
        """Return the source lines, the references, and more references.

        Raises UserError if the texts do not match line by line, or the settings are wrong.
        """
        check_settings(language=self.language, tokenize=self.tokenize)
        pairs = list(read_pairs(Corpus(self.src, self.ref)))
        more = _references(self.more_refs, len(pairs), f"{self.src}")
        return [src for src, _ in pairs], [ref for _, ref in pairs], more


def _references(paths: Sequence[Path], count: int, name: str) -> list[list[str]]:
    """Return the lines of texts of references, of which each has the `count` lines of the text `name`."""
    texts = [list(read_lines(path)) for path in paths]
    for path, lines in zip(paths, texts, strict=True):
        if len(lines) != count:
            raise unequal((name, f"{path}"), (count, len(lines)))
    return texts


@dataclass(frozen=True)
class Evaluation:
    """The figures of one or two systems on one test set. `transduce evaluate --json` prints these fields.

    systems: name to scores, from `metrics.corpus_scores`. perplexity: perplexity of the references under the model, per
    subword, unsmoothed, EOS included; None without a model. search: settings of the model's search. significance: the
    second system compared with the first. missing: the scores that could not be computed, and the remedy. warning:
    problems of the source text and of the form of the outputs, a line each; None if there are none.
    """

    lines: int
    systems: dict[str, list[Score]]
    perplexity: float | None = None
    search: SearchConfig | None = None
    significance: Bootstrap | None = None
    missing: str | None = None
    warning: str | None = None


def evaluate_model(
    translator: "Translator",
    test_set: TestSet,
    options: DecodingOptions,
    noise: Sequence[NoiseKind] = (),
    more_scores: MoreScores | None = None,
) -> Evaluation:
    """Translate the source of `test_set` and score the translations.

    noise: kinds of noise. With each of them on every line, the text is translated and scored once more. The noise of a
    line depends on its number and its kind only. more_scores: scores besides those of the texts. Raises UserError,
    before it translates, if the texts do not match line by line or the settings are wrong, and for noise with several
    references.
    """
    if noise and test_set.more_refs:  # masks replace words of source and reference: each has its own source
        names = ",".join(noise)
        raise UserError(f"noise={names}: must not be set with several references; give one, or leave the noise out")
    search = options.resolve(translator.config.search)
    sources, references, more_refs = test_set.read()
    tags = TagCount(translator.tokenizer, options.tag)
    tags.see(sources)
    sources = with_tag(sources, options.tag, translator.tokenizer)
    too_long = translator.long_line(sources, references)
    if too_long is not None:
        raise UserError(too_long.problem((str(test_set.src), str(test_set.ref or test_set.src))))
    model_perplexity = perplexity(mean_loss(translator, sources, references))
    untagged = dataclasses.replace(options, tag=None)
    systems = dict[str, list[Score]]()
    remarks_on = [
        *blank_lines(printable(test_set.src), "source", sources),
        *blank_lines(printable(test_set.ref or test_set.src), "reference", references, *more_refs),
    ]
    for name in ("model", *noise):
        src, ref = sources, references
        if name != "model":
            src, ref = _with_noise(name, sources, references, translator.tokenizer)
        outputs = [translation.text for translation in translator.translate(src, options=untagged)]
        systems[name] = corpus_scores(
            outputs, ref, more_refs=more_refs, language=test_set.language, tokenize=test_set.tokenize
        )
        if more_scores is not None:
            systems[name] += more_scores([translator.tokenizer.split_tag(line)[1] for line in src], outputs, ref)
        remarks_on += remarks(name, outputs, ref)
    warning = tags.warning(printable(test_set.src), "add --tag, or put one before each line")
    return Evaluation(
        len(references),
        systems,
        perplexity=model_perplexity,
        search=search,
        missing=missing_scores(),
        warning="\n".join([*([warning] if warning else []), *remarks_on]) or None,
    )


def _with_noise(
    name: NoiseKind, sources: Sequence[str], references: Sequence[str], tokenizer: "TokenizerLike"
) -> tuple[list[str], list[str]]:
    """Return sources and references with noise of a kind on each line. A tag stays before its line."""
    noisy: tuple[list[str], list[str]] = ([], [])
    for i, (line, reference) in enumerate(zip(sources, references, strict=True)):
        tag, text = tokenizer.split_tag(line)
        source, target = add_noise((text, reference), {name: 1}, Random(i))
        noisy[0].append(f"{tag} {source}" if tag else source)
        noisy[1].append(target)
    return noisy


def evaluate_hypotheses(
    hyps: Sequence[Path],
    ref: Path | Corpus,
    *,
    more_refs: Sequence[Path] = (),
    language: str,
    tokenize: str,
    src: Path | None = None,
    more_scores: MoreScores | None = None,
) -> Evaluation:
    """Score one or two files of translations against `ref` and `more_refs`, and compare two by the paired bootstrap.

    ref: a text, or a table of which the target side is the text. language, tokenize: the fields of `TestSet`.
    more_scores: scores besides those of the texts, of `src`, or of the source side of the table.
    Raises UserError for more than two files, a file that does not match `ref` line by line, or wrong settings.
    """
    check_settings(language=language, tokenize=tokenize)
    if len(hyps) > 2:
        raise UserError(f"--hyp: expected 1 or 2 files, not {len(hyps)}; compare two at a time")
    is_table = isinstance(ref, Corpus)
    name = ref.name if is_table else f"{ref}"
    # Once, because a pipe can be read only once.
    pairs = list(read_pairs(ref)) if is_table else []
    references = [tgt for _, tgt in pairs] if is_table else list(read_lines(ref))
    more = _references(more_refs, len(references), name)
    sources = [source for source, _ in pairs]
    if src is not None:
        (sources,) = _references([src], len(references), name)
    outputs = [list(read_lines(hyp)) for hyp in hyps]
    for hyp, output in zip(hyps, outputs, strict=True):
        if len(output) != len(references):
            raise unequal((f"{hyp}", name), (len(output), len(references)))
        if not output:
            raise empty(f"{hyp}", name)
    systems = dict[str, list[Score]]()
    for hyp, output in zip(hyps, outputs, strict=True):  # the same file twice is one system
        scores = corpus_scores(output, references, more_refs=more, language=language, tokenize=tokenize)
        systems[printable(hyp)] = scores + (more_scores(sources, output, references) if more_scores else [])
    significance = None
    if len(hyps) == 2:
        significance = paired_bootstrap(outputs[0], outputs[1], references, more_refs=more, tokenize=tokenize)
    lines = blank_lines(printable(name), "reference", references, *more)
    for hyp, output in zip(hyps, outputs, strict=True):
        lines += remarks(printable(hyp), output, references)
    return Evaluation(
        len(references),
        systems,
        significance=significance,
        missing=missing_scores(),
        warning="\n".join(lines) or None,
    )


def mean_loss(translator: "Translator", src: Sequence[str], ref: Sequence[str]) -> float:
    """Return the mean negative log-likelihood of a reference token, in nats, over the pairs with a source.

    Raises UserError if every source line is blank.
    """
    pairs = [(s, r) for s, r in zip(src, ref, strict=True) if not is_blank(s)]
    if not pairs:
        raise UserError("the source text: expected a line that is not blank; give a text to evaluate on")
    scores = translator.score([s for s, _ in pairs], [r for _, r in pairs])
    return -sum(score.log_prob for score in scores) / sum(len(score.token_log_probs) for score in scores)


def validation_scores(translator: "Translator", pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return the scores that training reports: loss and perplexity per token, and BLEU and chrF of greedy search.

    The loss is unsmoothed; BLEU and chrF are `metrics.bleu` and `metrics.chrf`.
    """
    src = [src for src, _ in pairs]
    ref = [ref for _, ref in pairs]
    loss = mean_loss(translator, src, ref)
    hypotheses = [translation.text for translation in translator.translate(src, beam_size=1, loops="keep")]
    return {
        "loss": round(loss, 5),
        "perplexity": round(perplexity(loss), 4),
        "bleu": round(bleu(hypotheses, ref), 2),
        "chrf": round(chrf(hypotheses, ref), 2),
    }


def check_validation(pairs: Sequence[tuple[str, str]], tokenizer: "TokenizerLike", longest: int, name: str) -> None:
    """Raise UserError, before training starts, for pairs that `validation_scores` cannot score.

    longest: maximum number of tokens that the model takes. name: name of the text, for the message.
    """
    if all(is_blank(src) for src, _ in pairs):
        raise UserError(f"{name}: expected a line that is not blank; give a text to evaluate on")
    for number, pair in enumerate(pairs, start=1):
        length = max(len(tokenizer.encode(pair[0])), len(tokenizer.target.encode(pair[1])))
        if length > longest:
            raise UserError(
                f"{name}:{number}: expected at most {longest:,} tokens in the line and in its reference, "
                f"not {length:,}; leave the pair out"
            )


def perplexity(loss: float) -> float:
    """Return exp of a mean loss in nats; infinity if the result is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def format_evaluation(evaluation: Evaluation) -> str:
    """Return `evaluation` as text to read: every figure with its signature and its label."""
    lines = [f"{evaluation.lines:,} lines"]
    if evaluation.search is not None:
        search = evaluation.search
        lines[0] += f", beam {search.beam_size}, alpha {search.alpha:g} ({search.length_penalty})"
        lines[0] += f", lookahead {search.lookahead}" if search.lookahead is not None else ""
    if evaluation.perplexity is not None:
        meaning = "per subword of the reference, unsmoothed, EOS included"
        lines += ["", f"perplexity           {evaluation.perplexity:7.3f}  {meaning}"]
    for name, scores in evaluation.systems.items():
        lines += ["", f"{name}:"]
        for score in scores:
            lines += [f"{score.name:20} {score.value:7.2f}  {score.label}", f"{'':30}{score.signature}"]
    if evaluation.significance is not None:
        test = evaluation.significance
        interval = f"95 % interval {test.delta_low:+.2f} to {test.delta_high:+.2f}"
        lines += ["", f"difference in BLEU   {test.delta:+7.2f}  {interval}, p = {test.p_value:.4f}"]
        lines += [f"{'':30}{test.label}", f"{'':30}{test.signature}"]
    if evaluation.missing:
        lines += ["", evaluation.missing]
    return "\n".join(lines)
