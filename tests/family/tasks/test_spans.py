"""Span corruption as a task: a tiny T5 learns a toy text by the loop of translation."""

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

import transduce.family
from transduce.config.schema import Config, DataConfig, TrainConfig
from transduce.config.validation import problems
from transduce.data.corpora import Corpus
from transduce.data.vocabulary import EOS, PAD
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.family.configs import SENTINELS, T5Config
from transduce.family.inference.text_to_text import TextToText
from transduce.family.tasks.spans import SpanTask, corrupted_line
from transduce.model.build import build
from transduce.storage.checkpoints import checkpoints
from transduce.storage.model_folder import load_model
from transduce.storage.run_log import reports
from transduce.training.gradients import cut

LETTERS = "abcdefghij"
LINES = [" ".join(letter * 7) for letter in LETTERS]  # of seven tokens, one is replaced, which the others tell
CORRUPTED = [f"{line[:5]}<extra_id_0>{line[8:]}" for line in LINES]
CONFIG = Config(
    model=T5Config(d_model=32, n_layers=1, n_heads=2, dropout=0.0),
    data=DataConfig(vocab_size=290, batch_tokens=400, max_tokens=20),
    train=TrainConfig(
        task="spans",
        max_steps=180,
        warmup_steps=40,
        lr_factor=0.5,
        label_smoothing=0.0,
        use="last",
        log_every_steps=60,
        evaluate_every_steps=60,
        checkpoint_every_steps=60,
    ),
)
ROWS = [np.arange(10, 10 + n) for n in (9, 40, 14, 1)]


def train_in(folder: Path, config: Config = CONFIG, **request: Any) -> Path:
    text = write_lines(folder / "text", [*LINES * 20, "a", "b", "", " "])
    valid = write_lines(folder / "valid", [*LINES * 4, "", "c"])
    train(config, train=[Corpus(text)], valid=[valid], out=folder / "run", **request)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_in(tmp_path_factory.mktemp("spans"))


def test_it_learns_what_no_model_without_the_source_can(run: Path, cli: Callable[..., CommandResult]) -> None:
    evaluations = [line for line in reports(run) if "valid_loss" in line]
    assert evaluations[-1]["valid_loss"] < math.log(10) / 3 / 4 and evaluations[-1]["valid_accuracy"] > 95
    names = ("loss", "perplexity", "accuracy")
    scores = json.loads(cli("evaluate", run / "model", "--text", run.parent / "valid", "--json").out)
    assert [scores[name] for name in names] == [evaluations[-1][f"valid_{name}"] for name in names]
    card = (run / "model" / "README.md").read_text()
    assert card.startswith("# A text-to-text model\n") and "accuracy" in card
    assert '`transduce.family.load("THIS_FOLDER").generate(' in card
    assert "of the tokens of the targets" in (run / "report.html").read_text()


def test_a_resumed_run_is_the_same_run(run: Path, tmp_path: Path) -> None:
    train_in(tmp_path, with_train(CONFIG, max_steps=60))
    resumed = train_in(tmp_path, with_train(CONFIG, max_steps=120), resume=True, allow_change=["train.max_steps"])
    (ours,) = [path for path in checkpoints(resumed) if path.name == "step-00000120"]
    theirs = run / "checkpoints" / "step-00000120"
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def test_the_trained_model_restores_spans(run: Path) -> None:
    model = transduce.family.load(run / "model")
    assert isinstance(model, TextToText)
    outputs = model.generate_texts([*CORRUPTED, ""], max_tokens=5)
    assert [output.text for output in outputs] == [*(f"<extra_id_0> {letter}" for letter in LETTERS), ""]
    assert all(output.finished for output in outputs)


def test_hugging_face_computes_the_same_loss(run: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    assert cli("export", run / "model", "--to", "huggingface", "--out", tmp_path / "t5").code == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "t5")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "t5").eval()
    loaded, task = load_model(run / "model"), SpanTask()
    n_rows = theirs.config.vocab_size
    assert n_rows == len(tokenizer) == loaded.tokenizer.vocab_size + SENTINELS

    ids = tokenizer("a b <extra_id_0> d <extra_id_99>")["input_ids"]
    a_b, d = (loaded.tokenizer.encode(text) for text in ("a b", "d"))
    assert ids == [*a_b, n_rows - 1, *d, n_rows - SENTINELS, EOS]

    batch = task.collate(ROWS, ROWS, np.arange(4), (1, 0))
    labels = (batch.tgt_out % n_rows).where(batch.tgt_mask, -100)
    with torch.no_grad():
        mean = theirs(batch.src % n_rows, attention_mask=batch.src_mask.long(), labels=labels).loss
        ours = task.loss(loaded.model, batch, CONFIG.train)
    assert float(ours) == pytest.approx(float(mean) * int(batch.tgt_mask.sum()), rel=1e-5)

    inputs = tokenizer(CORRUPTED[0], return_tensors="pt")
    output = theirs.generate(**inputs, max_new_tokens=5, do_sample=False, num_beams=1)
    assert tokenizer.decode(output[0], skip_special_tokens=True) == "<extra_id_0> a"


# ---- batches -----------------------------------------------------------------------------------------------------


