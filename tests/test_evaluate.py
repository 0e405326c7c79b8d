"""Judging: the perplexity by hand, a model and given translations, and the comparison of two."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.toy_task import Finished, Toy, turned, write_lines

import transduce
from transduce import Translator, UserError
from transduce.data.tokenizer import BOS, EOS
from transduce.evaluate import (
    check_validation,
    judge_hypotheses,
    judge_model,
    mean_loss,
    perplexity,
    show,
    validation_scores,
)


@pytest.fixture(scope="module")
def model(toy: Toy) -> Translator:
    return transduce.load(toy.model)


@pytest.fixture
def test_set(tmp_path: Path) -> tuple[Path, Path]:
    """Five lines, of which the last has another reference than the model's answer."""
    lines = ["a b c", "d", "e f g h", "i j", "a c"]
    references = [turned(line) for line in lines[:-1]] + ["a c"]
    return write_lines(tmp_path / "test.src", lines), write_lines(tmp_path / "test.ref", references)


def loss_by_hand(model: Translator, src: list[str], ref: list[str]) -> float:
    """One sentence at a time, in float64, from the logits of the whole network."""
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


def test_perplexity_by_hand(toy: Toy, model: Translator) -> None:
    src = ["a b c", "d e", "f", "a b c d e f g h i j"]
    ref = ["c b a", "e d f", "", "quite different"]
    expected = loss_by_hand(transduce.load(toy.model), src, ref)
    assert expected > 0.5
    assert mean_loss(model, src, ref) == pytest.approx(expected, rel=1e-5)
    assert mean_loss(model, [*src, " "], [*ref, "not judged"]) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(UserError, match="every source line is blank"):
        mean_loss(model, ["", " "], ["a", "b"])


def test_perplexity_of_any_loss() -> None:
    assert perplexity(0) == 1
    assert perplexity(math.log(37_000)) == pytest.approx(37_000)
    assert perplexity(1e9) == math.inf


def test_validation_scores(model: Translator, toy: Toy) -> None:
    pairs = [(line, turned(line)) for line in toy.unseen[:30]]
    scores = validation_scores(model, pairs)
    assert scores.keys() == {"loss", "perplexity", "bleu"}
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]), rel=1e-3)
    assert scores["bleu"] > 95 and scores["loss"] < 0.1
    assert validation_scores(model, [(src, "x y z") for src, _ in pairs])["bleu"] < 5


def test_validation_text_is_checked(model: Translator) -> None:
    check_validation([("a", ""), ("", "b")], model.tokenizer, 100, "valid.en")
    with pytest.raises(UserError, match="every line of valid.en is blank"):
        check_validation([("", "a")], model.tokenizer, 100, "valid.en")
    length = len(model.tokenizer.encode("a b c"))
    check_validation([("a b c", "a")], model.tokenizer, length, "valid.en")
    for pair in (("a b c", "a"), ("a", "a b c")):
        with pytest.raises(
            UserError, match=f"line 2 of valid.en, .* has {length} tokens; expected at most {length - 1}"
        ):
            check_validation([("a", "a"), pair], model.tokenizer, length - 1, "valid.en")


def test_a_model_is_judged(model: Translator, test_set: tuple[Path, Path]) -> None:
    judged = judge_model(model, *test_set, language="en", tokenize="13a", ask=model.settings(5, 0.0, lookahead=9))
    src, ref = (path.read_text("utf-8").splitlines() for path in test_set)
    assert judged.lines == 5
    assert judged.perplexity == pytest.approx(math.exp(mean_loss(model, src, ref)))
    scores = {score.name: score for score in judged.systems["model"]}
    assert scores["exact_match"].value == 80
    shown = show(judged)
    assert "5 lines, beam 5, alpha 0 (gnmt), lookahead 9" in shown
    assert all(score.signature in shown and score.label in shown for score in scores.values())
    assert f"{judged.perplexity:.3f}" in shown and "per subword of the reference" in shown


