"""The claims without a table: attention without its factor, longer text, label smoothing."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.studies import write_study
from support.toy_task import write_pairs

from transduce.config.schema import ModelConfig
from transduce.data.batches import collate
from transduce.errors import UserError
from transduce.evaluation.study_report import html_page, markdown
from transduce.model.attention import attention_weights
from transduce.model.transformer import Transformer
from transduce.recipes import find_recipe
from transduce.studies import claims, claims_report, scaling
from transduce.studies.claims import run_claims, write_short_texts
from transduce.studies.claims_report import report
from transduce.studies.entries import encode_config
from transduce.studies.results import Results, read_results
from transduce.studies.scaling import UnscaledTransformer, _Recorder, jacobian_norm, unscaled_attention
from transduce.studies.texts import Texts
from transduce.studies.trainings import Training

SIZES = ModelConfig(vocab_size=30, d_model=16, n_layers=2, n_heads=2, d_ff=32, d_k=9, d_v=8, dropout=0.0)


def rows(*lengths: int) -> list[np.ndarray]:
    return [np.arange(length) % 20 + 5 for length in lengths]


# ---- §3.2.1 ------------------------------------------------------------------------------------------------------


def test_the_model_without_the_factor_has_larger_scores_in_every_attention() -> None:
    """Queries that are sqrt(d_k) times as large make the model with the factor equal to the one without it."""
    torch.manual_seed(1)
    scaled, unscaled = Transformer(SIZES).eval(), UnscaledTransformer(SIZES).eval()
    unscaled.load_state_dict(scaled.state_dict())
    batch = collate(rows(4, 7), rows(6, 5))
    inputs = batch.src, batch.src_mask, batch.tgt_in
    assert not torch.allclose(scaled(*inputs), unscaled(*inputs), atol=1e-3)
    with torch.no_grad():
        for name, parameter in scaled.named_parameters():
            if ".w_q." in name:
                parameter *= math.sqrt(9)
    torch.testing.assert_close(scaled(*inputs), unscaled(*inputs))


def test_attention_without_the_factor_is_the_softmax_of_the_products() -> None:
    queries, keys, values = torch.randn(3, 1, 2, 4, 9).unbind()
    weights = (queries @ keys.transpose(-2, -1)).masked_fill(~torch.ones(4, 4).tril().bool(), -math.inf).softmax(-1)
    torch.testing.assert_close(unscaled_attention(queries, keys, values, "causal", 0.0), weights @ values)


def test_the_gradient_is_the_norm_of_the_jacobian_of_the_softmax() -> None:
    scores = torch.randn(5, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), scores)
    assert isinstance(jacobian, torch.Tensor)
    torch.testing.assert_close(jacobian_norm(scores.softmax(-1)), jacobian.norm())
    assert jacobian_norm(torch.tensor([1.0, 0, 0])) == 0


def test_the_statistics_are_those_of_the_visible_scores() -> None:
    queries, keys, values = torch.randn(3, 1, 2, 4, 16).unbind()
    recorders = _Recorder(None), _Recorder(1.0)
    outputs = [recorder(queries, keys, values, "causal", 0.0) for recorder in recorders]
    torch.testing.assert_close(outputs[0], attention_weights(queries, keys, "causal") @ values)
    scores = (queries @ keys.transpose(-2, -1))[0]
    expected = [scores[head, i, : i + 1].var(unbiased=False) for head in range(2) for i in (1, 2, 3)]
    assert recorders[1].means()["variance"] == pytest.approx(float(torch.stack(expected).mean()), rel=1e-4)
    assert recorders[1].means()["variance"] == pytest.approx(16 * recorders[0].means()["variance"], rel=1e-4)
    assert recorders[1].means()["gradient"] < recorders[0].means()["gradient"]


# ---- §3.5 and §5.4 -----------------------------------------------------------------------------------------------


def test_models_are_trained_on_the_short_half_and_evaluated_on_longer_pairs(tmp_path: Path) -> None:
    """A longer pair has a source of more than 1.4 times the words; the pairs between are in neither text."""
    train = ["a b", "a b c", "a b c d", "a b c d e f"]
    valid = ["a", "a b c", "a b c d", "a b c d e", "a b c d e f g"]
    texts = Texts(write_pairs(tmp_path, "train", train), write_pairs(tmp_path, "valid", valid))
    short = write_short_texts(texts, tmp_path / "short")
    assert short.train[0].read_text("utf-8").splitlines() == ["a b", "a b c"]
    assert short.valid[0].read_text("utf-8").splitlines() == ["a", "a b c"]
    assert short.test and short.test[0].read_text("utf-8").splitlines() == ["a b c d e", "a b c d e f g"]
    with pytest.raises(UserError, match=r"other.src: expected pairs of at most 3 words.* more than 4.2 words"):
        write_short_texts(Texts(texts.train, write_pairs(tmp_path, "other", ["a b"])), tmp_path / "short")


def test_the_trainings_differ_in_one_setting_each() -> None:
    base = find_recipe("small-table3-base")()
    assert len(claims.trainings()) == 10 and len(scaling.trainings()) == 12
    configs = {one.row: one.config() for one in claims.trainings()}
    assert {row: config.train.label_smoothing for row, config in configs.items()} == {
        "smoothing0.1": 0.1, "smoothing0": 0, "sinusoids": 0.1, "learned": 0.1
    }  # fmt: skip
    assert [row for row, config in configs.items() if config.model != base.model] == ["learned"]
    for one in scaling.trainings():
        assert one.config().model.d_k in scaling.WIDTHS and one.config().model.d_v == 32


# ---- the study ---------------------------------------------------------------------------------------------------


def entry(row: str, seed: int, perplexity: float, **figures: object) -> dict[str, object]:
    costs = {"parameters": 1_900_544, "seconds": 500.0, "cpu_seconds": 300.0, "bleu": 30.0 + seed / 10}
    return {"status": "done", "row": row, "seed": seed, "perplexity": perplexity, **costs, **figures}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Without the factor, d_k 256 is worse, and d_k 16 is not; longer text needs sinusoids; smoothing helps BLEU."""
    study = Results(tmp_path / "results.json", "claims", {"language": "en"})
    config = encode_config(find_recipe("small-table3-base")())
    softmax = {"variance": 1.0, "gradient": 0.25, "components": 0.5}
    for seed in (1, 2):
        for width in scaling.WIDTHS:
            for row, factor in (("scaled", 1.0), ("unscaled", 1.5 if width == 256 else 1.0)):
                statistics = {"softmax_start": softmax, "softmax_end": {**softmax, "variance": float(width)}}
                name = f"{row}-dk{width}"
                study.entries[f"{name}-{seed}"] = entry(name, seed, 20 * factor + seed / 10, **statistics)
        for row, longer in (("sinusoids", 15.0), ("learned", 40.0)):
            test = {"perplexity": longer + seed / 10, "bleu": 300 / longer}
            study.entries[f"{row}-{seed}"] = entry(row, seed, 10 + seed / 10, test=test)
        for row, change in (("smoothing0.1", 1.0), ("smoothing0", 0.0)):
            one = entry(row, seed, 10 + change + seed / 10, accuracy=60 + 2 * change + seed / 10, config=config)
            study.entries[f"{row}-{seed}"] = one
    study.save()
    return study


