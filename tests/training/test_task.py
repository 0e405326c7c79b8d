"""Translation as a task: its loss, its evaluation and its words for the model card."""

from typing import Any

import numpy as np
import pytest
import torch
from support.gradients import random_pairs, small_transformer
from support.little_memory import LittleMemory
from support.small_encoders import WORDS
from support.small_encoders import tokenizer_json as encoder_tokenizer

from transduce.config.kinds import TASKS
from transduce.config.schema import Config, ModelConfig, SearchConfig
from transduce.data.batches import collate
from transduce.data.labels import TextAndLabels
from transduce.data.tokenizer import Tokenizer
from transduce.family.configs import BertClassifierConfig, BertConfig, GPT2Config, LladaConfig, RewardConfig, T5Config
from transduce.model.build import build
from transduce.train import TranslationTask
from transduce.training.loss import label_smoothed_cross_entropy
from transduce.training.task import task_of, translation_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_summed_cross_entropy_of_the_target_tokens(smoothing: float) -> None:
    model = small_transformer()
    batch = collate(*random_pairs(1, 7))
    logits = model(batch.src, batch.src_mask, batch.tgt_in)[batch.tgt_mask]
    expected = label_smoothed_cross_entropy(logits, batch.tgt_out[batch.tgt_mask], smoothing)
    loss = translation_loss(model, batch, smoothing)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected, check_dtype=False)


def test_the_loss_in_bf16_is_near_the_loss_in_fp32() -> None:
    model = small_transformer(torch.float32)
    batch = collate(*random_pairs(3, 9))
    loss, bf16_loss = (translation_loss(model, batch, 0.1, precision).item() for precision in ("fp32", "bf16"))
    assert bf16_loss != loss and bf16_loss == pytest.approx(loss, rel=0.02)


def test_the_task_builds_the_model_of_the_configuration() -> None:
    config = Config(model=ModelConfig(vocab_size=40, d_model=16, n_layers=1, n_heads=2, d_ff=32))
    torch.manual_seed(1)
    expected = build(config.model).state_dict()
    torch.manual_seed(1)
    weights = TranslationTask().build(config).state_dict()
    assert all(values.equal(expected[name]) for name, values in weights.items())


def test_the_task_collates_the_ids_of_both_sides() -> None:
    src, tgt = random_pairs(4, 5)
    numbers = np.arange(5) + 7
    batch, expected = TranslationTask().collate(src, tgt, numbers), collate(src, tgt, numbers)
    assert batch.src.equal(expected.src) and batch.tgt_in.equal(expected.tgt_in)
    assert batch.pairs.tolist() == numbers.tolist()


def test_the_task_evaluates_loss_perplexity_and_bleu() -> None:
    tokenizer = Tokenizer.learn(["a b c", "c b a"] * 4, vocab_size=270)
    model_config = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=16, n_layers=1, n_heads=2, d_ff=32)
    config = Config(model=model_config, search=SearchConfig(max_extra_tokens=2))
    task = TranslationTask()
    scores = task.evaluate(task.build(config).eval(), config, tokenizer, [("a b c", "c b a"), ("b a", "a b")])
    assert scores.keys() == {"loss", "perplexity", "bleu", "chrf"}
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]), rel=1e-3)
    words = task.describe({"loss": 1.5, "perplexity": 4.48, "bleu": 30.25})
    assert words == "loss 1.500, perplexity 4.48, BLEU 30.2 by greedy search"


SIZES: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2}
MODELS: dict[str, Any] = {
    "translation": ModelConfig(vocab_size=270, **SIZES),
    "language_model": GPT2Config(vocab_size=270, **SIZES),
    "masked_words": BertConfig(vocab_size=270, **SIZES),
    "diffusion": LladaConfig(vocab_size=270, **SIZES),
    "spans": T5Config(vocab_size=270, **SIZES),
    "classes": BertClassifierConfig(vocab_size=len(WORDS), **SIZES),
    "preferences": GPT2Config(vocab_size=270, **SIZES),
    "rewards": RewardConfig(vocab_size=270, **SIZES),
}


# Parsing evaluates by its search alone, and sounds come in small portions.
@pytest.mark.parametrize("task", [task for task in TASKS if task not in ("parsing", "ctc", "speech")])
def test_an_evaluation_that_does_not_fit_into_memory_is_halved(task: str) -> None:
    lines, tokenizer = ["a b c", "b a", "c", "c c a b", "b b"], Tokenizer.learn(["a b c", "c b a"] * 4, vocab_size=270)
    pairs, of_task = [(line, line) for line in lines], task_of(task)
    if task == "classes":
        tokenizer = TextAndLabels({"tokenizer.json": encoder_tokenizer().decode()}, ["x", "y"], len(WORDS))
        pairs = [(line, "xy"[i % 2]) for i, line in enumerate(lines)]
    if task in ("preferences", "rewards"):
        pairs = [(line, f"{line} b") for line in lines]
    if task == "preferences":
        of_task.reference = of_task.build(Config(model=MODELS[task])).eval()
    config = Config(model=MODELS[task], search=SearchConfig(max_extra_tokens=2))
    torch.manual_seed(1)
    model = of_task.build(config).eval()
    expected = of_task.evaluate(model, config, tokenizer, pairs)
    with LittleMemory(2) as memory:
        actual = of_task.evaluate(model, config, tokenizer, pairs)
    assert max(memory.sizes) > 2 and actual == pytest.approx(expected, rel=1e-4)
