"""Whole trainings on a GPU: every kind of model, in fp32 and bf16, interrupted and resumed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.trainings import train, write_texts
from support.waits import waits

import transduce
from transduce.config.kinds import TASKS
from transduce.config.recipes import OWN, configure
from transduce.data.batches import Batch
from transduce.data.corpora import Corpus
from transduce.storage.run_log import evaluations
from transduce.training.gradients import Gradient, Gradients

pytestmark = [pytest.mark.cuda, pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

SIZES = {"d_model": 32, "d_ff": 64, "n_layers": 2, "d_state": 4, "n_heads": 4, "vocab_size": None}
SETTINGS = [
    "data.vocab_size=300", "data.batch_tokens=200", "data.max_tokens=64", "train.warmup_steps=2", "train.accumulate=2",
    "train.evaluate_every_steps=3", "train.checkpoint_every_steps=2", "train.keep_checkpoints=2",
    "train.decay_steps=0", "search.max_extra_tokens=2",
]  # fmt: skip
OTHER_INPUT = {"auto", "craft-parse", "bert-classifier", "gpt2-preferences", "gpt2-reward", "speech-small", "ctc-small"}
RECIPES = ["demo", "mixture", "vaswani2017-base", *(name for name in OWN if name not in OTHER_INPUT)]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets a message for each wait between a batch and its gradient."""
    of = Gradients.of
    all_messages: list[str] = []

    def recorded(gradients: Gradients, micro_batches: Sequence[Batch], *, seed: int) -> Gradient:
        with waits() as messages:
            gradient = of(gradients, micro_batches, seed=seed)
        all_messages.extend(messages)
        return gradient

    monkeypatch.setattr(Gradients, "of", recorded)
    return all_messages


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_and_resumes(tmp_path: Path, messages: list[str], recipe: str, precision: str) -> None:
    model = configure(recipe, [])[0].model
    sizes = [f"model.{name}={size}" for name, size in SIZES.items() if size and hasattr(model, name)]
    task = configure(recipe, [])[0].train.task
    texts = write_texts(tmp_path)
    sides = slice(1) if TASKS[task].is_of_one_text else slice(2)
    settings = [*sizes, *SETTINGS, f"train.precision={precision}", "train.use=best"]
    request = {"train": [Corpus(*texts["train"][sides])], "valid": texts["valid"][sides], "out": tmp_path / "run"}
    train(recipe, settings=[*settings, "train.max_steps=3"], **request)
    train(recipe, settings=[*settings, "train.max_steps=5"], allow_change=["train.max_steps"], resume=True, **request)
    assert [*evaluations(tmp_path / "run")] == [3, 5]
    assert messages == []


def test_a_run_trains_and_translates_on_the_gpu(tmp_path: Path) -> None:
    letters = "abcdefgh"
    lines = [" ".join(letters[(i * k) % 8] for k in range(1, 6)) for i in range(400)]
    for name in ("src", "tgt"):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    settings = ["train.max_steps=60", "train.warmup_steps=20", "data.vocab_size=300", "train.precision=bf16"]
    texts = (tmp_path / "src", tmp_path / "tgt")
    model = transduce.fit(*texts, valid=texts, out=tmp_path / "run", recipe="demo", settings=settings)
    assert model.models[0].output.weight.is_cuda
    assert len(model.translate(lines[:3])) == 3
