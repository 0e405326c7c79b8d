"""Segmentation: lines into sentences and shorter segments, and translations into lines."""

import time

import pytest

from transduce.data.tokenizer import Tokenizer
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.options import Split
from transduce.decoding.segmentation import join, segments_of, sentences, split_line, translations_of


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(["a dog runs .", "der Hund läuft ."] * 10, kind="bpe", vocab_size=290)


# ---- sentences ---------------------------------------------------------------------------------------------------

SENTENCES = [
    ["A dog runs.", "The old cat sleeps!", "Does it rain?", "It does…", "And it snows"],
    ["Wait...", '"Who is it?" she asked.', "(It was late.)", "“No one.”", "He left"],
    ["Mr. Smith met Dr. J. R. Jones, e.g. at St. Paul's, at 5 p.m. sharp.", "Then he left."],
    ["Am 3. Mai kam Hr. Weiß, d. h. z.B. um 12 Uhr.", "Er blieb bis 1998.", "Er kostet 3.50 Euro."],
    ["Sie sagt: „Nein.“", "Am 21. Juli (ca. 8 Uhr) kam Fr. Klein usw. zurück.", "Er geht."],
    ["Er rief: »Nein!«", "Er ging.", "»Ja.«", "Sie blieb."],
    ["« Il pleut. »", "Elle rit !", "M. Leroi dort."],
    ["a dog , mr. smith 's , runs .", "the cat sleeps .", "it rains"],  # lowercased and tokenised
    ["He lives in the U.S. with a dog.", "See www.example.com/a.b?c=d for No. 7 here.", "Really?!"],
    ["iPhones are sold.", "They are 3.5 times as dear."],
    ["यह एक कुत्ता है।", "वह सोता है।"],
    ["هل تمطر؟", "نعم."],
    ["no end at all"],
    ["!"],
]
WIDE = [
    ["これはペンです。", "「本当ですか？」", "はい！！", "そうです"],
    ["他是学生。", "你呢？", "（我不是。）", "3.5元。"],
]


@pytest.mark.parametrize("parts", SENTENCES, ids=lambda parts: parts[0])
@pytest.mark.parametrize("gap", [" ", "  ", "\t", "\u2028"], ids=repr)
def test_sentences(parts: list[str], gap: str) -> None:
    assert [*sentences(gap.join(parts))] == [*((part, " ") for part in parts[:-1]), (parts[-1], "")]


@pytest.mark.parametrize("parts", WIDE, ids=lambda parts: parts[0])
@pytest.mark.parametrize("gap", ["", " "], ids=repr)
def test_sentences_without_a_space_between_them(parts: list[str], gap: str) -> None:
    assert [*sentences(gap.join(parts))] == [*((part, gap) for part in parts[:-1]), (parts[-1], "")]


@pytest.mark.parametrize("line", ["", "a. ", "  a. B.  ", ". . .", "\x1c. \x1c.", "。。 。", "...!?... Ah.\x85 !"])
def test_nothing_is_lost_and_no_sentence_is_blank(line: str) -> None:
    texts = [*sentences(line)]
    assert "".join("".join(text.split()) for text, _ in texts) == "".join(line.split())
    assert all(text.strip() for text, _ in texts) or not line.strip()


@pytest.mark.parametrize("split", ["long", "sentences"])
def test_what_has_no_visible_character_is_not_translated(tokenizer: Tokenizer, split: Split) -> None:
    lines = ["\u200b", "\ufeff \0", "A dog runs. \u200b", "\u200bA dog."]
    segments, problems = segments_of(lines, tokenizer, 20, split)
    assert [segment.line for segment in segments] == [2, 3] and problems == {}


def test_a_code_that_is_no_tag_of_the_model_is_no_text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentencepiece tokenizer splits off any code, such as >>fra<<, also where the model has no tags."""
    monkeypatch.setattr(Tokenizer, "split_tag", lambda _, line: (line[:7], line[7:]))
    segments, _ = segments_of([">>fra<<", ">>fra<< A dog runs."], tokenizer, 60, "long")
    assert [segment.line for segment in segments] == [1]


def test_long_lines_are_encoded_in_portions_or_not_at_all(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding takes 100 bytes of memory for each character."""
    portions: list[int] = []

    def encode_batch(self: Tokenizer, lines: list[str]) -> list[list[int]]:
        portions.append(sum(map(len, lines)))
        return [[5] for _ in lines]

    monkeypatch.setattr(Tokenizer, "encode_batch", encode_batch)
    lines = ["x" * 500_000, "a b c"] * 3 + ["x" * 600_000] * 3
    segments, problems = segments_of(lines, tokenizer, 20, "long")
    assert sum(portions) == 3 * 500_005 and max(portions) < 600_000
    assert [segment.line for segment in segments] == [*range(6)]
    expected = "expected at most 524,288 characters, not 600,000; split the line"
    assert problems == dict.fromkeys(range(6, 9), expected)


