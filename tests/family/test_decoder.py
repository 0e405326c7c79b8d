"""A decoder of parts: its window, its kind of model, and its training by the loop of language models."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from support.command_line import assert_mistake
from support.hugging_face import TOLERANCE, difference, disturb
from support.toy_task import CommandResult, write_lines
from support.trainings import train

import transduce
from transduce.config.schema import Config, DataConfig, TrainConfig
from transduce.config.validation import problems
from transduce.data.corpora import Corpus
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.family.attention_wrappers import NO_PAST, Past
from transduce.family.configs import DecoderConfig, HyenaConfig
from transduce.family.experts import router_loss, routings
from transduce.family.rope import LinearRope, Rope, YarnRope, ntk_theta
from transduce.family.tasks.language_model import LanguageModelTask
from transduce.family.tasks.text_scores import evaluate_text
from transduce.model.build import build
from transduce.model.transformer import parameter_count as count_parameters

SIZES = DecoderConfig(vocab_size=40, d_model=24, n_layers=2, n_heads=4, max_positions=24, dropout=0.0)
POSITIONS: Sequence[Any] = get_args(get_type_hints(DecoderConfig)["positions"])
ROUTERS: Sequence[Any] = get_args(get_type_hints(DecoderConfig)["router"])
EXPERTS: Any = [replace(SIZES, n_experts=3, router=router, n_chosen=2) for router in ROUTERS]
LINES = [" ".join("abcdefghij"[(start + i) % 10] for i in range(8)) for start in range(10)]
CONFIG = Config(
    model=replace(SIZES, vocab_size=None, d_model=32, positions="alibi", window=4, dropout=0.1),
    data=DataConfig(vocab_size=290, batch_tokens=400, max_tokens=24),
    train=TrainConfig(
        task="language_model",
        max_steps=80,
        warmup_steps=40,
        lr_factor=0.3,
        label_smoothing=0.0,
        use="best",
        evaluate_every_steps=40,
        checkpoint_every_steps=80,
    ),
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def model_of(config: Any) -> Any:
    return disturb(build(config)).eval()


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_window_hides_what_is_further_back(positions: str) -> None:
    """In one layer a token sees the window; in two layers twice as far."""
    model = model_of(replace(SIZES, positions=positions, window=2))
    ids = torch.randint(40, (1, 12))
    with torch.no_grad():
        before = model(ids)
        ids[0, 3] = (ids[0, 3] + 1) % 40
        changed = (model(ids) - before).abs().amax(dim=2)[0] > 1e-6
    assert changed.tolist() == [False] * 3 + [True] * 5 + [False] * 4


@pytest.mark.parametrize("positions", POSITIONS)
def test_chunks_after_a_cache_are_the_whole_in_a_window_too(positions: str) -> None:
    model, ids = model_of(replace(SIZES, positions=positions, window=3)), torch.randint(40, (2, 9))
    past, parts = NO_PAST, []
    with torch.no_grad():
        for chunk in ids.split([5, 1, 3], dim=1):
            states, past = model.states(chunk, past)
            parts.append(model.output(states))
        assert difference(torch.cat(parts, dim=1), model(ids)) < TOLERANCE
        padded = torch.cat([torch.zeros(2, 2, dtype=torch.long), ids], dim=1)
        states, _ = model.states(padded, Past(padding=torch.tensor([2, 2])))
        assert difference(model.output(states[:, 2:]), model(ids)) < TOLERANCE


@pytest.mark.parametrize(
    "config",
    [
        *(replace(SIZES, positions=positions) for positions in POSITIONS),
        *EXPERTS,
        HyenaConfig(vocab_size=40, d_model=24, n_layers=2),
    ],
    ids=lambda config: "-".join(str(getattr(config, name, "")) for name in ("kind", "positions", "router")),
)
def test_the_number_of_parameters_is_that_of_the_model(config: Any) -> None:
    assert parameter_count(config, 40) == count_parameters(build(config))


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("plain", Rope()),
        ("linear", LinearRope(factor=4.0)),
        ("ntk", Rope(ntk_theta(10_000.0, 4.0, 6))),
        ("yarn", YarnRope(factor=4.0, n_positions=5)),
    ],
)
def test_a_setting_scales_the_frequencies(name: Any, rope: Rope) -> None:
    config, ids = replace(SIZES, rope=name, rope_factor=4.0, rope_length=5), torch.randint(40, (1, 9))
    model = model_of(config)
    assert model.positions.rope == rope
    plain = model_of(SIZES)
    plain.load_state_dict(model.state_dict())  # scaling has no weights
    with torch.no_grad():
        assert (difference(model(ids), plain(ids)) < TOLERANCE) == (name == "plain")


@pytest.mark.parametrize("config", EXPERTS, ids=ROUTERS)
def test_the_balance_joins_the_gradient_and_not_the_logged_loss(config: Any) -> None:
    model, task, settings = model_of(config), LanguageModelTask(), TrainConfig(label_smoothing=0.0)
    rows = [np.arange(4, 4 + n) for n in (5, 7)]
    batch = task.collate(rows, rows, np.arange(2))
    loss = task.loss(model, batch, settings)
    model.zero_grad()
    loss.backward()
    actual = {name: parameter.grad for name, parameter in model.named_parameters()}
    logits = model(batch.tgt_in)[batch.tgt_mask]
    tokens = torch.nn.functional.cross_entropy(logits, batch.tgt_out[batch.tgt_mask], reduction="sum")
    model.zero_grad()
    (tokens + 14 * router_loss(routings(model))).backward()
    assert loss.item() == pytest.approx(tokens.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(actual[name], parameter.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_model": 20, "n_heads": 4, "positions": "rope"}, "model.d_model=20: expected heads of an even width"),
        ({"n_experts": 2, "router": "top_k", "n_chosen": 3}, "model.n_chosen=3: expected 2 to model.n_experts=2"),
        ({"n_experts": 2, "router": "top_k", "n_chosen": 1}, "model.n_chosen=1: expected 2 to model.n_experts=2; the"),
        ({"window": 0}, "model.window=0: expected 1 to 10,000"),
        ({"n_experts": 0}, "model.n_experts=0: expected 1 to 10,000"),
        ({"rope": "linear"}, "model.rope=linear: expected plain with model.positions=alibi"),
        ({"positions": "rope", "rope": "yarn"}, "model.rope_length=null: expected the longest text of the training"),
        ({"positions": "rope", "rope": "linear", "rope_factor": 0.5}, "model.rope_factor=0.5: expected 1 to 10,000"),
        (
            {"positions": "rope", "rope": "ntk", "d_model": 8},
            "model.d_model=8: expected heads of 4 values or more, for model.rope=ntk",
        ),
    ],
)
def test_parts_that_cannot_be_built_are_refused(settings: dict[str, Any], message: str) -> None:
    (line,) = problems(replace(CONFIG, model=replace(CONFIG.model, **settings)))
    assert line.startswith(message)


@pytest.mark.parametrize(
    "model",
    [
        CONFIG.model,
        replace(CONFIG.model, positions="rope", window=None, n_experts=3),
        replace(CONFIG.model, positions="rope", window=None, rope="yarn", rope_factor=4.0, rope_length=12),
        HyenaConfig(d_model=32, n_layers=1, max_positions=24),
    ],
    ids=["window", "experts", "yarn", "hyena"],
)
def test_the_loop_trains_it_and_the_search_continues_by_it(
    model: Any, cli: Callable[..., CommandResult], tmp_path: Path
) -> None:
    text, valid = write_lines(tmp_path / "text", LINES * 20), write_lines(tmp_path / "valid", LINES)
    run = tmp_path / "run"
    train(replace(CONFIG, model=model), train=[Corpus(text)], valid=[valid], out=run)
    loaded = transduce.family.load(run / "model", precision="auto")
    assert loaded.precision == "fp32" and evaluate_text(loaded, valid).loss < 0.6
    beginnings = write_lines(tmp_path / "beginnings", [line[:5] for line in LINES])
    for options in ([], ["--beam-size", "2"]):
        assert cli("continue", run / "model", "--input", beginnings, *options).out.decode().splitlines() == LINES
    assert_mistake(cli("continue", run / "model", "--precision", "int8"), "precision='int8': expected fp32")
    out = tmp_path / "theirs"
    refusal = f"{out}: expected a model that can be written in Hugging Face's form, not {model.kind}; keep the folder"
    assert_mistake(cli("export", run / "model", "--to", "huggingface", "--out", out), refusal)
    with pytest.raises(UserError, match="expected a model that can be written in"):
        loaded.save(out)
    assert not out.exists()