@pytest.mark.parametrize(
    ("language", "tokenize", "lines", "message"),
    [
        ("de_DE", "13a", 5, "language 'de_DE'"),
        ("de", "13b", 5, "tokenize '13b'"),
        ("de", "13a", 4, "must match line by line"),
    ],
)
def test_what_cannot_be_scored_is_not_translated(
    language: str,
    tokenize: str,
    lines: int,
    message: str,
    model: Translator,
    test_set: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    src, ref = test_set
    write_lines(ref, ref.read_text("utf-8").splitlines()[:lines])
    for verb in ("translate", "score"):
        monkeypatch.setattr(Translator, verb, lambda *given, **more: pytest.fail("too late"))
    with pytest.raises(UserError, match=message):
        judge_model(model, src, ref, language=language, tokenize=tokenize, ask=model.settings())


def test_given_translations_are_judged_without_a_model(test_set: tuple[Path, Path], tmp_path: Path) -> None:
    _, ref = test_set
    lines = ref.read_text("utf-8").splitlines()
    right, wrong = write_lines(tmp_path / "right", lines), write_lines(tmp_path / "wrong", ["x y z"] * len(lines))
    one = judge_hypotheses([right], ref, language="en", tokenize="13a")
    assert one.perplexity is None and one.significance is None
    assert next(s.value for s in one.systems[str(right)] if s.name == "exact_match") == 100
    two = judge_hypotheses([wrong, right], ref, language="en", tokenize="13a")
    assert two.significance is not None
    assert two.significance.delta > 0 and two.significance.p_value < 0.05
    assert "p = " in show(two) and str(wrong) in show(two)
    same = judge_hypotheses([right, right], ref, language="en", tokenize="13a")
    assert same.significance is not None and same.significance.p_value == 1
    with pytest.raises(UserError, match="3 --hyp files; expected one, or two"):
        judge_hypotheses([right] * 3, ref, language="en", tokenize="13a")


# ---- through the command line ------------------------------------------------------------------------------------


def test_json_holds_every_figure(toy: Toy, test_set: tuple[Path, Path], cli: Callable[..., Finished]) -> None:
    src, ref = test_set
    done = cli("evaluate", toy.model, "--src", src, "--ref", ref, "--json")
    assert done.code == 0, done.err
    judged = json.loads(done.out)
    assert judged["lines"] == 5 and judged["search"]["beam_size"] == 4
    names = [score["name"] for score in judged["systems"]["model"]]
    assert {"bleu", "chrf", "bleu_as_given", "exact_match"} <= set(names)
    assert all(score["signature"] for score in judged["systems"]["model"])
    pair = cli("evaluate", "--hyp", ref, "--hyp", src, "--ref", ref, "--json")
    assert json.loads(pair.out)["significance"]["delta"] < 0
    shown = cli("evaluate", "--hyp", ref, "--ref", ref)
    assert shown.code == 0 and b"100.00" in shown.out


def test_mistakes(toy: Toy, test_set: tuple[Path, Path], tmp_path: Path, cli: Callable[..., Finished]) -> None:
    src, ref = test_set
    short, empty = write_lines(tmp_path / "short", ["a"]), write_lines(tmp_path / "empty", [])
    for arguments, message in (
        ([toy.model, "--src", short, "--ref", ref], "short has 1 lines but"),
        (["--hyp", short, "--ref", ref], "short has 1 lines but"),
        (["--hyp", ref, "--hyp", short, "--ref", ref], "short has 1 lines but"),
        (["--hyp", empty, "--ref", empty], "are empty"),
        (["--hyp", tmp_path / "none", "--ref", ref], "none does not exist"),
        (["--hyp", ref, "--ref", ref, "--tokenize", "13b"], "did you mean '13a'?"),
        (["--hyp", ref, "--ref", ref, "--language", "English"], "language 'English'"),
        (["--hyp", ref, "--ref", ref, "--beam-size", 3], "have no effect with --hyp"),
        (["--hyp", ref, "--ref", ref, "--src", src], "have no effect with --hyp"),
        (["--hyp", ref, "--ref", ref, "--lookahead", 5], "have no effect with --hyp"),
        ([toy.model, "--ref", ref], "needs --src"),
        ([toy.model, "--hyp", ref, "--ref", ref], "give either a model and --src"),
        (["--ref", ref], "give either a model and --src"),
        ([toy.model, "--src", src, "--ref", ref, "--beam-size", 0], "search.beam_size=0"),
        ([toy.model, "--src", src, "--ref", ref, "--alpha", 11], "search.alpha=11"),
    ):
        done = cli("evaluate", *arguments)
        assert (done.code, done.out) == (2, b""), (arguments, done)
        assert message in done.err and "Traceback" not in done.err, done.err