def test_each_claim_has_one_sentence(results: Results) -> None:
    text = markdown(report(results))
    assert "d_k 16: cannot be told (x 1.000, 0.99" in text and "d_k 256: holds (x 1.4" in text
    assert "on longer pairs). This holds (x 2.6" in text and "On short pairs: x 1.000, 0.9" in text
    assert "hurts perplexity: holds (x 1.09" in text and "accuracy: holds (+2.00, +1.70 to +2.30 %)" in text
    assert "BLEU: cannot be told (+0.00, -0.30 to +0.30)" in text
    assert "| 256 | none | 0.5 | 1 | 256 | 0.25 | 0.25 | 30.15 (30.10 to 30.20) | 1 2 |" in text
    assert "| learned | 10.15 (10.10 to 10.20) | 40.15 (40.10 to 40.20) | 3.96 |" in text
    assert "The model is 3 + 3 layers, d_model 128" in text and html_page(report(results))
    assert markdown(report(read_results(results.path))) == text


def test_what_is_missing_is_reported(results: Results) -> None:
    results.entries = {name: one for name, one in results.entries.items() if name.startswith("smoothing")}
    del results.entries["smoothing0-1"]["accuracy"]
    results.entries["learned-1"] = {"status": "failed", "row": "learned", "seed": 1, "why": "train: a disk is full"}
    text = markdown(report(results))
    assert text.count("cannot be told, not run") == 5 and "Failed: learned-1: train: a disk is full." in text
    empty = Results(results.path, "claims", {})
    assert "0 trainings done" in markdown(report(empty)) and html_page(report(empty))


