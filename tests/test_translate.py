"""Translation: independent of the batch, for any line, with every option."""

import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.random_models import CONFIG as SMALL
from support.random_models import random_model
from support.tokenizer_texts import plain_text
from support.toy_task import Toy, reverse_words
from support.translators import LINES, assert_same, noisy_translator

import transduce
from transduce import Sampling, Translation, Translator, UserError
from transduce.config.schema import Config, SearchConfig
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import BOS, EOS, PAD, UNK
from transduce.decoding.backends import Backend
from transduce.decoding.hypothesis import Request
from transduce.decoding.segmentation import MAX_LINE_TOKENS
from transduce.model.transformer import Transformer
from transduce.storage.model_folder import LoadedModel, load_model, save_model
from transduce.training.weights import weights


@pytest.fixture(scope="module")
def model(toy: Toy) -> Translator:
    return transduce.load(toy.model)


@pytest.fixture(scope="module")
def noisy(toy: Toy) -> Translator:
    return noisy_translator(toy)


def hostile_line(rng: random.Random) -> str:
    """Return a line of letters, control characters, rare characters and the words of control tokens."""
    kinds = [
        lambda: rng.choice("abcdefghij") + " ",
        lambda: chr(rng.randrange(0x20)),
        lambda: chr(rng.choice([0x85, 0xA0, 0x2028, 0x2029, 0x200B, 0x200D, 0xFEFF, 0xFFFD, 0xFFFE, 0x10FFFF])),
        lambda: chr(rng.randrange(0x80, 0xD800)),
        lambda: chr(rng.randrange(0xE000, 0x110000)),
        lambda: rng.choice(
            ["<s>", "</s>", "<pad>", "<unk>", "<0x0A>", "##", "▁", "@@ ", "👩‍👩‍👧", "e\u0301", "\u202e"]
        ),
    ]
    weights = [rng.random() for _ in kinds]
    return "".join(rng.choices(kinds, weights)[0]() for _ in range(rng.randrange(6))).replace("\n", "")


# ---- the batch does not matter -----------------------------------------------------------------------------------


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_batch_changes_no_translation(noisy: Translator, beam_size: int) -> None:
    """Single lines, lines in batches of any size, and in any order."""
    rng = random.Random(1)
    lines = LINES + [" ".join(rng.choices("abcdefghij", k=rng.randint(1, 9))) for _ in range(40)]
    n_best = min(beam_size, 3)
    expected = noisy.translate(lines, beam_size=beam_size, n_best=n_best)
    assert len({t.text for t in expected}) > 10
    for size in (1, 2, 7):
        translations = []
        for begin in range(0, len(lines), size):
            translations += noisy.translate(lines[begin : begin + size], beam_size=beam_size, n_best=n_best)
        assert_same(translations, expected)
    order = list(range(len(lines)))
    for _ in range(3):
        rng.shuffle(order)
        translations = noisy.translate([lines[i] for i in order], beam_size=beam_size, n_best=n_best)
        assert_same(translations, [expected[i] for i in order])


def test_a_draw_depends_only_on_the_seed_and_the_number_of_the_line(noisy: Translator) -> None:
    sampling = Sampling(temperature=0.8, top_k=20, top_p=0.95)
    together = noisy.translate(LINES, sampling=sampling, seed=7)
    single = [noisy.translate([line], sampling=sampling, seed=7, first_number=i)[0] for i, line in enumerate(LINES)]
    assert_same(single, together)
    other = noisy.translate(LINES, sampling=sampling, seed=8)
    assert [t.text for t in other] != [t.text for t in together]
    samples = noisy.translate(["a b c"] * 8, sampling=Sampling(), seed=1)
    assert len({t.text for t in samples}) > 1


