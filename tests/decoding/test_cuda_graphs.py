"""The steps that a GPU records, made without one: the same logits, whatever is rounded up around them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from support.small_models import CONFIG, all_configs, logits_of_a_search, model_of
from support.toy_task import Toy
from torch import Tensor

import transduce
from transduce.config.schema import ModelConfig, SearchConfig
from transduce.decoding import cuda_graphs as recording
from transduce.decoding.backends import Backend
from transduce.decoding.batched_search import search_all
from transduce.decoding.cpu_transformer import Precision
from transduce.decoding.cuda_graphs import CudaGraphTransformer, checked_cuda_graphs

BOUNDS: dict[Precision, float] = {"fp32": 2e-6, "bf16": 3e-2}  # relative error of logits
LINES = ["a b c", "d", "f e d c b a", "j i", "g h i j", "b c d e f g h i j a b c"]


@all_configs
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recorded_steps_say_what_the_model_says(config: ModelConfig, precision: Precision) -> None:
    model = model_of(config, torch.float32)
    expected, found = logits_of_a_search(model, CudaGraphTransformer(model, precision))
    error = ((found - expected).norm() / expected.norm()).item()
    assert error < BOUNDS[precision]
    assert precision == "fp32" or error > 1e-5  # it does compute in what it was asked for


@pytest.mark.parametrize(
    "change",
    [{"positions": "learned", "max_positions": 20}, {"attention_bias": False, "output_bias": True}],
    ids=lambda change: "+".join(change),
)
def test_so_they_do_in_other_architectures(change: dict[str, object]) -> None:
    model = model_of(replace(CONFIG, **change), torch.float32)  # pyright: ignore[reportArgumentType]
    expected, found = logits_of_a_search(model, CudaGraphTransformer(model, "fp32"))
    assert ((found - expected).norm() / expected.norm()).item() < BOUNDS["fp32"]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_search_finds_the_same(toy: Toy, beam_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice with one model: first its tables have to grow, then they are full of the first search."""
    monkeypatch.setattr(recording, "ROOM", 1)
    translator = transduce.load(toy.model)
    (model,) = translator.models
    assert isinstance(model, transduce.Transformer)
    sources, ask = translator.tokenizer.encode_batch(LINES * 3), SearchConfig(beam_size=beam_size)
    expected = search_all(Backend([model]), sources, ask)
    made = CudaGraphTransformer(model, "fp32")
    for given, wanted in ((sources, expected), (sources[::-1], expected[::-1])):
        found = search_all(Backend([made]), given, ask)
        assert [best.ids for best, *_ in found] == [best.ids for best, *_ in wanted]
        for (a, *_), (b, *_) in zip(found, wanted, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-4)


def test_few_kinds_of_steps_are_recorded(toy: Toy) -> None:
    """For every file the same, once the tables are large enough."""
    translator = transduce.load(toy.model)
    (model,) = translator.models
    assert isinstance(model, transduce.Transformer)
    made = CudaGraphTransformer(model, "fp32")
    sources = translator.tokenizer.encode_batch(LINES * 5)
    for count in (30, 30, 21, 17, 30):
        search_all(Backend([made]), sources[:count], SearchConfig())
        search_all(Backend([made]), sources[:1], SearchConfig())
    first = [*made.steps.values()]
    assert 0 < len(first) <= 2 * 6 * 2  # the first step and the others; 1 to 32 sentences; 16 tokens or 32
    search_all(Backend([made]), sources[2:], SearchConfig())
    assert set(first) <= {*made.steps.values()}


def test_a_model_is_searched_by_one_at_a_time(toy: Toy) -> None:
    """The tables are the model's: two searches would write over each other's rows."""
    translator = transduce.load(toy.model)
    (model,) = translator.models
    assert isinstance(model, transduce.Transformer)
    made, sources = CudaGraphTransformer(model, "fp32"), translator.tokenizer.encode_batch(LINES)

    def found(part: list[list[int]]) -> list[list[int]]:
        return [best.ids for best, *_ in search_all(Backend([made]), part, SearchConfig())]

    parts = [sources[:2], sources[2:], sources[::-1], sources] * 3
    expected = [found(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(found, parts)) == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_steps_are_tried_before_they_are_used(
    precision: Precision, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = replace(CONFIG, positions="learned", max_positions=2)
    assert isinstance(checked_cuda_graphs(model_of(short, torch.float32), precision), CudaGraphTransformer)
    model = model_of(CONFIG, torch.float32)
    assert isinstance(checked_cuda_graphs(model, precision), CudaGraphTransformer)
    assert capsys.readouterr().err == ""

    def refused(self: object, model: object) -> Tensor:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(recording._Step, "__call__", refused)
    assert checked_cuda_graphs(model, precision) is None
    assert "operation not permitted" in capsys.readouterr().err

    monkeypatch.undo()
    attend = recording._Fused.attend
    monkeypatch.setattr(recording._Fused, "attend", lambda *given: -attend(*given))
    assert checked_cuda_graphs(model, precision) is None
    assert "their logits differ by" in capsys.readouterr().err
