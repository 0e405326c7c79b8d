"""Segmentation: lines into sentences and shorter segments, and translations into lines."""

import time

import pytest

from transduce.config.schema import Config, DataConfig, ModelConfig
from transduce.data.sentences import sentences
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.options import DecodingOptions, Split
from transduce.decoding.segmentation import in_small_letters, segments_of, split_line
from transduce.decoding.translations import _parts, translations_of

WHOLE = DecodingOptions(split="long")
APART = DecodingOptions(split="sentences")
SHORT = Config(data=DataConfig(max_tokens=21))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(["a dog runs .", "der Hund läuft ."] * 10, kind="bpe", vocab_size=290)


@pytest.mark.parametrize("split", ["long", "sentences"])
def test_what_has_no_visible_character_is_not_translated(tokenizer: Tokenizer, split: Split) -> None:
    lines = ["\u200b", "\ufeff \0", "A dog runs. \u200b", "\u200bA dog."]
    segments, problems = segments_of(lines, tokenizer, SHORT, DecodingOptions(split=split))
    assert [segment.line for segment in segments] == [2, 3] and problems == {}


def test_a_code_that_is_no_tag_of_the_model_is_no_text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentencepiece tokenizer splits off any code, such as >>fra<<, also where the model has no tags."""
    monkeypatch.setattr(Tokenizer, "split_tag", lambda _, line: (line[:7], line[7:]))
    segments, _ = segments_of([">>fra<<", ">>fra<< A dog runs."], tokenizer, Config(), WHOLE)
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
    segments, problems = segments_of(lines, tokenizer, SHORT, WHOLE)
    assert sum(portions) == 3 * 500_005 and max(portions) < 600_000
    assert [segment.line for segment in segments] == [*range(6)]
    expected = "expected at most 524,288 characters, not 600,000; split the line"
    assert problems == dict.fromkeys(range(6, 9), expected)


def test_the_outputs_for_a_line_of_two_sentences_are_the_best_combinations(tokenizer: Tokenizer) -> None:
    segments, _ = segments_of(["A dog. It runs."], tokenizer, SHORT, APART)
    ids = [tokenizer.encode(text) for text in ("a", "b", "c")]

    def outputs(*scores: float) -> list[Hypothesis]:
        return [Hypothesis(i, score, score, [score], True) for i, score in zip(ids, scores, strict=True)]

    (line,) = translations_of(["A dog. It runs."], segments, [outputs(-1, -2, -6), outputs(-1, -4, -5)], {}, tokenizer)
    assert [(t.text, t.score) for t in (line, *line.alternatives)] == [("a a", -2), ("b a", -3), ("a b", -5)]


def test_early_ends_rank_lower_than_their_score(tokenizer: Tokenizer) -> None:
    segments, _ = segments_of(["A dog."], tokenizer, SHORT, WHOLE)
    ids = tokenizer.encode("a")
    outputs = [Hypothesis([*ids, *ids], -2, -2, [-2], True), Hypothesis(ids, -1, -1, [-1], True, early_cost=3.0)]
    for in_order in (outputs, outputs[::-1]):
        (line,) = translations_of(["A dog."], segments, [in_order], {}, tokenizer)
        assert [t.score for t in (line, *line.alternatives)] == [-2, -1]


def test_an_empty_output_for_a_sentence_is_short(tokenizer: Tokenizer) -> None:
    segments, _ = segments_of(["A dog. It runs."], tokenizer, SHORT, APART)
    for ids in ([], tokenizer.encode(" ")):
        outputs = [[Hypothesis(i, -1, -1, [-1], True)] for i in (tokenizer.encode("a"), ids)]
        (line,) = translations_of(["A dog. It runs."], segments, outputs, {}, tokenizer)
        assert line.is_short and line.doubts == ["short"] and line.text.strip() == "a"


# ---- segments -------------------------------------------------------------------------------------------------------


def test_a_long_sentence_is_cut_at_the_best_break(tokenizer: Tokenizer) -> None:
    def texts(line: str, limit: int) -> list[str]:
        return [part.text for part in split_line(line, tokenizer, DataConfig(max_tokens=limit + 1), APART)]

    line = "Tom ran, with Mr. Wolf and two big dogs, home. He slept."
    sentence = "Tom ran, with Mr. Wolf and two big dogs, home."
    assert texts(line, len(tokenizer.encode(sentence))) == [sentence, "He slept."]
    halves = texts(line, len(tokenizer.encode(sentence)) - 1)
    assert halves == ["Tom ran, with Mr.", "Wolf and two big dogs, home.", "He slept."]
    assert texts("one two three, four five six", 20) == ["one two three,", "four five six"]
    assert texts("one two three four five six", 20) == ["one two three", "four five six"]


def test_a_segment_knows_its_place(tokenizer: Tokenizer) -> None:
    """Also after a copy of its text in markup, which is no segment, and where a long sentence has no breaks."""
    tagged = tokenizer.with_tags(["<2de>"])
    lines = ["<p>\np\n<b>\nb. p b, p.  p", "12\t<a>\ta", "aa" * 30, "<2de> <p>\npp. p"]
    segments, _ = segments_of(lines, tagged, SHORT, APART)
    texts = [(lines[s.line], s.start, tagged.split_tag(s.text)[1]) for s in segments]
    assert all(line[start:].startswith(text) for line, start, text in texts)
    assert [start for line, start, _ in texts if line == lines[0]] == [4, 10, 22]
    assert [start for line, start, _ in texts if line == lines[3]] == [10, 14]
    places = [start for line, start, _ in texts if line == lines[2]]
    assert len(places) > 1 and [*dict.fromkeys(places)] == places == sorted(places)


def test_segments_of_lines(tokenizer: Tokenizer) -> None:
    lines = ["A dog. A cat.", "", "A dog. A cat. A dog. A cat.", "A dog. A cat."]
    config = Config(data=DataConfig(max_tokens=len(tokenizer.encode(lines[0])) + 1))
    long, _ = segments_of(lines, tokenizer, config, WHOLE, whole=[3])
    assert [(segment.line, segment.text) for segment in long] == [
        (0, lines[0]), (2, "A dog."), (2, "A cat."), (2, "A dog."), (2, "A cat."), (3, lines[3])
    ]  # fmt: skip
    every, _ = segments_of(lines, tokenizer, config, APART, whole=[3])
    assert [(segment.line, segment.text) for segment in every] == [
        (0, "A dog."), (0, "A cat."), (2, "A dog."), (2, "A cat."), (2, "A dog."), (2, "A cat."), (3, lines[3])
    ]  # fmt: skip


def with_max_positions(n: int) -> Config:
    return Config(
        model=ModelConfig(vocab_size=None, positions="learned", max_positions=n), data=DataConfig(max_tokens=8)
    )


def test_a_line_that_is_not_split_has_at_most_as_many_tokens_as_the_model_has_positions(tokenizer: Tokenizer) -> None:
    """EOS takes the last position."""
    line = "A dog. A cat."
    n = len(tokenizer.encode(line))
    problem = {0: f"expected at most {n - 1} tokens, not {n}; split the line"}
    for options, whole in ((DecodingOptions(split="none"), ()), (WHOLE, [0, 1])):
        fits, problems = segments_of([line, "a"], tokenizer, with_max_positions(n + 1), options, whole)
        assert [segment.text for segment in fits] == [line, "a"] and problems == {}
        fits, problems = segments_of([line, "a"], tokenizer, with_max_positions(n), options, whole)
        assert [segment.text for segment in fits] == ["a"] and problems == problem
    fits, problems = segments_of([line], tokenizer, with_max_positions(n), WHOLE)
    assert len(fits) > 1 and problems == {}
    fits, problems = segments_of([f"a\n{line}"], tokenizer, with_max_positions(n), DecodingOptions(split="none"))
    assert fits == [] and problems == problem


def test_capitals_whose_small_letters_are_too_long_stay(tokenizer: Tokenizer) -> None:
    options, line = DecodingOptions(split="none"), "ⱯⱭ A DOG"  # small letters of one byte less, and more pieces
    (segment,), _ = segments_of([line], tokenizer, Config(), options)
    (lowered,) = in_small_letters([segment], tokenizer, Config(), options)
    n = len(lowered.ids)
    assert lowered.in_capitals and in_small_letters([segment], tokenizer, with_max_positions(n + 1), options) == [
        lowered
    ]
    assert in_small_letters([segment], tokenizer, with_max_positions(n), options) == [segment]


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
    assert "".join(_parts(texts)) == expected


# ---- line breaks, and text without letters -----------------------------------------------------------------------


def parts_of(text: str, options: DecodingOptions = WHOLE, **data: int) -> tuple[list[str], str]:
    """Return the segments of a text, and its translation if each segment is its own one."""
    tokenizer = Tokenizer.learn(["a dog runs .", "der Hund läuft ."] * 10, kind="bpe", vocab_size=290)
    segments, problems = segments_of([text], tokenizer, Config(data=DataConfig(**data)), options)
    hypotheses = [[Hypothesis(tokenizer.encode(segment.text), -1, -1, [-1], True)] for segment in segments]
    (translation,) = translations_of([text], segments, hypotheses, problems, tokenizer)
    return [segment.text for segment in segments], translation.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog.\nA cat.", ["A dog.", "A cat."]),
        ("\n\nA dog.\r\n\r\n  A cat. \n", ["A dog.", "A cat."]),
        ("A dog.\u2028A cat.\x0bA cow.\x85", ["A dog.", "A cat.", "A cow."]),
        ("A dog.\n***\n\nA cat.\n---", ["A dog.", "A cat."]),
        ("***\nA dog.", ["A dog."]),
        ("12:30\nA dog.", ["A dog."]),
        ("<p>\np\n</p>\np", ["p", "p"]),
        ("\n", []),
    ],
)
def test_line_breaks_and_what_has_no_letter_stay(text: str, expected: list[str]) -> None:
    assert parts_of(text) == (expected, text)


@pytest.mark.parametrize(
    "text",
    ["-", "—", "12:30", "***", "🙂", "1", "<li>—</li>", "&nbsp;&mdash;", "<b> 3 </b>", "½", "٣", "!?", "+49 30"],
)
def test_text_without_a_letter_is_copied(text: str) -> None:
    assert parts_of(text) == ([], text)


@pytest.mark.parametrize("text", ["a", "犬", "B2", "<li>a</li>", "a < b", "AT&T", "1 m"])
def test_text_with_a_letter_is_translated(text: str) -> None:
    assert parts_of(text)[0] == [text]


@pytest.mark.parametrize(("text", "is_translated"), [("12:30", True), ("<b>3</b>", True), ("***", False)])
def test_digits_are_translated_on_request(text: str, is_translated: bool) -> None:
    assert bool(parts_of(text, DecodingOptions(numbers="translate"))[0]) == is_translated


@pytest.mark.parametrize(
    ("split", "sentences_per_line", "count"),
    [("auto", None, 3), ("auto", 1, 3), ("auto", 2, 3), ("auto", 3, 1), ("long", 1, 1), ("none", 1, 1)],
)
def test_a_line_is_split_if_the_model_has_learned_from_fewer_sentences(
    split: Split, sentences_per_line: int, count: int
) -> None:
    text = "A dog runs. A cat sleeps. A cow eats."
    segments, translation = parts_of(text, DecodingOptions(split=split), sentences_per_line=sentences_per_line)
    assert len(segments) == count and translation == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a dog\t12\ta cat runs", [("a dog", "\t12\t"), ("a cat runs", "")]),
        ("1.\ta dog. a cat.\t\t$ 4\nruns\truns", [("a dog. a cat.", "\t\t$ 4\n"), ("runs\truns", "")]),
        ("a dog\truns", [("a dog\truns", "")]),
        ("a dog\t \truns", [("a dog\t \truns", "")]),
    ],
)
def test_columns_of_a_row_with_digits_are_apart(
    tokenizer: Tokenizer, text: str, expected: list[tuple[str, str]]
) -> None:
    data = DataConfig(sentences_per_line=2)
    parts = split_line(text, tokenizer, data, DecodingOptions())
    assert [(part.text, part.gap) for part in parts] == expected
    (whole,) = split_line(text.replace("\n", " "), tokenizer, data, DecodingOptions(split="none"))
    assert whole == (text.replace("\n", " "), "", 0)


HOSTILE = [" ", "\t", "\n", "\xa0", ". ", "!", ".", '"', "(", "e.g. ", "\u200b", "<", "&a", "5\t"]


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_long_line_takes_little_time(tokenizer: Tokenizer, unit: str) -> None:
    """A pattern that looks for the end of each run from each of its places takes minutes for this line."""
    text = "a" + unit * (50_000 // len(unit)) + "b"
    start = time.process_time()
    split_line(text, tokenizer, DataConfig(max_tokens=1 << 20), DecodingOptions(split="sentences"))
    list(sentences(text))
    assert time.process_time() - start < 3


def test_nothing_is_split_without_splitting(tokenizer: Tokenizer) -> None:
    text = "A dog runs. " * 20
    assert len(parts_of(text, WHOLE, max_tokens=21)[0]) == 20
    assert parts_of(text, DecodingOptions(split="none"), max_tokens=21)[0] == [text]
