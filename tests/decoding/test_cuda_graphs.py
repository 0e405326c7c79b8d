"""The steps that a GPU records, computed without one: padding changes no logits."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from support.small_models import CONFIG, all_configs, logits_of_a_search, model_of
from support.toy_task import Toy
from torch import Tensor

import transduce
from transduce.config.schema import ModelConfig, SearchConfig
from transduce.decoding import cuda_graphs
from transduce.decoding.backends import Backend
from transduce.decoding.batched_search import search_all
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cuda_graphs import CudaGraphTransformer, checked_cuda_graphs
from transduce.decoding.gpu_kernels import GpuKernels

BOUNDS: dict[Precision, float] = {"fp32": 2e-6, "bf16": 3e-2}  # relative error of logits
LINES = ["a b c", "d", "f e d c b a", "j i", "g h i j", "b c d e f g h i j a b c"]


@all_configs
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_logits_are_those_of_the_model(config: ModelConfig, precision: Precision) -> None:
    model = model_of(config, torch.float32)
    expected, logits = logits_of_a_search(model, CudaGraphTransformer(model, precision))
    error = ((logits - expected).norm() / expected.norm()).item()
    assert error < BOUNDS[precision]
    assert precision == "fp32" or error > 1e-5  # it does compute in this precision


@pytest.mark.parametrize(
    "change",
    [{"positions": "learned", "max_positions": 20}, {"attention_bias": False, "output_bias": True}],
    ids=lambda change: "+".join(change),
)
def test_the_logits_of_other_architectures(change: dict[str, object]) -> None:
    model = model_of(replace(CONFIG, **change), torch.float32)  # pyright: ignore[reportArgumentType]
    expected, logits = logits_of_a_search(model, CudaGraphTransformer(model, "fp32"))
    assert ((logits - expected).norm() / expected.norm()).item() < BOUNDS["fp32"]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_outputs_of_a_search_are_the_same(toy: Toy, beam_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search twice with one model: first its tables grow, then they hold the rows of the first search."""
    monkeypatch.setattr(cuda_graphs, "ROOM", 1)
    translator = transduce.load(toy.model)
    (model,) = translator.models
    assert isinstance(model, transduce.Transformer)
    sources, settings = translator.tokenizer.encode_batch(LINES * 3), SearchConfig(beam_size=beam_size)
    expected = search_all(Backend([model]), sources, settings)
    transformer = CudaGraphTransformer(model, "fp32")
    for lines, references in ((sources, expected), (sources[::-1], expected[::-1])):
        outputs = search_all(Backend([transformer]), lines, settings)
        assert [best.ids for best, *_ in outputs] == [best.ids for best, *_ in references]
        for (a, *_), (b, *_) in zip(outputs, references, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-4)


def test_few_kinds_of_steps_are_recorded(toy: Toy) -> None:
    """All files share the same steps, once the tables are large enough."""
    translator = transduce.load(toy.model)
    (model,) = translator.models
    assert isinstance(model, transduce.Transformer)
    transformer = CudaGraphTransformer(model, "fp32")
    sources = translator.tokenizer.encode_batch(LINES * 5)
    for count in (30, 30, 21, 17, 30):
        search_all(Backend([transformer]), sources[:count], SearchConfig())
        search_all(Backend([transformer]), sources[:1], SearchConfig())
    first = [*transformer.recordings.values()]
    kinds = 2 * 6 * 2  # the first step and the others; 1 to 32 sentences; 16 tokens or 32
    assert 0 < len(first) <= kinds + 8  # 1 to 128 rows, of which the best tokens are found
    search_all(Backend([transformer]), sources[2:], SearchConfig())
    assert set(first) <= {*transformer.recordings.values()}


def test_a_model_runs_one_search_at_a_time(toy: Toy) -> None:
    """The tables belong to the model: two searches would write to the same rows."""
    translator = transduce.load(toy.model)
    (model,) = translator.models
    assert isinstance(model, transduce.Transformer)
    transformer, sources = CudaGraphTransformer(model, "fp32"), translator.tokenizer.encode_batch(LINES)

    def outputs(part: list[list[int]]) -> list[list[int]]:
        return [best.ids for best, *_ in search_all(Backend([transformer]), part, SearchConfig())]

    parts = [sources[:2], sources[2:], sources[::-1], sources] * 3
    expected = [outputs(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(outputs, parts)) == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_steps_are_checked_before_they_are_used(
    precision: Precision, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = replace(CONFIG, positions="learned", max_positions=2)
    assert isinstance(checked_cuda_graphs(model_of(short, torch.float32), precision), CudaGraphTransformer)
    model = model_of(CONFIG, torch.float32)
    assert isinstance(checked_cuda_graphs(model, precision), CudaGraphTransformer)
    assert capsys.readouterr().err == ""

    def failing_step(self: object, model: object) -> Tensor:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(cuda_graphs._Recording, "run", failing_step)
    assert checked_cuda_graphs(copy.deepcopy(model), precision) is None
    assert "operation not permitted" in capsys.readouterr().err

    monkeypatch.undo()
    attend = GpuKernels.attend
    monkeypatch.setattr(GpuKernels, "attend", lambda *arguments: -attend(*arguments))
    assert checked_cuda_graphs(copy.deepcopy(model), precision) is None
    assert "their logits differ by" in capsys.readouterr().err


def test_weights_that_have_moved_are_read_again() -> None:
    """As after a way to the CPU and back: torch then counts no change."""
    model = model_of(CONFIG, torch.float32)
    transformer = CudaGraphTransformer(model, "fp32")
    logits_of_a_search(model, transformer)
    recordings = transformer.recordings
    for weight in model.parameters():
        weight.data = weight.data * 1.5
    expected, logits = logits_of_a_search(model, transformer)
    assert ((logits - expected).norm() / expected.norm()).item() < BOUNDS["fp32"]
    assert recordings and transformer.recordings is not recordings  # which read the old addresses


def test_searches_that_share_models_take_their_locks_once_and_in_one_order(toy: Toy) -> None:
    translator = transduce.load(toy.model)
    (model,) = translator.models
    assert isinstance(model, transduce.Transformer)
    first, second = (CudaGraphTransformer(model, "fp32") for _ in range(2))
    assert Backend([first, second]).locks == Backend([second, first]).locks
    twice = Backend([first, first])
    assert twice.locks == [first.lock]
    sources, settings = translator.tokenizer.encode_batch(LINES), SearchConfig(beam_size=2)
    (expected, outputs) = (search_all(backend, sources, settings) for backend in (Backend([first]), twice))
    assert [best.ids for best, *_ in outputs] == [best.ids for best, *_ in expected]
