"""Loops: their count, the search without repeated tokens, and the second search of a loop."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from support.random_models import CONFIG, random_model
from support.toy_task import Toy
from support.translators import LINES, assert_same, noisy_translator

from transduce import Translator
from transduce.config.schema import SearchConfig
from transduce.decoding.options import DecodingOptions
from transduce.decoding.repetition import BARRED, _lowered
from transduce.decoding.translations import is_loop, n_repeats


@pytest.fixture(scope="module")
def noisy(toy: Toy) -> Translator:
    return noisy_translator(toy)


def counted(ids: Sequence[int]) -> int:
    """Return `n_repeats` by trying everything."""
    most = 1
    for period in range(1, len(ids)):
        for start in range(len(ids)):
            count = 1
            while ids[start : start + period] == ids[start + count * period : start + (count + 1) * period] != []:
                count += 1
            if start + period <= len(ids):
                most = max(most, count)
    return most if most >= 5 else 1


def test_repeats_are_counted() -> None:
    chance = random.Random(1)
    for _ in range(300):
        pattern = [chance.randrange(3) for _ in range(chance.randint(1, 5))]
        before, after = ([chance.randrange(4) for _ in range(chance.randrange(9))] for _ in range(2))
        ids = before + pattern * chance.randrange(8) + after
        count = n_repeats(ids)
        assert (count if count >= 5 else 1) == counted(ids)
    assert n_repeats([]) == n_repeats([7]) == 1


def test_a_loop_repeats_more_than_its_source() -> None:
    assert is_loop([1, 2, 3], [4, 5] * 5) and is_loop([], [9] * 5)
    assert not is_loop([1, 2, 3], [4, 5] * 4) and not is_loop([1] * 5, [2] * 9) and is_loop([1] * 5, [2] * 10)


def test_log_probabilities_are_lowered_as_by_transformers() -> None:
    processors = pytest.importorskip("transformers").generation.logits_process
    torch.manual_seed(1)
    log_probs = torch.randn(6, 8).log_softmax(1)
    outputs = torch.randint(8, (6, 12))
    for n in (1, 2, 3, 20):
        settings = SearchConfig(no_repeat_ngram=n)
        expected = processors.NoRepeatNGramLogitsProcessor(n)(outputs, log_probs)
        lowered = _lowered(log_probs.clone(), outputs.tolist(), settings)
        torch.testing.assert_close(lowered.masked_fill(lowered == BARRED, -torch.inf), expected)
    expected = processors.RepetitionPenaltyLogitsProcessor(1.7)(outputs, log_probs)
    lowered = _lowered(log_probs.clone(), outputs.tolist(), SearchConfig(repetition_penalty=1.7))
    torch.testing.assert_close(lowered, expected)


@pytest.fixture(scope="module")
def untrained() -> Translator:
    """Return a model that repeats itself on some lines."""
    loaded = random_model(CONFIG)
    config = replace(loaded.config, search=SearchConfig(max_extra_tokens=30))
    return Translator([replace(loaded, config=config)])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_no_output_has_a_sequence_twice(untrained: Translator, beam_size: int) -> None:
    before = untrained.translate(LINES, beam_size=beam_size, loops="keep")
    assert any(translation.is_loop for translation in before)
    for n in (1, 2, 3):
        for translation in untrained.translate(LINES, beam_size=beam_size, no_repeat_ngram=n, loops="keep"):
            assert not translation.is_loop
            pieces = [piece for piece in translation.pieces if piece != "</s>"]
            sequences = [tuple(pieces[i : i + n]) for i in range(len(pieces) - n + 1)]
            assert len(sequences) == len({*sequences})


def test_a_large_penalty_repeats_no_token(untrained: Translator) -> None:
    for translation in untrained.translate(LINES, repetition_penalty=100.0, beam_size=1, loops="keep"):
        assert len({*translation.pieces}) == len(translation.pieces)


def test_a_batch_changes_no_output_without_repetition(noisy: Translator) -> None:
    options = DecodingOptions(no_repeat_ngram=2, repetition_penalty=1.3)
    single = [noisy.translate([line], options=options)[0] for line in LINES]
    assert_same(noisy.translate(LINES, options=options), single)


def test_a_loop_is_searched_again_and_nothing_else(untrained: Translator) -> None:
    model = untrained
    kept = model.translate(LINES, loops="keep")
    again = model.translate(LINES)
    without = model.translate(LINES, loops="keep", no_repeat_ngram=3)
    assert {t.is_loop for t in kept} == {True, False}
    for old, new, other in zip(kept, again, without, strict=True):
        assert old.is_loop == new.is_loop and ("repeated" in new.doubts) == new.is_loop
        if new.is_loop:
            assert new.text == other.text or len(new.pieces) < len(other.pieces)  # the second search is shorter
        else:
            assert_same([new], [old])


def test_a_service_answers_as_a_file(untrained: Translator) -> None:
    model = untrained
    for options in (DecodingOptions(), DecodingOptions(loops="keep"), DecodingOptions(no_repeat_ngram=2)):
        running, done = model.running(), {}
        for key, line in enumerate(LINES):
            running.admit(key, line, options)
        while len(running):
            done |= running.step()
        translations = [done[key] for key in range(len(LINES))]
        expected = model.translate(LINES, options=options)
        assert_same(translations, expected)
        assert [t.doubts for t in translations] == [t.doubts for t in expected]


def test_the_maximum_length_cuts_an_output(noisy: Translator) -> None:
    (translation,) = noisy.translate(["f e d c b a"], max_length=3, beam_size=1)
    assert len(translation.pieces) == 3 and not translation.finished and translation.doubts == ["cut"]
