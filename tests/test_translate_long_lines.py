"""Lines that are split: nothing is lost, and segments are translated one by one."""

from dataclasses import replace

import pytest
from support.random_models import CONFIG, random_model
from support.toy_task import Toy

import transduce
from transduce import Translation, Translator, UserError
from transduce.config.schema import DataConfig
from transduce.decoding.options import DecodingOptions
from transduce.decoding.segmentation import split_line


@pytest.fixture(scope="module")
def model(toy: Toy) -> Translator:
    return transduce.load(toy.model)


JAPANESE = "私は東京に住んでいます。彼は本を読むのが好きです。" * 6
LONG = [
    "A dog runs. The old cat sleeps! Does it rain? Yes, it rains; we stay at home. " * 4,
    "word " * 80,
    "unbroken" * 40,
    JAPANESE,
    " " * 300 + "a b c d e f g h i j k l" * 3,
    "𝒳" * 60,
    "e\u0301" * 50,
    "x. " * 60,
]


SENTENCES = DecodingOptions(split="sentences")


@pytest.mark.parametrize("line", LONG)
@pytest.mark.parametrize("limit", [3, 16, 31])
def test_a_long_line_is_split_and_nothing_is_lost(model: Translator, line: str, limit: int) -> None:
    segments = split_line(line, model.tokenizer, DataConfig(max_tokens=limit + 1), SENTENCES)
    assert len(segments) > 1
    for text, gap, _ in segments:
        assert text.strip()
        assert gap in ("", " ")
        assert len(model.tokenizer.encode(text)) <= limit or len(text) == 1
    assert "".join("".join(part.text.split()) for part in segments) == "".join(line.split())
    assert segments[-1][1] == ""


def test_gaps_between_segments_are_kept(model: Translator) -> None:
    """The segments with their gaps are the line again, except the width of its gaps."""
    for line in (LONG[0], LONG[1], JAPANESE):
        joint_text = "".join(
            part.text + part.gap for part in split_line(line, model.tokenizer, DataConfig(max_tokens=21), SENTENCES)
        )
        assert joint_text.split() == line.split()


def test_a_line_is_split_between_sentences_where_possible(model: Translator) -> None:
    def texts(line: str, limit: int) -> list[str]:
        parts = split_line(line, model.tokenizer, DataConfig(max_tokens=limit + 1), SENTENCES)
        return [part.text for part in parts]

    expected = ["a b c d e.", "f g, h i j!", "a b c, d e f g"]
    assert texts("a b c d e. f g, h i j! a b c, d e f g", 12) == expected
    assert texts("これはです。それはです。", 20) == ["これはです。", "それはです。"]


def test_segments_are_translated_one_by_one(model: Translator) -> None:
    line = "a b c d e f. " * 6  # 14 letters and points a time; training saw lines of at most six letters
    whole = model.translate([line, "a b"])
    segments = split_line(line, model.tokenizer, model.config.data, SENTENCES)
    singly = model.translate([part.text for part in segments])
    assert len(segments) > 1
    assert whole[0].text == "".join(t.text + part.gap for t, part in zip(singly, segments, strict=True))
    assert whole[0].score == pytest.approx(sum(t.score for t in singly), abs=1e-4)
    assert whole[0].pieces == sum((t.pieces for t in singly), ())
    assert whole[1].text == "b a"


def test_split_sentences_splits_every_line(model: Translator) -> None:
    lines = ["aa bb. cc! dd", "", "ee ff? gg."]
    apart = model.translate(["aa bb.", "cc!", "dd", "ee ff?", "gg."])
    translations = model.translate(lines, split="sentences")
    assert [t.pieces for t in translations] == [
        sum((t.pieces for t in apart[:3]), ()),
        (),
        apart[3].pieces + apart[4].pieces,
    ]
    assert translations != model.translate(lines, split="long")
    assert translations == model.translate(lines, split="sentences", prefixes=["", "", ""])
    with pytest.raises(UserError, match="split='no': expected one of 'auto', 'none', 'long', 'sentences'"):
        model.translate(["a"], split="no")  # pyright: ignore[reportArgumentType]


LEARNED = replace(CONFIG, positions="learned", max_positions=45)  # max_tokens is 40
PROBLEM = "expected at most 44 tokens, not 109; split the line"


def test_a_line_of_more_tokens_than_positions_has_a_problem_and_the_others_translations() -> None:
    model, line = Translator([random_model(LEARNED)]), "a b c d e f g h i j " * 6
    rest = model.translate(["a b", "c d"], beam_size=2)
    assert model.translate([line])[0].problem is None
    for more in ({"split": "none"}, {"constraints": [None, {"must": ["a"]}, None]}):
        first, second, third = model.translate(["a b", line, "c d"], beam_size=2, **more)  # pyright: ignore[reportArgumentType]
        assert second == Translation("", problem=PROBLEM, unmet=("a",) if "constraints" in more else ())
        assert [first, third] == rest
    running = model.running()
    running.admit("key", line, DecodingOptions(split="none"))
    assert running.step() == {"key": Translation("", problem=PROBLEM)}


def test_the_model_with_the_fewest_positions_limits_an_ensemble() -> None:
    models = [random_model(replace(LEARNED, max_positions=100)), random_model(LEARNED), random_model(CONFIG)]
    both = Translator(models)
    assert both.translate(["a b c d e f g h i j " * 6], split="none")[0].problem == PROBLEM
    assert both.longest_source == 44 and Translator(models[::2]).longest_source == 99
