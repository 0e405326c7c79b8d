"""Evaluation: the perplexity by hand, of a model and of given translations, and the comparison of two systems."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.streams import piped
from support.toy_task import CommandResult, Toy, reverse_words, write_lines

import transduce
from transduce import DecodingOptions, Translator, UserError, evaluate
from transduce.data.vocabulary import BOS, EOS
from transduce.evaluate import (
    check_validation,
    evaluate_hypotheses,
    evaluate_model,
    format_evaluation,
    mean_loss,
    perplexity,
    validation_scores,
)


@pytest.fixture(scope="module")
def model(toy: Toy) -> Translator:
    return transduce.load(toy.model)


@pytest.fixture
def test_set(tmp_path: Path) -> evaluate.TestSet:
    """Five lines; the reference of the last one differs from the model's output."""
    lines = ["a b c", "d", "e f g h", "i j", "a c"]
    references = [reverse_words(line) for line in lines[:-1]] + ["a c"]
    src, ref = write_lines(tmp_path / "test.src", lines), write_lines(tmp_path / "test.ref", references)
    return evaluate.TestSet(src, ref)


def loss_by_hand(model: Translator, src: list[str], ref: list[str]) -> float:
    """Return the mean loss of a token: one sentence at a time, in float64, from the logits of the whole network."""
    network, encode = model.models[0].double(), model.tokenizer.encode
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for s, r in zip(src, ref, strict=True):
            ids = torch.tensor([[*encode(s), EOS]])
            tgt = encode(r)
            logits = network(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([[BOS, *tgt]]))
            log_probs = logits[0].log_softmax(-1)
            for position, token in enumerate([*tgt, EOS]):
                total -= float(log_probs[position, token])
                tokens += 1
    network.float()
    return total / tokens


def test_translations_and_references_can_be_pipes() -> None:
    """A pipe can be read only once: two systems share the references."""
    lines = "".join(f"{number} a b c d\n" for number in range(900)).encode()
    with piped(lines, lines, lines) as (first, second, ref):
        evaluation = evaluate_hypotheses([first, second], ref, language="de", tokenize="13a")
    assert evaluation.lines == 900
    assert [scores[0].value for scores in evaluation.systems.values()] == pytest.approx([100, 100])


def test_the_mean_loss_equals_the_loss_by_hand(toy: Toy, model: Translator) -> None:
    src = ["a b c", "d e", "f", "a b c d e f g h i j"]
    ref = ["c b a", "e d f", "", "quite different"]
    expected = loss_by_hand(transduce.load(toy.model), src, ref)
    assert expected > 0.5
    assert mean_loss(model, src, ref) == pytest.approx(expected, rel=1e-5)
    assert mean_loss(model, [*src, " "], [*ref, "not scored"]) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(UserError, match="the source text: expected a line that is not blank"):
        mean_loss(model, ["", " "], ["a", "b"])


def test_perplexity_is_exp_of_the_loss() -> None:
    assert perplexity(0) == 1
    assert perplexity(math.log(37_000)) == pytest.approx(37_000)
    assert perplexity(1e9) == math.inf


def test_validation_scores_separate_right_from_wrong(model: Translator, toy: Toy) -> None:
    pairs = [(line, reverse_words(line)) for line in toy.unseen[:30]]
    scores = validation_scores(model, pairs)
    assert scores.keys() == {"loss", "perplexity", "bleu", "chrf"}
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]), rel=1e-3)
    assert scores["bleu"] > 95 and scores["loss"] < 0.1
    assert validation_scores(model, [(src, "x y z") for src, _ in pairs])["bleu"] < 5


def test_validation_text_is_checked(model: Translator) -> None:
    check_validation([("a", ""), ("", "b")], model.tokenizer, 100, "valid.en")
    with pytest.raises(UserError, match="valid.en: expected a line that is not blank"):
        check_validation([("", "a")], model.tokenizer, 100, "valid.en")
    length = len(model.tokenizer.encode("a b c"))
    check_validation([("a b c", "a")], model.tokenizer, length, "valid.en")
    message = f"valid.en:2: expected at most {length - 1} tokens in the line .*, not {length}; leave the pair out"
    for pair in (("a b c", "a"), ("a", "a b c")):
        with pytest.raises(UserError, match=message):
            check_validation([("a", "a"), pair], model.tokenizer, length - 1, "valid.en")


def test_a_model_is_evaluated(model: Translator, test_set: evaluate.TestSet) -> None:
    evaluation = evaluate_model(model, test_set, DecodingOptions(beam_size=5, alpha=0.0, lookahead=9))
    src, ref = (path.read_text("utf-8").splitlines() for path in (test_set.src, test_set.ref))
    assert test_set.read() == (src, ref, [])
    assert evaluation.lines == 5
    assert evaluation.perplexity == pytest.approx(math.exp(mean_loss(model, src, ref)))
    scores = {score.name: score for score in evaluation.systems["model"]}
    assert scores["exact_match"].value == 80
    text = format_evaluation(evaluation)
    assert "5 lines, beam 5, alpha 0 (gnmt), lookahead 9" in text
    assert all(score.signature in text and score.label in text for score in scores.values())
    assert f"{evaluation.perplexity:.3f}" in text and "per subword of the reference" in text


