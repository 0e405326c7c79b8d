"""Scores of given translations, and attention weights."""

import numpy as np
import pytest
import torch
from support.little_memory import LittleMemory
from support.toy_task import Toy
from support.translators import LINES, noisy_translator

import transduce
from transduce import Translator, UserError
from transduce.data.batches import collate
from transduce.data.vocabulary import BOS, EOS
from transduce.decoding import batched_search
from transduce.decoding.backends import Backend


@pytest.fixture(scope="module")
def model(toy: Toy) -> Translator:
    return transduce.load(toy.model)


@pytest.fixture(scope="module")
def noisy(toy: Toy) -> Translator:
    return noisy_translator(toy)


def test_score_agrees_with_the_search(model: Translator) -> None:
    lines = [line for line in LINES if line.strip()]
    outputs = [
        (line, t)
        for line, best in zip(lines, model.translate(lines, n_best=3), strict=True)
        for t in (best, *best.alternatives)
    ]
    pieces = model.tokenizer.pieces
    reproducible = [
        (line, t)
        for line, t in outputs
        if t.finished and [*pieces(model.tokenizer.encode(t.text)), "</s>"] == [*t.pieces]
    ]
    assert len(reproducible) > 10  # the tokenizer splits the text of the others into other tokens
    scores = model.score([line for line, _ in reproducible], [t.text for _, t in reproducible])
    for (_, t), score in zip(reproducible, scores, strict=True):
        assert score.pieces == t.pieces
        np.testing.assert_allclose(score.token_log_probs, t.token_log_probs, atol=1e-4)
        assert score.log_prob == pytest.approx(sum(t.token_log_probs), abs=1e-4)


def test_the_search_reports_the_log_probabilities_of_the_model(noisy: Translator) -> None:
    """Cached steps, in reordered beams, give the log-probabilities of one pass over the whole output."""
    sources = noisy.tokenizer.encode_batch([line for line in LINES if line.strip()])
    outputs = batched_search.search_all(Backend(noisy.models), sources, noisy.config.search, n_best=3)
    for source, hypotheses in zip(sources, outputs, strict=True):
        for hypothesis in hypotheses:
            batch = collate([np.asarray(source)], [np.asarray(hypothesis.ids)])
            expected = noisy._token_log_probs(batch)[0][: len(hypothesis.token_log_probs)]
            np.testing.assert_allclose(hypothesis.token_log_probs, expected, atol=1e-4)


def test_pairs_that_do_not_fit_into_memory_together_are_halved(noisy: Translator) -> None:
    lines = [line for line in LINES if line.strip()]
    expected = noisy.score(lines, lines), noisy.translate(lines, alignment=True)
    with LittleMemory(1) as memory:
        scores = noisy.score(lines, lines)
        alignments = [translation.alignment for translation in noisy.translate(lines, alignment=True)]
    assert max(memory.sizes) > 1
    np.testing.assert_allclose([x.log_prob for x in scores], [x.log_prob for x in expected[0]], atol=1e-4)
    assert alignments == [translation.alignment for translation in expected[1]]


def test_score_by_hand(model: Translator) -> None:
    """Each token, from the logits of the model."""
    src, tgt = model.tokenizer.encode("a b c"), model.tokenizer.encode("c a b")
    ids = torch.tensor([[*src, EOS]])
    with torch.inference_mode():
        logits = model.models[0](ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([[BOS, *tgt]]))
    expected = logits[0].double().log_softmax(-1)[range(len(tgt) + 1), [*tgt, EOS]]
    scores = model.score(["x", "a b c", ""], ["y z " * 9, "c a b", ""])
    np.testing.assert_allclose(scores[1].token_log_probs, expected.numpy(), atol=1e-4)
    assert scores[1].log_prob == pytest.approx(float(expected.sum()), abs=1e-4)
    assert len(scores[2].token_log_probs) == 1


def test_the_batch_changes_no_score(noisy: Translator) -> None:
    targets = LINES[::-1]
    together = noisy.score(LINES, targets)
    for src, tgt, expected in zip(LINES, targets, together, strict=True):
        assert noisy.score([src], [tgt])[0].log_prob == pytest.approx(expected.log_prob, rel=1e-5, abs=1e-4)


def test_score_refuses_lines_that_do_not_match_or_are_too_long(model: Translator) -> None:
    with pytest.raises(UserError, match="src and tgt: expected the same number of lines, not 2 and 1"):
        model.score(["a", "b"], ["a"])
    with pytest.raises(UserError, match="tgt:1002: expected at most 8,192 tokens"):
        model.score(["a", "b"], ["a", "b " * 9_000], first_number=1_000)


def test_attend_gives_every_weight(model: Translator) -> None:
    attention = model.attend("a b c", "c b")
    layers, heads = model.config.model.n_layers, model.config.model.n_heads
    source, target = len(attention.src_pieces), len(attention.tgt_pieces)
    assert attention.src_pieces[-1] == attention.tgt_pieces[-1] == "</s>"
    assert attention.encoder.shape == (layers, heads, source, source)
    assert attention.decoder.shape == (layers, heads, target, target)
    assert attention.cross.shape == (layers, heads, target, source)
    for weights in (attention.encoder, attention.decoder, attention.cross):
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert not np.triu(attention.decoder, 1).any()  # no position attends to later ones
    assert model.attend("a b c").tgt_pieces == model.translate(["a b c"])[0].pieces
    with pytest.raises(UserError, match="the source is blank"):
        model.attend("  ")
