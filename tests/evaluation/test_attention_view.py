"""Heads by name, their mean and rollout, the words of a sentence, and the weights against the reference."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import reference
from support.attention import random_attended
from support.small_models import CONFIG, as_lists, both_norms, model_of

from transduce.data.batches import collate
from transduce.data.vocabulary import BOS, EOS
from transduce.errors import UserError
from transduce.evaluation.attention import all_weights
from transduce.evaluation.attention_view import View, find_view, rollout, views
from transduce.evaluation.pieces import labels, words


@both_norms
@pytest.mark.parametrize("depths", [(2, 2), (3, 1)], ids=str)
def test_all_weights_equal_the_reference(norm: Any, depths: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference gives the weights of a head as its attention over values that form the identity."""
    n_encoder, n_decoder = depths
    model = model_of(replace(CONFIG, n_layers=n_encoder, n_decoder_layers=n_decoder, norm=norm))
    src, tgt = np.array([4, 9, 7, 5]), np.array([6, 12, 8])
    original, recorded = reference.attention, []

    def attention(queries: Any, keys: Any, values: Any, mask: Any) -> Any:
        identity = np.eye(len(keys)).tolist()
        recorded.append(original(queries, keys, identity, mask))
        return original(queries, keys, values, mask)

    monkeypatch.setattr(reference, "attention", attention)
    sizes = {"depths": depths, "n_heads": 2, "norm": norm, "eps": 1e-6}
    ids = [*src.tolist(), EOS], [BOS, *tgt.tolist()]
    logits = np.array(reference.transformer(*ids, as_lists(model), **sizes))

    encoder, decoder, cross, log_probs = all_weights(model, collate([src], [tgt]))
    assert encoder.shape == (n_encoder, 2, 5, 5)
    assert (decoder.shape, cross.shape) == ((n_decoder, 2, 4, 4), (n_decoder, 2, 4, 5))
    by_layer = [(encoder, i) for i in range(n_encoder)]
    by_layer += [(weights, i) for i in range(n_decoder) for weights in (decoder, cross)]
    heads = [weights[layer, head] for weights, layer in by_layer for head in range(2)]
    for head, expected in zip(heads, recorded, strict=True):
        np.testing.assert_allclose(head, np.array(expected), atol=1e-6)
        np.testing.assert_allclose(head.sum(-1), 1, atol=1e-6)
    expected = torch.tensor(logits).log_softmax(-1)[range(4), [*tgt.tolist(), EOS]]
    np.testing.assert_allclose(log_probs, expected.numpy(), atol=1e-5)


# ---- views -------------------------------------------------------------------------------------------------------


def test_views_have_names_that_count_from_1() -> None:
    attended = random_attended()
    names = [view.name for view in views(attended)]
    assert names[:4] == ["encoder 1.1", "encoder 1.2", "encoder 1.mean", "encoder 1.rollout"]
    assert len(names) == 24 and names[-1] == "cross 2.rollout"
    assert all(find_view(attended, name).name == name for name in names)
    assert find_view(attended, "decoder 2.1") == View("decoder", 1, 0)
    assert find_view(attended) == View("cross", 1, "mean")
    np.testing.assert_array_equal(find_view(attended, "decoder 2.1").weights(attended), attended.decoder[1, 0])


def test_a_model_with_only_cross_attention_has_no_other_views() -> None:
    attended = random_attended(layers=1, heads=1, self_layers=0)
    assert [view.name for view in views(attended)] == ["cross 1.1"]
    assert find_view(attended) == View("cross", 0, 0)


@pytest.mark.parametrize(
    "name", ["encoder 3.1", "encoder 0.1", "cross 1.3", "Cross 1.1", "cross 1", "", "cross 1.٣", "x" * 9]
)
def test_an_unknown_head_is_refused_with_the_names(name: str) -> None:
    with pytest.raises(UserError, match="^head=.*: expected a head of the model; use encoder 1.1 to 2.2, dec"):
        find_view(random_attended(), name)


def test_rows_of_every_view_sum_to_1() -> None:
    attended = random_attended(layers=3)
    for view in views(attended):
        rows, columns = view.pieces(attended)
        weights = view.weights(attended)
        assert weights.shape == (len(rows), len(columns))
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_rollout_by_hand() -> None:
    """One layer in which position 0 attends to 1 and 1 to itself, once and twice."""
    layer = np.array([[[0.0, 1.0], [0.0, 1.0]]])
    np.testing.assert_allclose(rollout(layer[None]), [[0.5, 0.5], [0, 1]])
    np.testing.assert_allclose(rollout(np.stack([layer, layer])), [[0.25, 0.75], [0, 1]])


def test_rollout_of_cross_attention_goes_on_through_the_encoder() -> None:
    attended = random_attended()
    through = 0.5 * (attended.encoder.mean(1) + np.eye(3))
    expected = attended.cross[0].mean(0) @ through[1] @ through[0]
    np.testing.assert_allclose(find_view(attended, "cross 1.rollout").weights(attended), expected, atol=1e-6)


# ---- pieces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        (["▁Ha", "us", "▁groß", ".", "</s>"], ["Haus", " groß", ".", "</s>"]),
        (["▁", "x", "▁y"], [" x", " y"]),
        (["犬", "が", "走る"], ["犬", "が", "走る"]),
        (["▁a", "▁", "<0xD7>", "<0xA9>", "<0xD7>", "b", "</s>"], [" a", " ש\ufffdb", "</s>"]),
        (["▁a", "▁\u202eb", "</s>"], [" a", " \\u202eb", "</s>"]),
        (["▁"], ["␣"]),
    ],
)
def test_words(pieces: list[str], texts: list[str]) -> None:
    result = words(pieces)
    assert [text if i else text.strip() for i, (_, _, text) in enumerate(result)] == [texts[0].strip(), *texts[1:]]
    assert [begin for begin, _, _ in result[1:]] == [end for _, end, _ in result[:-1]]
    assert (result[0][0], result[-1][1]) == (0, len(pieces))


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        (["▁Das", "▁Ha", "us", "▁groß", "."], ["Das", "Ha", "·us", "groß", "."]),
        (["Üb", "ung", "▁2", "0", "</s>"], ["Üb", "·ung", "2", "·0", "</s>"]),
        (["▁Hau", "s"], ["Hau", "s"]),
        (["▁私", "は", "犬"], ["私", "は", "犬"]),
        (["▁", "▁▁a", " ", "<0x0A>"], ["␣", "␣a", "␣", "<0x0A>"]),
        ([], []),
    ],
)
def test_pieces_become_labels(pieces: list[str], texts: list[str]) -> None:
    assert labels(pieces) == texts


def test_labels_show_what_would_be_obeyed() -> None:
    assert labels(["▁a", "us", "▁\u202eb", "\u2028", "</s>"]) == ["a", "·us", "\\u202eb", "\\u2028", "</s>"]
