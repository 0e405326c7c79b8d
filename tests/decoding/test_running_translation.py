"""A translation of lines that come and go: the answers of `Translator.translate`, at any step, in any company."""

import random
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.toy_task import Toy
from support.translators import LINES, assert_same, noisy_translator

from transduce import Sampling, Translator, UserError
from transduce.decoding.options import DecodingKeywords, DecodingOptions
from transduce.decoding.running_translation import MOST_SEGMENTS, MOST_WAITING, RunningTranslation

LONG = " ".join("a b c d! e f! g h i j?" for _ in range(30))


@pytest.fixture(scope="module")
def noisy(toy: Toy) -> Translator:
    return noisy_translator(toy)


def run(running: RunningTranslation, lines: Sequence[tuple[str, DecodingOptions]], seed: int) -> list[Any]:
    """Translate lines that come at random steps, a few at a time."""
    chance, waiting, done = random.Random(seed), list(enumerate(lines)), dict[Hashable, Any]()
    chance.shuffle(waiting)
    while waiting or len(running):
        while waiting and (chance.random() < 0.5 or not len(running)):
            key, line = waiting.pop()
            running.admit(key, *line)
        done |= running.step()
    assert not len(running.search)
    return [done[key] for key in range(len(lines))]


@pytest.mark.parametrize("seed", range(3))
def test_lines_that_come_and_go_are_translated_as_in_a_file(noisy: Translator, seed: int) -> None:
    chance = random.Random(seed)
    choices = [DecodingOptions(), DecodingOptions(n_best=3), DecodingOptions(split="sentences", beam_size=2)]
    lines = [(line, chance.choice(choices)) for line in [*LINES, LONG, "a b! c d? e f!", "x" * 9_000_000] * 2]
    expected = [noisy.translate([line], options=options)[0] for line, options in lines]
    translations = run(noisy.running(), lines, seed)
    assert_same(translations, expected)
    assert [t.problem for t in translations] == [t.problem for t in expected]
    assert sum(t.problem is not None for t in translations) == 2


@pytest.mark.parametrize("more", [{}, {"n_best": 2}, {"mbr": 3, "beam_size": 3}, {"placeholders": True}])
def test_lines_are_aligned_as_in_a_file(noisy: Translator, more: DecodingKeywords) -> None:
    options = DecodingOptions(alignment=True, split="sentences", **more)
    lines = ["a b! c d? e f!", "c a. 12 {n} a. B A?", "a", "", "a b. a b. a b."]
    expected = noisy.translate(lines, options=options)
    translations = run(noisy.running(), [(line, options) for line in lines], 0)
    assert_same(translations, expected)
    assert [t.alignment for t in translations] == [t.alignment for t in expected]
    assert [t.alignment is None for t in expected] == [False, False, False, True, False]
    sources = {word.source_start for word in expected[4].alignment or ()}
    assert min(sources) < 5 <= max(sources) - 5, "the words of each sentence are in this sentence"


def test_a_line_that_cannot_be_aligned_ends_with_the_error(noisy: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    running = noisy.running()
    monkeypatch.setattr(running, "align", lambda segments, *others: 1 / 0 if "c" in segments[0].text else others[-1])
    wrong, right = run(running, [("a b! c!", DecodingOptions(alignment=True)), ("a b", DecodingOptions())], 0)
    assert isinstance(wrong, ZeroDivisionError) and right.text


def test_minimum_bayes_risk_ranks_the_outputs(noisy: Translator) -> None:
    options = DecodingOptions(mbr=4, beam_size=4, n_best=2)
    assert_same(run(noisy.running(), [(LINES[3], options)], 0), noisy.translate([LINES[3]], options=options))


def test_options_that_cannot_be_met_are_refused(noisy: Translator) -> None:
    running = noisy.running()
    for options in (DecodingOptions(sampling=Sampling()), DecodingOptions(n_best=9), DecodingOptions(tag="<2de>")):
        with pytest.raises(UserError):
            running.admit("key", "a b", options)
    assert len(running) == 0 and running.step() == {}


def test_a_line_of_many_segments_does_not_delay_another_one(noisy: Translator) -> None:
    """It has more segments than are searched at a time. The other line's segment is the next but one."""
    running, options = noisy.running(), DecodingOptions(split="sentences", beam_size=1)
    running.admit("long", "a b c d e f! " * 8 * MOST_SEGMENTS, options)
    running.step()
    assert len(running.search) == MOST_SEGMENTS and running.room[0] == 0
    running.admit("short", "a b", options)
    done = dict[Hashable, Any]()
    while "short" not in done:
        done |= running.step()
    assert "long" not in done and running.lines["long"].waiting


def test_room_is_bounded_by_lines_and_by_tokens(noisy: Translator) -> None:
    running = noisy.running()
    assert running.room == (MOST_SEGMENTS, 4_096 // 4)
    running.admit(0, "a b c", DecodingOptions())
    running.step()
    tokens = len(noisy.tokenizer.encode("a b c")) + 1
    can_join = running.search.backend.decoder.join is not None  # without it, new lines wait for an empty beam
    assert running.room == ((MOST_SEGMENTS - 1, 4_096 // 4 - tokens) if can_join else (0, 0))
    running.drop([0])
    assert running.room == (MOST_SEGMENTS, 4_096 // 4) and len(running) == len(running.search) == 0
    for i in range(MOST_WAITING):
        running.admit(i, "a b c", DecodingOptions())
    assert running.room == (0, 0)
    running.drop(range(MOST_WAITING))
    running.search.limit = 1  # after memory ran out
    assert running.room == (MOST_SEGMENTS, 1)


@pytest.mark.parametrize("answer", [MemoryError(), ValueError("a defect")])
def test_a_line_fails_with_its_first_segment_that_fails(
    noisy: Translator, answer: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, options = noisy.running(), DecodingOptions(split="sentences")
    backend = running.search.backend
    bad, start = list(noisy.tokenizer.encode("e f!")), backend.start

    def failing_start(sources: Sequence[Sequence[int]], constraint: Any) -> Any:
        if bad in [list(source) for source in sources]:
            raise answer
        return start(sources, constraint)

    monkeypatch.setattr(backend, "start", failing_start)
    lines = {0: "a b! c d! a b!", 1: "a b! e f! c d!", 2: "a b"}
    for key, line in lines.items():
        running.admit(key, line, options)
    done: dict[Hashable, Any] = {}
    while len(running):
        done |= running.step()
    assert done[1] is answer
    for key in (0, 2):
        assert_same([done[key]], noisy.translate([lines[key]], options=options))


def test_segments_that_memory_does_not_suffice_for_are_searched_later(noisy: Translator) -> None:
    running, options = noisy.running(), DecodingOptions(split="sentences")
    backend, refusals = running.search.backend, [0]
    real = backend.decoder

    def step(last_ids: torch.Tensor, state: Any) -> Any:
        if len(last_ids) > 8:
            refusals[0] += 1
            raise MemoryError
        return real.step(last_ids, state)

    lines = [(line, options) for line in (LONG, "a b! c d! e f!", "a b c")]
    expected = [noisy.translate([line], options=options)[0] for line, options in lines]
    backend.decoder = replace(real, step=step)
    try:
        assert_same(run(running, lines, 1), expected)
    finally:
        backend.decoder = real
    assert refusals[0] > 0
