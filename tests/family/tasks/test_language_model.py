"""The training of language models: a tiny GPT-2 learns a toy text, from one file, by the loop of translation."""

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
from transduce.config.schema import Config, DataConfig, TrainConfig
from transduce.config.validation import problems
from transduce.data.corpora import Corpus
from transduce.data.text import read_lines
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.family.configs import GPT2Config, LlamaConfig, MambaConfig, RWKVConfig
from transduce.family.tasks.language_model import LanguageModelTask
from transduce.family.tasks.text_scores import evaluate_text, score_lines
from transduce.model.build import build
from transduce.storage.checkpoints import checkpoints
from transduce.storage.model_folder import load_model
from transduce.storage.run_log import reports
from transduce.storage.run_request import TrainRequest

LETTERS = "abcdefghij"
CONFIG = Config(
    model=GPT2Config(d_model=32, n_layers=1, n_heads=2, max_positions=24, dropout=0.1),
    data=DataConfig(vocab_size=290, batch_tokens=400, max_tokens=24, bpe_dropout=0.05),
    train=TrainConfig(
        task="language_model",
        max_steps=120,
        warmup_steps=40,
        lr_factor=0.3,
        label_smoothing=0.0,
        use="best",
        log_every_steps=60,
        evaluate_every_steps=60,
        checkpoint_every_steps=60,
    ),
)


def successive_letters(start: int) -> str:
    """Return eight letters, of which the first one decides all."""
    return " ".join(LETTERS[(start + i) % 10] for i in range(8))


LINES = [successive_letters(start) for start in range(10)]


def train_in(folder: Path, config: Config = CONFIG, **request: Any) -> Path:
    """Train on the toy text, with blank lines and one that is too long, and return the folder of the run."""
    text = write_lines(folder / "text", [*LINES * 10, "", " ", " ".join(LETTERS * 5), *LINES * 10])
    valid = [write_lines(folder / "valid", [*LINES, ""])]
    train(config, train=[Corpus(text)], valid=valid, out=folder / "run", **request)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_in(tmp_path_factory.mktemp("language_model"))


def test_it_learns_what_no_model_of_single_tokens_can(run: Path) -> None:
    """Of 9 tokens of a line, 8 are one of 10 letters and one is the end: the entropy of single tokens."""
    entropy = -8 / 9 * math.log(8 / 90) - 1 / 9 * math.log(1 / 9)
    scores = [line["valid_loss"] for line in reports(run) if "valid_loss" in line]
    assert len(scores) == 2 and scores[-1] < entropy / 4
    assert scores[-1] > math.log(10) / 9  # the first letter of a line


def test_the_scores_do_not_depend_on_the_tokenizer(run: Path) -> None:
    """Nats for all tokens are those for all words, and those for all characters."""
    (*_, last) = [line for line in reports(run) if "valid_loss" in line]
    nats = 90 * last["valid_loss"]
    assert math.log(last["valid_perplexity"]) == pytest.approx(nats / 90, abs=1e-4)
    assert math.log(last["valid_word_perplexity"]) == pytest.approx(nats / 90, abs=1e-4)  # a letter is a word
    assert last["valid_bits_per_character"] == pytest.approx(nats / 160 / math.log(2), abs=1e-4)


def test_card_and_report_name_the_task(run: Path) -> None:
    card = (run / "model" / "README.md").read_text()
    assert card.startswith("# A language model\n") and "| training text | text |" in card
    assert "gpt2, d_model 32" in card and "shared by both languages" not in card
    assert "perplexity per word" in card and card.count("on valid") == 1
    assert "Bits per character" in (run / "report.html").read_text()


def test_a_resumed_run_is_the_same_run(run: Path, tmp_path: Path) -> None:
    train_in(tmp_path, with_train(CONFIG, max_steps=60))
    resumed = train_in(tmp_path, resume=True, allow_change=["train.max_steps"])
    for ours, theirs in zip(checkpoints(resumed), checkpoints(run), strict=True):
        assert ours.name == theirs.name
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert (resumed / "model/model.safetensors").read_bytes() == (run / "model/model.safetensors").read_bytes()


