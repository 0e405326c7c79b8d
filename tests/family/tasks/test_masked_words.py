"""Masked words: a tiny BERT learns a toy text by the loop of translation."""

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

from transduce.config.schema import Config, DataConfig, TrainConfig
from transduce.config.validation import problems
from transduce.data.corpora import Corpus
from transduce.data.vocabulary import BOS, EOS, PAD
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.family.configs import BertConfig
from transduce.family.inference.text_encoder import TextEncoder
from transduce.family.tasks.masked_words import MASK, MaskedWordsTask, masked
from transduce.model.build import build
from transduce.storage.checkpoints import checkpoints
from transduce.storage.model_folder import load_model
from transduce.storage.run_log import reports
from transduce.training.gradients import cut

LETTERS = "abcdefghij"
LINES = [" ".join(letter * 8) for letter in LETTERS]  # the others tell each letter
MASKED = [f"{line[:6]}[MASK]{line[7:]}" for line in LINES]
CONFIG = Config(
    model=BertConfig(d_model=32, n_layers=2, n_heads=2, max_positions=24, dropout=0.0),
    data=DataConfig(vocab_size=290, batch_tokens=400, max_tokens=20),
    train=TrainConfig(
        task="masked_words",
        max_steps=180,
        warmup_steps=40,
        lr_factor=0.3,
        label_smoothing=0.0,
        use="last",
        log_every_steps=60,
        evaluate_every_steps=60,
        checkpoint_every_steps=60,
    ),
)


def train_in(folder: Path, config: Config = CONFIG, **request: Any) -> Path:
    text, valid = write_lines(folder / "text", LINES * 20), write_lines(folder / "valid", [*LINES * 4, ""])
    train(config, train=[Corpus(text)], valid=[valid], out=folder / "run", **request)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_in(tmp_path_factory.mktemp("masked_words"))


def test_it_learns_what_no_model_of_single_tokens_can(run: Path, cli: Callable[..., CommandResult]) -> None:
    evaluations = [line for line in reports(run) if "valid_loss" in line]
    assert evaluations[-1]["valid_loss"] < math.log(10) / 4 and evaluations[-1]["valid_accuracy"] > 90
    names = ("loss", "perplexity", "accuracy")
    scores = json.loads(cli("evaluate", run / "model", "--text", run.parent / "valid", "--json").out)
    assert [scores[name] for name in names] == [evaluations[-1][f"valid_{name}"] for name in names]
    card = (run / "model" / "README.md").read_text()
    assert card.startswith("# An encoder\n") and "accuracy" in card and "transduce fill THIS_FOLDER" in card
    assert "of the masked tokens" in (run / "report.html").read_text()


