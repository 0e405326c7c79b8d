"""Sparse attention: patterns against their definitions, the window against its pattern, and steps with a cache."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.attention_inputs import compare, random_inputs, real
from support.documents import code_blocks
from support.random_models import random_model
from support.toy_task import ROOT
from torch import Tensor

from transduce.config.schema import Config, DataConfig, ModelConfig, TrainConfig
from transduce.data.text import read_lines
from transduce.data.vocabulary import BOS, EOS, PAD, UNK
from transduce.family.attention_patterns import Pattern, first, fixed, restricted, strided, union, with_pattern
from transduce.family.attention_wrappers import NO_PAST, Past, causal
from transduce.family.big_bird import big_bird
from transduce.family.configs import GPT2Config, LlamaConfig
from transduce.family.gpt2 import GPT2
from transduce.family.inference.continuation import GREEDY, continue_ids
from transduce.family.llama import Llama
from transduce.family.longformer import LongformerAttention
from transduce.family.tasks.text_scores import score_lines
from transduce.family.window import with_window
from transduce.model.attention import Attention, Mask, reference_attention
from transduce.model.transformer import Transformer
from transduce.storage.model_folder import LoadedModel, load_model
from transduce.storage.run_log import reports
from transduce.translate import Translator


def sets_of(pattern: Pattern, n: int) -> list[set[int]]:
    positions = torch.arange(n)
    visible = pattern(positions[:, None], positions[None]) & causal(n, n)
    return [{j for j in range(n) if visible[i, j]} for i in range(n)]


# ---- patterns ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "definition"),
    [
        (restricted(2), lambda i, j: abs(i - j) <= 2),
        (strided(3), lambda i, j: i - j < 3 or (i - j) % 3 == 0),
        (fixed(4, 2), lambda i, j: i // 4 == j // 4 or j % 4 in (2, 3)),
        (first(2), lambda i, j: i < 2 or j < 2),
        (union(restricted(1), first(1)), lambda i, j: abs(i - j) <= 1 or i == 0 or j == 0),
    ],
)
def test_a_pattern_is_its_definition(pattern: Pattern, definition: Callable[[int, int], bool]) -> None:
    assert sets_of(pattern, 13) == [{j for j in range(i + 1) if definition(i, j)} for i in range(13)]


def test_known_rows_of_the_sparse_transformer() -> None:
    assert sets_of(strided(3), 6)[5] == {2, 3, 4, 5}
    assert sets_of(fixed(3, 1), 6)[4] == {2, 3, 4}


def test_a_hidden_key_changes_nothing() -> None:
    queries, keys, values = random_inputs(9)
    attend = with_pattern(strided(4))
    before = attend(queries, keys, values, "causal", 0.0)
    values[:, :, 2] += 1  # 8 sees 8, 7, 6, 5, 4, 0
    after = attend(queries, keys, values, "causal", 0.0)
    assert torch.equal(before[:, :, 8], after[:, :, 8]) and not torch.equal(before[:, :, 6], after[:, :, 6])


def test_a_bias_is_kept_where_the_pattern_shows_the_key() -> None:
    queries, keys, values = random_inputs(8)
    bias = torch.randn(3, 8, 8)
    near = causal(8, 8) & ~causal(8, 8).tril(-3)
    expected = reference_attention(queries, keys, values, torch.where(near, bias, -1e30), 0.0)
    torch.testing.assert_close(with_pattern(restricted(2))(queries, keys, values, bias + hidden(8), 0.0), expected)


def hidden(n: int) -> Tensor:
    return torch.where(causal(n, n), 0.0, -1e30)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: restricted(-1), "reach=-1: expected an integer of at least 0"),
        (lambda: strided(0), "stride=0: expected an integer of at least 1"),
        (lambda: fixed(0, 1), "size=0: expected an integer of at least 1"),
        (lambda: fixed(4, -1), "n_summaries=-1: expected an integer of at least 0"),
        (lambda: fixed(4, 5), "n_summaries=5: expected at most the size of a block, 4"),
        (lambda: first(-1), "count=-1: expected an integer of at least 0"),
        (lambda: big_bird(0, 1, 2), "size=0: expected an integer of at least 1"),
        (lambda: big_bird(4, -1, 2), "n_random=-1: expected an integer of at least 0"),
        (lambda: big_bird(4, 1, 0), "n_heads=0: expected an integer of at least 1"),
        (lambda: with_window(-1), "reach=-1: expected an integer of at least 0"),
        (lambda: with_window(1, n_first=-1), "n_first=-1: expected an integer of at least 0"),
        (lambda: LongformerAttention(8, 2, -1), "reach=-1: expected an integer of at least 0"),
        (lambda: LongformerAttention(8, 2, 1, n_global=-1), "n_global=-1: expected an integer of at least 0"),
    ],
)
def test_impossible_sizes_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---- the window --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_first", [0, 2])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("n", "reach"), [(1, 1), (5, 7), (33, 3), (64, 16), (50, 20), (40, 0)])
def test_the_window_is_attention_under_its_mask(n: int, reach: int, *, is_causal: bool, n_first: int) -> None:
    mask: Mask = "causal" if is_causal else real(n)
    dense = with_pattern(union(restricted(reach), lambda _, keys: keys < n_first), reference_attention)
    compare(with_window(reach, n_first=n_first), dense, mask, n)


@pytest.mark.parametrize("mask", ["lower", "padding before the text", "bias"])
def test_the_window_takes_any_mask(mask: str) -> None:
    masks = {"lower": causal(20, 20), "bias": hidden(20), "padding before the text": causal(20, 20) & real(20).flip(-1)}
    dense = with_pattern(restricted(3), reference_attention)
    rows = slice(None) if mask != "padding before the text" else slice(8, None)
    inputs = random_inputs(20)
    outputs = [attend(*inputs, masks[mask], 0.0)[:, :, rows] for attend in (with_window(3), dense)]
    torch.testing.assert_close(*outputs)


def test_the_window_passes_dropout_on() -> None:
    probabilities = []

    def keep(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        probabilities.append(dropout)
        return queries

    with_window(2, keep)(*random_inputs(5), "causal", 0.25)
    assert probabilities == [0.25]


def test_a_long_window_needs_less_memory_than_all_weights() -> None:
    sizes = []

    def measure(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        sizes.append(queries.size(0) * queries.size(2) * keys.size(2))  # weights
        return queries

    with_window(16, measure)(*random_inputs(1_024), "causal", 0.0)
    assert sizes == [2 * 3 * 1_024 * 32]


# ---- in a model --------------------------------------------------------------------------------------------------

MODELS: dict[str, Callable[[], GPT2 | Llama]] = {
    "gpt2": lambda: GPT2(GPT2Config(vocab_size=30, d_model=16, n_layers=2, n_heads=2, dropout=0.0)),
    "llama": lambda: Llama(
        LlamaConfig(vocab_size=30, d_model=16, n_layers=2, n_heads=4, d_ff=32, n_kv_heads=2, tied=False)
    ),
}
ATTENTIONS = {
    "window": with_window(3),
    "window and first": with_window(3, n_first=1),
    "strided": with_pattern(strided(3)),
    "fixed": with_pattern(fixed(4, 1)),
}


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_steps_with_a_cache_are_the_whole_text(name: str, attention: Attention) -> None:
    torch.manual_seed(1)
    model, ids = MODELS[name](), torch.randint(30, (2, 24))
    whole, _ = model.states(ids, NO_PAST, attention)
    past, parts, sizes = NO_PAST, [], []
    for chunk in ids.split([9, 1, 1, 4, 1, 8], dim=1):
        states, past = model.states(chunk, past, attention)
        parts.append(states)
        sizes.append(past.length)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    assert (whole - model.states(ids)[0]).abs().max() > 1e-3  # the attention is not that of the model alone


def test_the_model_of_the_page_continues_as_it_does_without_a_cache() -> None:
    torch.manual_seed(1)
    code: dict[str, Any] = {}
    page = code_blocks(ROOT / "docs" / "family-attention.md", "py")[0].replace("128", "3")
    sizes = "vocab_size=30, d_model=16, n_layers=2, n_heads=2, dropout=0.0"
    exec(page.replace("vocab_size=8_000", sizes), code)
    model = code["model"].eval()
    prompt = torch.randint(30, (8,)).tolist()
    torch.nn.init.normal_(model.embedding.weight)
    ids = list(prompt)
    for _ in range(10):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert continue_ids(model, [prompt], [], replace(GREEDY, max_extra_tokens=10))[0].ids == ids[8:]
    model(torch.tensor([ids])).logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_transformer_of_the_page_translates_with_its_window() -> None:
    code: dict[str, type[Transformer]] = {}
    exec(code_blocks(ROOT / "docs" / "family-attention.md", "py")[1].replace("16", "1"), code)
    loaded = random_model(ModelConfig(vocab_size=None, d_model=16, n_layers=2, n_heads=2, d_ff=32))
    model = code["WindowTransformer"](loaded.model.config).eval()
    model.load_state_dict(loaded.model.state_dict())
    line = "the cat sat on the mat"
    translators = [Translator([LoadedModel(one, loaded.config, loaded.tokenizer)]) for one in (model, loaded.model)]
    output, other = (translator.translate([line], beam_size=1, loops="keep")[0].text for translator in translators)
    src = torch.tensor([[*loaded.tokenizer.encode(line), EOS]])
    mask, ids = torch.ones_like(src, dtype=torch.bool), [BOS]
    for _ in range(src.size(1) - 1 + loaded.config.search.max_extra_tokens):
        logits = model(src, mask, torch.tensor([ids]))[0, -1]
        logits[[PAD, BOS, UNK]] = -math.inf
        ids.append(int(logits.argmax()))
        if ids[-1] == EOS:
            break
    assert output == loaded.tokenizer.target.decode([i for i in ids if i > UNK])
    assert output != other


def test_the_training_loop_trains_the_model_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.txt", "valid.txt"):
        Path(name).write_text("".join(f"{' '.join('abcdefgh')} {i % 7}\n" for i in range(50)), "utf-8")
    steps = TrainConfig(task="language_model", max_steps=3, evaluate_every_steps=3, checkpoint_every_steps=3)
    model = GPT2Config(d_model=16, n_layers=2, n_heads=2, max_positions=24)
    code: dict[str, Any] = {"CONFIG": Config(model, DataConfig(vocab_size=290, batch_tokens=200, max_tokens=24), steps)}
    page = code_blocks(ROOT / "docs" / "family-attention.md", "py")[2]
    exec(page.replace('"gpt2-small"', "CONFIG").replace("32", "1"), code)
    loaded, ids = code["loaded"], torch.arange(4, 16)[None]
    ours, theirs = (one(ids) for one in (loaded.model, load_model(code["folder"]).model))
    torch.testing.assert_close(ours[:, :2], theirs[:, :2])
    assert (ours - theirs).abs().max() > 1e-4
    scores = score_lines(loaded.model, loaded.tokenizer, [*read_lines("valid.txt")])
    (last,) = [line["valid_loss"] for line in reports(tmp_path / "run") if "valid_loss" in line]
    assert scores.loss == pytest.approx(last, abs=1e-4)  # the loop evaluated the model with its window


def test_rows_with_padding_before_them_are_the_rows_alone() -> None:
    torch.manual_seed(1)
    model, ids, attention = MODELS["gpt2"](), torch.randint(30, (2, 12)), with_window(3)
    past, parts = Past((), torch.tensor([0, 5])), []
    for chunk in ids.split([8, 1, 3], dim=1):
        states, past = model.states(chunk, past, attention)
        parts.append(states)
    alone, _ = model.states(ids[1:, 5:], NO_PAST, attention)
    torch.testing.assert_close(torch.cat(parts, dim=1)[1:, 5:], alone)


def test_a_step_uses_only_the_visible_keys() -> None:
    lengths = []

    def measure(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        lengths.append(keys.size(2))
        return reference_attention(queries, keys, values, mask, dropout)

    queries, keys, values = random_inputs(100)
    for attend in (with_window(4, measure), with_pattern(strided(10), measure), with_pattern(fixed(10, 1), measure)):
        attend(queries[:, :, -1:], keys, values, causal(1, 100), 0.0)
    assert lengths == [5, 19, 19]
