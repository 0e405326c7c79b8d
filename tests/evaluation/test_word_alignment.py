"""Word alignment: the source word of each word of a translation, by the cross-attention."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.demo_gold import right_links
from support.random_models import CONFIG, random_model, save_to
from support.toy_task import CommandResult, Toy, write_pairs

import transduce
from transduce import DecodingOptions, Translation, Translator, UserError
from transduce.data.tokenizer import Tokenizer
from transduce.demo.tour import run_demo
from transduce.evaluation.word_alignment import words_of
from transduce.interop import ctranslate2_engine


@pytest.fixture(scope="module")
def model(toy: Toy) -> Translator:
    return transduce.load(toy.model)


def assert_words(line: str, translation: Translation) -> None:
    """Assert that the alignment has each word of the translation once, and only words of the line."""
    assert translation.alignment is not None
    assert "".join(word.word for word in translation.alignment) == "".join(translation.text.split())
    for word in translation.alignment:
        assert translation.text[word.start : word.end] == word.word
        assert line[word.source_start : word.source_end] == word.source


# ---- right links -------------------------------------------------------------------------------------------------


def test_words_come_from_the_words_that_they_translate(model: Translator, toy: Toy) -> None:
    n_right = n_links = 0
    for line, translation in zip(toy.unseen, model.translate(toy.unseen, alignment=True), strict=True):
        assert_words(line, translation)
        words = translation.alignment or ()
        n_right += sum(word.word == word.source for word in words)
        n_links += len(words)
    assert n_right >= 0.98 * n_links


def test_invisible_characters_move_no_word(model: Translator) -> None:
    """The tokenizer of a new model makes all white space the same."""
    plain, other = "a b c d e", "\u200b a\xa0 b\u3000c\ufeff\td  e\u200e "
    expected, translation = model.translate([plain, other], alignment=True)
    assert translation.text == expected.text and expected.alignment and translation.alignment
    assert_words(other, translation)
    pairs = zip(expected.alignment, translation.alignment, strict=True)
    for old, new in pairs:
        assert (old.word, old.source) == (new.word, new.source.strip("\ufeff\u200e"))


@pytest.fixture
def demo_folder(tmp_path: Path) -> Path:
    """Return the folder of a demo: the one that `TRANSDUCE_DEMO` names, or a new one, which takes 3 minutes."""
    if folder := os.environ.get("TRANSDUCE_DEMO"):
        return Path(folder)
    return run_demo(tmp_path / "demo").parent


@pytest.mark.slow
def test_98_percent_of_the_content_words_of_the_demo_are_right(demo_folder: Path) -> None:
    model = transduce.load(demo_folder / "model")
    test = (demo_folder / "corpus" / "test.en").read_text("utf-8").splitlines()[:500]
    n_right = n_links = 0
    for src, translation in zip(test, model.translate(test, alignment=True), strict=True):
        right, links = right_links(src, translation.text, translation.alignment)
        n_right, n_links = n_right + right, n_links + links
    assert n_links > 1_500
    assert n_right >= 0.98 * n_links, (n_right, n_links)


# ---- which lines have one ----------------------------------------------------------------------------------------


def test_an_alignment_does_not_change_the_translation(model: Translator, toy: Toy) -> None:
    lines = [*toy.unseen[:50], "", "  "]
    plain, aligned = model.translate(lines), model.translate(lines, alignment=True)
    assert [replace(translation, alignment=None) for translation in aligned] == plain
    assert all(translation.alignment is None for translation in [*plain, *aligned[-2:]])


def test_all_outputs_of_a_line_are_aligned(model: Translator) -> None:
    line = "d a e"
    (best,) = model.translate([line], alignment=True, n_best=4, beam_size=4)
    for output in (best, *best.alternatives):
        assert_words(line, output)
    (nearest,) = model.translate([line], alignment=True, mbr=4, beam_size=4)
    assert_words(line, nearest)


def test_the_places_of_a_split_line_are_places_in_the_line(model: Translator) -> None:
    line = "a b c!  D e! F g!"
    (translation,) = model.translate([line], alignment=True, split="sentences")
    assert_words(line, translation)
    (whole,) = model.translate(["a b c!"], alignment=True)
    assert whole.alignment and (translation.alignment or ())[: len(whole.alignment)] == whole.alignment
    assert max(word.source_start for word in translation.alignment or ()) > line.index("D")


def test_an_ensemble_takes_the_mean_of_its_models(model: Translator, toy: Toy) -> None:
    both = transduce.load(toy.model, toy.model)
    lines = toy.unseen[:20]
    alignments = [
        [translation.alignment for translation in translator.translate(lines, alignment=True)]
        for translator in (both, model)
    ]
    assert alignments[0] == alignments[1]


def test_a_given_translation_is_aligned(model: Translator) -> None:
    (translation,) = model.translate(["b d a"], alignment=True)
    assert model.align("b d a", translation.text) == translation.alignment
    assert model.align("b d a", "") == ()
    assert model.align("", "b") is model.align(" \t ", "b") is model.align("a " * 2_000, "b") is None
    with pytest.raises(UserError, match="tgt=3: expected a string"):
        model.align("a", 3)  # pyright: ignore[reportArgumentType]


def test_a_tag_is_no_word(tmp_path: Path) -> None:
    model = transduce.load(save_to(random_model(CONFIG, tags=("<2de>", "<2fr>")), tmp_path / "model"))
    line = "the cat sat. On the mat."
    (inside,) = model.translate([f"<2de> {line}"], alignment=True, split="sentences")
    (option,) = model.translate([line], alignment=True, split="sentences", tag="<2de>")
    words = inside.alignment or ()
    assert option.alignment == tuple(replace(word, source_start=word.source_start - 6) for word in words)
    assert words and all(word.source_start >= 6 for word in words)


@pytest.mark.parametrize("kind", ["recurrent", "convolutional"])
def test_rivals_of_the_transformer_are_aligned(tmp_path: Path, kind: str) -> None:
    config = replace(CONFIG, kind=kind, n_heads=8, d_ff=2048)  # the defaults, which have no effect here
    model = transduce.load(save_to(random_model(config), tmp_path / "model"))
    words = model.align("the cat sat", "the mat sat")
    assert words is not None and [word.word for word in words] == ["the", "mat", "sat"]


# ---- words and pieces --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the cat sat", "the cat sat"),
        ("  a  cat's 😀 mat… ", "a cat ' s 😀 mat …"),
        ("Zürich, 東京!", "Zürich , 東京 !"),
        ("हिन्दी।", "हिन्दी ।"),
        ("e\u0301te\u0301.", "e\u0301te\u0301 ."),
    ],
)
def test_every_piece_belongs_to_the_word_that_it_spells(kind: str, text: str, expected: str) -> None:
    tokenizer = Tokenizer.learn(["the cat sat on a mat"] * 9, kind=kind, vocab_size=300 if kind == "bpe" else 540)
    ids = tokenizer.encode(text)
    words = words_of(text, ids, tokenizer)
    assert words is not None and [word.text for word in words] == expected.split()
    for word in words:
        assert text[word.start : word.start + len(word.text)] == word.text
        assert tokenizer.decode([ids[i] for i in word.pieces]).strip() == word.text
    assert len({i for word in words for i in word.pieces}) == sum(len(word.pieces) for word in words)


def test_pieces_that_spell_other_words_are_not_aligned() -> None:
    tokenizer = Tokenizer.learn(["the cat sat on a mat"] * 9, vocab_size=300)
    assert words_of("the cat sat", tokenizer.encode("the cat"), tokenizer) is None


# ---- where it can be asked for -----------------------------------------------------------------------------------


def test_the_command_prints_it_as_json(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source, _ = write_pairs(tmp_path, "in", ["a b", ""])
    result = cli("translate", toy.model, "--input", source, "--json", "--alignment")
    line, blank = (json.loads(line) for line in result.out.splitlines())
    assert line["alignment"] == [
        {"word": "b", "start": 0, "source": "b", "source_start": 2},
        {"word": "a", "start": 2, "source": "a", "source_start": 0},
    ]
    assert blank["alignment"] is None
    several = cli("translate", toy.model, "--input", source, "--json", "--alignment", "--n-best", 2).out.splitlines()[0]
    for other in json.loads(several)["alternatives"]:
        assert [word["word"] for word in other["alignment"]] == other["text"].split()
    assert b"alignment" not in cli("translate", toy.model, "--input", source, "--json", "--n-best", 2).out
    refusal = cli("translate", toy.model, "--input", source, "--alignment")
    assert (refusal.code, refusal.out) == (2, b"")
    assert refusal.err.startswith("transduce: --alignment: expected --json")


def test_engines_without_weights_refuse_it(model: Translator) -> None:
    with pytest.raises(UserError, match="^alignment: must not be set with CTranslate2"):
        ctranslate2_engine.check_options(DecodingOptions(alignment=True))
