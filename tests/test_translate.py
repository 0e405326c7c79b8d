"""Translation: the same answer whatever the neighbours, for whatever a line may hold, and what can be asked of it."""

import math
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
from support.toy_task import Toy, reverse_words

import transduce
from transduce import Sampling, Translation, Translator, UserError
from transduce.config.schema import Config, SearchConfig
from transduce.data.batches import collate
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import BOS, EOS, PAD, UNK
from transduce.decoding import batched_search
from transduce.decoding.backends import Backend
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.search import Request
from transduce.decoding.segmentation import MAX_LINE_TOKENS, split_line
from transduce.model.transformer import Transformer
from transduce.storage.model_folder import LoadedModel, load_model, save_model
from transduce.training.weights import weights

LINES = ["a b c", "d", "", "f e d c b a", "j i", "  ", "a", "g h i j", "Zürich ist schön.", "b c d e f g h i j a b c"]


@pytest.fixture(scope="module")
def model(toy: Toy) -> Translator:
    return transduce.load(toy.model)


@pytest.fixture(scope="module")
def doubter(toy: Toy) -> Translator:
    """The model after a knock on the head: it hesitates, so that its search has much to choose from."""
    loaded = load_model(toy.model)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return Translator([loaded])


def hostile_line(rng: random.Random) -> str:
    """What real text may hold, all of it at once."""
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


def assert_same(found: Sequence[Translation], expected: Sequence[Translation]) -> None:
    """The same tokens, and scores to 1e-5."""
    assert [t.text for t in found] == [t.text for t in expected]
    assert [t.pieces for t in found] == [t.pieces for t in expected]
    for a, b in zip(found, expected, strict=True):
        assert math.isclose(a.score, b.score, rel_tol=1e-5, abs_tol=1e-5)
        np.testing.assert_allclose(a.token_log_probs, b.token_log_probs, rtol=1e-4, atol=1e-5)
        assert_same(a.alternatives, b.alternatives)


# ---- the batch does not matter -----------------------------------------------------------------------------------


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_answer_does_not_depend_on_the_neighbours(doubter: Translator, beam_size: int) -> None:
    """Alone, in batches of any size, in any order."""
    rng = random.Random(1)
    lines = LINES + [" ".join(rng.choices("abcdefghij", k=rng.randint(1, 9))) for _ in range(40)]
    n_best = min(beam_size, 3)
    expected = doubter.translate(lines, beam_size=beam_size, n_best=n_best)
    assert len({t.text for t in expected}) > 10
    for size in (1, 2, 7):
        found = []
        for begin in range(0, len(lines), size):
            found += doubter.translate(lines[begin : begin + size], beam_size=beam_size, n_best=n_best)
        assert_same(found, expected)
    order = list(range(len(lines)))
    for _ in range(3):
        rng.shuffle(order)
        found = doubter.translate([lines[i] for i in order], beam_size=beam_size, n_best=n_best)
        assert_same(found, [expected[i] for i in order])


def test_a_draw_depends_on_seed_and_number_alone(doubter: Translator) -> None:
    sampling = Sampling(temperature=0.8, top_k=20, top_p=0.95)
    together = doubter.translate(LINES, sampling=sampling, seed=7)
    alone = [doubter.translate([line], sampling=sampling, seed=7, first_number=i)[0] for i, line in enumerate(LINES)]
    assert_same(alone, together)
    backwards = doubter.translate(LINES, sampling=sampling, seed=8)
    assert [t.text for t in backwards] != [t.text for t in together]
    repeated = doubter.translate(["a b c"] * 8, sampling=Sampling(), seed=1)
    assert len({t.text for t in repeated}) > 1


