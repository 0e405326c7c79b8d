"""Preferences: a reward model, and direct preference optimisation, by the loop of translation."""

import math
import re
import runpy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.command_line import assert_mistake
from support.hugging_face import disturb
from support.small_members import small_gpt2
from support.toy_task import ROOT, CommandResult, write_lines
from support.trainings import log_without_times, train, with_train
from torch.nn import functional as F

from transduce.config.recipes import family
from transduce.config.schema import Config, DataConfig, TrainConfig, keys
from transduce.config.validation import problems
from transduce.data.vocabulary import BOS, EOS
from transduce.decoding.options import Sampling
from transduce.errors import UserError
from transduce.family.configs import GPT2Config, LlamaConfig, RewardConfig, sizes_of
from transduce.family.hugging_face.folder import Member, write_member
from transduce.family.inference.language_model import LanguageModel
from transduce.family.reward import RewardModel
from transduce.family.tasks.preferences import PreferenceTask, RewardTask, check_differ, rewards
from transduce.storage.checkpoints import checkpoints, load_checkpoint, save_checkpoint
from transduce.storage.model_folder import load_model
from transduce.storage.run_request import TrainRequest
from transduce.training.gradients import cut

PROMPT = np.array([7, 9, 11])
CHOSEN = [np.array([*PROMPT, 20, 21]), np.array([30]), np.array([*PROMPT, 4, 5, 6, 8])]
REJECTED = [np.array([*PROMPT, 22]), np.array([31, 32, 33]), np.array([*PROMPT, 40, 41])]
SETTINGS = TrainConfig(dpo_beta=0.3, label_smoothing=0.0)


def preference_task(reference: Any) -> PreferenceTask:
    task = PreferenceTask()
    task.reference = reference
    return task


def small_reward() -> RewardModel:
    model: Any = RewardModel(sizes_of(small_gpt2().config, RewardConfig))
    return disturb(model)  # pyright: ignore[reportReturnType]


def batch_of(task: Any) -> Any:
    return task.collate(CHOSEN, REJECTED, np.arange(3))


# ---- the losses --------------------------------------------------------------------------------------------------


def log_prob(model: Any, row: Sequence[int], first: int = 0) -> torch.Tensor:
    """Return the log-probability of the tokens of a row from number `first` on, and of EOS, by a loop."""
    ids = [BOS, *row, EOS]
    log_probs = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
    return torch.stack([log_probs[t, ids[t + 1]] for t in range(first, len(ids) - 1)]).sum()


