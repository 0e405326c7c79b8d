"""The constraint of a line as a caller gives it, the phrases that terms require, and what each refuses."""

from pathlib import Path
from typing import Any

import pytest

from transduce.config.schema import Config, DataConfig
from transduce.data.piece_bytes import piece_bytes
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.line_constraint import (
    MOST_CHARACTERS,
    MOST_PHRASES,
    MOST_TOKENS,
    LineConstraint,
    phrase_automaton,
)
from transduce.decoding.phrases.segment_constraints import SegmentConstraints, line_constraints
from transduce.decoding.phrases.terms import Terms
from transduce.decoding.segmentation import segments_of
from transduce.errors import UserError

TEXT = ["Ein Hund läuft. Der rote Hund schläft!", "A dog runs. The red dog sleeps!"] * 3


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def tokenizer(request: pytest.FixtureRequest) -> TokenizerLike:
    return Tokenizer.learn(TEXT, kind=request.param, vocab_size=700)


def test_the_bytes_of_pieces_are_the_decoded_text(tokenizer: TokenizerLike) -> None:
    of_piece = piece_bytes(tokenizer)
    for line in [*TEXT[:2], "北京 😀 Zürich (x)", "  two  spaces "]:
        ids = tokenizer.encode(line)
        assert b"".join(of_piece[i] for i in ids) == f" {line}".encode()


def test_spaces_around_phrases_are_left_out() -> None:
    constraint = LineConstraint([" a b ", ["c", " d"]], [" e "], " f")
    assert (constraint.must, constraint.must_not, constraint.prefix) == ((("a b",), ("c", "d")), ("e",), "f")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"must": "Hund"}, "^must='Hund': expected a list of phrases; write a list$"),
        ({"must": 3}, "^must=3: expected a list of phrases; write a list$"),
        ({"must": None}, "^must: expected a list of phrases; leave it out$"),
        ({"must": ["a", 3]}, r"^must\[1\]=3: expected a phrase; write a string$"),
        ({"must": [None]}, r"^must\[0\]: expected a phrase; leave it out$"),
        ({"must": [["a", 3]]}, r"^must\[0\]\[1\]=3: expected a phrase; write a string$"),
        ({"must": [["a", None]]}, r"^must\[0\]\[1\]: expected a phrase; leave it out$"),
        ({"must": [[]]}, r"must\[0\]: expected a phrase, or a list"),
        ({"must": ["a", " "]}, r"must\[1\]=' ': expected a phrase, not a blank one"),
        ({"must_not": [""]}, r"must_not\[0\]='': expected a phrase, not a blank one"),
        ({"must_not": ["a\nb"]}, "expected a phrase of one line"),
        ({"must": ["x" * (MOST_CHARACTERS + 1)]}, "expected at most 256 characters, not 257"),
        ({"must": ["x"] * MOST_PHRASES, "must_not": ["y"]}, "expected at most 64 phrases, not 65"),
        ({"must": ["roter Hund"], "must_not": ["Hund"]}, "must='roter Hund': expected a phrase without 'Hund'"),
        ({"must": [["Hund", "ein Hund"]], "must_not": ["Hund"]}, "must='Hund': expected a phrase without 'Hund'"),
        ({"prefix": 3}, "^prefix=3: expected text; write a string$"),
        ({"prefix": "Ein\nHund"}, r"prefix='Ein\\nHund': expected one line"),
        ({"prefix": "Ein\rHund"}, r"prefix='Ein\\rHund': expected one line"),
        ({"prefix": "Ein Hund l", "must_not": ["Hund"]}, "expected no 'Hund', which must_not forbids; shorten it$"),
        ({"musts": []}, "musts: expected one of must, must_not, prefix; did you mean 'must'"),
    ],
)
def test_what_no_search_can_meet_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LineConstraint.of(fields)


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\x0c"])
def test_other_separators_are_characters_of_a_line(separator: str) -> None:
    text = f"Ein{separator}Hund"
    constraint = LineConstraint([text], [f"{text}e"], text)
    assert (constraint.must, constraint.must_not, constraint.prefix) == (((text,),), (f"{text}e",), text)