@pytest.mark.parametrize("room", [1, 2, 5])
def test_a_batch_too_large_for_the_memory_is_halved(
    noisy: Translator, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = noisy.translate(LINES, loops="keep")
    real, sizes = Backend.start, []

    def start(backend: Backend, sources: Sequence[Sequence[int]], constraint: Any) -> Any:
        sizes.append(len(sources))
        if sizes[-1] > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(backend, sources, constraint)

    monkeypatch.setattr(Backend, "start", start)
    assert_same(noisy.translate(LINES, loops="keep"), expected)
    assert max(sizes) > room and sum(size for size in sizes if size <= room) == max(sizes)


def test_one_sentence_that_needs_too_much_memory_is_an_error(
    noisy: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Backend, "start", start)
    with pytest.raises(MemoryError):
        noisy.translate(LINES)


# ---- any line ----------------------------------------------------------------------------------------------------


def test_nothing_to_translate(model: Translator) -> None:
    assert model.translate([]) == []
    assert model.score([], []) == []


@pytest.mark.parametrize("blank", ["", " ", "   \t ", "\u3000", "\x85", "\u2028", "\x0b\x0c", "\r", "\xa0"])
def test_a_blank_line_is_its_own_translation(model: Translator, blank: str) -> None:
    before, translation, after = model.translate(["a b", blank, "c d"])
    assert (before.text, after.text) == ("b a", "d c")
    assert translation == Translation(blank)


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_hostile_lines(model: Translator, count: int) -> None:
    """Each line has a translation of valid UTF-8 on one line, and the good lines are translated."""
    rng = random.Random(count)
    for _ in range(count // 2_000):
        lines = [hostile_line(rng) for _ in range(2_000)]
        inputs = [part for line in lines for part in (line, "a b c")]
        translations = model.translate(inputs, beam_size=1)
        assert len(translations) == len(inputs)
        assert {t.text for t in translations[1::2]} == {"c b a"}
        for line, translation in zip(inputs, translations, strict=True):
            ids = model.tokenizer.encode(line)
            assert model.tokenizer.decode(ids) == plain_text(line) and {PAD, BOS, EOS, UNK}.isdisjoint(ids)
            assert "\n" not in translation.line and "\r" not in translation.line
            assert translation.problem is None
            translation.text.encode()


def test_the_model_writes_no_line_break(model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: "a\nb\rc")
    assert [t.text for t in model.translate(["a", "a\nb", " \n "])] == ["a b c", "a b c\na b c", " \n "]
    assert model.translate(["a\nb"])[0].line == "a b c a b c"


def test_a_megabyte_and_a_line_of_too_many_tokens_have_a_problem(model: Translator) -> None:
    """The other lines are translated. The check takes little time."""
    lines = ["a b c", "x" * 1_000_000, "z " * (MAX_LINE_TOKENS // 2 + 1), "\u00e9" * 5_000, "d e"]
    translations = model.translate(lines, beam_size=1)
    assert [translations[0].text, translations[4].text] == ["c b a", "e d"]
    kinds = "characters", "tokens", "tokens"
    for kind, translation in zip(kinds, translations[1:4], strict=True):
        assert translation.text == ""
        assert re.fullmatch(rf"expected at most [\d,]+ {kind}, not [\d,]+; split the line", translation.problem or "")


def test_half_a_surrogate_pair_is_refused(model: Translator) -> None:
    for call in (lambda: model.translate(["a", "b \ud800"]), lambda: model.score(["a"], ["\udfff"])):
        with pytest.raises(UserError, match="surrogate"):
            call()


def test_one_string_is_not_a_list_of_lines(model: Translator) -> None:
    for call in (lambda: model.translate("a b"), lambda: model.score("a", ["a"]), lambda: model.score(["a"], "a")):
        with pytest.raises(UserError, match="expected a list of strings, not one string"):
            call()


# ---- options -------------------------------------------------------------------------------------------


def test_n_best(noisy: Translator) -> None:
    best = noisy.translate(["a b c"], beam_size=5, n_best=4)[0]
    all_four = [best, *best.alternatives]
    assert len({t.text for t in all_four}) >= 3 and len(all_four) == 4
    assert [t.score for t in all_four] == sorted((t.score for t in all_four), reverse=True)
    assert all(not t.alternatives for t in best.alternatives)
    assert replace(best, alternatives=()) == noisy.translate(["a b c"], beam_size=5)[0]


@pytest.mark.parametrize("prefix", ["", "c", "c b", "x", "Grüße an ", "z z z", "😀", "c b a"])
def test_an_output_begins_with_its_prefix(model: Translator, prefix: str) -> None:
    plain, with_prefix, blank = model.translate(["a b c", "a b c", ""], prefixes=["", prefix, ""])
    assert with_prefix.text.startswith(prefix)
    assert plain.text == "c b a" and blank.text == ""
    assert "c b a".startswith(prefix) <= (with_prefix.text == "c b a")


def test_prefixes_that_do_not_fit_are_refused(model: Translator) -> None:
    for wrong in ([], ["a"], ["a", "b", "c"]):
        with pytest.raises(UserError, match=f"{len(wrong)} prefixes for 2 lines: expected one for each"):
            model.translate(["a", " "], prefixes=wrong)
    with pytest.raises(UserError, match="^line 2: prefix='a a.*: expected at most .*; shorten it$"):
        model.translate(["a b", "a"], prefixes=["", "a " * 40])


def test_impossible_options_are_refused(model: Translator) -> None:
    for options, message in (
        ({"beam_size": 0}, "beam_size=0"),
        ({"alpha": -1.0}, "alpha=-1.0"),
        ({"n_best": 5}, "n_best=5: expected 1 to the beam size, 4"),
        ({"n_best": 0}, "n_best=0"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            model.translate(["a"], **options)  # type: ignore
    for without_effect in ({"beam_size": 2}, {"lookahead": 2}, {"n_best": 2}):
        with pytest.raises(UserError, match="must not be set with sampling"):
            model.translate(["a"], sampling=Sampling(), **without_effect)  # type: ignore
    with pytest.raises(UserError, match="temperature=0"):
        Sampling(temperature=0)


def test_the_search_gets_the_lookahead(model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    lookaheads: list[int | None] = []
    real = Backend.request

    def request(backend: Backend, sources: Sequence[Sequence[int]], settings: SearchConfig, constraint: Any) -> Request:
        lookaheads.append(settings.lookahead)
        return real(backend, sources, settings, constraint)

    monkeypatch.setattr(Backend, "request", request)
    model.translate(["a"])
    model.translate(["a"], lookahead=3)
    assert lookaheads == [None, 3]


def test_alpha_penalty_and_beam_size_change_scores(noisy: Translator) -> None:
    lines = ["a b c d", "e f", "j"]
    for alpha in (0.0, 0.6, 2.0):
        for t in noisy.translate(lines, alpha=alpha):
            penalty = ((5 + len(t.pieces)) / 6) ** alpha
            assert t.score == pytest.approx(sum(t.token_log_probs) / penalty, rel=1e-6)
    for t in noisy.translate(lines, alpha=0.5, length_penalty="power"):
        assert t.score == pytest.approx(sum(t.token_log_probs) / len(t.pieces) ** 0.5, rel=1e-6)
    assert [t.text for t in noisy.translate(lines, beam_size=1)] != [t.text for t in noisy.translate(lines)]


def test_an_output_is_cut_at_its_own_length_plus_50(noisy: Translator) -> None:
    tokens = [len(noisy.tokenizer.encode(line)) for line in LINES[:2]]
    for translation, length in zip(noisy.translate(LINES[:2]), tokens, strict=True):
        assert len(translation.pieces) <= length + noisy.config.search.max_extra_tokens
        assert translation.finished == (translation.pieces[-1] == "</s>")


# ---- ensembles ---------------------------------------------------------------------------------------------------


def test_an_ensemble_of_equal_models_is_the_model(toy: Toy, model: Translator) -> None:
    twice = transduce.load(toy.model, toy.model)
    assert_same(twice.translate(LINES, n_best=2), model.translate(LINES, n_best=2))
    pairs = LINES[:4], ["c b a", "d", "a", "a b c d e f"]
    for a, b in zip(twice.score(*pairs), model.score(*pairs), strict=True):
        assert a.log_prob == pytest.approx(b.log_prob, abs=1e-4)


def test_an_ensemble_is_the_mean_of_the_probabilities(toy: Toy, model: Translator, noisy: Translator) -> None:
    first = LoadedModel(model.models[0], model.config, model.tokenizer)
    other = LoadedModel(noisy.models[0], noisy.config, noisy.tokenizer)
    both = Translator([first, other])
    best = both.translate(["a b c"])[0]
    assert sum(best.token_log_probs) == pytest.approx(both.score(["a b c"], [best.text])[0].log_prob, abs=1e-4)
    assert_mean([first, other])


def test_the_models_of_an_ensemble_may_have_other_depths() -> None:
    models = [random_model(replace(SMALL, n_layers=3, n_decoder_layers=1)), random_model(SMALL)]
    assert_mean(models)
    assert Translator(models).translate(["a b c"])[0].problem is None


def assert_mean(models: list[LoadedModel]) -> None:
    """Check that the probabilities of an ensemble of two models are the mean of theirs."""
    log_probs = [
        Translator(some).score(["a b"], ["b a"])[0].token_log_probs for some in (models[:1], models[1:], models)
    ]
    mean = np.log((np.exp(log_probs[0]) + np.exp(log_probs[1])) / 2)
    np.testing.assert_allclose(log_probs[2], mean, atol=1e-4)


# ---- loading -----------------------------------------------------------------------------------------------------


def test_load_names_the_problem(toy: Toy, tmp_path: Path) -> None:
    damaged, other = tmp_path / "damaged", tmp_path / "other"
    shutil.copytree(toy.model, damaged)
    content = bytearray((damaged / "model.safetensors").read_bytes())
    content[-7] ^= 1
    (damaged / "model.safetensors").write_bytes(content)
    loaded = load_model(toy.model)
    tokenizer = Tokenizer.learn(["quite different"] * 9, vocab_size=300)
    config: Config = replace(loaded.config, model=replace(loaded.config.model, vocab_size=tokenizer.vocab_size))
    save_model(other, weights(Transformer(config.model)), config, tokenizer, "")
    for paths, message in (
        ((), "no model: expected a model folder"),
        ((tmp_path / "nowhere",), "does not exist"),
        ((toy.run,), f"use {toy.model}"),
        ((damaged,), "expected the SHA-256 in manifest.json"),
        ((toy.model, other), "expected the tokenizer of"),
        ((tmp_path,), "manifest.json"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            transduce.load(*paths)
    with pytest.raises(UserError, match="precision='int4': expected"):
        transduce.load(toy.model, precision="int4")


def test_bf16_gives_nearly_the_same_translations(toy: Toy, model: Translator) -> None:
    lines = toy.unseen[:50]
    translations = transduce.load(toy.model, precision="bf16").translate(lines)
    assert sum(t.text == reverse_words(line) for t, line in zip(translations, lines, strict=True)) >= 48
    score = transduce.load(str(toy.model), precision="bf16").score(["a b c"], ["c b a"])[0]
    assert score.log_prob == pytest.approx(model.score(["a b c"], ["c b a"])[0].log_prob, abs=0.1)


def test_learned_positions_bound_the_output(toy: Toy) -> None:
    """A model of 40 positions cuts its output there, though the search may take more tokens."""
    loaded = load_model(toy.model)
    architecture = replace(loaded.config.model, positions="learned", max_positions=40)
    config = replace(loaded.config, model=architecture, search=SearchConfig(max_extra_tokens=100))
    translator = Translator([LoadedModel(Transformer(architecture), config, loaded.tokenizer), loaded])
    for translation in translator.translate(["a b c d e f g h", "a b c. " * 40], beam_size=2):
        assert translation.problem is None
