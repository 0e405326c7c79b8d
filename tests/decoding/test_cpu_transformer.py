"""`CpuTransformer` gives the logits of `Transformer` at every step of a search, with rows selected and repeated."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.small_models import CONFIG, SRC, SRC_MASK, all_configs, logits_of_a_search, model_of
from support.toy_task import Toy
from torch import Tensor

import transduce
from transduce.config.schema import ModelConfig, SearchConfig
from transduce.decoding import backends
from transduce.decoding.backends import Backend, fastest_precision
from transduce.decoding.batched_search import BATCH_TOKENS, length_batches, search_all
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.cpu_layers import Precision, round_up
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.kernels import PLAIN, Kernels
from transduce.translate import Translator

needs_compiled = pytest.mark.skipif(compiled() is None, reason="needs compiled kernels")
both = pytest.mark.parametrize("kernels", [PLAIN, pytest.param(compiled(), marks=needs_compiled)], ids=["plain", "c++"])
BOUNDS: dict[Precision, float] = {"fp32": 2e-6, "bf16": 3e-2, "int8": 6e-2}  # relative error of logits


@both
@all_configs
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_the_logits_are_those_of_the_model(config: ModelConfig, precision: Precision, kernels: Kernels) -> None:
    model = model_of(config, torch.float32)
    expected, logits = logits_of_a_search(model, CpuTransformer(model, precision, kernels))
    error = ((logits - expected).norm() / expected.norm()).item()
    assert error < BOUNDS[precision]
    assert precision == "fp32" or error > 1e-5  # it does compute in this precision


@both
@pytest.mark.parametrize(
    "change",
    [
        {"positions": "learned", "max_positions": 30},
        {"positions": "tensor2tensor"},
        {"attention_bias": False},
        {"activation": "swish", "output_bias": True},
        {"tie_src_tgt": False, "tie_output": False},
        {"dropout": 0.3, "attention_dropout": 0.3, "ffn_dropout": 0.3},
    ],
    ids=lambda change: "+".join(change),
)
def test_the_logits_of_every_architecture(change: dict[str, object], kernels: Kernels) -> None:
    model = model_of(replace(CONFIG, **change), torch.float32)  # pyright: ignore[reportArgumentType]
    expected, logits = logits_of_a_search(model, CpuTransformer(model, "fp32", kernels))
    assert ((logits - expected).norm() / expected.norm()).item() < BOUNDS["fp32"]


@both
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_rows_are_independent_of_one_another(precision: Precision, kernels: Kernels) -> None:
    """A sentence alone gets the logits that it gets in a batch, in int8 too."""
    backend = CpuTransformer(model_of(CONFIG, torch.float32), precision, kernels)

    def logits(src: Tensor, src_mask: Tensor) -> Tensor:
        cache = backend.start(backend.encode(src, src_mask), src_mask)
        steps = []
        for token in range(4, 9):
            step, cache = backend.decode_step(torch.full((len(src),), token), cache)
            steps.append(step)
        return torch.stack(steps, dim=1)

    with torch.inference_mode():
        together = logits(SRC, SRC_MASK)
        for i, length in enumerate((7, 3, 5)):
            single = logits(SRC[i : i + 1, :length], SRC_MASK[i : i + 1, :length])[0]
            torch.testing.assert_close(single, together[i], rtol=0, atol=1e-6 if precision == "fp32" else 1e-5)


def test_few_numbers_of_rows_remain_after_rounding_up() -> None:
    """All numbers up to 8,192 become fewer than 100, and none grows by more than an eighth."""
    sizes = {rows: round_up(rows) for rows in range(1, 8_193)}
    assert len({*sizes.values()}) < 100
    assert all(rows <= size <= rows * 9 / 8 for rows, size in sizes.items())
    assert sizes[1] == 1 and sizes[4_096] == 4_096


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_outputs_of_a_search_are_the_same(toy: Toy, precision: str, beam_size: int) -> None:
    """A trained model is certain enough that even rounding to 8 bits changes no token."""
    translator = transduce.load(toy.model, precision=precision)
    (model,) = translator.models
    lines = ["a b c", "d", "f e d c b a", "j i", "g h i j", "b c d e f g h i j a b c"] * 20
    sources = translator.tokenizer.encode_batch(lines)
    settings = SearchConfig(beam_size=beam_size)
    expected = search_all(Backend([model]), sources, settings)
    outputs = search_all(Backend([CpuTransformer(model, translator.precision)]), sources, settings)  # pyright: ignore[reportArgumentType]
    assert [best.ids for best, *_ in outputs] == [best.ids for best, *_ in expected]
    for (a, *_), (b, *_) in zip(outputs, expected, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-4 if precision == "fp32" else 5e-2)


def test_another_thread_may_replace_the_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter table arrives between the check of its length and its use."""
    model = model_of(CONFIG, torch.float32)
    backend, embedding = CpuTransformer(model, "fp32", PLAIN), torch.nn.functional.embedding

    def embedding_beside_another_thread(*arguments: Tensor) -> Tensor:
        backend.positions = backend.positions[:1]
        return embedding(*arguments)

    monkeypatch.setattr(torch.nn.functional, "embedding", embedding_beside_another_thread)
    ids = torch.full((1, 300), 5)
    with torch.inference_mode():
        assert backend.encode(ids, torch.ones_like(ids, dtype=torch.bool)).shape == (300, CONFIG.d_model)


