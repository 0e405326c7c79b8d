"""The training of LLaDA: a tiny one learns a toy text by the loop of translation."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import assert_mistake
from support.toy_task import CommandResult, write_lines
from support.trainings import train, with_train

import transduce
from transduce.config.recipes import find_recipe
from transduce.config.schema import Config, DataConfig, TrainConfig
from transduce.config.validation import problems
from transduce.data.corpora import Corpus
from transduce.data.vocabulary import BOS, EOS
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.family.configs import LladaConfig
from transduce.family.hugging_face.folder import read_member
from transduce.family.inference.diffusion import Filling
from transduce.family.inference.model_folder import MASK
from transduce.family.inference.text_filler import TextFiller
from transduce.family.llada import weights_by_rate
from transduce.family.tasks.diffusion import DiffusionTask
from transduce.family.tasks.diffusion_bound import masked_outputs, score_bound
from transduce.model.build import build
from transduce.storage.checkpoints import checkpoints
from transduce.storage.model_folder import load_model
from transduce.storage.run_log import reports
from transduce.training.gradients import cut

LETTERS = "abcdefghij"
CONFIG = Config(
    model=LladaConfig(d_model=32, n_layers=2, n_heads=2, d_ff=64, max_positions=24),
    data=DataConfig(vocab_size=290, batch_tokens=400, max_tokens=20),
    train=TrainConfig(
        task="diffusion",
        max_steps=100,
        warmup_steps=30,
        lr_factor=0.4,
        label_smoothing=0.0,
        use="last",
        log_every_steps=50,
        evaluate_every_steps=50,
        checkpoint_every_steps=25,
    ),
)


LINES = [" ".join(letter * 8) for letter in LETTERS]  # any letter tells the others


def train_in(folder: Path, config: Config = CONFIG, **request: Any) -> Path:
    text, valid = write_lines(folder / "text", [*LINES * 20, ""]), write_lines(folder / "valid", [*LINES * 2, ""])
    train(config, train=[Corpus(text)], valid=[valid], out=folder / "run", **request)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_in(tmp_path_factory.mktemp("diffusion"))


def test_the_bound_comes_near_the_entropy_of_the_text_and_not_below_it(run: Path) -> None:
    """A line has one of 10 equally likely texts, and its only length: log(10) nats in 9 tokens."""
    bounds = [line["valid_loss"] for line in reports(run) if "valid_loss" in line]
    entropy = math.log(10) / 9
    assert len(bounds) == 2 and entropy - 0.02 < bounds[-1] < 2.3 * entropy


def test_card_and_report_say_that_the_figures_are_bounds(run: Path) -> None:
    card = (run / "model" / "README.md").read_text()
    assert card.startswith("# A diffusion model of text\n") and "8 masks of each line" in card
    assert "transduce fill THIS_FOLDER" in card
    assert "an estimated upper bound" in (run / "report.html").read_text()


def test_a_resumed_run_is_the_same_run(run: Path, tmp_path: Path) -> None:
    train_in(tmp_path, with_train(CONFIG, max_steps=25))
    resumed = train_in(tmp_path, with_train(CONFIG, max_steps=50), resume=True, allow_change=["train.max_steps"])
    (ours,) = [path for path in checkpoints(resumed) if path.name == "step-00000050"]
    theirs = run / "checkpoints" / "step-00000050"
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def test_more_samples_change_the_bound_little(run: Path) -> None:
    loaded = load_model(run / "model")
    first, again = (score_bound(loaded.model, loaded.tokenizer, LINES * 2) for _ in range(2))
    assert first == again and first.loss == pytest.approx([*reports(run)][-1]["valid_loss"], abs=1e-5)
    assert (first.lines, first.tokens, first.words, first.characters) == (20, 180, 180, 320)
    more = score_bound(loaded.model, loaded.tokenizer, LINES * 2, samples=32)
    assert more.loss == pytest.approx(first.loss, abs=0.06)


# ---- the trained model -------------------------------------------------------------------------------------------


def test_it_fills_masks_from_any_side(run: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    beginning, middle, end = (["[MASK]"] * i + [LETTERS[i]] + ["[MASK]"] * (7 - i) for i in (7, 3, 0))
    texts = [*(" ".join(words) for words in (beginning, middle, end)), "", "a b c", "[MASK] " * 30]
    lines = write_lines(tmp_path / "lines", texts)
    expected = [LINES[7], LINES[3], LINES[0], "", "a b c", ""]
    for options in ([], ["--steps", 2], ["--block", 3, "--steps", 4], ["--temperature", 0.2, "--remasking", "random"]):
        result = cli("fill", run / "model", "--input", lines, *options)
        assert result.out.decode().split("\n")[:-1] == expected
        assert result.err == f"transduce: {lines}:6: expected at most 24 tokens, not 32; split the line\n"
    in_json = cli("fill", run / "model", "--input", lines, "--json").out.splitlines()
    assert [json.loads(line) for line in in_json] == [*expected[:3], None, "a b c", None]


def test_a_folder_of_it_is_read_and_written(run: Path, tmp_path: Path) -> None:
    model = transduce.family.load(run / "model")
    model.save(tmp_path / "copy")
    copy = transduce.family.load(tmp_path / "copy")
    lines = ["[MASK] [MASK] a [MASK] b", "[MASK]"]
    settings = Filling(temperature=2.0)
    assert isinstance(copy, TextFiller) and copy.fill(lines, settings) == model.fill(lines, settings)
    assert model.fill(lines[1:], settings, first_number=2) == model.fill(lines, settings)[1:]
    other = read_member(tmp_path / "copy").model.state_dict()
    assert all(tensor.equal(other[name]) for name, tensor in model.model.state_dict().items())
    content = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert (content["model_type"], content["longest_line"], content["mask_token_id"]) == ("llada", 22, MASK)


def test_a_use_of_another_model_is_refused(run: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    model, lines = run / "model", write_lines(tmp_path / "lines", ["a [MASK]"])
    assert_mistake(cli("fill", model, "--input", lines, "--n-best", 2), "--n-best=2: must not be set for a LLaDA")
    assert_mistake(cli("fill", model, "--input", lines, "--steps", 0), "--steps=0: expected 1 to 1,048,576")
    assert_mistake(cli("continue", model, "--input", lines), "expected a model that continues text", "`transduce fill`")
    assert_mistake(cli("embed", model, "--input", lines), "expected a text encoder", "`transduce fill`")
    with pytest.raises(UserError, match="expected 'fp32'"):
        transduce.family.load(model, precision="int8")


def test_the_command_evaluates_as_the_training_does(
    run: Path, cli: Callable[..., CommandResult], tmp_path: Path
) -> None:
    valid = run.parent / "valid"
    scores = json.loads(cli("evaluate", run / "model", "--text", valid, "--json").out)
    assert scores["loss"] == pytest.approx([*reports(run)][-1]["valid_loss"], abs=1e-5)
    assert (scores["lines"], scores["tokens"], scores["samples"]) == (20, 180, 8)
    text = cli("evaluate", run / "model", "--text", valid).out.decode()
    assert text.endswith("\n\nupper bounds, estimated with 8 masks of each line\n")
    long = write_lines(tmp_path / "long", [" ".join(LETTERS * 3)])
    assert_mistake(cli("evaluate", run / "model", "--text", long), f"{long}:1: expected at most 22 tokens, not 30")


# ---- batches -----------------------------------------------------------------------------------------------------


def test_a_batch_has_masks_between_both_ends(run: Path) -> None:
    rows = [np.arange(10, 10 + n) for n in (9, 3)]
    batch = DiffusionTask().collate(rows, rows, np.array([5, 2]), (3, 1))
    for i, row in enumerate(rows):
        ids, weights = batch.src[i, : len(row) + 2].tolist(), batch.tgt_in[i].tolist()
        assert (ids[0], ids[-1]) == (BOS, EOS) and weights[len(row) :] == [0] * (10 - len(row))
        assert ids[1:-1] == [MASK if weight else token for token, weight in zip(row, weights, strict=False)]
        assert batch.tgt_out[i, : len(row) + 1].tolist() == [*row, EOS]
    assert batch.tgt_mask.sum(dim=1).tolist() == batch.src_mask.sum(dim=1).sub(1).tolist() == [10, 4]
    model = load_model(run / "model").model
    hidden, truth, weights = masked_outputs(model, batch)
    assert len(hidden) == len(truth) == len(weights) == (batch.src == MASK).sum()
    torch.testing.assert_close(weights.sum().item(), 9.0 + 3.0)  # n/k for each of k tokens


def test_the_masks_depend_on_seed_epoch_and_number_of_the_line_alone() -> None:
    task, rows, numbers = DiffusionTask(), [np.arange(10, 10 + n) for n in (9, 20, 14)], np.array([5, 2, 8])
    batch = task.collate(rows, rows, numbers, (3, 1))
    again = task.collate(rows[1:2], rows[1:2], numbers[1:2], (3, 1))
    assert batch.src[1].equal(again.src[0]) and batch.tgt_in[1].equal(again.tgt_in[0])
    assert not task.collate(rows, rows, numbers, (3, 2)).src.equal(batch.src)


@pytest.mark.parametrize("task", [DiffusionTask(), DiffusionTask(weights_by_rate)], ids=["count", "rate"])
def test_the_batch_does_not_change_the_loss(run: Path, task: DiffusionTask) -> None:
    model, config = load_model(run / "model").model, TrainConfig(label_smoothing=0.0)
    rows = [np.arange(10, 10 + n) for n in (9, 18, 14, 3)]
    batch = task.collate(rows, rows, np.arange(4), (1, 0))
    together, alone = task.loss(model, batch, config), [task.loss(model, part, config) for part in cut(batch, 4)]
    torch.testing.assert_close(together, sum(alone), rtol=1e-5, atol=1e-5, check_dtype=False)


def test_a_rank_without_lines_adds_nothing(run: Path) -> None:
    model, task = load_model(run / "model").model, DiffusionTask()
    batch = task.collate([np.array([MASK])], [np.array([MASK])], np.array([], int))
    empty = replace(batch, tgt_mask=torch.zeros_like(batch.tgt_mask), tgt_indices=batch.tgt_indices[:0])
    assert task.loss(model, empty, TrainConfig()).item() == 0


# ---- the kind, and mistakes --------------------------------------------------------------------------------------


def test_the_recipe_has_the_size_and_the_budget_of_llama_small() -> None:
    ours, theirs = find_recipe("llada-small")(), find_recipe("llama-small")()
    assert parameter_count(ours.model, 8_000) == parameter_count(theirs.model, 8_000) + 256
    assert (ours.data, replace(ours.train, task="language_model")) == (theirs.data, theirs.train)
    with torch.device("meta"):
        model = build(replace(ours.model, vocab_size=8_000))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(ours.model, 8_000)


def test_lines_and_settings_that_do_not_fit_are_refused(
    run: Path, cli: Callable[..., CommandResult], tmp_path: Path
) -> None:
    text, long = write_lines(tmp_path / "text", LINES), write_lines(tmp_path / "long", [" ".join(LETTERS * 3)])
    with pytest.raises(UserError, match="long:1: expected at most 22 tokens, not 30; split the line"):
        train(CONFIG, train=[Corpus(text)], valid=[long], out=tmp_path / "run")
    tight = replace(CONFIG, model=replace(CONFIG.model, max_positions=20))
    assert problems(tight) == ["model.max_positions=20: expected more than data.max_tokens=20, for <s>"]
    (line,) = problems(with_train(CONFIG, task="language_model"))
    assert line.startswith(
        "model.kind='llada': expected 'gpt2' or 'llama' or 'palm' or 'synthesizer' or 't6' or 'performer' or "
        "'transformer_xl' or 'decoder' or "
        "'hyena' or 'mamba' or 'rwkv' with train.task='language_model'"
    )
    assert problems(replace(CONFIG, model=replace(CONFIG.model, n_kv_heads=3))) == [
        "model.n_kv_heads=3: expected a divisor of model.n_heads=2"
    ]
    assert_mistake(cli("translate", run / "model", "--input", text), "expected a translation model")