def test_a_resumed_run_is_the_same_run(run: Path, tmp_path: Path) -> None:
    train_in(tmp_path, with_train(CONFIG, max_steps=60))
    resumed = train_in(tmp_path, with_train(CONFIG, max_steps=120), resume=True, allow_change=["train.max_steps"])
    (ours,) = [path for path in checkpoints(resumed) if path.name == "step-00000120"]
    theirs = run / "checkpoints" / "step-00000120"
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def test_the_trained_model_fills_in_words(run: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    answers = TextEncoder.load(run / "model").fill(MASKED, n_best=1)
    assert [answer.value[0][0].text for answer in answers if answer.value] == [line[0] for line in LINES]
    lines = write_lines(tmp_path / "lines", MASKED)
    output = cli("fill", run / "model", "--input", lines).out.decode().splitlines()
    assert [line[:2] for line in output] == [f"{line[0]} " for line in LINES]


def test_hugging_face_computes_the_same_logits(run: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    assert cli("export", run / "model", "--to", "huggingface", "--out", tmp_path / "bert").code == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "bert").eval()
    loaded = load_model(run / "model")
    ids = tokenizer("a b [MASK] d e")["input_ids"]
    assert ids == [BOS, *loaded.tokenizer.encode("a b"), MASK, *loaded.tokenizer.encode("d e"), EOS]
    assert tokenizer.mask_token_id == MASK
    inputs = torch.tensor([ids])
    model: Any = loaded.model
    with torch.no_grad():
        expected = theirs(inputs).logits
        actual = model.words(model.encoder(inputs, torch.ones_like(inputs, dtype=torch.bool)))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


# ---- batches -----------------------------------------------------------------------------------------------------


def test_a_share_of_the_tokens_is_masked() -> None:
    ids = np.arange(100, 1_100)
    inputs, places = masked(ids, np.random.default_rng(1))
    assert len(places) == 150 and (np.diff(places) > 0).all()
    others = np.setdiff1d(np.arange(1_000), places)
    assert (inputs[others] == ids[others]).all()
    is_masked, stays = inputs[places] == MASK, inputs[places] == ids[places]
    assert 105 <= is_masked.sum() <= 135 and 5 <= stays.sum() <= 25
    assert np.isin(inputs[places][~is_masked], ids).all()
    assert masked(np.array([7]), np.random.default_rng(1))[1].tolist() == [0]


def test_the_choice_depends_on_seed_epoch_and_number_of_the_line_alone() -> None:
    task, rows = MaskedWordsTask(), [np.arange(10, 10 + n) for n in (9, 20, 14)]
    numbers = np.array([5, 2, 8])
    batch = task.collate(rows, rows, numbers, (3, 1))
    again = task.collate(rows[1:2], rows[1:2], numbers[1:2], (3, 1))
    assert batch.src[1, : 20 + 2].equal(again.src[0]) and batch.tgt_in[1][batch.tgt_mask[1]].equal(again.tgt_in[0])
    assert not task.collate(rows, rows, numbers, (3, 2)).src.equal(batch.src)
    assert (batch.src[0] == torch.tensor([BOS, *batch.src[0, 1:10].tolist(), EOS, *[PAD] * 11])).all()
    for i, row in enumerate(rows):
        places = batch.tgt_in[i][batch.tgt_mask[i]]
        assert batch.tgt_out[i][batch.tgt_mask[i]].tolist() == row[places.numpy() - 1].tolist()


def test_the_batch_does_not_change_the_loss(run: Path) -> None:
    model, task = load_model(run / "model").model, MaskedWordsTask()
    rows = [np.arange(10, 10 + n) for n in (9, 18, 14, 3)]
    batch = task.collate(rows, rows, np.arange(4), (1, 0))
    config = TrainConfig()
    together, alone = task.loss(model, batch, config), [task.loss(model, part, config) for part in cut(batch, 4)]
    torch.testing.assert_close(together, sum(alone), rtol=1e-5, atol=1e-5, check_dtype=False)


# ---- mistakes ----------------------------------------------------------------------------------------------------


def test_lines_and_settings_that_do_not_fit_are_refused(
    run: Path, cli: Callable[..., CommandResult], tmp_path: Path
) -> None:
    text, long = write_lines(tmp_path / "text", LINES), write_lines(tmp_path / "long", [" ".join(LETTERS * 3)])
    with pytest.raises(UserError, match="long:1: expected at most 22 tokens, not 30; split the line"):
        train(CONFIG, train=[Corpus(text)], valid=[long], out=tmp_path / "run")
    tight = replace(CONFIG, model=replace(CONFIG.model, max_positions=20))
    assert problems(tight) == ["model.max_positions=20: expected more than data.max_tokens=20, for <s>"]
    (line,) = problems(replace(CONFIG, train=with_train(CONFIG, task="language_model").train))
    assert line.startswith(
        "model.kind='bert': expected 'gpt2' or 'llama' or 'palm' or 'synthesizer' or 't6' or 'performer' or "
        "'transformer_xl' or 'decoder' or "
        "'hyena' or 'mamba' or 'rwkv' with train.task='language_model'"
    )
    assert_mistake(
        cli("translate", run / "model", "--input", text), "expected a translation model", "use transduce fill"
    )
    assert_mistake(cli("continue", run / "model", "--input", text), "expected a model that continues text")


def test_the_public_size_has_its_number_of_parameters() -> None:
    with torch.device("meta"):
        model = build(replace(BertConfig(), vocab_size=30_522))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == parameter_count(BertConfig(), 30_522) == 109_514_298