def test_the_batch_does_not_change_the_loss(run: Path) -> None:
    loaded, task = load_model(run / "model"), LanguageModelTask()
    lines = [line[:n] for n, line in enumerate(LINES, start=5)]
    rows = [np.array(loaded.tokenizer.encode(line)) for line in lines]
    config = TrainConfig(label_smoothing=0.1)
    together = task.loss(loaded.model, task.collate(rows, rows, np.arange(10)), config)
    alone = [task.loss(loaded.model, task.collate([row], [row], np.arange(1)), config) for row in rows]
    torch.testing.assert_close(together, sum(alone), rtol=1e-5, atol=1e-5, check_dtype=False)
    (scores, *others) = [score_lines(loaded.model, loaded.tokenizer, text) for text in (lines, *([x] for x in lines))]
    assert scores.loss * scores.tokens == pytest.approx(sum(one.loss * one.tokens for one in others), rel=1e-5)


# ---- the trained model -------------------------------------------------------------------------------------------


def test_the_trained_model_continues_a_line(run: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    beginnings = write_lines(tmp_path / "beginnings", [line[:5] for line in LINES])
    assert cli("continue", run / "model", "--input", beginnings).out.decode().splitlines() == LINES
    model = transduce.family.load(run / "model")
    continuations = model.continue_texts([line[:5] for line in LINES])
    assert [line[:5] + one.text for line, one in zip(LINES, continuations, strict=True)] == LINES
    assert all(one.finished for one in continuations)


def test_the_command_evaluates_as_the_training_does(
    run: Path, cli: Callable[..., CommandResult], tmp_path: Path
) -> None:
    valid = run.parent / "valid"
    scores = json.loads(cli("evaluate", run / "model", "--text", valid, "--json").out)
    best = min(line["valid_loss"] for line in reports(run) if "valid_loss" in line)
    assert scores["loss"] == pytest.approx(best, abs=1e-5) and scores["tokens"] == 90
    assert b"perplexity per word" in cli("evaluate", run / "model", "--text", valid).out
    assert_mistake(cli("evaluate", run / "model", "--text", valid, "--ref", valid), "--text: expected one model")
    long = write_lines(tmp_path / "long", ["a", " ".join(LETTERS * 3)])
    assert_mistake(cli("evaluate", run / "model", "--text", long), f"{long}:2: expected at most 23 tokens, not 30")
    blank = write_lines(tmp_path / "blank", ["", "  "])
    assert_mistake(cli("evaluate", run / "model", "--text", blank), "expected a line that is not blank")


def test_hugging_face_computes_the_same_loss(run: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    folder, valid = tmp_path / "gpt", run.parent / "valid"
    assert cli("export", run / "model", "--to", "huggingface", "--out", folder).code == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    total = 0.0
    for line in LINES:
        ids = torch.tensor([[*tokenizer(line)["input_ids"], theirs.config.eos_token_id]])
        assert ids[0, 0] == theirs.config.bos_token_id and tokenizer.decode(ids[0], skip_special_tokens=True) == line
        with torch.no_grad():
            total += theirs(ids, labels=ids).loss.item() * (ids.size(1) - 1)
    ours = evaluate_text(transduce.family.load(run / "model"), valid)
    assert ours.loss == pytest.approx(total / ours.tokens, rel=1e-5)
    assert evaluate_text(transduce.family.load(folder), valid) == ours
    assert_mistake(cli("export", run / "model", "--to", "huggingface", "--out", folder), "expected a new folder")


def test_it_is_no_translation_model(run: Path) -> None:
    with pytest.raises(UserError, match="expected a translation model, not model.kind='gpt2'; use transduce continue"):
        transduce.load(run / "model")


# ---- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected at least 1 line, not an empty file"),
        (b"\n \n\t\n", "expected .* not blank"),
        (b"a b c\n\xff\n", ":2: expected UTF-8, but byte 1 of the line is 0xff"),
    ],
)
@pytest.mark.parametrize("name", ["train", "valid"])
def test_text_that_cannot_be_used_is_refused(content: bytes, message: str, name: str, tmp_path: Path) -> None:
    files = {one: write_lines(tmp_path / one, LINES) for one in ("train", "valid")}
    files[name].write_bytes(content)
    with pytest.raises(UserError, match=message):
        train(CONFIG, train=[Corpus(files["train"])], valid=[files["valid"]], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_validation_line_longer_than_the_positions_is_refused(tmp_path: Path) -> None:
    text, valid = write_lines(tmp_path / "text", LINES), write_lines(tmp_path / "valid", ["a", " ".join(LETTERS * 3)])
    with pytest.raises(UserError, match="valid:2: expected at most 23 tokens, not 30; split the line"):
        train(CONFIG, train=[Corpus(text)], valid=[valid], out=tmp_path / "run")


def test_only_long_lines_leave_nothing_to_train_on(tmp_path: Path) -> None:
    text = write_lines(tmp_path / "text", [" ".join(LETTERS * 3)] * 2)
    valid = write_lines(tmp_path / "valid", LINES)
    expected = "text: expected a line that can be used for training, but of 2 there are 2 of more than data.max_tok"
    with pytest.raises(UserError, match=expected):
        train(CONFIG, train=[Corpus(text)], valid=[valid], out=tmp_path / "run")


def test_the_number_of_texts_must_fit_the_task(tmp_path: Path) -> None:
    a, b = (write_lines(tmp_path / name, LINES) for name in "ab")
    assert TrainRequest(CONFIG, (a, b), [a, b], tmp_path / "run").problems() == [
        f"--train={a} {b}: expected one text with train.task='language_model'; give --train FILE",
        f"--valid={a} {b}: expected one text with train.task='language_model'; give --valid FILE",
    ]
    *_, line = TrainRequest("mixture", (a, b), [a], tmp_path / "run").problems()
    assert line.startswith(f"{a}: expected tab-separated columns, CSV in a file named .csv, JSON lines, ")
    (line,) = TrainRequest("gpt-small", [Corpus(a)], [b], tmp_path / "run").problems()
    assert line.endswith("expected the name of a recipe, or FILE.py:FUNCTION; did you mean 'gpt2-small'?")
    with pytest.raises(UserError, match="expected a task with source and target; use the command transduce train"):
        transduce.fit(a, a, valid=(a, a), out=tmp_path / "run", recipe=CONFIG)


def test_settings_that_do_not_fit_the_task_are_named() -> None:
    data = replace(CONFIG.data, target_tokens="symbols", tags=("<2de>",))
    assert problems(replace(CONFIG, data=data, train=replace(CONFIG.train, best_by="bleu"))) == [
        "train.best_by='bleu': expected 'loss' with train.task='language_model'",
        "data.target_tokens='symbols': expected 'subwords' with train.task='language_model'",
        "data.tags=<2de>: must not be set with train.task='language_model'",
    ]
    (line,) = problems(replace(CONFIG, data=replace(CONFIG.data, fill_middle=0.5)))
    assert line == "data.bpe_dropout=0.05: expected 0 with data.fill_middle; set it to 0"
    (line,) = problems(Config(train=CONFIG.train))
    expected = "expected 'gpt2' or 'llama' or 'palm' or 'synthesizer' or 't6' or 'performer' or "
    expected += "'transformer_xl' or 'decoder' or 'hyena' or 'mamba' or 'rwkv'"
    assert line.startswith(f"model.kind='transformer': {expected} with train.task='language_model'; use a recipe of")
    (line,) = problems(replace(CONFIG, train=TrainConfig()))
    assert line.startswith(
        "model.kind='gpt2': expected 'transformer' or 'recurrent' or 'convolutional' with train.task="
    )
    assert problems(replace(CONFIG, model=replace(CONFIG.model, n_heads=5))) == [
        "model.d_model=32: expected a multiple of model.n_heads=5; change one of them"
    ]


def test_compressed_text_is_one_text(run: Path, tmp_path: Path) -> None:
    import gzip

    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress((run.parent / "text").read_bytes()))
    config = with_train(CONFIG, max_steps=1)
    train(config, train=[Corpus(packed)], valid=[run.parent / "valid"], out=tmp_path / "run")
    assert [*read_lines(tmp_path / "run/data/train/text-0/src.txt")] == [*read_lines(run.parent / "text")]
    assert not (tmp_path / "run/data/train/text-0/tgt.txt").stat().st_size