def test_noise_is_scored_beside_the_text_itself(
    toy: Toy, model: Translator, test_set: evaluate.TestSet, cli: Callable[..., CommandResult]
) -> None:
    evaluation = evaluate_model(model, test_set, DecodingOptions(), ["capitals", "titles", "punctuation"])
    assert [*evaluation.systems] == ["model", "capitals", "titles", "punctuation"]
    assert evaluation.systems["model"] == evaluate_model(model, test_set, DecodingOptions()).systems["model"]
    assert evaluation.systems["punctuation"] == evaluation.systems["model"]  # the lines have none
    assert evaluate_model(model, test_set, DecodingOptions(), ["typos"]).systems["typos"]
    result = cli("evaluate", toy.model, "--src", test_set.src, "--ref", test_set.ref, "--noise", "titles,emoji")
    assert result.code == 0 and b"\ntitles:\n" in result.out and b"\nemoji:\n" in result.out
    wrong = cli("evaluate", toy.model, "--src", test_set.src, "--ref", test_set.ref, "--noise", "typo")
    assert wrong.code == 2 and "--noise=typo: expected some of capitals, lower, titles" in wrong.err


@pytest.mark.parametrize(
    ("language", "tokenize", "lines", "message"),
    [
        ("de_DE", "13a", 5, "language='de_DE'"),
        ("xx", "13a", 5, "language='xx': expected a code of ISO 639, such as en, de or fr; no language has it"),
        ("de", "13b", 5, "tokenize='13b'"),
        ("de", "13a", 4, "the same number of lines"),
    ],
)
def test_a_test_set_is_checked_before_the_model_translates(
    language: str,
    tokenize: str,
    lines: int,
    message: str,
    model: Translator,
    test_set: evaluate.TestSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = replace(test_set, language=language, tokenize=tokenize)
    write_lines(wrong.ref, wrong.ref.read_text("utf-8").splitlines()[:lines])
    for method in ("translate", "score"):
        monkeypatch.setattr(Translator, method, lambda *args, **keywords: pytest.fail("too late"))
    with pytest.raises(UserError, match=message):
        evaluate_model(model, wrong, DecodingOptions())


def test_blank_lines_of_a_test_set_are_counted(model: Translator, tmp_path: Path) -> None:
    table = write_lines(tmp_path / "test.tsv", ["a b\tb a", "c d\t", "e f\tf e", "g h\t \u3000", "\ti j"])
    warning = evaluate_model(model, evaluate.TestSet(table, None), DecodingOptions()).warning
    assert (warning or "").splitlines() == [
        f"{table}: expected a source on each line, but 1 of 5 are blank, the first on line 5; add them, or leave these "
        "lines out",
        f"{table}: expected a reference on each line, but 2 of 5 are blank, the first on line 2; add them, or leave "
        "these lines out",
    ]
    ref = write_lines(tmp_path / "ref", ["b a", "", "f e"])
    other = write_lines(tmp_path / "other", ["b a", "d c", ""])
    rules = {"language": "en", "tokenize": "13a"}
    assert "1 of 3 are blank, the first on line 2" in (evaluate_hypotheses([other], ref, **rules).warning or "")
    assert evaluate_hypotheses([other], ref, more_refs=[other], **rules).warning is None


def test_given_translations_are_evaluated_without_a_model(test_set: evaluate.TestSet, tmp_path: Path) -> None:
    ref = test_set.ref
    lines = ref.read_text("utf-8").splitlines()
    right, wrong = write_lines(tmp_path / "right", lines), write_lines(tmp_path / "wrong", ["x y z"] * len(lines))
    evaluation = evaluate_hypotheses([right], ref, language="en", tokenize="13a")
    assert evaluation.perplexity is None and evaluation.significance is None
    assert next(s.value for s in evaluation.systems[str(right)] if s.name == "exact_match") == 100
    comparison = evaluate_hypotheses([wrong, right], ref, language="en", tokenize="13a")
    assert comparison.significance is not None
    assert comparison.significance.delta > 0 and comparison.significance.p_value < 0.05
    assert "p = " in format_evaluation(comparison) and str(wrong) in format_evaluation(comparison)
    length = evaluate.Score("length", 3.0, "by hand", "")
    same = evaluate_hypotheses([right, right], ref, language="en", tokenize="13a", more_scores=lambda *_: [length])
    assert same.significance is not None and same.significance.p_value == 1
    assert [scores[-1] for scores in same.systems.values()] == [length]
    with pytest.raises(UserError, match="--hyp: expected 1 or 2 files, not 3"):
        evaluate_hypotheses([right] * 3, ref, language="en", tokenize="13a")


# ---- through the command line ------------------------------------------------------------------------------------


def test_a_table_and_several_references(
    toy: Toy, test_set: evaluate.TestSet, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    src, ref = test_set.src, test_set.ref
    assert ref is not None
    pairs = zip(src.read_text("utf-8").splitlines(), ref.read_text("utf-8").splitlines(), strict=True)
    table = write_lines(tmp_path / "test.tsv", ["\t".join(pair) for pair in pairs])
    two_files = cli("evaluate", toy.model, "--src", src, "--ref", ref)
    assert two_files.code == 0 and cli("evaluate", toy.model, "--src", table).out == two_files.out
    given = cli("evaluate", "--hyp", src, "--ref", ref)
    assert given.code == 0 and cli("evaluate", "--hyp", src, "--src", table).out == given.out
    assert "only the references have tabs" in cli("evaluate", "--hyp", src, "--ref", table).err
    result = cli("evaluate", "--hyp", src, "--src", table, "--ref", ref)
    assert result.code == 2 and "must not be set with --hyp; leave them out" in result.err
    result = cli("evaluate", "--hyp", src, "--src", src)
    assert result.code == 2 and "--ref: expected reference translations, in --ref or in a table as --src" in result.err
    result = cli("evaluate", "--hyp", src, "--ref", ref, "--ref", src)
    assert result.code == 0 and b"exact_match           100.00" in result.out and b"nrefs:2" in result.out
    result = cli("evaluate", toy.model, "--src", src)
    assert result.code == 2 and "--ref: expected reference translations, in --ref or in a table as --src" in result.err
    short = write_lines(tmp_path / "short", ["a"])
    result = cli("evaluate", toy.model, "--src", src, "--ref", ref, "--ref", short)
    assert result.code == 2 and f"{src} and {short}: expected the same number of lines" in result.err


def test_json_holds_every_figure(toy: Toy, test_set: evaluate.TestSet, cli: Callable[..., CommandResult]) -> None:
    src, ref = test_set.src, test_set.ref
    process = cli("evaluate", toy.model, "--src", src, "--ref", ref, "--json")
    assert process.code == 0, process.err
    evaluation = json.loads(process.out)
    assert evaluation["lines"] == 5 and evaluation["search"]["beam_size"] == 4
    names = [score["name"] for score in evaluation["systems"]["model"]]
    assert {"bleu", "chrf", "bleu_as_given", "exact_match"} <= set(names)
    assert all(score["signature"] for score in evaluation["systems"]["model"])
    pair = cli("evaluate", "--hyp", ref, "--hyp", src, "--ref", ref, "--json")
    assert json.loads(pair.out)["significance"]["delta"] < 0
    text = cli("evaluate", "--hyp", ref, "--ref", ref)
    assert text.code == 0 and b"100.00" in text.out


def test_a_mistake_exits_with_2_and_prints_no_score(
    toy: Toy, test_set: evaluate.TestSet, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    src, ref = test_set.src, test_set.ref
    short, empty = write_lines(tmp_path / "short", ["a"]), write_lines(tmp_path / "empty", [])
    for arguments, message in (
        ([toy.model, "--src", short, "--ref", ref], "expected the same number of lines, not 1 and"),
        (["--hyp", short, "--ref", ref], "expected the same number of lines, not 1 and"),
        (["--hyp", ref, "--hyp", short, "--ref", ref], "expected the same number of lines, not 1 and"),
        (["--hyp", empty, "--ref", empty], "expected at least 1 line"),
        (["--hyp", tmp_path / "none", "--ref", ref], "none: expected a text file"),
        (["--hyp", ref, "--ref", ref, "--tokenize", "13b"], "did you mean '13a'?"),
        (["--hyp", ref, "--ref", ref, "--language", "English"], "language='English'"),
        (["--hyp", ref, "--ref", ref, "--beam-size", 3], "must not be set with --hyp"),
        (["--hyp", ref, "--ref", ref, "--src", src], "must not be set with --hyp"),
        (["--hyp", ref, "--ref", ref, "--lookahead", 5], "must not be set with --hyp"),
        (["--hyp", ref, "--ref", ref, "--noise", "typos"], "must not be set with --hyp"),
        ([toy.model, "--ref", ref], "--src: expected the source text"),
        ([toy.model, "--hyp", ref, "--ref", ref], "expected a model with --src"),
        (["--ref", ref], "expected a model with --src"),
        ([toy.model, "--src", src, "--ref", ref, "--beam-size", 0], "--beam-size=0"),
        ([toy.model, "--src", src, "--ref", ref, "--ref", src, "--noise", "masks"], "--noise=masks: must not be set"),
        ([toy.model, "--src", src, "--ref", ref, "--alpha", 11], "--alpha=11"),
    ):
        process = cli("evaluate", *arguments)
        assert (process.code, process.out) == (2, b""), (arguments, process)
        assert message in process.err and "Traceback" not in process.err, process.err