def test_the_outputs_for_a_line_of_two_sentences_are_the_best_combinations(tokenizer: Tokenizer) -> None:
    segments, _ = segments_of(["A dog. It runs."], tokenizer, 20, "sentences")
    ids = [tokenizer.encode(text) for text in ("a", "b", "c")]

    def outputs(*scores: float) -> list[Hypothesis]:
        return [Hypothesis(i, score, score, [score], True) for i, score in zip(ids, scores, strict=True)]

    (line,) = translations_of(["A dog. It runs."], segments, [outputs(-1, -2, -6), outputs(-1, -4, -5)], {}, tokenizer)
    assert [(t.text, t.score) for t in (line, *line.alternatives)] == [("a a", -2), ("b a", -3), ("a b", -5)]


def test_early_ends_rank_lower_than_their_score(tokenizer: Tokenizer) -> None:
    segments, _ = segments_of(["A dog."], tokenizer, 20, "long")
    ids = tokenizer.encode("a")
    outputs = [Hypothesis([*ids, *ids], -2, -2, [-2], True), Hypothesis(ids, -1, -1, [-1], True, early_cost=3.0)]
    for in_order in (outputs, outputs[::-1]):
        (line,) = translations_of(["A dog."], segments, [in_order], {}, tokenizer)
        assert [t.score for t in (line, *line.alternatives)] == [-2, -1]


def test_a_line_of_nothing_but_abbreviations_takes_no_time() -> None:
    started_at = time.process_time()
    assert len([*sentences("Mr. J. B. " * 10_000)]) == 1
    assert time.process_time() - started_at < 5


# ---- segments -------------------------------------------------------------------------------------------------------


def test_a_long_sentence_is_cut_at_the_best_break(tokenizer: Tokenizer) -> None:
    def texts(line: str, limit: int) -> list[str]:
        return [text for text, _ in split_line(line, tokenizer, limit)]

    line = "Tom ran, with Mr. Wolf and two big dogs, home. He slept."
    sentence = "Tom ran, with Mr. Wolf and two big dogs, home."
    assert texts(line, len(tokenizer.encode(sentence))) == [sentence, "He slept."]
    halves = texts(line, len(tokenizer.encode(sentence)) - 1)
    assert halves == ["Tom ran, with Mr.", "Wolf and two big dogs, home.", "He slept."]
    assert texts("one two three, four five six", 20) == ["one two three,", "four five six"]
    assert texts("one two three four five six", 20) == ["one two three", "four five six"]


def test_segments_of_lines(tokenizer: Tokenizer) -> None:
    lines = ["A dog. A cat.", "", "A dog. A cat. A dog. A cat.", "A dog. A cat."]
    limit = len(tokenizer.encode(lines[0]))
    long, _ = segments_of(lines, tokenizer, limit, "long", whole=[3])
    assert [(segment.line, segment.text) for segment in long] == [
        (0, lines[0]), (2, "A dog."), (2, "A cat."), (2, "A dog."), (2, "A cat."), (3, lines[3])
    ]  # fmt: skip
    every, _ = segments_of(lines, tokenizer, limit, "sentences", whole=[3])
    assert [(segment.line, segment.text) for segment in every] == [
        (0, "A dog."), (0, "A cat."), (2, "A dog."), (2, "A cat."), (2, "A dog."), (2, "A cat."), (3, lines[3])
    ]  # fmt: skip


# ---- translations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([("A dog.", " "), ("A cat.", "")], "A dog. A cat."),
        ([("It is a pen.", ""), ("Really?", ""), ("Yes", "")], "It is a pen. Really? Yes"),
        (
            [("これはペンです。", " "), ("「本当？」", " "), ("はい", "")],
            "これはペンです。「本当？」はい",
        ),
        ([("the one", " "), ("half", ""), ("word", "")], "the one halfword"),
        ([("", " "), ("b", "")], " b"),
        ([("a.", "")], "a."),
    ],
)
def test_gaps_follow_the_target_script(texts: list[tuple[str, str]], expected: str) -> None:
    assert join(texts) == expected