def test_an_alternative_that_is_forbidden_is_left_out() -> None:
    assert LineConstraint([["Hund", "Köter"]], ["Hund"]).must == (("Köter",),)
    assert LineConstraint(["Hunde"], ["Hund"], "Der Hund").must == (("Hunde",),)  # the prefix may go on: Hunde


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ([None], "1 constraints for 2 lines: expected one for each line, None for none"),
        ({"must": []}, r"constraints: expected a list .*; write \[constraints\]"),
        ([None, "Hund"], r"constraints\[1\]: 'Hund': expected must, must_not and prefix by name, or None"),
        ([None, {"must": [""]}], r"constraints\[1\]: must\[0\]='': expected"),
    ],
)
def test_constraints_that_do_not_fit_the_lines_are_refused(constraints: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        line_constraints(2, constraints, None)


def test_prefixes_and_constraints_are_not_both_taken() -> None:
    with pytest.raises(UserError, match="prefixes: must not be set with constraints"):
        line_constraints(1, [None], [""])


def test_phrases_of_too_many_tokens_are_refused(tokenizer: TokenizerLike) -> None:
    with pytest.raises(UserError, match="must='qqqq.*expected at most 256 tokens, not "):
        phrase_automaton(LineConstraint(["q" * 200, "q" * 201]), tokenizer)


# ---- terms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "targets"),
    [
        ("the dog", ["Hund"]),
        ("The Dog and the dogs", ["Hund"]),  # a term in small letters stands for any case
        ("a hot dog, a dog", ["Würstchen", "Hund"]),  # of terms that overlap the longest counts
        ("a hot dog", ["Würstchen"]),
        ("doghouse", []),
        ("us, they", []),
        ("the US", ["USA"]),
        ("dog dog", ["Hund"]),
        ("", []),
    ],
)
def test_a_term_requires_its_target(line: str, targets: list[str]) -> None:
    terms = Terms.of({"dog": "Hund", "hot dog": "Würstchen", "US": "USA", "unused": "nie"})
    assert terms.targets_in(line) == [(target,) for target in targets]


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (3, "^terms: expected Terms"),
        ("terms.tsv", "^terms: expected Terms"),
        ({"dog": ["Hund"]}, r"^terms\['dog'\]: expected a target, .* not \['Hund'\]; write a string$"),
        ({"dog": None}, r"^terms\['dog'\]: expected a target, .* not None; write a string$"),
        ({"dog": "a||b"}, r"^terms\['dog'\]: expected a target, .* not 'a\|\|b'; write one, or leave out the \|$"),
        ({3: "x"}, r"^terms\[3\]: expected a term of the source language; write one"),
    ],
)
def test_terms_of_another_type_are_refused(terms: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Terms.of(terms)


@pytest.mark.parametrize("targets", [[], None, [""], ["a", 3]])
def test_targets_that_are_none_are_refused(targets: Any) -> None:
    assert Terms({"dog": "Hund|x"}).targets == {"dog": ("Hund|x",)}  # alternatives are a list here
    with pytest.raises(UserError, match=r"^terms\['dog'\]: .*expected"):
        Terms({"dog": targets})


def test_terms_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("dog\tHund|Köter\n\nred dog\t roter Hund \ndog\tRüde\n", "utf-8")
    assert Terms.load(path).targets == {"dog": ("Hund", "Köter", "Rüde"), "red dog": ("roter Hund",)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog\tHund\ncat", ":2: expected a source term, a tab and its target"),
        ("dog\tHund\tx", ":1: expected a source term, a tab and its target"),
        ("\tHund", ":1: expected a term of the source language; write one"),
        ("dog\t", r"terms.tsv:1: expected a target, or target\|target, none of them empty, not ''; write one"),
        (
            "dog\tHund||x",
            r"terms.tsv:1: expected .* none of them empty, not 'Hund\|\|x'; write one, or leave out the \|$",
        ),
        ("dog\t" + "x" * 257, r"terms.tsv:1: target\[0\]='x.*: expected at most 256 characters, not 257; shorten it$"),
        ("dog\t" + "|".join("x" * 65), "terms.tsv:1: expected 1 to 64 targets of a term, not 65; correct the term$"),
    ],
)
def test_lines_that_are_no_terms_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=message):
        Terms.load(path)


def test_each_segment_requires_its_own_terms(tokenizer: TokenizerLike) -> None:
    lines = ["A dog runs. The cat sleeps! A dog sleeps!"]
    terms = Terms.of({"dog": "Hund", "cat": "Katze", "runs. The": "x"})
    segments, _ = segments_of(lines, tokenizer, Config(), DecodingOptions(split="sentences"))
    of_segments = SegmentConstraints.of(lines, segments, [LineConstraint()], terms, tokenizer)
    assert [one.must for one in of_segments.segments] == [(("Hund",), ("x",)), (("Katze",),), (("Hund",),)]
    assert of_segments.phrases[0].unmet("Ein Hund") == ("x", "Katze")


def test_terms_that_are_too_many_or_forbidden_are_named_if_the_text_lacks_them(tokenizer: TokenizerLike) -> None:
    words = [f"w{i}" for i in range(MOST_PHRASES + 6)]
    lines = [" ".join(words), "A dog"]
    terms = Terms.of({"dog": "Hund", **{word: word.upper() for word in words}})
    segments, _ = segments_of(lines, tokenizer, Config(data=DataConfig(max_tokens=1_000)), DecodingOptions())
    constraints = [LineConstraint(), LineConstraint(must_not=["Hund"])]
    of_segments = SegmentConstraints.of(lines, segments, constraints, terms, tokenizer)
    assert [len(one.must) for one in of_segments.segments] == [MOST_PHRASES, 0]
    assert len(of_segments.phrases[0].unmet("")) == len(words)
    assert of_segments.phrases[0].unmet(" ".join(words).upper()) == ()
    assert of_segments.phrases[1].unmet("Ein Tier") == ("Hund",)


def test_terms_of_too_many_tokens_or_that_cannot_be_written_are_named(tokenizer: TokenizerLike) -> None:
    """Otherwise one line of a file could stop the translation of all others."""
    words = [f"w{i}" for i in range(8)]
    lines = [" ".join([*words, "short"])]
    terms = Terms.of({**{word: " ".join([word] * 40) for word in words}, "short": "kurz"})
    segments, _ = segments_of(lines, tokenizer, Config(data=DataConfig(max_tokens=10_000)), DecodingOptions())
    of_segments = SegmentConstraints.of(lines, segments, [LineConstraint()], terms, tokenizer)
    (constraint,) = of_segments.segments
    assert 1 <= len(constraint.must) < len(words) and phrase_automaton(constraint, tokenizer).n_tokens <= MOST_TOKENS
    assert len(of_segments.phrases[0].unmet("")) == len(words) + 1