@pytest.mark.parametrize("is_prompt_counted", [True, False])
def test_the_loss_of_preferences_and_its_gradient_are_the_loops(is_prompt_counted: bool) -> None:
    """The common beginning of a pair has no effect, whether it counts or not."""
    model, other = small_gpt2(), small_gpt2()
    disturb(other)
    task = preference_task(other)
    expected = torch.zeros(())
    for chosen, rejected in zip(CHOSEN, REJECTED, strict=True):
        first = 0 if is_prompt_counted or len(chosen) == 1 else len(PROMPT)
        ours = [log_prob(model, row.tolist(), first) for row in (chosen, rejected)]
        with torch.no_grad():
            theirs = [log_prob(other, row.tolist(), first) for row in (chosen, rejected)]
        margin = 0.3 * ((ours[0] - theirs[0]) - (ours[1] - theirs[1]))
        expected = expected - torch.log(1 / (1 + torch.exp(-margin)))
    parameters = [*model.parameters()]
    gradients = torch.autograd.grad(expected, parameters)
    loss = task.loss(model, batch_of(task), SETTINGS)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(torch.autograd.grad(loss, parameters), gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert all(parameter.grad is None for parameter in other.parameters())


def test_at_the_start_a_pair_has_the_loss_log_2() -> None:
    model = small_gpt2()
    of_preferences = preference_task(model)
    assert of_preferences.loss(model, batch_of(of_preferences), SETTINGS).item() == pytest.approx(3 * math.log(2))
    fresh = RewardModel(sizes_of(model.config, RewardConfig)).eval()
    assert RewardTask().loss(fresh, batch_of(RewardTask()), SETTINGS).item() == pytest.approx(3 * math.log(2))


def test_the_reward_is_the_score_of_transformers(tmp_path: Path) -> None:
    model = small_reward()
    write_member(tmp_path / "gpt2", Member(model.base, {}))
    folder = str(tmp_path / "gpt2")
    options: dict[str, Any] = {"num_labels": 1, "pad_token_id": 0}
    theirs = transformers.GPT2ForSequenceClassification.from_pretrained(folder, **options).eval()
    theirs.score.weight.data = model.output.weight.data
    expected = torch.zeros(())
    for chosen, rejected in zip(CHOSEN, REJECTED, strict=True):
        scores = [theirs(torch.tensor([[BOS, *row]])).logits[0, 0] for row in (chosen, rejected)]
        expected = expected - F.logsigmoid(scores[0] - scores[1])
    loss = RewardTask().loss(model, batch_of(RewardTask()), SETTINGS)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_reward_model_has_every_size_of_its_language_model() -> None:
    sizes = GPT2Config(vocab_size=9, d_model=8, n_layers=1, n_heads=2, multi_query=True, d_ff=5, max_positions=7)
    assert sizes_of(sizes, RewardConfig).gpt2 == sizes
    assert {*keys(Config(model=RewardConfig()))} == {*keys(Config(model=sizes))}


@pytest.mark.parametrize("task", [RewardTask(), preference_task(small_gpt2())], ids=["rewards", "preferences"])
def test_the_batch_does_not_change_the_loss(task: Any) -> None:
    model = small_reward() if isinstance(task, RewardTask) else disturb(small_gpt2())
    batch = batch_of(task)
    together, parts = task.loss(model, batch, SETTINGS), [task.loss(model, part, SETTINGS) for part in cut(batch, 3)]
    torch.testing.assert_close(together, sum(parts), rtol=1e-5, atol=1e-5)
    nothing = replace(batch, tgt_mask=torch.zeros_like(batch.tgt_mask), tgt_indices=batch.tgt_indices[:0])
    loss = task.loss(model, nothing, SETTINGS)
    loss.backward()
    assert loss == 0 and not any(p.grad is not None and p.grad.any() for p in model.parameters())
    bf16 = task.loss(model, batch, replace(SETTINGS, precision="bf16"))
    assert bf16 != together and bf16.item() == pytest.approx(together.item(), rel=0.1)


# ---- a training --------------------------------------------------------------------------------------------------

LETTERS = "abcdefghij"
VALID = (0, "valid.chosen", "a"), (1, "valid.rejected", " ")  # side, name, line to add
RECIPES = {"preferences": family.gpt2_preferences(), "rewards": family.gpt2_reward()}


def continuation(letter: str, step: int) -> str:
    return " ".join(LETTERS[(LETTERS.index(letter) + step * i) % 10] for i in range(5))


def language_model(folder: Path, config: Any = None) -> Path:
    """Train a model to which letters that rise and letters that fall are equally likely."""
    text = write_lines(folder / "text", [continuation(letter, step) for letter in LETTERS for step in (1, -1)] * 10)
    start = family.gpt2_small()
    sizes = config or replace(start.model, d_model=32, n_layers=1, n_heads=2, max_positions=24, dropout=0.0)
    steps = {"max_steps": 100, "warmup_steps": 30, "evaluate_every_steps": 100, "checkpoint_every_steps": 100}
    recipe = with_train(start, lr_factor=0.3, precision="fp32", use="last", **steps)
    recipe = replace(recipe, model=sizes, data=DataConfig(vocab_size=290, batch_tokens=400, max_tokens=24))
    return train(recipe, train=(text, text), valid=[text], out=folder / "lm")


def write_preferences(folder: Path, name: str = "pairs") -> tuple[Path, Path]:
    """Write pairs of lines that begin with the same letter: those that rise are chosen."""
    sides = [[continuation(letter, step) for letter in LETTERS] for step in (1, -1)]
    return write_lines(folder / f"{name}.chosen", sides[0]), write_lines(folder / f"{name}.rejected", sides[1])


def short_training(task: str, max_steps: int) -> Config:
    steps = {"max_steps": max_steps, "warmup_steps": 10, "evaluate_every_steps": 20, "checkpoint_every_steps": 20}
    rate = {"preferences": 0.02, "rewards": 0.05}[task]
    config = with_train(RECIPES[task], dpo_beta=1.0, lr_factor=rate, log_every_steps=20, use="last", **steps)
    return replace(config, data=replace(config.data, batch_tokens=100, max_tokens=24))


def learn(folder: Path, task: str, start: Path, **request: Any) -> Path:
    config = request.pop("config", None) or short_training(task, max_steps=40)
    pairs = write_preferences(folder)
    train(config, train=pairs, valid=pairs, out=folder / task, start_from=start, **request)
    return folder / task


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_model(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, start: Path) -> Path:
    return learn(tmp_path_factory.mktemp("tuned"), "preferences", start)


def test_the_benchmark_scores_the_written_model(start: Path, tuned: Path, tmp_path: Path) -> None:
    accuracy = runpy.run_path(str(ROOT / "benchmarks" / "preferences.py"))["accuracy"]
    pairs, task = write_preferences(tmp_path), PreferenceTask()
    task.reference = load_model(start).model
    assert accuracy(task, tuned / "model", pairs) == 100 and accuracy(task, tuned / "model", pairs[::-1]) == 0


def test_a_model_learns_what_was_chosen(start: Path, tuned: Path) -> None:
    """Of the steps to a neighbouring letter in drawn continuations, half rise before, and all after."""

    def share_that_rises(folder: Path) -> float:
        outputs = LanguageModel.load(folder).continue_texts([*LETTERS] * 3, sampling=Sampling(), seed=1, max_tokens=20)
        texts = [(prompt + output.text).split() for prompt, output in zip(LETTERS * 3, outputs, strict=True)]
        steps = [(LETTERS.find(b) - LETTERS.find(a)) % 10 for text in texts for a, b in pairwise(text)]
        return steps.count(1) / (steps.count(1) + steps.count(9))

    before, after = share_that_rises(start), share_that_rises(tuned / "model")
    assert 0.3 < before < 0.7 and after > 0.95
    first, *_, last = [line for line in log_without_times(tuned) if "valid_loss" in line]
    assert first["valid_loss"] == pytest.approx(math.log(2), abs=1e-4) and first["valid_accuracy"] == 50
    assert last["valid_loss"] < 0.3 and last["valid_accuracy"] == 100
    card = (tuned / "model" / "README.md").read_text()
    assert "transduce continue THIS_FOLDER" in card and "accuracy 100.0 % of the pairs" in card
    assert "shared by both" not in card
    assert "% of the pairs" in (tuned / "report.html").read_text()


def test_a_resumed_run_is_the_same_run(start: Path, tuned: Path, tmp_path: Path) -> None:
    """The reference is the model of --from, also after a restart."""
    learn(tmp_path, "preferences", start, config=short_training("preferences", max_steps=20))
    resumed = learn(tmp_path, "preferences", start, resume=True, allow_change=["train.max_steps"])
    newest = [checkpoints(run)[-1] / "model.safetensors" for run in (resumed, tuned)]
    assert newest[0].read_bytes() == newest[1].read_bytes()


def test_a_run_resumes_only_with_its_own_reference(start: Path, tuned: Path, tmp_path: Path) -> None:
    run = learn(tmp_path, "preferences", start, config=short_training("preferences", max_steps=20))
    options: dict[str, Any] = {"resume": True, "allow_change": ["train.max_steps"]}
    expected = f"--from={tuned / 'model'}: expected the model that {run} started with; restore it, or start a new run"
    with pytest.raises(UserError, match=f"^{re.escape(expected)}$"):
        learn(tmp_path, "preferences", tuned / "model", **options)
    newest = load_checkpoint(checkpoints(run)[-1])
    del newest.state["texts"]["reference"]  # as versions wrote it that did not store the reference
    save_checkpoint(run, newest)
    learn(tmp_path, "preferences", start, **options)
    assert load_checkpoint(checkpoints(run)[-1]).state["step"] == 40


def test_a_reward_model_learns_what_was_chosen(start: Path, tmp_path: Path) -> None:
    run = learn(tmp_path, "rewards", start)
    first, *_, last = [line for line in log_without_times(run) if "valid_loss" in line]
    assert first["valid_loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert last["valid_accuracy"] == 100 and last["valid_loss"] < 0.3
    pairs = [(continuation(letter, 1), continuation(letter, -1)) for letter in LETTERS]
    texts = [text for pair in pairs for text in pair]
    values = rewards(run / "model", texts)
    assert all(good > bad for good, bad in zip(values[::2], values[1::2], strict=True))
    margins = torch.tensor(values[::2]) - torch.tensor(values[1::2])
    assert F.softplus(-margins).mean().item() == pytest.approx(last["valid_loss"], abs=2e-4)
    assert (run / "model" / "README.md").read_text().startswith("# A reward model\n")
    with pytest.raises(UserError, match="expected a reward model, not model.kind='gpt2'"):
        rewards(start, texts)
    with pytest.raises(UserError, match="a text: expected a line that is not blank"):
        rewards(run / "model", ["a", " "])
    with pytest.raises(UserError, match="a text:1: expected at most"):
        rewards(run / "model", ["a " * 40])


def test_wrong_texts_and_models_are_refused(start: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    chosen, rejected = write_preferences(tmp_path)
    equal = write_lines(tmp_path / "equal", [*chosen.read_text().splitlines()[:4], "x"])
    five = write_lines(tmp_path / "five", [*["y"] * 3, chosen.read_text().splitlines()[3], "z"])
    blank = write_lines(tmp_path / "blank", ["", "a", "", "a", "a"])
    other = write_lines(tmp_path / "other", ["a", "", "a", "", ""])

    def run(recipe: str, train: Sequence[Path], valid: Sequence[Path] = (), folder: Path = start) -> CommandResult:
        texts = ["--train", *train, "--valid", *(valid or (chosen, rejected)), "--out", tmp_path / "run"]
        return cli("train", "--recipe", recipe, "--from", folder, *texts, "--set", "data.max_tokens=20")

    message = "equal:4: expected a chosen text that is not the rejected one; remove the pair"
    assert_mistake(run("gpt2-preferences", (equal, five)), message)
    assert_mistake(run("gpt2-reward", (chosen, rejected), (equal, five)), message)
    assert_mistake(run("gpt2-reward", (chosen, other)), "expected the same number of lines, not 10 and 5")
    assert_mistake(
        run("gpt2-reward", (chosen, rejected), (blank, other)), "blank: expected a pair without a blank text"
    )
    assert_mistake(
        run("gpt2-reward", (chosen, chosen)),
        "chosen, lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10: expected chosen texts that are not the rejected ones",
    )
    assert_mistake(run("gpt2-reward", (chosen,)), "expected tab-separated columns")
    llama = language_model(tmp_path, LlamaConfig(d_model=32, n_layers=1, n_heads=2, d_ff=48, max_positions=24))
    assert_mistake(run("gpt2-reward", (chosen, rejected), folder=llama), "expected a GPT-2, not model.kind='llama'")
    reward = learn(tmp_path, "rewards", start) / "model"
    assert_mistake(run("gpt2-reward", (chosen, rejected), folder=reward), "expected a language model, not model.kind=")
    assert_mistake(cli("continue", reward, "--input", chosen), "expected a model of the family, not model.kind=")
    assert not (tmp_path / "run" / "config.json").exists()


def test_equal_pairs_are_counted() -> None:
    pairs = [("a", "b"), *[("c", "c")] * 12, ("", "")]
    message = "valid, lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more: expected chosen texts that are not the rejected"
    with pytest.raises(UserError, match=f"^{message} ones; remove these 12 pairs$"):
        check_differ(pairs, "valid")


def test_blank_validation_pairs_are_counted(start: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pairs = write_preferences(tmp_path)
    valid = [write_lines(tmp_path / name, [*pairs[i].read_text().splitlines(), blank]) for i, name, blank in VALID]
    train(short_training("rewards", 1), train=pairs, valid=valid, out=tmp_path / "run", start_from=start)
    assert "of the 11 pairs of valid.chosen, the evaluation leaves out 1 with an empty side" in capsys.readouterr().err


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    texts: dict[str, Any] = {"train": (tmp_path, tmp_path), "valid": [tmp_path, tmp_path], "out": tmp_path / "run"}
    for recipe in ("gpt2-preferences", "gpt2-reward"):
        lines = TrainRequest(recipe, **texts).problems()
        assert any("expected --from, a pre-trained model; add --from FOLDER" in line for line in lines)
        lines = TrainRequest(recipe, **{**texts, "valid": []}).problems()
        assert any("expected chosen and rejected texts, or one file with both" in line for line in lines)
    for name, value in (("label_smoothing", 0.1), ("rdrop", 1.0), ("dpo_beta", 0.0)):
        lines = problems(with_train(replace(RECIPES["rewards"]), **{name: value}))
        assert [line for line in lines if line.startswith(f"train.{name}={value}: expected")]
    assert Config().train.dpo_beta == 0.1
