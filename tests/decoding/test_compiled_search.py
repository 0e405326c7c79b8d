"""A whole search in compiled code returns what the search made of steps returns, to the last bit."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from support.searches import SETTINGS, SMALL, needs_compiled, table
from support.small_models import model_of

from transduce.config.schema import SearchConfig
from transduce.decoding import compiled_search
from transduce.decoding.backends import Backend
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.decoder import Decoder
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.shortlist.backend import ShortlistBackend

pytestmark = needs_compiled
SOURCES = [[*range(4, 4 + (5 * i) % 13)] for i in range(17)]  # 0 to 12 tokens
SEARCHES = [
    SETTINGS,
    SearchConfig(beam_size=1, max_extra_tokens=9),
    SearchConfig(beam_size=6, max_extra_tokens=8, lookahead=3, min_tokens=3),
    SearchConfig(beam_size=12, max_extra_tokens=1, length_penalty="none"),
    SearchConfig(beam_size=3, max_extra_tokens=40, length_penalty="power", alpha=1.0, min_tokens=30),
    SearchConfig(beam_size=1, max_length=4, min_tokens=4),
    SearchConfig(beam_size=1, max_extra_tokens=30, no_repeat_ngram=2),
    SearchConfig(beam_size=4, max_extra_tokens=30, no_repeat_ngram=3, min_tokens=20),
    SearchConfig(beam_size=2, max_extra_tokens=40, no_repeat_ngram=1, min_tokens=40),  # more than there are tokens
]


def backend_of(precision: Precision, sharpness: float) -> Backend:
    model = model_of(SMALL, torch.float32)
    with torch.no_grad():
        model.output.weight.mul_(sharpness)
    return Backend([CpuTransformer(model, precision)])


def outputs_of(
    backend: Backend, settings: SearchConfig, n_best: int, sources: Sequence[Sequence[int]] = SOURCES
) -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
    """Return the outputs of both searches."""
    decoder, request = backend.decoder, backend.request(sources, settings)
    assert decoder.search is not None
    with backend.computing():
        compiled = decoder.search(backend.start(sources), request, n_best)
        state = backend.start(sources)
        if request.avoids_repetition:
            decoder, state = backend.watched(state, sources, settings)
        return compiled, backend.beam_of(decoder, request).search(state, request, n_best=n_best)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("settings", SEARCHES, ids=lambda settings: f"{settings.beam_size},{settings.min_tokens}")
@pytest.mark.parametrize("sharpness", [0, 1, 3, 6], ids=["equal", "flat", "sharp", "sharpest"])
def test_both_searches_return_the_same(precision: Precision, settings: SearchConfig, sharpness: float) -> None:
    """Without sharpness, all tokens have one probability, and the order of equals decides."""
    backend = backend_of(precision, sharpness)
    for n_best in {1, settings.beam_size}:
        for searched in (backend, ShortlistBackend(backend, table())):
            compiled, expected = outputs_of(searched, settings, n_best)
            assert compiled == expected


@pytest.mark.parametrize("steps", [1, 5])
def test_the_steps_of_a_call_change_nothing(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    backend = backend_of("fp32", 3)
    compiled, _ = outputs_of(backend, SETTINGS, 2)
    monkeypatch.setattr(compiled_search, "STEPS", steps)
    assert outputs_of(backend, SETTINGS, 2)[0] == compiled


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_both_searches_fail_alike(bad: float) -> None:
    backend, errors = backend_of("fp32", 1), list[str]()
    model = backend.models[0]
    assert isinstance(model, CpuTransformer)
    model.positions[3] = bad
    request = backend.request(SOURCES, SETTINGS)
    assert backend.decoder.search is not None
    stepwise: Decoder[object] = replace(backend.decoder, search=None)
    for search in (backend.decoder.search, backend.beam_of(stepwise, request).search):
        with backend.computing(), pytest.raises(FloatingPointError) as error:
            search(backend.start([[4]] * len(SOURCES)), request, n_best=1)
        errors.append(str(error.value))
    assert "after 3 tokens" in errors[0]
    assert errors[0] == errors[1]


def test_a_search_beyond_the_memory_raises_memory_error() -> None:
    backend = backend_of("fp32", 1)
    with backend.computing():
        state = backend.start([[4]])
        rows = state.source.rows[:, :1].expand(1, 1 << 38)  # as a source of so many tokens has
        assert backend.decoder.search is not None
        with pytest.raises(MemoryError):
            backend.decoder.search(
                state._replace(source=state.source._replace(rows=rows)), backend.request([[4]], SETTINGS), 1
            )