def test_the_public_sizes_have_their_numbers_of_parameters() -> None:
    smollm2 = LlamaConfig(d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, d_ff=1_536)
    for config, vocab_size, expected in (
        (GPT2Config(), 50_257, 124_439_808),
        (smollm2, 49_152, 134_515_008),
    ):
        with torch.device("meta"):
            model = build(replace(config, vocab_size=vocab_size))
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count == parameter_count(config, vocab_size) == expected
    assert parameter_count(MambaConfig(), 50_280) == 129_135_360  # those of the members, which have their own tests
    assert parameter_count(RWKVConfig(), 50_277) == 169_342_464
    untied = replace(LlamaConfig(d_model=16, n_heads=2, n_layers=1), tied=False)
    model = build(replace(untied, vocab_size=30))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(untied, 30)


def test_a_gpt2_with_one_head_of_keys_learns_the_same_text_and_continues_it(tmp_path: Path) -> None:
    run = train_in(tmp_path, settings=["model.multi_query=true"])
    assert [line["valid_loss"] for line in reports(run) if "valid_loss" in line][-1] < 0.6
    loaded = transduce.family.load(run / "model")
    assert loaded.model.layers[0].self_attention.w_k.out_features == 16  # of one of the two heads
    texts = [output.text for output in loaded.continue_texts([line[:5] for line in LINES], beam_size=2)]
    assert [line[:5] + text for line, text in zip(LINES, texts, strict=True)] == LINES