RECIPE = """
from transduce import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig

def tiny() -> Config:
    return Config(
        model=ModelConfig(vocab_size=None, d_model=16, n_layers=1, n_heads=2, d_ff=16),
        data=DataConfig(vocab_size=300, batch_tokens=100, max_tokens=32),
        train=TrainConfig(
            max_steps=20, warmup_steps=10, log_every_steps=5, checkpoint_every_steps=10, evaluate_every_steps=20,
            keep_checkpoints=2, use="last",
        ),
        search=SearchConfig(max_extra_tokens=5),
    )
"""


@pytest.mark.slow
def test_a_study_has_all_figures_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path, RECIPE)
    lines = ["a b c d", "b c", "c d e f g", "a", "a b c d e f g a b c"] * 8
    texts = Texts(write_pairs(tmp_path, "train", lines), write_pairs(tmp_path, "valid", lines[:10]))
    recipe, out = f"{tmp_path / 'recipe.py'}:tiny", tmp_path / "out"
    learned = ("model.positions=learned", "model.max_positions=64")
    processes = [Training(row, 1, recipe) for row in ("smoothing0.1", "smoothing0", "sinusoids")]
    monkeypatch.setattr(claims, "trainings", lambda: [*processes, Training("learned", 1, recipe, learned)])
    here = [Training(row, 1, recipe, ("model.d_k=16",)) for row in ("scaled-dk16", "unscaled-dk16")]
    monkeypatch.setattr(scaling, "trainings", lambda: here)
    monkeypatch.setattr(claims_report, "WIDTHS", (16,))

    measure, calls = scaling.train_and_measure, []

    def interrupt(training: Training, texts: Texts, run: Path) -> dict[str, object]:
        calls.append(training.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(training, texts, run)

    monkeypatch.setattr(scaling, "train_and_measure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_claims(texts, out, jobs=2)
    before = json.loads((out / "results.json").read_bytes())["cells"]
    assert before["scaled-dk16-1"]["status"] == "done" and not (out / "runs" / "scaled-dk16-1").exists()
    results = run_claims(texts, out, jobs=2)
    assert calls == ["scaled-dk16-1", "unscaled-dk16-1", "unscaled-dk16-1"]
    assert {name: one["status"] for name, one in results.entries.items()} == dict.fromkeys(results.entries, "done")
    assert results.entries["scaled-dk16-1"] == before["scaled-dk16-1"]
    first, second = (results.entries[f"{row}-dk16-1"] for row in ("scaled", "unscaled"))
    assert second["softmax_start"]["variance"] > 8 * first["softmax_start"]["variance"]
    assert first["perplexity"] != second["perplexity"]
    assert 0 <= results.entries["smoothing0-1"]["accuracy"] <= 100 and "test" in results.entries["learned-1"]
    assert "not run" not in (out / "report.md").read_text("utf-8")
