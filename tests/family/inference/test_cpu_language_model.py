"""Language models prepared for a CPU, compared with the members that they compute."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb
from torch import Tensor
from torch.nn import functional as F

from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.kernels import PLAIN, Kernels
from transduce.decoding.options import Sampling
from transduce.family.configs import GPT2Config, LlamaConfig
from transduce.family.gpt2 import GPT2
from transduce.family.inference import cpu_language_model
from transduce.family.inference.continuation import GREEDY, continue_ids
from transduce.family.inference.cpu_language_model import CpuLanguageModel
from transduce.family.llama import Llama

KERNELS = [pytest.param(PLAIN, id="plain"), pytest.param(compiled(), id="compiled")]
PROMPTS = [[5], [7, 3, 9], [1, 2, 3, 4, 5, 6, 7, 8], [30, 8]]
MEMBERS = ["gpt2", "gpt1", "llama", "starcoder"]


def member(name: str, vocab_size: int = 50) -> GPT2 | Llama:
    """Return a small member with random weights."""
    torch.manual_seed(1)
    if name == "llama":
        model = Llama(
            LlamaConfig(
                vocab_size=vocab_size,
                d_model=32,
                n_layers=2,
                n_heads=4,
                d_ff=64,
                n_kv_heads=2,
                max_positions=40,
                tied=False,
            )
        )
    else:
        sizes = {"vocab_size": vocab_size, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_positions": 40}
        model = GPT2(GPT2Config(**sizes, dropout=0.0, multi_query=name == "starcoder"), post=name == "gpt1")
    disturb(model)
    return model


def prepared(name: str, precision: Precision, kernels: Kernels | None) -> CpuLanguageModel:
    if kernels is None:
        pytest.skip("needs compiled kernels")
    return CpuLanguageModel(member(name), precision, kernels)


def logits_in_steps(model: CpuLanguageModel, texts: Tensor) -> Tensor:
    """Return the logits (N,T,V) of texts (N,T), token by token."""
    cache, logits = model.start(len(texts), 0), list[Tensor]()
    for ids in texts.T:
        states, cache = model.states(ids, torch.ones_like(ids), cache)
        logits.append(model.output(states))
    return torch.stack(logits, dim=1)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", MEMBERS)
def test_prompts_of_any_lengths_give_the_logits_of_the_member(name: str, kernels: Kernels | None) -> None:
    model = prepared(name, "fp32", kernels)
    ids, lengths = torch.tensor(sum(PROMPTS, [])), torch.tensor([len(prompt) for prompt in PROMPTS])
    states, cache = model.states(ids, lengths, model.start(len(PROMPTS), len(ids)))
    expected = [model.model(torch.tensor([prompt]))[0, -1] for prompt in PROMPTS]
    assert difference(model.output(states), torch.stack(expected)) < TOLERANCE
    rows, more = torch.tensor([3, 1, 1]), torch.tensor([4, 9, 17, 2])  # the next chunk has several tokens
    states, _ = model.states(more, torch.tensor([1, 1, 2]), cache.select(rows, rows))
    expected = [member(name)(torch.tensor([PROMPTS[3] + [4]])), member(name)(torch.tensor([PROMPTS[1] + [9]]))]
    expected.append(member(name)(torch.tensor([PROMPTS[1] + [17, 2]])))
    assert difference(model.output(states), torch.stack([one[0, -1] for one in expected])) < TOLERANCE


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_steps_after_a_cache_and_other_texts_change_no_bit(name: str, precision: Precision) -> None:
    model = prepared(name, precision, compiled())
    texts = torch.randint(50, (5, 12))
    logits = logits_in_steps(model, texts)
    at_once, _ = model.states(texts.flatten(), torch.full((5,), 12), model.start(5, 60))
    assert torch.equal(logits[:, -1], model.output(at_once))
    alone = torch.cat([logits_in_steps(model, text[None]) for text in texts])
    assert torch.equal(logits, alone)


@pytest.mark.parametrize("beam_size", [1, 4, None])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_prompts_of_other_lengths_change_no_bit_of_an_output(
    name: str, precision: Precision, beam_size: int | None
) -> None:
    """Together, alone, and shuffled in sevens. A beam of None draws."""
    model, rng = prepared(name, precision, compiled()), random.Random(1)
    prompts = [[rng.randrange(50) for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 20, 30]))] for _ in range(20)]
    settings = replace(GREEDY, beam_size=beam_size or 1, max_extra_tokens=15)
    sampling = Sampling() if beam_size is None else None

    def outputs(numbers: Sequence[int]) -> dict[int, Hypothesis]:
        texts = continue_ids(model, [prompts[i] for i in numbers], [7], settings, sampling, numbers)
        return dict(zip(numbers, texts, strict=True))

    together, shuffled = outputs(range(20)), rng.sample(range(20), 20)
    for i in range(20):
        assert outputs([i]) == {i: together[i]}
    for i in range(0, 20, 7):
        assert outputs(shuffled[i : i + 7]).items() <= together.items()


def test_a_long_prompt_is_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = prepared("llama", "int8", compiled()), torch.randint(50, (20,))
    expected, _ = model.states(ids, torch.tensor([20]), model.start(1, 20))
    monkeypatch.setattr(cpu_language_model, "CHUNK", 6)
    states, cache = model.states(ids, torch.tensor([20]), model.start(1, 20))
    assert torch.equal(states, expected) and cache.length == 20


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize(("precision", "most"), [("int8", 0.05), ("bf16", 0.03)])
def test_rounding_changes_the_logits_little(name: str, precision: Precision, most: float) -> None:
    texts = torch.randint(50, (4, 20), generator=torch.Generator().manual_seed(1))
    logits = logits_in_steps(CpuLanguageModel(member(name), precision), texts)
    expected = member(name)(texts)
    assert TOLERANCE < difference(logits, expected) < most


def trained() -> tuple[CpuLanguageModel, CpuLanguageModel, Tensor]:
    """Return a trained model in fp32 and in int8, and new texts: most ids are twice the last one, plus 1, modulo 50."""
    torch.manual_seed(1)
    texts = torch.randint(50, (400, 12))
    for i in range(1, texts.size(1)):
        texts[:, i] = torch.where(torch.rand(400) < 0.9, (2 * texts[:, i - 1] + 1) % 50, texts[:, i])
    model = GPT2(GPT2Config(vocab_size=50, d_model=32, n_layers=2, n_heads=4, max_positions=40, dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(100):
        batch = texts[64 * (step % 5) :][:64]
        loss = perplexity(model(batch), batch).log()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return CpuLanguageModel(model.eval(), "fp32"), CpuLanguageModel(model, "int8"), texts[320:]


def perplexity(logits: Tensor, texts: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), texts[:, 1:].flatten()).exp()


def test_int8_keeps_the_perplexity_of_a_trained_model() -> None:
    with torch.inference_mode(False):
        *models, texts = trained()
    exact, rounded = (float(perplexity(logits_in_steps(model, texts), texts)) for model in models)
    assert exact < 3.0  # of 50
    assert abs(rounded / exact - 1) < 0.01
