"""The ends of sentences, in real and in made-up text."""

import re
import time
from itertools import accumulate, islice

import pytest
from support.toy_task import ROOT

from transduce.data.sentences import sentences, usual_most

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


def test_a_line_of_nothing_but_abbreviations_takes_no_time() -> None:
    started_at = time.process_time()
    assert len([*sentences("Mr. J. B. " * 10_000)]) == 1
    assert time.process_time() - started_at < 5


# ---- abbreviations, and numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        "A man says no.", "See the fig.", "Bread, fruit, etc.", "It is 3 p.m.", "She wears number 12.",
        "He has vitamin C.", "We met in Mar.", "Er ist 12.", "Brot, Obst usw.",
    ],
)  # fmt: skip
def test_a_sentence_may_end_like_an_abbreviation(first: str) -> None:
    for second in ("The dogs run.", "Er geht."):
        assert [text for text, _ in sentences(f"{first} {second}")] == [first, second]


@pytest.mark.parametrize(
    "line",
    [
        "He was No. 5 of them.", "See fig. 3 and Vol. 2 here.", "On Oct. 2 it snowed.", "Am 12. Oktober und am 3. Mai.",
        "Am Freitag, 27. September, kam er.", "Der 1. FC Nürnberg", "At 6 a.m. Tuesday he left.", "1. The first step",
        "J. R. R. Tolkien and P. K. Subban met George W. Bush.", "Apple Inc. Chairman Cook", "Die 3. Liga",
        "Tor (10. Minute)", "Ludwig XIV. König von Frankreich", "M. Leroi et Mme. Roux", "Prof. Dr. Klein",
        "Il dit « Oui. » .", '"Yes." "', "Really? :-)",
    ],
)  # fmt: skip
def test_an_abbreviation_or_an_ordinal_ends_no_sentence(line: str) -> None:
    assert [text for text, _ in sentences(line)] == [line]


def test_the_usual_number_of_sentences_is_one_that_many_lines_reach() -> None:
    one, two, many = "A dog runs.", "A dog runs. It barks.", "A. " + "A dog runs. " * 8
    assert usual_most([]) == usual_most([one]) == usual_most([one] * 99 + [two]) == 1
    assert usual_most([one] * 97 + [two] * 3) == 2
    assert usual_most([one] * 98 + [two, many]) == 2
    assert usual_most([many] * 3 + [one]) == 8


# The share of ends of sentences that are found in pairs of neighbouring lines, of which each ends like a sentence.
TEXTS = {
    "multi30k/train.en": 0.999,
    "multi30k/train.de": 0.999,
    "multi30k/train.fr": 0.999,
    "wmt_news_en_de/train.en": 0.995,
    "wmt_news_en_de/train.de": 0.995,
    "wmt_news_en_fr/train.fr": 0.995,
    "tanaka_en_ja/train.ja": 0.999,
}


@pytest.mark.parametrize("name", TEXTS)
def test_ends_of_sentences_in_real_text(name: str) -> None:
    path = ROOT / "data" / name
    if not path.is_file():
        pytest.skip(f"no corpus in {path}")
    with path.open(encoding="utf-8") as file:
        lines = [line.strip() for line in islice(file, 12_000)]
    lines = [line for line in lines if re.search(r"""[.!?。？！]["'”’“»」』)）]*$""", line)]
    gap = "" if name.endswith("ja") else " "
    found = 0
    for first, second in zip(lines[::2], lines[1::2], strict=False):
        texts = [text for text, _ in sentences(first + gap + second)]
        found += len("".join(first.split())) in [*accumulate(len("".join(text.split())) for text in texts)]
    assert found / (len(lines) // 2) >= TEXTS[name]
