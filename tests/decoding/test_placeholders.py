"""Placeholders: what is one, the line that the model reads, and the output with them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.toy_task import CommandResult, Toy, write_lines

from transduce.config.schema import DataConfig
from transduce.data.noise import MASKS
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.hypothesis import AlignedWord, Translation
from transduce.decoding.phrases.placeholders import (
    changed_placeholders,
    damaged_placeholders,
    kept_lines,
    placeholders_in,
    with_placeholders,
)
from transduce.decoding.phrases.terms import NO_TERMS, Terms

A, B, C = MASKS[:3]
LEARNED = DataConfig(noise=("masks:0.1",))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(["a dog runs"] * 3, vocab_size=290, tags=["<2de>"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Click <b>here</b>, {name}!", ["<b>", "</b>", "{name}"]),
        ('<x id="1"/> &amp; {{x}} ${y} {0}', ['<x id="1"/>', "&amp;", "{{x}}", "${y}", "{0}"]),
        ("%d new %s, %(n)s, %1$s and %.2f", ["%d", "%s", "%(n)s", "%1$s", "%.2f"]),
        ("%r, %(n)rx, %.3fs, %zu, %lld, 5%% %% and 5 % a", ["%r", "%(n)r", "%.3f", "%zu", "%lld", "5%%", "%%", "5 %"]),
        ("See https://x.org/a?b=1&c=2, (www.foo.com/bar).", ["https://x.org/a?b=1&c=2", "www.foo.com/bar"]),
        ("Mail a.b+c@d-e.co.uk.", ["a.b+c@d-e.co.uk"]),
        ("5 km, 3.5kg, $5, 3,50 €, 20 °C, 100% and 12 m²", ["5 km", "3.5kg", "$5", "3,50 €", "20 °C", "100%", "12 m²"]),
        ("🙂👍🏽 👩‍👩‍👧 🇩🇪 ❤️", ["🙂", "👍🏽", "👩‍👩‍👧", "🇩🇪", "❤️"]),
        (f"a {A}{B}", [A, B]),
        ("100% sure, 100 %ig, x < y > z, In 1998 at 12:30, 5 men, 20 minutes, it's {, a@b", ["100%"]),
    ],
)
def test_what_is_a_placeholder(text: str, expected: list[str]) -> None:
    assert placeholders_in(text) == expected


def test_a_model_of_masks_reads_masks(tokenizer: Tokenizer) -> None:
    texts, kept = kept_lines(["<2de> a {n} %s {n}", "no", ""], tokenizer, LEARNED)
    assert texts == [f"<2de> a {A} {B} {C}", "no", ""]
    output = Translation(f"{C} {B} {A}", alternatives=(Translation(f"{A}"),), unmet=(B, "term"))
    restored = kept[0].restore(output)
    assert (restored.text, restored.problem, restored.unmet) == ("{n} %s {n}", None, ("term",))
    assert restored.alternatives[0].text == "{n}"
    assert restored.alternatives[0].unmet == ("{n}", "%s")
    assert restored.alternatives[0].problem == "expected '{n}', '%s' as often as in the source; correct the translation"
    assert kept[1].restore(Translation(f"nein {A}{A}")) == Translation(f"nein {A}{A}")
    assert kept[0].restore(Translation(f"{A}{B} {B}{MASKS[8]} {C}.{B}")).text == "{n}%s {n}."
    assert kept[0].restore(Translation(f"{MASKS[8]} {A} {B} {A} {C} {B}")).text == "{n} %s {n}"
    assert "'%s' as often" in (kept[0].restore(Translation(f"{A} {C} {C}")).problem or "")


def test_an_alignment_has_the_placeholders_and_their_places(tokenizer: Tokenizer) -> None:
    line = "<2de> a {name} b %s"
    (text,), (kept,) = kept_lines([line], tokenizer, LEARNED)
    output = f"{C} {B} y {A} {A}z"
    words = [("y", "b"), (A, A), ("z", "a"), (B, B), (C, B)]
    alignment = tuple(
        AlignedWord(word, output.index(word), origin, text.index(origin, 5))
        for word, origin in sorted(words, key=lambda pair: output.index(pair[0]))
    )
    restored = kept.restore(Translation(output, alignment=alignment))
    assert restored.text == "%s y {name}z"
    pairs = [("%s", "%s"), ("y", "b"), ("{name}", "{name}"), ("z", "a")]
    assert [(word.word, word.source) for word in restored.alignment or ()] == pairs
    for word in restored.alignment or ():
        assert restored.text[word.start : word.end] == word.word
        assert line[word.source_start : word.source_end] == word.source
    assert kept.restore(Translation(f"{C} {C} {C} y", alignment=())).text == "y"


def test_other_models_read_the_text_and_must_write_it(tokenizer: Tokenizer) -> None:
    texts, kept = kept_lines(["a {n} 5 km"], tokenizer, DataConfig())
    assert texts == ["a {n} 5 km"] and not kept[0].masks
    terms = with_placeholders(Terms({"dog": ["Hund"]}), kept)
    assert terms.targets == {"dog": ("Hund",), "{n}": ("{n}",), "5 km": ("5 km",)}


def test_more_placeholders_than_masks_and_long_ones(tokenizer: Tokenizer) -> None:
    line = " ".join(f"{{n{i}}}" for i in range(12))
    texts, kept = kept_lines([line], tokenizer, LEARNED)
    assert texts == [" ".join([*MASKS, "{n10}", "{n11}"])]
    assert [*with_placeholders(NO_TERMS, kept).targets] == [*MASKS, "{n10}", "{n11}"]
    assert kept[0].restore(Translation(texts[0])).text == line
    assert not with_placeholders(NO_TERMS, kept_lines(["www." + "a" * 300], tokenizer, DataConfig())[1])


def test_a_placeholder_of_another_line_or_case_is_not_required(tokenizer: Tokenizer) -> None:
    lines = ["Hello {name}, 5 kg", "Hello {NAME}", "a <b\nc>"]
    _, kept = kept_lines(lines, tokenizer, DataConfig())
    terms = with_placeholders(Terms({"{name": ["x"], "hello": ["hallo"]}), kept)
    assert terms.targets_in(lines[0]) == [("hallo",), ("{name}",), ("5 kg",)]
    assert terms.targets_in(lines[1]) == [("hallo",), ("{NAME}",)]
    assert terms.targets_in("5 KG") == []
    assert terms.targets_in(lines[2]) == [], "a line break fits in no phrase"


def test_the_command_keeps_placeholders_or_names_the_line(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    lines = ["a b {name} c", "a b", "{x} {x}", "5 km a|b www.a.de/|x b", "😀", ""]
    source = write_lines(tmp_path / "in", lines)
    result = cli("translate", toy.model, "--input", source, "--placeholders")
    outputs = result.out.decode().splitlines()
    assert result.code == 0 and outputs[1] == "b a" and outputs[4:] == ["😀", ""]
    assert outputs[0].count("{name}") == outputs[3].count("5 km") == outputs[3].count("www.a.de/|x") == 1
    assert outputs[2].count("{x}") == 2 or "in:3: expected '{x}' as often as in the source" in result.err
    greedy = cli("translate", toy.model, "--input", source, "--placeholders", "--beam-size", "1")
    assert greedy.code == 2 and "expected at least 2" in greedy.err


def test_damaged_placeholders_are_not_numbers_with_units() -> None:
    source = "{a} {a} %s ${b} 5 km $5 https://a.b/c"
    assert changed_placeholders(source, source) == []
    assert changed_placeholders(source, "{a} ${b}") == ["{a}", "%s", "5 km", "$5", "https://a.b/c"]
    assert damaged_placeholders(source, "{a} ${b}") == ["{a}", "%s", "https://a.b/c"]
    assert damaged_placeholders("a", "{a}") == []
