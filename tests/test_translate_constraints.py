"""Phrases in translations: they are in the text or named, whatever the batch, the options and the engine."""

import random
from typing import Any

import pytest
from support.phrases import CONSTRAINTS, check, has
from support.toy_task import Toy
from support.translators import LINES, noisy_translator

import transduce
from transduce import Sampling, Translator, UserError
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DecodingOptions, Split
from transduce.decoding.phrases.line_constraint import LineConstraint


@pytest.fixture(scope="module")
def noisy(toy: Toy) -> Translator:
    return noisy_translator(toy)


@pytest.mark.parametrize("options", [{}, {"beam_size": 2}, {"n_best": 4}, {"lookahead": 2, "n_best": 2}])
def test_phrases_are_in_the_text_or_named(noisy: Translator, options: dict[str, Any]) -> None:
    translations = noisy.translate(LINES, constraints=CONSTRAINTS, **options)
    for translation, constraint, line in zip(translations, CONSTRAINTS, LINES, strict=True):
        if line.strip():
            check(translation, constraint)
    cut = [t for t, line in zip(translations, LINES, strict=True) if line.strip() and not (t.finished or t.unmet)]
    assert len(cut) <= 1  # the noise may make a model repeat a token to the longest length, with its phrases
    assert [t.unmet for t in translations].count(()) >= len(LINES) - 2
    assert len(translations[3].alternatives) == options.get("n_best", 1) - 1


@pytest.mark.slow
def test_a_thousand_sentences_have_their_phrases_or_name_them(noisy: Translator) -> None:
    chance = random.Random(1)

    def letters(most: int) -> str:
        return " ".join(chance.choices("abcdefghij", k=chance.randint(1, most)))

    lines = [letters(8) for _ in range(1_000)]
    constraints = [{"must": [letters(3) for _ in range(chance.randint(1, 4))]} for _ in lines]
    translations = noisy.translate(lines, constraints=constraints, beam_size=4)
    for translation, constraint in zip(translations, constraints, strict=True):
        check(translation, constraint)
    assert sum(len(translation.unmet) for translation in translations) <= 0.01 * sum(
        len(c["must"]) for c in constraints
    )

    order = chance.sample(range(1_000), 210)  # in other batches, with free lines among them
    for start in range(0, len(order), 7):
        few = order[start : start + 7]
        mixed = [constraints[i] if i % 3 else None for i in few]
        for i, translation in zip(
            few, noisy.translate([lines[i] for i in few], constraints=mixed, beam_size=4), strict=True
        ):
            if i % 3:
                assert (translation.text, translation.unmet) == (translations[i].text, translations[i].unmet)


UNUSUAL = [
    "北京 2",
    "\U0001f600",
    "U.S.",
    "(a)",
    "a-b",
    "'s",
    "e\u0301",
    "กิน",
    "-",
    "</s>",
    "<0x41>",
    "a a",
    "100 %",
    "…",
]


@pytest.mark.parametrize("size", [2, 6])
def test_any_characters_are_met(noisy: Translator, size: int) -> None:
    """Most are not pieces: bytes spell them, in parts of characters. Few outputs reach the most tokens."""
    phrases = [[UNUSUAL[i], UNUSUAL[(i * 5 + 3) % len(UNUSUAL)]] for i in range(len(UNUSUAL))]
    constraints = [{"must": pair, "must_not": ["c"]} for pair in phrases]
    translations = noisy.translate(["a b c"] * len(phrases), constraints=constraints, beam_size=size)
    for translation, pair in zip(translations, phrases, strict=True):
        assert all(phrase in translation.text for phrase in pair if phrase not in translation.unmet), (
            pair,
            translation,
        )
        assert translation.finished or translation.unmet
    assert [translation.unmet for translation in translations].count(()) >= len(phrases) - 2


def test_a_blank_line_meets_no_phrase(noisy: Translator) -> None:
    (blank,) = noisy.translate([" "], constraints=[{"must": ["x", "x", "y"], "must_not": ["z"]}])
    assert (blank.text, blank.unmet) == (" ", ("x", "x", "y"))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_batch_does_not_change_an_output(toy: Toy, precision: str) -> None:
    if precision == "int8" and compiled() is None:
        pytest.skip("needs compiled kernels")
    model = transduce.load(toy.model, precision=precision)
    together = model.translate(LINES, constraints=CONSTRAINTS, n_best=2)
    for i, (line, constraint) in enumerate(zip(LINES, CONSTRAINTS, strict=True)):
        (alone,) = model.translate([line], constraints=[constraint], n_best=2)
        assert alone.text == together[i].text and alone.unmet == together[i].unmet
        if compiled() is not None:  # then each row is computed without regard to the others
            assert alone == together[i]
    free = [i for i, constraint in enumerate(CONSTRAINTS) if constraint is None]
    assert [together[i].text for i in free] == [model.translate([LINES[i]], n_best=2)[0].text for i in free]


