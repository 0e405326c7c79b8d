"""Translation with a vocabulary shortlist: any batch, any option, phrases, a service's lines, copies and mistakes."""

import copy
import pickle
import random
from collections.abc import Hashable
from typing import Any

import pytest
from support.phrases import CONSTRAINTS, check
from support.toy_task import Toy
from support.translators import LINES, noisy_translator

import transduce
from transduce import DecodingOptions, Sampling, Translator, UserError
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.shortlist.learning import learn_shortlist, read_ids

needs_compiled = pytest.mark.skipif(compiled() is None, reason="needs compiled kernels")
OPTIONS = [{}, {"beam_size": 1}, {"n_best": 3}, {"lookahead": 2}, {"split": "sentences"}, {"mbr": 4, "beam_size": 4}]


def with_shortlist(translator: Translator, toy: Toy) -> Translator:
    """Give a translator a shortlist of the toy's text with few pieces, so that it changes outputs."""
    tokenizer = translator.tokenizer
    ids = read_ids(*toy.train, tokenizer, 500, 32)
    size = tokenizer.vocab_size
    translator.shortlist = learn_shortlist(*ids, size, size, n_candidates=2, n_common=4)
    return translator


@pytest.fixture(scope="module")
def noisy(toy: Toy) -> Translator:
    return with_shortlist(noisy_translator(toy), toy)


def pieces_of(translator: Translator, line: str) -> set[str]:
    """Return the pieces in the shortlist of a line."""
    shortlist = translator.shortlist
    assert shortlist is not None
    own = shortlist.own(translator.tokenizer.encode(line))
    return {*translator.tokenizer.pieces([*shortlist.common.tolist(), *own.tolist()])}


def test_outputs_have_only_pieces_of_their_shortlists(noisy: Translator) -> None:
    translations = noisy.translate(LINES, shortlist=True)
    for line, translation in zip(LINES, translations, strict=True):
        assert {*translation.pieces} <= pieces_of(noisy, line)
    assert [t.text for t in translations] != [t.text for t in noisy.translate(LINES)]


@needs_compiled
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_line_has_the_same_translation_in_any_batch(toy: Toy, precision: str, options: Any) -> None:
    translator = with_shortlist(transduce.load(toy.model, precision=precision), toy)
    lines = [*LINES, *toy.unseen[:30]]
    together = translator.translate(lines, shortlist=True, **options)
    assert together == [translator.translate([line], shortlist=True, **options)[0] for line in lines]


@pytest.mark.parametrize("options", [{}, {"beam_size": 2}, {"n_best": 4}, {"lookahead": 2, "n_best": 2}], ids=str)
def test_phrases_are_in_the_text_or_named(noisy: Translator, options: Any) -> None:
    """The pieces of phrases and prefixes join the shortlist of their line, and of no other one."""
    options = {**options, "shortlist": True}
    translations = noisy.translate(LINES, constraints=CONSTRAINTS, **options)
    for translation, constraint, line in zip(translations, CONSTRAINTS, LINES, strict=True):
        if line.strip():
            check(translation, constraint)
            assert translation.finished or translation.unmet
    assert [t.unmet for t in translations].count(()) >= len(LINES) - 2
    for i, (line, constraint) in enumerate(zip(LINES, CONSTRAINTS, strict=True)):
        (alone,) = noisy.translate([line], constraints=[constraint], **options)
        assert (alone.text, alone.unmet) == (translations[i].text, translations[i].unmet)


def test_terms_and_prefixes(noisy: Translator) -> None:
    assert {"▁x", "x"}.isdisjoint(pieces_of(noisy, "a b"))
    (translation,) = noisy.translate(["a b"], terms={"a": "xyz"}, shortlist=True)
    assert "xyz" in translation.text.split() and not translation.unmet
    (translation,) = noisy.translate(["a b"], prefixes=["x y z"], shortlist=True)
    assert translation.text.startswith("x y z")


def test_samples_and_alignments(noisy: Translator) -> None:
    options = DecodingOptions(sampling=Sampling(temperature=1.5), shortlist=True)
    for line, translation in zip(LINES, noisy.translate(LINES, options=options), strict=True):
        assert {*translation.pieces} <= pieces_of(noisy, line)
    assert noisy.translate(["a b c"], shortlist=True, alignment=True)[0].alignment


def test_an_ensemble_uses_the_shortlist_of_its_first_model(toy: Toy) -> None:
    translator = with_shortlist(transduce.load(toy.model, toy.model), toy)
    alone = with_shortlist(transduce.load(toy.model), toy)
    for output, other in zip(*(t.translate(toy.unseen[:9], shortlist=True) for t in (translator, alone)), strict=True):
        assert output.text == other.text and output.score == pytest.approx(other.score, abs=1e-4)


# ---- a service ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_continuous_batching_translates_as_a_file(noisy: Translator, seed: int) -> None:
    chance, running = random.Random(seed), noisy.running()
    kinds: list[dict[str, Any]] = [{}, {"n_best": 3}, {"beam_size": 2}]
    choices = [DecodingOptions(shortlist=True, **more) for more in kinds]
    lines = [(line, chance.choice(choices)) for line in LINES * 3]
    waiting, outputs = list(enumerate(lines)), dict[Hashable, Any]()
    chance.shuffle(waiting)
    while waiting or len(running):
        while waiting and (chance.random() < 0.5 or not len(running)):
            key, line = waiting.pop()
            running.admit(key, *line)
        outputs |= running.step()
    expected = [noisy.translate([line], options=options)[0] for line, options in lines]
    assert [outputs[key].text for key in range(len(lines))] == [translation.text for translation in expected]
    if compiled() is not None:
        assert [outputs[key] for key in range(len(lines))] == expected


def test_a_search_that_runs_keeps_its_shortlists(noisy: Translator) -> None:
    running, outputs = noisy.running(), dict[Hashable, Any]()
    running.admit("free", LINES[0], DecodingOptions())
    with pytest.raises(UserError, match="shortlist=True: expected the value of the lines that are being translated"):
        running.admit("listed", LINES[3], DecodingOptions(shortlist=True))
    while len(running):
        outputs |= running.step()
    running.admit("listed", LINES[3], DecodingOptions(shortlist=True))
    while len(running):
        outputs |= running.step()
    assert outputs["free"].text == noisy.translate([LINES[0]])[0].text
    assert outputs["listed"].text == noisy.translate([LINES[3]], shortlist=True)[0].text


# ---- copies, and mistakes ----------------------------------------------------------------------------------------


def test_copies_have_the_shortlist(noisy: Translator) -> None:
    expected = noisy.translate(LINES[:3], shortlist=True)
    for translator in (copy.copy(noisy), copy.deepcopy(noisy), pickle.loads(pickle.dumps(noisy))):  # noqa: S301
        assert translator.translate(LINES[:3], shortlist=True) == expected


def test_a_model_without_one_is_refused(toy: Toy) -> None:
    translator = transduce.load(toy.model)
    with pytest.raises(UserError, match=r"^shortlist=True: expected a model folder with .*; run transduce shortlist "):
        translator.translate(["a b"], shortlist=True)
    with pytest.raises(UserError, match=r"^shortlist=True: "):
        translator.running().admit("key", "a b", DecodingOptions(shortlist=True))
    with pytest.raises(UserError, match="shortlist"):
        DecodingOptions(shortlist="yes")  # pyright: ignore[reportArgumentType]
