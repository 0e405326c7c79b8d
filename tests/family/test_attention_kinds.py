"""Members with another attention as kinds of model: the loop trains them, and what it stores is the whole model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import assert_mistake
from support.hugging_face import TOLERANCE, difference, disturb
from support.toy_task import CommandResult, write_lines
from support.trainings import CONFIG as TRANSLATION
from support.trainings import train, with_train, write_texts
from torch import Tensor

import transduce
from transduce.config.kinds import KINDS
from transduce.config.schema import Config, DataConfig, TrainConfig
from transduce.config.validation import problems
from transduce.data.corpora import Corpus
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.family.attention_configs import (
    LinformerConfig,
    LongformerConfig,
    PalmConfig,
    PerformerConfig,
    SynthesizerConfig,
    T6Config,
)
from transduce.family.bert import Bert
from transduce.family.configs import BertConfig, TransformerXLConfig
from transduce.family.inference.model_folder import member_of
from transduce.family.inference.text_encoder import TextEncoder
from transduce.family.performer import Performer
from transduce.family.tasks.masked_words import MaskedWordsTask
from transduce.family.tasks.token_scores import evaluate_restored
from transduce.family.transformer_xl import TransformerXL
from transduce.model.attention import Attention, fast_attention
from transduce.model.build import build
from transduce.model.transformer import Transformer
from transduce.model.transformer import parameter_count as count_parameters
from transduce.storage.checkpoints import checkpoints, load_checkpoint
from transduce.storage.model_folder import load_model
from transduce.storage.run_log import reports
from transduce.train import TranslationTask
from transduce.training.state import TrainingState, move_average
from transduce.training.weights import weights
from transduce.translate import Translator

SIZES: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_positions": 24}
DECODERS = [
    T6Config(**SIZES, d_ff=32),
    PerformerConfig(**SIZES, n_features=8),
    TransformerXLConfig(**SIZES),
    PalmConfig(**SIZES),
    SynthesizerConfig(**SIZES, scores="factorised_dense"),
]
ENCODERS = [LongformerConfig(**SIZES, reach=2), LinformerConfig(**SIZES, rank=3)]
decoders = pytest.mark.parametrize("model", DECODERS, ids=lambda model: model.kind)
encoders = pytest.mark.parametrize("model", ENCODERS, ids=lambda model: model.kind)
kinds = pytest.mark.parametrize("model", [*DECODERS, *ENCODERS], ids=lambda model: model.kind)
LINES = [" ".join("abcdefghij"[(start + i) % 10] for i in range(8)) for start in range(10)]


def config_of(model: Any, **changes: Any) -> Config:
    every = {"log_every_steps": 2, "evaluate_every_steps": 2, "checkpoint_every_steps": 2}
    steps: dict[str, Any] = {"task": KINDS[model.kind].tasks[0], "max_steps": 4, "warmup_steps": 2, **every}
    settings = TrainConfig(use="last", **steps)
    data = DataConfig(vocab_size=290, batch_tokens=200, max_tokens=20)
    return with_train(Config(model, data, settings), **changes)


def train_in(folder: Path, model: Any, task: Any = None, *, resume: bool = False, **changes: Any) -> Path:
    """Train a model, and return the folder of the run. resume: with other steps than before."""
    text, valid = write_lines(folder / "text", LINES * 8), write_lines(folder / "valid", LINES)
    files = {"train": [Corpus(text)], "valid": [valid], "out": folder / "run"}
    allow_change = ["train.max_steps"] if resume else []
    train(config_of(model, **changes), task, **files, resume=resume, allow_change=allow_change)
    return folder / "run"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


@kinds
def test_the_number_of_parameters_is_that_of_the_model(model: Any) -> None:
    assert parameter_count(model, 40) == count_parameters(build(replace(model, vocab_size=40)))
    if isinstance(model, T6Config):
        untied = replace(model, tied=False, q_rank=3, vocab_size=40)
        assert parameter_count(untied, 40) == count_parameters(build(untied))


@pytest.mark.parametrize(
    ("model", "setting", "message"),
    [
        (DECODERS[0], {"q_rank": 0}, "model.q_rank=0: expected 1 to 10,000"),
        (DECODERS[0], {"d_model": 18}, "model.d_model=18: expected heads of an even width"),
        (DECODERS[1], {"n_features": 0}, "model.n_features=0: expected 1 to 10,000"),
        (DECODERS[2], {"n_memory": 0}, "model.n_memory=0: expected 1 to 10,000"),
        (DECODERS[2], {"d_model": 15, "n_heads": 3}, "model.d_model=15: expected an even number"),
        (ENCODERS[0], {"reach": 0}, "model.reach=0: expected 1 to 10,000"),
        (ENCODERS[1], {"rank": 20_000}, "model.rank=20000: expected 1 to 10,000"),
        (ENCODERS[1], {"n_heads": 3}, "model.d_model=16: expected a multiple of model.n_heads=3"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(model: Any, setting: dict[str, Any], message: str) -> None:
    (line,) = problems(config_of(replace(model, **setting), max_steps=4))
    assert line.startswith(message)


# ---- trained models ----------------------------------------------------------------------------------------------


@decoders
def test_a_decoder_is_trained_and_continues_text(model: Any, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    run = train_in(tmp_path, model)
    last = [*reports(run)][-1]["valid_loss"]
    scores = json.loads(cli("evaluate", run / "model", "--text", tmp_path / "valid", "--json").out)
    assert scores["loss"] == pytest.approx(last, abs=1e-5)
    loaded = transduce.family.load(run / "model", precision="auto")
    member, ids = disturb(loaded.model).eval(), torch.randint(260, (2, 9))
    with torch.no_grad():
        states, past = member.states(ids[:, :5])
        parts = [states]
        for one in ids[:, 5:].split(1, dim=1):
            states, past = member.states(one, past)
            parts.append(states)
        assert difference(member.output(torch.cat(parts, dim=1)), member(ids)) < TOLERANCE
    beginnings = write_lines(tmp_path / "beginnings", [line[:5] for line in LINES[:2]])
    for options in ([], ["--beam-size", "2"]):
        output = cli("continue", run / "model", "--input", beginnings, *options).out.decode(errors="replace")
        assert [line[:5] for line in output.splitlines()] == [line[:5] for line in LINES[:2]]
    refusal = "expected a model that can be written in Hugging Face's form"
    assert_mistake(cli("export", run / "model", "--to", "huggingface", "--out", tmp_path / "theirs"), refusal)
    assert_mistake(cli("fill", run / "model", "--input", beginnings), "use `transduce continue`")


@encoders
def test_an_encoder_is_trained_and_fills_in_words(
    model: Any, cli: Callable[..., CommandResult], tmp_path: Path
) -> None:
    run = train_in(tmp_path, model)
    scores = json.loads(cli("evaluate", run / "model", "--text", tmp_path / "valid", "--json").out)
    assert scores["loss"] == pytest.approx([*reports(run)][-1]["valid_loss"], abs=1e-5)
    encoder = transduce.family.load(run / "model")
    lines = ["a b [MASK] d e", "c [MASK] e f g h i j", "d e [MASK] g h"]
    disturb(encoder.model)
    together, alone = encoder.fill(lines, 3), [encoder.fill([line], 3)[0] for line in lines]
    assert together == alone and together[0].value[0][0].probability != together[2].value[0][0].probability
    lines = [str(write_lines(tmp_path / "labels", ["x", "y"] * 5)), str(tmp_path / "valid")]
    finetune = ("finetune", run / "model", "--train", lines[1], lines[0], "--valid", lines[1], lines[0])
    assert_mistake(cli(*finetune, "--out", tmp_path / "c"), f"model_type='{model.kind}': expected a BERT")
    assert_mistake(cli("continue", run / "model", "--input", lines[0]), "use `transduce fill` or `embed`")
    assert cli("embed", run / "model", "--input", lines[1]).code == 0


def test_a_resumed_performer_is_the_same_and_has_its_directions_in_each_file(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    run, other = train_in(tmp_path, DECODERS[1]), train_in(tmp_path / "other", DECODERS[1], max_steps=2)
    train_in(tmp_path / "other", DECODERS[1], resume=True)
    for ours, theirs in zip(checkpoints(run), checkpoints(other), strict=True):
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert (ours / name).read_bytes() == (theirs / name).read_bytes()
        assert load_checkpoint(ours).weights["performer.directions"].shape == (8, 8)
    assert (run / "model/model.safetensors").read_bytes() == (other / "model/model.safetensors").read_bytes()


def test_a_moving_average_has_the_buffers_of_the_model() -> None:
    model: Any = build(replace(DECODERS[1], vocab_size=40))
    state = TrainingState(model, TrainConfig(use="ema", ema_decay=0.9), {})
    model.performer.redraw(3)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert state.ema is not None
    move_average(state.ema, model, 0.9)
    assert state.ema["performer.directions"].equal(model.performer.directions)
    assert "performer.directions" in state.weights_to_evaluate()


def test_longformer_begins_as_the_bert_of_its_sizes() -> None:
    model: Any = build(replace(ENCODERS[0], vocab_size=40))
    for layer in model.encoder.layers:
        attention = layer.self_attention
        assert attention.of_global.w_q.weight.equal(attention.local.w_q.weight)
        assert attention.of_global.w_q.weight is not attention.local.w_q.weight
        assert attention.local.w_q.weight.std() < 0.03 and not attention.local.w_q.bias.any()


def test_a_short_memory_of_transformer_xl_changes_steps_alone() -> None:
    long: Any = disturb(build(replace(DECODERS[2], vocab_size=40))).eval()
    short: Any = build(replace(DECODERS[2], vocab_size=40, n_memory=3)).eval()
    assert isinstance(long, TransformerXL) and long.n_memory == 24
    short.load_state_dict(long.state_dict())
    ids = torch.randint(40, (1, 9))
    with torch.no_grad():
        assert short.states(ids)[0].equal(long.states(ids)[0])
        (_, of_short), (_, of_long) = short.states(ids[:, :8]), long.states(ids[:, :8])
        assert [len(one.layers[0][0]) for one in (of_short, of_long)] == [3, 8]
        whole = long.states(ids)[0][:, -1:]
        assert difference(long.states(ids[:, 8:], of_long)[0], whole) < TOLERANCE
        assert difference(short.states(ids[:, 8:], of_short)[0], whole) > 1e-3


# ---- a model of one's own ----------------------------------------------------------------------------------------


class PerformerBert(Bert):
    """A BERT with directions of its own, which no configuration has."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.encoder.attention = Performer(8, 8, seed=0)