def test_continuous_batching_translates_as_a_file(noisy: Translator) -> None:

    expected = noisy.translate(LINES, constraints=CONSTRAINTS, n_best=2)
    running = noisy.running()
    outputs = dict[Any, Any]()
    options = DecodingOptions(n_best=2)
    for i, (line, constraint) in enumerate(zip(LINES, CONSTRAINTS, strict=True)):
        running.admit(i, line, options, LineConstraint.of(constraint))
        outputs |= running.step()
    while len(running):
        outputs |= running.step()
    assert [outputs[i].text for i in range(len(LINES))] == [t.text for t in expected]
    assert [outputs[i].unmet for i in range(len(LINES))] == [t.unmet for t in expected]


def test_a_line_with_a_constraint_stays_whole(noisy: Translator) -> None:
    line = "a b! c d! e f!"
    (whole,) = noisy.translate([line], split="sentences", constraints=[{"must": ["x"]}])
    assert whole == noisy.translate([line], constraints=[{"must": ["x"]}])[0]


@pytest.mark.parametrize("split", ["none", "auto", "sentences"])
def test_sentences_that_a_phrase_keeps_together_are_doubtful(noisy: Translator, split: Split) -> None:
    lines, must = ["a b! c d!", "a b!", "a b\nc"], {"must": ["x"]}
    doubts = [t.is_unsplit for t in noisy.translate(lines, split=split, constraints=[must] * 3)]
    assert doubts == [split != "none", False, True]
    running = noisy.running()
    running.admit("key", lines[2], DecodingOptions(split=split), LineConstraint(**must))
    while not (done := running.step()):
        pass
    assert isinstance(outcome := done["key"], Translation) and "unsplit" in outcome.doubts


def test_the_first_sentence_has_the_prefix(noisy: Translator) -> None:
    line = "a b! c d! e f!"
    (translation,) = noisy.translate([line], split="sentences", prefixes=["e c"])
    (first,) = noisy.translate(["a b!"], prefixes=["e c"])
    others = [noisy.translate([sentence])[0].text for sentence in ("c d!", "e f!")]
    assert translation.text == " ".join([first.text, *others]) and first.text.startswith("e c")
    assert not translation.is_unsplit
    (forbidden,) = noisy.translate([line], split="sentences", constraints=[{"prefix": "e c", "must_not": ["a", "f"]}])
    assert forbidden.text.startswith("e c") and not {"a", "f"} & {*forbidden.text.split()}


@pytest.mark.parametrize(
    ("line", "prefix"), [("a b! c d!", "e! c"), ("12! a b! c d!", "e"), ("\na b! c d!", "e"), ("12\na", "e")]
)
def test_a_line_stays_whole_if_its_prefix_does_not_begin_a_segment(noisy: Translator, line: str, prefix: str) -> None:
    (translation,) = noisy.translate([line], split="sentences", prefixes=[prefix])
    assert translation.text.startswith(prefix)
    assert translation.is_unsplit == (line != "12\na")  # 12 is copied, so that one segment is left


def test_terms_require_their_targets_in_the_segments_that_have_them(noisy: Translator) -> None:
    terms = {"b": "x", "e f": "y y|z"}
    whole, split = (noisy.translate(["a b! c d! e f!"], terms=terms, split=split)[0] for split in ("long", "sentences"))
    for translation in (whole, split):
        assert has(translation.text, "x") and (has(translation.text, "y y") or has(translation.text, "z"))
        assert translation.unmet == ()
    alone = [noisy.translate([sentence], terms=terms)[0].text for sentence in ("a b!", "c d!", "e f!")]
    assert split.text == " ".join(alone)  # none has the terms of another one
    assert noisy.translate(["c d"], terms=terms) == noisy.translate(["c d"])


def test_terms_and_phrases_add_up(noisy: Translator) -> None:
    (both,) = noisy.translate(["a b"], terms={"a": "x"}, constraints=[{"must": ["y"], "must_not": ["z"]}])
    assert has(both.text, "x") and has(both.text, "y")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 1}, "beam_size=1: expected at least 2 with must, must_not, terms or placeholders"),
        ({"sampling": Sampling()}, "sampling: must not be set with must, must_not, terms or placeholders"),
        ({"mbr": 4}, "mbr=4: expected candidates of a beam with must, must_not, terms or"),
    ],
)
def test_only_a_beam_meets_phrases(noisy: Translator, options: dict[str, Any], message: str) -> None:
    for phrases in ({"must": ["x"]}, {"must_not": ["x"]}):
        with pytest.raises(UserError, match=message):
            noisy.translate(["a b"], constraints=[phrases], **options)
    assert noisy.translate(["a b"], constraints=[{"prefix": "b"}], **options)[0].text.startswith("b")


def test_minimum_bayes_risk_ranks_outputs_that_meet_all(noisy: Translator) -> None:
    (best,) = noisy.translate(["a b c"], constraints=[{"must": ["x"]}], mbr=4, beam_size=4, n_best=2)
    assert best.utility is not None and has(best.text, "x") and best.unmet == ()


def test_a_mistake_is_named_with_its_line(noisy: Translator) -> None:
    with pytest.raises(UserError, match="^line 12: must='q.*expected at most 256 tokens"):
        noisy.translate(["a", "b"], constraints=[None, {"must": ["q ö" * 80, "ä q" * 80]}], first_number=10)
    with pytest.raises(UserError, match="^line 2: prefix='a a.*: expected at most .*; shorten it$"):
        noisy.translate(["a", "b"], constraints=[None, {"prefix": "a " * 90}])
