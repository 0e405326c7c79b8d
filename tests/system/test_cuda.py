"""On a GPU: results equal to the CPU's in fp32 and bf16, and few waits.

Without a GPU, `test_pretend_gpu.py` runs these tests on a pretended one.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.phrases import CONSTRAINTS, check, has
from support.random_models import random_model
from support.translators import LINES
from support.waits import waits

from transduce.config.schema import Config, ModelConfig, SearchConfig, TrainConfig
from transduce.data.batches import Batch, DataPosition, collate
from transduce.data.prefetch import Prefetch
from transduce.decoding.backends import Backend, choose_backend
from transduce.decoding.batched_search import search_all
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cuda_graphs import CudaGraphTransformer, checked_cuda_graphs
from transduce.decoding.rows import Rows
from transduce.decoding.shortlist.learning import learn_shortlist
from transduce.model import devices
from transduce.model.fused import fused
from transduce.model.transformer import Transformer, mixed_precision
from transduce.storage.model_folder import LoadedModel
from transduce.train import TranslationTask
from transduce.training.gradients import Gradients, update
from transduce.training.lora import freeze
from transduce.training.loss import _loss_of_logits, projected_rdrop
from transduce.training.optimizer import adam, optimizer_of
from transduce.training.run import Run
from transduce.training.sharding import gather_on_leader
from transduce.training.task import translation_loss
from transduce.training.weights import live_weights, set_weights, weights
from transduce.translate import Translator

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

IS_PRETENDED = torch.cuda.is_available() and torch.cuda.get_device_name() == "Pretend GPU"
GPU = torch.device("cuda")
CONFIG = ModelConfig(vocab_size=50, d_model=32, n_layers=2, n_heads=4, d_ff=64, dropout=0.0)


def pair(**settings: Any) -> tuple[Transformer, Transformer]:
    """Return the same model on the CPU and on the GPU."""
    torch.manual_seed(1)
    config = replace(CONFIG, **settings)
    cpu = Transformer(config)
    gpu = Transformer(config)
    gpu.load_state_dict(cpu.state_dict())
    return cpu, gpu.cuda()


def batch_of(lengths: list[tuple[int, int]]) -> Batch:
    generator = torch.Generator().manual_seed(2)
    sides = ([torch.randint(4, 50, (pair[side],), generator=generator).numpy() for pair in lengths] for side in (0, 1))
    return collate(*sides)


def test_loss_and_gradients_equal_the_cpu() -> None:
    cpu, gpu = pair()
    batch = batch_of([(5, 7), (3, 2), (9, 9)])
    losses = [translation_loss(cpu, batch, 0.1), translation_loss(gpu, batch.to(GPU), 0.1)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[1].cpu(), losses[0], rtol=1e-5, atol=1e-4)
    for a, b in zip(cpu.parameters(), gpu.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-4)


def test_batches_of_a_stream_come_in_pinned_memory() -> None:
    batch = batch_of([(5, 7), (3, 2), (9, 9)])
    (pinned,), position = Prefetch(iter([([batch], DataPosition(0, 1))]), devices.device()).take()
    assert position == DataPosition(0, 1) and pinned.pairs is batch.pairs
    assert pinned.src.is_pinned() and pinned.tgt_mask.is_pinned() and not batch.src.is_pinned()
    with waits() as messages:
        moved = pinned.to(GPU)
    assert not messages and torch.equal(moved.tgt_out.cpu(), batch.tgt_out)


def test_rdrop_equals_the_cpu() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden, projection = (torch.randn(rows, 16, generator=generator) for rows in (40, 50))
    targets = torch.randint(50, (20,), generator=generator).repeat_interleave(2)
    results = []
    for device in ("cpu", "cuda"):
        inputs = [x.to(device).requires_grad_() for x in (hidden, projection)]
        loss, cross_entropy = projected_rdrop(*inputs, targets.to(device), 0.1, None, 5.0)
        results.append([loss, cross_entropy, *torch.autograd.grad(loss, inputs)])
    for cpu, gpu in zip(*results, strict=True):
        torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [0.0, 3.0])
@pytest.mark.parametrize("has_options", [False, True])
def test_the_fused_loss_equals_the_cpu(has_options: bool, alpha: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 1_000, generator=generator).to(dtype)
    targets = torch.randint(1_000, (4, 1), generator=generator).repeat_interleave(2, 0)
    bias, factors = (torch.rand(*shape, generator=generator) if has_options else None for shape in ((1_000,), (8, 1)))
    results = []
    for device in ("cpu", "cuda"):
        x, y, b, f = (None if tensor is None else tensor.to(device) for tensor in (logits, targets, bias, factors))
        results.append(_loss_of_logits(x.clone(), y, 0.1, b, f, alpha))  # pyright: ignore[reportOptionalMemberAccess]
    for cpu, gpu in zip(*results, strict=True):
        if cpu is not None:
            torch.testing.assert_close(gpu.cpu(), cpu, rtol=2**-7 if cpu.dtype == torch.bfloat16 else 1e-4, atol=1e-5)


def test_a_fused_function_has_a_gradient() -> None:
    @fused
    def scaled(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        return (x * factors).relu()

    x, factors, upstream = (torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    results = []
    for device in ("cpu", "cuda"):
        inputs = [tensor.to(device).requires_grad_() for tensor in (x, factors)]
        y = scaled(*inputs)
        results.append([y, *torch.autograd.grad(y, inputs, upstream.to(device))])
    for cpu, gpu in zip(*results, strict=True):
        torch.testing.assert_close(gpu.cpu(), cpu)


def test_bf16_is_near_fp32() -> None:
    _, gpu = pair()
    batch = batch_of([(5, 7), (3, 2), (9, 9)]).to(GPU)
    fp32, bf16 = (translation_loss(gpu, batch, 0.1, precision).item() for precision in ("fp32", "bf16"))
    assert abs(fp32 - bf16) / fp32 < 0.02


def test_a_gradient_in_bf16_equals_that_of_autocast() -> None:
    """The weights in bf16, K and V in one product, and the mask in the form of the kernel change only roundings."""
    _, gpu = pair()
    batches = [batch_of([(5, 7), (3, 2), (9, 9)]), batch_of([(4, 4), (11, 3)])]
    for batch in batches:
        translation_loss(gpu, batch.to(GPU), 0.1, "bf16").backward()
    n_tokens = sum(int(batch.tgt_mask.sum()) for batch in batches)
    expected = [p.grad / n_tokens for p in gpu.parameters()]
    Gradients(gpu, TranslationTask(), TrainConfig(precision="bf16"), GPU, print).of(batches, seed=1)
    largest = max(float(gradient.norm()) for gradient in expected)
    for (name, parameter), gradient in zip(gpu.named_parameters(), expected, strict=True):
        norm = largest if name.endswith("w_k.bias") else float(gradient.norm())  # whose exact gradient is 0
        assert parameter.grad is not None and (parameter.grad - gradient).norm() < 0.02 * norm, name


@pytest.mark.skipif(not IS_PRETENDED, reason="counts what the pretended GPU does")
def test_a_training_step_has_few_casts_and_no_attention_of_cudnn() -> None:
    from support.pretend_gpu.record import recording

    device = devices.device()
    _, gpu = pair()
    gradients = Gradients(gpu, TranslationTask(), TrainConfig(precision="bf16"), device, print)
    with recording() as record:
        gradients.of([batch_of([(5, 7), (3, 2), (9, 9)])], seed=1)
    assert record.attention == {("efficient", True): 4, ("efficient", False): 2}
    assert record.kernels["constant_pad_nd"] == record.kernels["log_"] == 2  # the masks: of encoder and decoder
    assert record.kernels["_to_copy"] <= 12  # with autocast alone 169
    assert record.kernels.total() < 250


@pytest.mark.skipif(IS_PRETENDED, reason="its memory has no limit")
def test_a_batch_that_does_not_fit_is_cut() -> None:
    """With half of the memory that the batch needs, the gradient is the same."""
    torch.manual_seed(1)
    device = GPU
    lines: list[str] = []
    model = Transformer(replace(CONFIG, vocab_size=1_000, d_model=256, d_ff=2_048)).to(device)
    rng = np.random.default_rng(1)
    src, tgt = ([rng.integers(4, 1_000, rng.integers(20, 100)) for _ in range(512)] for _ in range(2))

    def gradient() -> list[torch.Tensor]:
        Gradients(model, TranslationTask(), TrainConfig(), device, lines.extend).of([collate(src, tgt)], seed=1)
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradient()
    assert not lines
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradient()
    size = torch.cuda.max_memory_allocated() - before
    model.zero_grad()
    torch.cuda.empty_cache()
    try:
        room = torch.cuda.memory_reserved() + size / 2
        torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(device).total_memory)
        actual = gradient()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert lines
    for (name, _), a, b in zip(model.named_parameters(), actual, expected, strict=True):
        assert name.endswith("w_k.bias") or (a - b).norm() <= 1e-5 * b.norm(), name


def test_cached_decoding_equals_full_decoding() -> None:
    _, gpu = pair()
    batch = batch_of([(5, 7), (3, 7)]).to(GPU)
    with torch.inference_mode():
        memory = gpu.eval().encode(batch.src, batch.src_mask)
        full = gpu.logits(gpu.decode(batch.tgt_in, memory, batch.src_mask))
        cache = gpu.start(memory, batch.src_mask)
        for t in range(batch.tgt_in.size(1)):
            step, cache = gpu.decode_step(batch.tgt_in[:, t], cache)
            torch.testing.assert_close(step, full[:, t], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-4), ("bf16", 3e-2)])
def test_the_cuda_backend_scores_like_the_model(precision: Precision, bound: float) -> None:
    """The second search only replays steps that the first has recorded."""
    _, gpu = pair()
    gpu.eval()
    backend = checked_cuda_graphs(gpu, precision)
    assert backend is not None
    sources = [[4 + i % 40] * (1 + i % 7) for i in range(20)]
    search = SearchConfig(max_extra_tokens=10)
    expected = search_all(Backend([gpu]), sources, search)
    for _ in range(2):
        outputs = search_all(Backend([backend]), sources, search)
        for (a, *_), (b, *_) in zip(outputs, expected, strict=True):
            assert a.score == pytest.approx(b.score, rel=bound)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("settings", [{}, {"norm": "pre", "attention_dropout": 0.1}, {"output_bias": True}], ids=str)
def test_a_training_step_waits_once(settings: dict[str, Any], precision: str) -> None:
    _, gpu = pair(**settings)
    gradients = Gradients(gpu, TranslationTask(), TrainConfig(precision=precision), GPU, print)
    optimizer = adam(gpu.parameters())
    batches = [batch_of([(5, 7), (3, 2)]), batch_of([(9, 9)])]
    gradients.of(batches, seed=1)
    with waits() as none:
        gradient = gradients.of(batches, seed=2)
        update(optimizer, 1)
        optimizer.zero_grad()
    assert none == []
    with waits() as waits_of_the_check:
        assert gradient.is_finite
    assert len(waits_of_the_check) == 1


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-3), ("bf16", 0.03)])
def test_steps_with_lora_equal_the_cpu(precision: str, bound: float) -> None:
    config = TrainConfig(precision=precision, lora_rank=4, freeze=("encoder.0.*",))
    models = pair()
    optimizers: list[torch.optim.Adam] = []
    for model in models:
        freeze(model, config)
        optimizers.append(optimizer_of(model, config))
    factors = [[{**state} for state in optimizer.state.values()] for optimizer in optimizers]
    for cpu, gpu in zip(*factors, strict=True):
        gpu["factors"].copy_(cpu["factors"])
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.param_groups[0]["lr"] = 0.01
        gradients = Gradients(model, TranslationTask(), config, next(model.parameters()).device, print)
        for step in (1, 2):
            gradients.of([batch_of([(5, 7), (3, 2)])], seed=step)
            with waits() as none:
                update(optimizer, step)
            optimizer.zero_grad()
            assert none == []
    cpu, gpu = (weights(model) for model in models)
    for name, weight in cpu.items():
        torch.testing.assert_close(gpu[name], weight, rtol=0.0, atol=bound)


def test_a_checkpoint_is_copied_to_pinned_memory() -> None:
    _, gpu = pair()
    copies = gather_on_leader(live_weights(gpu), copy=True)
    for name, weight in live_weights(gpu).items():
        assert copies[name].equal(weight.cpu()) and (IS_PRETENDED or copies[name].is_pinned())


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_decoding_step_waits_once(beam_size: int) -> None:
    _, gpu = pair()
    sources = [[*range(4, 4 + length)] for length in (3, 5, 9)]
    search = SearchConfig(beam_size=beam_size, max_extra_tokens=30, min_tokens=30)
    search_all(Backend([gpu.eval()]), sources, search)
    with waits() as messages:
        outputs = search_all(Backend([gpu]), sources, search)
    longest = max(len(best.token_log_probs) for best, *_ in outputs)
    assert longest >= 30 and len(messages) <= longest + 2  # two: to copy the sources


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_phrases_are_in_a_translation(precision: str) -> None:
    loaded = random_model(CONFIG)
    gpu = LoadedModel(loaded.model.cuda(), loaded.config, loaded.tokenizer)
    translator = Translator([gpu], precision=precision)
    for n_best in (1, 3):
        translations = translator.translate(LINES, constraints=CONSTRAINTS, beam_size=4, n_best=n_best)
        for translation, constraint in zip(translations, CONSTRAINTS, strict=True):
            check(translation, constraint)
    (translation,) = translator.translate(["a b c"], terms={"b": "schön"}, beam_size=4)
    assert has(translation.text, "schön") or translation.unmet


@pytest.mark.parametrize("options", [{"constraints": CONSTRAINTS}, {"prefixes": ["the"] * len(LINES)}, {}], ids=str)
def test_a_search_with_a_shortlist_equals_the_cpu(options: dict[str, Any]) -> None:
    loaded = random_model(replace(CONFIG, vocab_size=None))
    ids, size = loaded.tokenizer.encode_batch(LINES), loaded.tokenizer.vocab_size
    loaded = replace(loaded, shortlist=learn_shortlist(ids, ids, size, size, n_candidates=3, n_common=9))
    on_gpu = replace(loaded, model=copy.deepcopy(loaded.model).to(GPU))
    of_both = [
        Translator([model]).translate(LINES, shortlist=True, beam_size=4, **options) for model in (loaded, on_gpu)
    ]
    assert [t.text for t in of_both[0]] == [t.text for t in of_both[1]]


def test_a_recorded_decoding_step_does_not_wait() -> None:
    _, gpu = pair()
    recorded = CudaGraphTransformer(gpu.eval(), "fp32")
    inputs = batch_of([(5, 7), (3, 2), (9, 9)])
    stay = torch.arange(3)
    rows = stay.repeat_interleave(2)
    ids = torch.full_like(rows, 5)
    with torch.inference_mode(), waits() as messages:
        cache = recorded.start(recorded.encode(inputs.src, inputs.src_mask), inputs.src_mask).select(rows, stay)
        for _ in range(3):  # computed, recorded, replayed
            logits, cache = recorded.decode_step(ids, cache)
            cache = cache.select(torch.arange(len(rows)), stay)
    assert logits.shape == (6, 50)
    assert messages == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recordings_stay_when_the_weights_change(precision: Precision) -> None:
    """Each evaluation of a training has a new translator, of a model whose weights have changed in place."""
    _, gpu = pair()
    sources = [[4 + i % 40] * (1 + i % 7) for i in range(20)]
    search = SearchConfig(max_extra_tokens=10)
    recordings = set[object]()
    for seed in range(2):
        torch.manual_seed(seed)
        set_weights(gpu, weights(Transformer(gpu.config)), "the weights to evaluate")
        backend = choose_backend([gpu.eval()], precision)
        for _ in range(3):  # computes, records, replays
            outputs = search_all(backend, sources, search)
        (recorded,) = backend.models
        assert isinstance(recorded, CudaGraphTransformer)
        assert not recordings or recordings == {*recorded.recordings.values()}
        recordings = {*recorded.recordings.values()}
        with mixed_precision(precision, GPU):
            expected = search_all(Backend([gpu], precision), sources, search)
        for (a, *_), (b, *_) in zip(outputs, expected, strict=True):
            assert a.score == pytest.approx(b.score, rel=3e-2 if precision == "bf16" else 1e-4)
    assert copy.deepcopy(gpu).prepared_for_gpu == {}


def test_the_model_of_an_evaluation_remains_for_the_next_one(tmp_path: Path) -> None:
    models: list[Transformer] = []

    class Scores(TranslationTask):
        def evaluate(self, model: Any, config: Any, tokenizer: Any, pairs: Any) -> dict[str, float]:
            models.append(model)
            return {"sum": sum(float(x.sum()) for x in weights(model).values())}

    none: Any = None  # a tokenizer, batches
    run = Run(tmp_path, Scores(), Config(model=CONFIG), none, none, [("a", "b")], ("src", "tgt"), [])
    of_weights = [weights(Transformer(CONFIG)) for _ in range(2)]
    sums = [run.evaluate(tensors)["sum"] for tensors in of_weights]
    assert models[0] is models[1]
    assert sums == pytest.approx([sum(float(x.sum()) for x in tensors.values()) for tensors in of_weights])


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"beam_size": 4, "constraints": [{"must": ["cat"]}, {"must": ["h"]}, None, {"must_not": ["the"]}]}, 4),
        ({"beam_size": 4, "prefixes": ["the", "", "a b", ""]}, 2),
        ({"beam_size": 1, "no_repeat_ngram": 2, "repetition_penalty": 1.2}, 1),
    ],
    ids=["phrases", "prefixes", "no repetition"],
)
@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_search_with_options_equals_the_cpu(
    options: dict[str, Any], most: int, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded step waits a few times, and not once for each sentence. most: waits of a step."""
    loaded = random_model(replace(CONFIG, vocab_size=None))
    on_gpu = replace(loaded, model=copy.deepcopy(loaded.model).to(GPU))
    if not is_recorded:
        monkeypatch.setattr("transduce.decoding.backends.checked_cuda_graphs", lambda *_: None)
    cpu, gpu = Translator([loaded]), Translator([on_gpu])
    assert isinstance(gpu._backend.models[0], CudaGraphTransformer) == is_recorded
    lines = ["the cat sat", "a b c d e", "Zürich", "on the mat"]
    expected = cpu.translate(lines, loops="keep", **options)
    steps: list[None] = []
    of_step = Rows.step
    monkeypatch.setattr(Rows, "step", lambda rows: steps.append(None) or of_step(rows))
    for _ in range(2):  # the second search replays
        with waits() as messages:
            outputs = gpu.translate(lines, loops="keep", **options)
        for a, b in zip(outputs, expected, strict=True):
            assert a.text == b.text and a.score == pytest.approx(b.score, rel=1e-4)
    assert steps and (not is_recorded or len(messages) <= most * len(steps) / 2)  # of one of the two searches


# ---- what a GPU refuses or waits for, so that a pretended one must, too --------------------------------------------


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x[x > 0],
        lambda x: x.index_put_([x > 0], x[0].clone()),
        lambda x: x.__setitem__(torch.zeros(1, dtype=torch.int64, device=GPU), 1.0),
        lambda x: x.masked_select(x > 0),
        lambda x: bool(x[0] > 0),
        lambda x: x.nonzero(),
        lambda x: x.copy_(torch.ones(3)),
        lambda x: x.cpu(),
    ],
)
def test_waits_are_recorded(work: Callable[[torch.Tensor], object]) -> None:
    with waits() as messages:
        work(torch.ones(3, device=GPU))
    assert messages


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=GPU) + torch.ones(3)
    with pytest.raises(TypeError, match="numpy"):
        torch.ones(3, device=GPU).numpy()
    with pytest.raises(RuntimeError, match="generator"):
        torch.ones(3, device=GPU).bernoulli_(0.5, generator=torch.Generator())


def test_a_recording_refuses_a_wait() -> None:
    x = torch.ones(3, device=GPU)
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()