class PerformerTask(MaskedWordsTask):
    """Masked words, by a model whose directions do not follow from its configuration."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def build(self, config: Config) -> Any:
        model: Any = PerformerBert(config.model)
        model.encoder.attention.redraw(self.seed)
        return model


class PerformerTransformer(Transformer):
    """The Transformer with a Performer in its encoder."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.performer = Performer(config.d_model // config.n_heads)

    def encode(self, src: Tensor, src_mask: Tensor, attention: Attention | None = None) -> Tensor:
        return super().encode(src, src_mask, attention or self.performer)


class PerformerTranslation(TranslationTask):
    def build(self, config: Config) -> Any:
        return PerformerTransformer(config.model)


def test_a_translation_model_with_a_form_is_trained_and_loaded(tmp_path: Path) -> None:
    task = PerformerTranslation()
    steps = {"max_steps": 2, "evaluate_every_steps": 2, "checkpoint_every_steps": 2, "accumulate": 1}
    folder = train(with_train(TRANSLATION, **steps), task, **write_texts(tmp_path), out=tmp_path / "run")
    loaded = load_model(folder, task.build)
    assert isinstance(loaded.model, PerformerTransformer) and "performer.directions" in weights(loaded.model)
    assert Translator([loaded]).translate(["a b c"])[0].text is not None
    src = torch.randint(260, (1, 5))
    mask = torch.ones_like(src, dtype=torch.bool)
    exact = Transformer.encode(loaded.model, src, mask, fast_attention)
    assert difference(loaded.model.encode(src, mask), exact) > 1e-4


def test_a_model_of_a_task_is_loaded_with_its_weights_and_buffers(tmp_path: Path) -> None:
    run = train_in(tmp_path, BertConfig(**SIZES), PerformerTask(5))
    loaded = load_model(run / "model", PerformerTask(6).build)
    model: Any = loaded.model
    assert model.encoder.attention.directions.equal(Performer(8, 8, seed=5).directions)
    scores = evaluate_restored(loaded, tmp_path / "valid")
    assert scores.loss == pytest.approx([*reports(run)][-1]["valid_loss"], abs=1e-5)
    assert TextEncoder(member_of(loaded)).fill(["a [MASK] c"])[0].value
    with pytest.raises(UserError, match="encoder.attention.directions is in only one of the two"):
        load_model(run / "model")