def test_a_llama_learns_the_same_text(tmp_path: Path) -> None:
    llama = LlamaConfig(d_model=32, n_layers=1, n_heads=4, n_kv_heads=2, d_ff=64, max_positions=24)
    run = train_in(tmp_path, replace(CONFIG, model=llama))
    assert [line["valid_loss"] for line in reports(run) if "valid_loss" in line][-1] < 0.6
    assert evaluate_text(transduce.family.load(run / "model"), tmp_path / "valid").loss < 0.6
    assert problems(replace(CONFIG, model=replace(llama, n_kv_heads=3))) == [
        "model.n_kv_heads=3: expected a divisor of model.n_heads=4"
    ]
    (line,) = problems(replace(CONFIG, model=replace(llama, d_model=20)))
    assert line.startswith("model.d_model=20: expected heads of an even width")


@pytest.mark.parametrize(
    ("model", "steps"),
    [
        (MambaConfig(d_model=32, n_layers=1, d_state=4, max_positions=24), 120),
        (RWKVConfig(d_model=32, n_layers=1, max_positions=24), 120),
    ],
    ids=["mamba", "rwkv"],
)
def test_a_recurrence_learns_the_same_text_and_continues_it(model: Any, steps: int, tmp_path: Path) -> None:
    run = train_in(tmp_path, with_train(replace(CONFIG, model=model), max_steps=steps, evaluate_every_steps=40))
    loaded = transduce.family.load(run / "model")
    continuations = loaded.continue_texts([line[:5] for line in LINES], beam_size=2)
    assert [line[:5] + one.text for line, one in zip(LINES, continuations, strict=True)] == LINES
    loaded.save(tmp_path / "folder")
    assert evaluate_text(transduce.family.load(tmp_path / "folder"), tmp_path / "valid").loss < 0.6