def test_threads_change_nothing(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches searched at the same time come back in their order, and torch keeps its number of threads."""
    translator: Translator = transduce.load(toy.model, precision="int8")
    lines = [" ".join("abcdefghij"[: 1 + i % 10]) for i in range(60)]
    monkeypatch.setitem(BATCH_TOKENS, "cpu", 60)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = translator.translate(lines)
        torch.set_num_threads(3)
        assert translator.translate(lines) == expected
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("n_threads", [2, 3])
@pytest.mark.parametrize("longest", [9, 40, 200])
def test_batches_for_several_threads_are_even_shares(n_threads: int, longest: int) -> None:
    """All threads finish at about the same time."""
    chance = random.Random(longest)
    lengths = [chance.randint(0, longest) for _ in range(300)]
    batches = batches_of(lengths, 1_500, n_threads)
    costs = [sum(2 * (lengths[i] + 1) for i in members) for members in batches]
    assert len(batches) % n_threads == 0
    assert max(costs) - min(costs) <= 4 * (longest + 1)


@pytest.mark.parametrize(
    ("lengths", "n_threads", "sizes"),
    [
        ([3, 9, 0], 8, [3]),  # few sources are one batch
        ([], 8, []),
        ([2_000, 1, 1], 8, [1, 2]),  # a source longer than the limit is alone in its batch
        ([4] * 40, 64, [10, 10, 10, 10]),  # a share is at least a sixteenth of the limit
        ([200] + [2] * 300, 1, [3, 250, 48]),  # a backend that pads keeps to the limit with its padding
        ([200] + [2] * 300, 2, [7, 147, 147]),  # a backend that does not pad keeps to twice the limit
    ],
)
def test_batches_keep_to_their_limits(lengths: list[int], n_threads: int, sizes: list[int]) -> None:
    assert [len(members) for members in batches_of(lengths, 1_500, n_threads)] == sizes


def batches_of(lengths: list[int], batch_tokens: int, n_threads: int) -> list[list[int]]:
    batches = list(length_batches(lengths, 2, batch_tokens, n_threads))
    assert sorted(i for members in batches for i in members) == list(range(len(lengths)))
    assert [lengths[i] for members in batches for i in members] == sorted(lengths, reverse=True)
    return batches


def test_auto_reports_its_choice(toy: Toy) -> None:
    precision, kernels = transduce.load(toy.model, precision="auto").precision, compiled()
    assert precision == "int8" if kernels and kernels.int8_is_faster else precision in ("bf16", "fp32")


def test_auto_never_takes_int8_where_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_faster in (True, False):
        monkeypatch.setattr(backends, "compiled", lambda is_faster=is_faster: SimpleNamespace(int8_is_faster=is_faster))
        assert (fastest_precision(torch.device("cpu"), []) == "int8") == is_faster
    monkeypatch.setattr(backends, "compiled", lambda: None)
    assert fastest_precision(torch.device("cpu"), []) != "int8"
