"""COMET: the scores of a model in the form of its library, as loops over transformers' encoder compute them."""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.comet_models import SETTINGS, columns, random_weights, sentencepiece, write_comet
from support.command_line import assert_mistake
from support.toy_task import CommandResult, write_lines
from torch import Tensor

from transduce.errors import UserError
from transduce.family.comet import sparsemax
from transduce.family.inference.comet import load_comet


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comet(tmp_path_factory.mktemp("comet") / "small")


def expected_scores(folder: Path) -> list[float]:
    """Return the scores of `columns`, each text by itself, with the encoder of transformers."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    weights = random_weights()
    encoder = transformers.XLMRobertaModel(
        transformers.XLMRobertaConfig.from_pretrained(folder), add_pooling_layer=False
    )
    encoder.load_state_dict({name[14:]: value for name, value in weights.items() if name.startswith("encoder.model.")})
    encoder.eval()
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    mix = [weights[f"layerwise_attention.scalar_parameters.{i}"] for i in range(4)]
    shares = projection_on_the_simplex(torch.cat(mix).double())

    def vector(text: str) -> Tensor:
        ids = [0, *[i + 1 if i else 3 for i in pieces.encode(text)][:20], 2]
        states = encoder(torch.tensor([ids]), output_hidden_states=True).hidden_states
        mixed = sum(share * state[0].double() for share, state in zip(shares, states, strict=True))
        return (weights["layerwise_attention.gamma"] * mixed).mean(0)

    scores = []
    for source, output, reference in zip(*columns(), strict=True):
        s, m, r = vector(source), vector(output), vector(reference)
        x = torch.cat([m, r, m * r, abs(m - r), m * s, abs(m - s)])
        for i in (0, 3, 6):
            x = weights[f"estimator.ff.{i}.weight"].double() @ x + weights[f"estimator.ff.{i}.bias"]
            x = x if i == 6 else x.tanh()
        scores.append(x.item())
    return scores


def projection_on_the_simplex(weights: Tensor) -> Tensor:
    """Return the nearest distribution, by bisection of the threshold."""
    low, high = weights.min() - 1, weights.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (weights - middle).clamp(min=0).sum() > 1 else (low, middle)
    return (weights - low).clamp(min=0)


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [5.0, 0.0, 1.0], [0.3, 0.1, -0.4, 0.2], [7.0]])
def test_sparsemax_is_the_nearest_distribution(values: list[float]) -> None:
    weights = torch.tensor(values)
    assert torch.allclose(sparsemax(weights), projection_on_the_simplex(weights), atol=1e-6)


@torch.no_grad()
def test_scores_are_those_of_the_definition(folder: Path) -> None:
    ours = load_comet(folder).scores(*columns())
    assert ours == pytest.approx(expected_scores(folder), abs=1e-5)
    assert max(ours) - min(ours) > 0.01


def test_a_score_does_not_depend_on_the_other_lines(folder: Path) -> None:
    model, lines = load_comet(folder), columns()
    alone = [model.scores(*([text] for text in row))[0] for row in zip(*lines, strict=True)]
    assert model.scores(*lines) == pytest.approx(alone, abs=1e-6)


def test_evaluate_prints_the_score(folder: Path, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    files = [write_lines(tmp_path / name, lines) for name, lines in zip(("src", "hyp", "ref"), columns(), strict=True)]
    src, hyp, ref = files
    result = cli("evaluate", "--hyp", hyp, "--ref", ref, "--src", src, "--comet", folder, "--json")
    assert result.code == 0, result.err
    (scores,) = json.loads(result.out)["systems"].values()
    scores = {score["name"]: score for score in scores}
    mean = sum(load_comet(folder).scores(*columns())) / 20
    assert scores["comet"]["value"] == pytest.approx(100 * mean) and "bleu" in scores
    assert scores["comet"]["signature"] == "model:small|class:regression_metric|cut:3"
    table = write_lines(tmp_path / "table.tsv", [f"{s}\t{r}" for s, r in zip(columns()[0], columns()[2], strict=True)])
    text = cli("evaluate", "--hyp", hyp, "--src", table, "--comet", folder)
    assert f"comet                {100 * mean:7.2f}  COMET with references" in text.out.decode()
    result = cli("evaluate", "--hyp", hyp, "--ref", ref, "--comet", folder)
    assert_mistake(result, f"--comet={folder}: expected the source text, too; add --src FILE")


def saved(path: Path, **changes: Any) -> None:
    content = {"state_dict": random_weights(), "hyper_parameters": dict(SETTINGS), **changes}
    torch.save(content, path)


class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: path.unlink(),
            "expected a whole checkpoint of COMET; give the folder with checkpoints/model.ckpt",
        ),
        (lambda path: path.write_bytes(b"text"), "model.ckpt: expected a whole checkpoint of COMET"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:9_000]),
            "model.ckpt: expected a whole checkpoint",
        ),
        (lambda path: saved(path, callbacks=Harm()), "model.ckpt: expected tensors and plain values only ("),
        (lambda path: torch.save([1], path), "expected state_dict and hyper_parameters"),
        (
            lambda path: saved(path, state_dict={}),
            "expected encoder.model.embeddings.word_embeddings.weight of the shape",
        ),
        (
            lambda path: (path.parents[1] / "hparams.yaml").write_text("class_identifier: ranking_metric\n"),
            "class_identifier='ranking_metric': expected 'regression_metric' or",
        ),
        (
            lambda path: saved(path, hyper_parameters={**SETTINGS, "encoder_model": "BERT"}),
            "encoder_model='BERT': expected 'XLM-RoBERTa'",
        ),
        (
            lambda path: saved(path, hyper_parameters={**SETTINGS, "hidden_sizes": [0]}),
            "hidden_sizes=[0]: expected a list of widths",
        ),
        (
            lambda path: saved(path, state_dict={**random_weights(), "estimator.ff.6.bias": torch.tensor([torch.nan])}),
            "expected finite numbers in estimator.ff.6.bias",
        ),
        (lambda path: (path.parents[1] / "hparams.yaml").unlink(), "hparams.yaml: expected a file, but it is missing"),
        (lambda path: (path.parents[1] / "config.json").unlink(), "config.json: expected a file, but it is missing"),
        (
            lambda path: (path.parents[1] / "sentencepiece.bpe.model").write_bytes(b"text"),
            "sentencepiece.bpe.model: expected a sentencepiece model",
        ),
    ],
    ids=range(13),
)
def test_another_folder_is_one_mistake(
    change: Callable[[Path], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle that would run code runs none."""
    monkeypatch.chdir(tmp_path)
    folder = write_comet(tmp_path / "small")
    change(folder / "checkpoints" / "model.ckpt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError) as error:
            load_comet(folder)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "harm").exists()