@pytest.mark.parametrize("room", [1, 2, 5])
def test_a_batch_that_does_not_fit_is_halved(doubter: Translator, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = doubter.translate(LINES)
    real, sizes = batched_search.beam_search, []

    def beam_search(decoder: Any, state: Any, request: Request, **more: Any) -> Any:
        sizes.append(len(request.max_lengths))
        if sizes[-1] > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(decoder, state, request, **more)

    monkeypatch.setattr(batched_search, "beam_search", beam_search)
    assert_same(doubter.translate(LINES), expected)
    assert max(sizes) > room and sum(size for size in sizes if size <= room) == max(sizes)


def test_one_sentence_that_does_not_fit_is_an_error(doubter: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    def beam_search(*_: Any, **more: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(batched_search, "beam_search", beam_search)
    with pytest.raises(MemoryError):
        doubter.translate(LINES)


# ---- any line ----------------------------------------------------------------------------------------------------


def test_nothing_to_translate(model: Translator) -> None:
    assert model.translate([]) == []
    assert model.score([], []) == []


@pytest.mark.parametrize("blank", ["", " ", "   \t ", "\u3000", "\x85", "\u2028", "\x0b\x0c", "\r", "\xa0"])
def test_blank_is_itself(model: Translator, blank: str) -> None:
    before, found, after = model.translate(["a b", blank, "c d"])
    assert (before.text, after.text) == ("b a", "d c")
    assert found == Translation(blank)


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_hostile_lines_do_no_harm(model: Translator, count: int) -> None:
    """As many answers as lines, each valid UTF-8 on one line, and the good lines are translated."""
    rng = random.Random(count)
    for _ in range(count // 2_000):
        lines = [hostile_line(rng) for _ in range(2_000)]
        mixed = [part for line in lines for part in (line, "a b c")]
        found = model.translate(mixed, beam_size=1)
        assert len(found) == len(mixed)
        assert {t.text for t in found[1::2]} == {"c b a"}
        for line, translation in zip(mixed, found, strict=True):
            ids = model.tokenizer.encode(line)
            assert model.tokenizer.decode(ids) == line and {PAD, BOS, EOS, UNK}.isdisjoint(ids)
            assert "\n" not in translation.text
            assert "\r" not in translation.text or translation.text == line
            assert translation.problem is None
            translation.text.encode()


def test_an_output_never_has_a_line_feed(model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: "a\nb\rc")
    assert model.translate(["a", "\n", " \n "])[0].text == "a b c"
    assert [t.text for t in model.translate(["\n", " \n "])] == [" ", "   "]


def test_a_megabyte_and_a_line_of_too_many_tokens_have_a_problem(model: Translator) -> None:
    """They harm only themselves, and soon."""
    lines = ["a b c", "x" * 1_000_000, "z " * (MAX_LINE_TOKENS // 2 + 1), "\u00e9" * 5_000, "d e"]
    found = model.translate(lines, beam_size=1)
    assert [found[0].text, found[4].text] == ["c b a", "e d"]
    for translation in found[1:4]:
        assert translation.text == ""
        assert re.fullmatch(r"[\d,]+ tokens, expected at most 8,192; split the line", translation.problem or "")


def test_half_a_character_is_refused(model: Translator) -> None:
    for ask in (lambda: model.translate(["a", "b \ud800"]), lambda: model.score(["a"], ["\udfff"])):
        with pytest.raises(UserError, match="surrogate"):
            ask()


def test_one_string_is_not_a_list_of_lines(model: Translator) -> None:
    for ask in (lambda: model.translate("a b"), lambda: model.score("a", ["a"]), lambda: model.score(["a"], "a")):
        with pytest.raises(UserError, match="expected a list of lines, not one string"):
            ask()


# ---- long lines --------------------------------------------------------------------------------------------------

JAPANESE = "私は東京に住んでいます。彼は本を読むのが好きです。" * 6
LONG = [
    "A dog runs. The old cat sleeps! Does it rain? Yes, it rains; we stay at home. " * 4,
    "word " * 80,
    "unbroken" * 40,
    JAPANESE,
    "a" + " " * 500 + "b",
    " " * 300 + "a b c d e f g h i j k l" * 3,
    "😀" * 60,
    "e\u0301" * 50,
    "x. " * 60,
]


@pytest.mark.parametrize("line", LONG)
@pytest.mark.parametrize("limit", [3, 16, 31])
def test_a_long_line_is_split_and_nothing_is_lost(model: Translator, line: str, limit: int) -> None:
    parts = split_line(line, model.tokenizer, limit)
    assert len(parts) > 1
    for text, gap in parts:
        assert text.strip()
        assert gap in ("", " ")
        assert len(model.tokenizer.encode(text)) <= limit or len(text) == 1
    assert "".join("".join(text.split()) for text, _ in parts) == "".join(line.split())
    assert parts[-1][1] == ""


def test_words_stay_apart_and_together(model: Translator) -> None:
    """The parts with their gaps are the line again, but for the width of its gaps."""
    for line in (LONG[0], LONG[1], JAPANESE):
        rejoined = "".join(text + gap for text, gap in split_line(line, model.tokenizer, 20))
        assert rejoined.split() == line.split()


def test_a_line_is_split_between_sentences_if_it_can_be(model: Translator) -> None:
    parts = split_line("a b c d e. f g, h i j! a b c, d e f g", model.tokenizer, 12)
    assert [text for text, _ in parts] == ["a b c d e.", "f g, h i j!", "a b c, d e f g"]
    assert [text for text, _ in split_line("これはです。それはです。", model.tokenizer, 20)] == [
        "これはです。",
        "それはです。",
    ]


def test_parts_are_translated_one_by_one(model: Translator) -> None:
    line = "a b c d e f. " * 6  # 14 letters and points a time; training saw lines of at most six letters
    whole = model.translate([line, "a b"])
    parts = split_line(line, model.tokenizer, model.config.data.max_tokens - 1)
    singly = model.translate([text for text, _ in parts])
    assert len(parts) > 1
    assert whole[0].text == "".join(t.text + gap for t, (_, gap) in zip(singly, parts, strict=True))
    assert whole[0].score == pytest.approx(sum(t.score for t in singly), abs=1e-4)
    assert whole[0].pieces == sum((t.pieces for t in singly), ())
    assert whole[1].text == "b a"


def test_every_line_is_translated_sentence_by_sentence_if_asked(model: Translator) -> None:
    lines = ["aa bb. cc! dd", "", "ee ff? gg."]
    apart = model.translate(["aa bb.", "cc!", "dd", "ee ff?", "gg."])
    found = model.translate(lines, split="sentences")
    assert [t.pieces for t in found] == [sum((t.pieces for t in apart[:3]), ()), (), apart[3].pieces + apart[4].pieces]
    assert found != model.translate(lines)
    assert found == model.translate(lines, split="sentences", prefixes=["", "", ""])
    with pytest.raises(UserError, match="split='no': expected one of long, sentences"):
        model.translate(["a"], split="no")  # pyright: ignore[reportArgumentType]


# ---- what can be asked -------------------------------------------------------------------------------------------


def test_n_best(doubter: Translator) -> None:
    found = doubter.translate(["a b c"], beam_size=5, n_best=4)[0]
    all_four = [found, *found.alternatives]
    assert len({t.text for t in all_four}) >= 3 and len(all_four) == 4
    assert [t.score for t in all_four] == sorted((t.score for t in all_four), reverse=True)
    assert all(not t.alternatives for t in found.alternatives)
    assert replace(found, alternatives=()) == doubter.translate(["a b c"], beam_size=5)[0]


@pytest.mark.parametrize("prefix", ["", "c", "c b", "x", "Grüße an ", "z z z", "😀", "c b a"])
def test_an_output_begins_with_its_prefix(model: Translator, prefix: str) -> None:
    plain, prefixed, blank = model.translate(["a b c", "a b c", ""], prefixes=["", prefix, ""])
    assert prefixed.text.startswith(prefix)
    assert plain.text == "c b a" and blank.text == ""
    assert "c b a".startswith(prefix) <= (prefixed.text == "c b a")


def test_prefixes_that_do_not_fit_are_refused(model: Translator) -> None:
    for wrong in ([], ["a"], ["a", "b", "c"]):
        with pytest.raises(UserError, match=f"{len(wrong)} prefixes for 2 lines: expected one for each"):
            model.translate(["a", " "], prefixes=wrong)
    with pytest.raises(UserError, match="the prefix of line 2 has"):
        model.translate(["a b", "a"], prefixes=["", "a " * 40])


def test_settings_that_cannot_be_met_are_refused(model: Translator) -> None:
    for wrong, message in (
        ({"beam_size": 0}, "search.beam_size=0"),
        ({"alpha": -1.0}, "search.alpha=-1.0"),
        ({"n_best": 5}, "n_best=5: expected 1 to the beam size, 4"),
        ({"n_best": 0}, "n_best=0"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            model.translate(["a"], **wrong)  # type: ignore
    for ignored in ({"beam_size": 2}, {"lookahead": 2}, {"n_best": 2}):
        with pytest.raises(UserError, match="expected no value with sampling"):
            model.translate(["a"], sampling=Sampling(), **ignored)  # type: ignore
    with pytest.raises(UserError, match="temperature=0"):
        Sampling(temperature=0)


def test_lookahead_is_used(model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def noted(decoder: object, state: object, request: Request, **_: object) -> list[list[Hypothesis]]:
        asked.append(request.search.lookahead)
        return [[Hypothesis([], 0.0, 0.0, [0.0], True)] for _ in request.max_lengths]

    monkeypatch.setattr("transduce.decoding.batched_search.beam_search", noted)
    model.translate(["a"])
    model.translate(["a"], lookahead=3)
    assert asked == [None, 3]


def test_alpha_and_beam_size_are_used(doubter: Translator) -> None:
    lines = ["a b c d", "e f", "j"]
    for alpha in (0.0, 0.6, 2.0):
        for t in doubter.translate(lines, alpha=alpha):
            penalty = ((5 + len(t.pieces)) / 6) ** alpha
            assert t.score == pytest.approx(sum(t.token_log_probs) / penalty, rel=1e-6)
    for t in doubter.translate(lines, alpha=0.5, length_penalty="power"):
        assert t.score == pytest.approx(sum(t.token_log_probs) / len(t.pieces) ** 0.5, rel=1e-6)
    assert [t.text for t in doubter.translate(lines, beam_size=1)] != [t.text for t in doubter.translate(lines)]


def test_an_output_is_cut_at_its_own_length_plus_50(doubter: Translator) -> None:
    tokens = [len(doubter.tokenizer.encode(line)) for line in LINES[:2]]
    for translation, length in zip(doubter.translate(LINES[:2]), tokens, strict=True):
        assert len(translation.pieces) <= length + doubter.config.search.max_extra_tokens
        assert translation.finished == (translation.pieces[-1] == "</s>")


# ---- ensembles ---------------------------------------------------------------------------------------------------


def test_a_model_with_itself_is_itself(toy: Toy, model: Translator) -> None:
    twice = transduce.load(toy.model, toy.model)
    assert_same(twice.translate(LINES, n_best=2), model.translate(LINES, n_best=2))
    pairs = LINES[:4], ["c b a", "d", "a", "a b c d e f"]
    for a, b in zip(twice.score(*pairs), model.score(*pairs), strict=True):
        assert a.log_prob == pytest.approx(b.log_prob, abs=1e-4)


def test_an_ensemble_means_the_probabilities(toy: Toy, model: Translator, doubter: Translator) -> None:
    one = LoadedModel(model.models[0], model.config, model.tokenizer)
    other = LoadedModel(doubter.models[0], doubter.config, doubter.tokenizer)
    both = Translator([one, other])
    found = both.translate(["a b c"])[0]
    assert sum(found.token_log_probs) == pytest.approx(both.score(["a b c"], [found.text])[0].log_prob, abs=1e-4)
    each = [t.score(["a b"], ["b a"])[0].token_log_probs for t in (model, doubter, both)]
    mean = np.log((np.exp(each[0]) + np.exp(each[1])) / 2)
    np.testing.assert_allclose(each[2], mean, atol=1e-4)


# ---- score and attend --------------------------------------------------------------------------------------------


def test_score_is_what_the_search_says_of_its_own_output(model: Translator) -> None:
    lines = [line for line in LINES if line.strip()]
    outputs = [
        (line, t)
        for line, best in zip(lines, model.translate(lines, n_best=3), strict=True)
        for t in (best, *best.alternatives)
    ]
    pieces = model.tokenizer.pieces
    usual = [
        (line, t)
        for line, t in outputs
        if t.finished and [*pieces(model.tokenizer.encode(t.text)), "</s>"] == [*t.pieces]
    ]
    assert len(usual) > 10  # the others spell their text with other tokens than the tokenizer would
    for (_, t), scored in zip(usual, model.score([line for line, _ in usual], [t.text for _, t in usual]), strict=True):
        assert scored.pieces == t.pieces
        np.testing.assert_allclose(scored.token_log_probs, t.token_log_probs, atol=1e-4)
        assert scored.log_prob == pytest.approx(sum(t.token_log_probs), abs=1e-4)


def test_the_search_adds_up_what_the_model_says(doubter: Translator) -> None:
    """The log-probabilities of cached steps, in beams that were reordered, are those of the whole output at once."""
    sources = doubter.tokenizer.encode_batch([line for line in LINES if line.strip()])
    found = batched_search.search_all(Backend(doubter.models), sources, doubter.config.search, n_best=3)
    for source, hypotheses in zip(sources, found, strict=True):
        for hypothesis in hypotheses:
            batch = collate([np.asarray(source)], [np.asarray(hypothesis.ids)])
            expected = doubter._token_log_probs(batch)[0][: len(hypothesis.token_log_probs)]
            np.testing.assert_allclose(hypothesis.token_log_probs, expected, atol=1e-4)


def test_score_by_hand(model: Translator) -> None:
    """Token by token from the model's own logits."""
    src, tgt = model.tokenizer.encode("a b c"), model.tokenizer.encode("c a b")
    ids = torch.tensor([[*src, EOS]])
    with torch.inference_mode():
        logits = model.models[0](ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([[BOS, *tgt]]))
    expected = logits[0].double().log_softmax(-1)[range(len(tgt) + 1), [*tgt, EOS]]
    found = model.score(["x", "a b c", ""], ["y z " * 9, "c a b", ""])
    np.testing.assert_allclose(found[1].token_log_probs, expected.numpy(), atol=1e-4)
    assert found[1].log_prob == pytest.approx(float(expected.sum()), abs=1e-4)
    assert len(found[2].token_log_probs) == 1


def test_score_does_not_depend_on_the_neighbours(doubter: Translator) -> None:
    targets = LINES[::-1]
    together = doubter.score(LINES, targets)
    for src, tgt, expected in zip(LINES, targets, together, strict=True):
        assert doubter.score([src], [tgt])[0].log_prob == pytest.approx(expected.log_prob, rel=1e-5, abs=1e-4)


def test_score_refuses_what_it_cannot_score(model: Translator) -> None:
    with pytest.raises(UserError, match="2 source lines but 1 target lines"):
        model.score(["a", "b"], ["a"])
    with pytest.raises(UserError, match="line 1,002 has|line 1002 has"):
        model.score(["a", "b"], ["a", "b " * 9_000], first_number=1_000)


def test_attend_gives_every_weight(model: Translator) -> None:
    seen = model.attend("a b c", "c b")
    layers, heads = model.config.model.n_layers, model.config.model.n_heads
    source, target = len(seen.src_pieces), len(seen.tgt_pieces)
    assert seen.src_pieces[-1] == seen.tgt_pieces[-1] == "</s>"
    assert seen.encoder.shape == (layers, heads, source, source)
    assert seen.decoder.shape == (layers, heads, target, target)
    assert seen.cross.shape == (layers, heads, target, source)
    for each in (seen.encoder, seen.decoder, seen.cross):
        assert (each >= 0).all()
        np.testing.assert_allclose(each.sum(-1), 1, atol=1e-5)
    assert not np.triu(seen.decoder, 1).any()  # the future is not seen
    assert model.attend("a b c").tgt_pieces == model.translate(["a b c"])[0].pieces
    with pytest.raises(UserError, match="the source is blank"):
        model.attend("  ")


# ---- loading -----------------------------------------------------------------------------------------------------


def test_load_says_what_is_wrong(toy: Toy, tmp_path: Path) -> None:
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
        ((tmp_path / "nowhere",), "no such folder"),
        ((toy.run,), f"use {toy.model}"),
        ((damaged,), "expected the SHA-256 in manifest.json"),
        ((toy.model, other), "expected the tokenizer of"),
        ((tmp_path,), "manifest.json"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            transduce.load(*paths)
    with pytest.raises(UserError, match="precision='int4': expected"):
        transduce.load(toy.model, precision="int4")


def test_bf16_finds_nearly_the_same(toy: Toy, model: Translator) -> None:
    lines = toy.unseen[:50]
    found = transduce.load(toy.model, precision="bf16").translate(lines)
    assert sum(t.text == reverse_words(line) for t, line in zip(found, lines, strict=True)) >= 48
    scored = transduce.load(str(toy.model), precision="bf16").score(["a b c"], ["c b a"])[0]
    assert scored.log_prob == pytest.approx(model.score(["a b c"], ["c b a"])[0].log_prob, abs=0.1)


def test_learned_positions_bound_the_output(toy: Toy) -> None:
    """A model of at most 40 positions stops there, though its search might go on."""
    loaded = load_model(toy.model)
    architecture = replace(loaded.config.model, positions="learned", max_positions=40)
    config = replace(loaded.config, model=architecture, search=SearchConfig(max_extra_tokens=100))
    translator = Translator([LoadedModel(Transformer(architecture), config, loaded.tokenizer), loaded])
    for translation in translator.translate(["a b c d e f g h", "a b c. " * 40], beam_size=2):
        assert translation.problem is None
