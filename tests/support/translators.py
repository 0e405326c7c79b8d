"""Lines, a translator that is not sure, and the comparison of translations."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from support.toy_task import Toy
from transduce import Translation, Translator
from transduce.storage.model_folder import load_model

LINES = ["a b c", "d", "", "f e d c b a", "j i", "  ", "a", "g h i j", "Zürich ist schön.", "b c d e f g h i j a b c"]


def noisy_translator(toy: Toy) -> Translator:
    """Return the toy model with noise on its weights. Its search has several likely outputs."""
    loaded = load_model(toy.model)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return Translator([loaded])


def assert_same(translations: Sequence[Translation], expected: Sequence[Translation]) -> None:
    """Assert that the tokens are the same, and the scores to 1e-5.

    Two alternatives whose scores differ by less than 1e-5 are a tie, and each may have the place of the other.
    """
    assert [t.text for t in translations] == [t.text for t in expected]
    for a, b in zip(translations, expected, strict=True):
        _assert_equal(a, b)
        assert len(a.alternatives) == len(b.alternatives)
        for alternative, other in zip(a.alternatives, b.alternatives, strict=True):
            if alternative.text == other.text or abs(alternative.score - other.score) > 1e-5:
                _assert_equal(alternative, other)


def _assert_equal(a: Translation, b: Translation) -> None:
    assert a.pieces == b.pieces
    assert math.isclose(a.score, b.score, rel_tol=1e-5, abs_tol=1e-5)
    np.testing.assert_allclose(a.token_log_probs, b.token_log_probs, rtol=1e-4, atol=1e-5)