def restored(source: list[int], target: list[int]) -> list[int]:
    """Put the spans of a target without padding back into the source."""
    spans, span = dict[int, list[int]](), list[int]()
    for token in target[:-1]:
        if token < 0:
            span = spans[token] = []
        else:
            span.append(token)
    assert source[-1] == target[-1] == EOS and [*spans] == [-1 - i for i in range(len(spans))]
    return [token for one in source[:-1] for token in spans.get(one, [one])]


def test_a_batch_has_the_lines_in_two_parts() -> None:
    batch = SpanTask().collate(ROWS, ROWS, np.arange(4), (1, 0))
    for i, row in enumerate(ROWS):
        source, target = batch.src[i][batch.src_mask[i]].tolist(), batch.tgt_out[i][batch.tgt_mask[i]].tolist()
        assert restored(source, target) == row.tolist()
        assert batch.tgt_in[i][batch.tgt_mask[i]].tolist() == [PAD, *target[:-1]]
    assert batch.src[3, :3].tolist() == [10, EOS, PAD] and batch.tgt_out[3, :2].tolist() == [EOS, PAD]  # one token


def test_a_rank_without_lines_has_a_batch() -> None:
    rows = [np.array([3])]
    assert SpanTask().collate(rows, rows, np.array([], int)).src.tolist() == [[3, EOS]]


def test_the_spans_depend_on_seed_epoch_and_number_of_the_line_alone() -> None:
    task, numbers = SpanTask(), np.array([5, 2, 8, 3])
    batch = task.collate(ROWS, ROWS, numbers, (3, 1))
    again = task.collate(ROWS[1:2], ROWS[1:2], numbers[1:2], (3, 1))
    assert batch.src[1].equal(again.src[0]) and batch.tgt_out[1].equal(again.tgt_out[0])
    others = [((3, 2), numbers), ((4, 1), numbers), ((3, 1), numbers + 1)]
    assert not any(task.collate(ROWS, ROWS, of, key).src.equal(batch.src) for key, of in others)


def test_the_sentinels_suffice_for_a_very_long_line() -> None:
    for n in (1_999, 2_010, 8_192):
        source, target = (part.tolist() for part in corrupted_line(np.arange(10, 10 + n), np.random.default_rng(n)))
        assert restored(source, target) == [*range(10, 10 + n)]
        assert sum(token < 0 for token in target) == SENTINELS


def test_the_batch_does_not_change_the_loss(run: Path) -> None:
    model, task = load_model(run / "model").model, SpanTask()
    batch, config = task.collate(ROWS, ROWS, np.arange(4), (1, 0)), TrainConfig()
    together, alone = task.loss(model, batch, config), [task.loss(model, part, config) for part in cut(batch, 4)]
    torch.testing.assert_close(together, sum(alone), rtol=1e-5, atol=1e-5, check_dtype=False)


def test_half_precision_and_two_passes_are_close(run: Path) -> None:
    model, task = load_model(run / "model").model, SpanTask()
    batch = task.collate(ROWS, ROWS, np.arange(4), (1, 0))
    expected = task.loss(model, batch, TrainConfig()).item()
    for config in (TrainConfig(precision="bf16"), TrainConfig(rdrop=1.0)):
        assert task.loss(model, batch, config).item() == pytest.approx(expected, rel=0.02)


# ---- mistakes ----------------------------------------------------------------------------------------------------


def test_lines_and_settings_that_do_not_fit_are_refused(
    run: Path, cli: Callable[..., CommandResult], tmp_path: Path
) -> None:
    text, blank = write_lines(tmp_path / "text", LINES), write_lines(tmp_path / "blank", ["", " "])
    long = write_lines(tmp_path / "long", ["a " * 8_193])
    with pytest.raises(UserError, match="long:1: expected at most 8,192 tokens, not 8,19"):
        train(CONFIG, train=[Corpus(text)], valid=[long], out=tmp_path / "run")
    with pytest.raises(UserError, match="blank: expected a line that is not blank"):
        train(CONFIG, train=[Corpus(text)], valid=[blank], out=tmp_path / "run")
    with pytest.raises(UserError, match="blank"):
        train(CONFIG, train=[Corpus(blank)], valid=[text], out=tmp_path / "run")
    assert problems(replace(CONFIG, model=replace(CONFIG.model, n_heads=3))) == [
        "model.d_model=32: expected a multiple of model.n_heads=3; change one of them"
    ]
    assert problems(replace(CONFIG, model=replace(CONFIG.model, n_heads=3, d_k=5))) == []
    (line,) = problems(with_train(CONFIG, task="masked_words"))
    assert line.startswith("model.kind='t5': expected 'bert' or 'longformer' or 'linformer' with train.task=")
    assert_mistake(
        cli("translate", run / "model", "--input", text), "expected a translation model", "use transduce.family.load\n"
    )
    assert_mistake(
        cli("continue", run / "model", "--input", text),
        "expected a model that continues text",
        "`transduce.family.load`",
    )


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (T5Config(), 60_506_624),  # t5-small
        (T5Config(n_layers=8, n_heads=6, d_k=64, d_ff=1_024, gated=True, tied=False), 76_961_152),  # t5-v1_1-small
    ],
)
def test_the_public_sizes_have_their_number_of_parameters(config: T5Config, count: int) -> None:
    vocab_size = 32_128 - SENTINELS
    with torch.device("meta"):
        model = build(replace(config, vocab_size=vocab_size))
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert parameter_count(config, vocab_size) == count
