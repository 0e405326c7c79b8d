"""Every kind of model in the one training loop: train, resume, save, load, search, score, attend."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_runs import differences, ending
from support.toy_task import CommandResult, toy_lines, write_lines, write_pairs
from support.trainings import train

import transduce
from transduce import train as training
from transduce.config.files import to_json
from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig
from transduce.errors import UserError
from transduce.model.build import Model, build, build_without_values
from transduce.storage.atomic_folder import write_folder
from transduce.storage.model_folder import load_model
from transduce.translate import Translator

KINDS = ("recurrent", "convolutional")
Texts = dict[str, tuple[Path, Path]]


def config_of(kind: Any) -> Config:
    return Config(
        model=ModelConfig(kind=kind, vocab_size=None, d_model=16, n_layers=2, dropout=0.2),
        data=DataConfig(vocab_size=290, batch_tokens=150, max_tokens=24),
        train=TrainConfig(
            max_steps=30,
            warmup_steps=10,
            accumulate=2,
            log_every_steps=7,
            evaluate_every_steps=15,
            checkpoint_every_steps=8,
            average_checkpoints=2,
        ),
        search=SearchConfig(max_extra_tokens=3),
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    folder = tmp_path_factory.mktemp("texts")
    pairs = {"train": toy_lines(1, 200), "valid": toy_lines(2, 4)}
    return {name: write_pairs(folder, name, lines) for name, lines in pairs.items()}


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, texts: Texts) -> Path:
    """Return an uninterrupted run of each other kind."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    train(config_of(request.param), out=out, **texts)
    return out


def kind_of(run: Path) -> str:
    return json.loads((run / "config.json").read_bytes())["model"]["kind"]


def test_build_returns_a_model_of_the_kind() -> None:
    names = [type(build(ModelConfig(kind=kind, vocab_size=9))).__name__ for kind in ("transformer", *KINDS)]
    assert names == ["Transformer", "Recurrent", "Convolutional"]
    with pytest.raises(UserError, match="vocab_size=None: expected the number of pieces"):
        build(ModelConfig(kind="recurrent", vocab_size=None))
    with pytest.raises(UserError, match="model.d_ff=7: expected the default, 2048, with model.kind='recurrent'"):
        build(ModelConfig(kind="recurrent", vocab_size=9, d_ff=7))


def test_a_resumed_run_equals_an_uninterrupted_one(
    run: Path, texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = training.learning_rate
    for stop in (3, 17):
        with monkeypatch.context() as patch:

            def learning_rate(step: int, stop: int = stop, **settings: Any) -> float:
                if step == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
                return original(step, **settings)

            patch.setattr(training, "learning_rate", learning_rate)
            train(config_of(kind_of(run)), out=tmp_path / "run", resume=True, **texts)
    train(config_of(kind_of(run)), out=tmp_path / "run", resume=True, **texts)
    assert differences(ending(tmp_path / "run"), ending(run)) == []


def test_bf16_gives_nearly_the_same_score(run: Path) -> None:
    exact, bf16 = (transduce.load(run / "model", precision=p).score(["a b c"], ["c b a"])[0] for p in ("fp32", "bf16"))
    assert bf16.log_prob == pytest.approx(exact.log_prob, rel=0.02) and bf16 != exact


# ---- search and scores -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy_model(run: Path) -> Translator:
    """Return the model with random noise on its weights, so that many outputs have similar scores."""
    loaded = load_model(run / "model")
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return Translator([loaded])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_translation_does_not_depend_on_its_batch(noisy_model: Translator, beam_size: int) -> None:
    lines = ["a b c", "d", "", "f e d c b a", "j i", "a", "g h i j", "Zürich ist schön.", "b c d e f g h i j a b c"]
    together = noisy_model.translate(lines, beam_size=beam_size)
    single = [noisy_model.translate([line], beam_size=beam_size)[0] for line in lines]
    backwards = noisy_model.translate(lines[::-1], beam_size=beam_size)[::-1]
    assert [t.pieces for t in together] == [t.pieces for t in single] == [t.pieces for t in backwards]
    assert [t.score for t in together] == pytest.approx([t.score for t in single], abs=1e-5)


def test_score_equals_the_score_of_the_search(noisy_model: Translator) -> None:
    for line in ("a b c", "j i h g"):
        translation = noisy_model.translate([line])[0]
        if translation.finished:
            score = noisy_model.score([line], [translation.text])[0]
            assert score.log_prob == pytest.approx(sum(translation.token_log_probs), abs=1e-4)


def test_a_recurrent_or_convolutional_model_has_cross_attention_only(run: Path) -> None:
    attention = transduce.load(run / "model").attend("a b c", "c b a")
    source, target = len(attention.src_pieces), len(attention.tgt_pieces)
    layers = 1 if kind_of(run) == "recurrent" else 2
    assert attention.cross.shape == (layers, 1, target, source)
    assert attention.cross.sum(axis=3) == pytest.approx(1.0, abs=1e-5)
    assert attention.encoder.shape == (0, 1, source, source) and attention.decoder.shape == (0, 1, target, target)


def test_models_of_different_kinds_form_an_ensemble(run: Path, texts: Texts, tmp_path: Path) -> None:
    first = load_model(run / "model")
    sizes = ModelConfig(vocab_size=first.tokenizer.vocab_size, d_model=16, n_layers=1, n_heads=2, d_ff=16)
    other: Model = build(sizes).eval()
    both = Translator([first, replace(first, model=other)])
    assert len(both.translate(["a b c", "d"])) == 2


# ---- the command line, and damaged folders -----------------------------------------------------------------------

RECIPE = """
from transduce import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig

def small():
    return Config(
        model=ModelConfig(vocab_size=None, d_model=16, n_layers=1),
        data=DataConfig(vocab_size=290, batch_tokens=150, max_tokens=24),
        train=TrainConfig(max_steps=4, warmup_steps=2, use="last"),
        search=SearchConfig(max_extra_tokens=3),
    )
"""


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_works_through_the_command_line(
    kind: str, texts: Texts, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE, encoding="utf-8")
    texts_and_out = ["--train", *texts["train"], "--valid", *texts["valid"], "--out", tmp_path / "run"]
    begin = ["train", "--recipe", f"{tmp_path / 'recipe.py'}:small", "--set", f"model.kind={kind}"]
    result = cli(*begin, "--set", "model.d_ff=99", "--set", "model.norm=pre", *texts_and_out)
    assert result.code == 2 and not (tmp_path / "run").exists()
    assert f"model.d_ff=99: expected the default, 2048, with model.kind='{kind}'" in result.err
    assert "model.norm='pre'" in result.err
    result = cli(*begin[:-1], "model.kind=foo", *texts_and_out)
    assert result.code == 2 and "expected one of 'transformer', 'recurrent', 'convolutional'" in result.err

    result = cli(*begin, *texts_and_out)
    assert result.code == 0, result.err
    assert f"| architecture | {kind.capitalize()}, 1 + 1 layers, d_model 16 |" in (
        tmp_path / "run" / "model" / "README.md"
    ).read_text("utf-8")
    assert f"{kind.capitalize()} of 1 + 1 layers" in (tmp_path / "run" / "report.html").read_text("utf-8")
    lines = write_lines(tmp_path / "lines", ["a b c", "", "d"])
    assert cli("translate", tmp_path / "run" / "model", "--input", lines).out.count(b"\n") == 3
    evaluation = cli(
        "evaluate", tmp_path / "run" / "model", "--src", texts["valid"][0], "--ref", texts["valid"][1], "--json"
    )
    assert json.loads(evaluation.out)["perplexity"] > 1


@pytest.mark.parametrize(
    "changes", [{"kind": "transformer"}, {"n_layers": 3}, {"d_model": 1_000_000}, {"n_layers": 9_999}]
)
def test_weights_of_another_kind_or_size_are_refused(run: Path, changes: dict[str, Any], tmp_path: Path) -> None:
    config = load_model(run / "model").config
    files = {path.name: [path.read_bytes()] for path in (run / "model").iterdir() if path.name != "manifest.json"}
    files["config.json"] = [to_json(replace(config, model=replace(config.model, **changes))).encode()]
    write_folder(tmp_path / "forged", files)
    with pytest.raises(UserError, match="expected the tensors of its configuration"):
        load_model(tmp_path / "forged")


@pytest.mark.parametrize("kind", ["transformer", *KINDS])
def test_a_model_without_values_has_all_parameters_and_draws_nothing(kind: Any) -> None:
    config = replace(config_of(kind).model, vocab_size=290)
    before = torch.get_rng_state()
    empty = build_without_values(config)
    assert torch.equal(torch.get_rng_state(), before)
    model = build(config)
    assert not torch.equal(torch.get_rng_state(), before)
    assert [(name, p.shape) for name, p in empty.named_parameters()] == [
        (name, p.shape) for name, p in model.named_parameters()
    ]
