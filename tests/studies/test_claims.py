"""The claims without a table: attention without its factor, longer text, label smoothing."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.studies import write_study
from support.toy_task import ROOT, write_pairs

from transduce.config.recipes import find_recipe
from transduce.config.schema import Config, ModelConfig
from transduce.data.batches import collate
from transduce.data.text import read_pairs
from transduce.errors import NotFiniteError, UserError
from transduce.evaluation.study_report import html_page, markdown
from transduce.model.attention import attention_weights
from transduce.model.transformer import Transformer
from transduce.storage.run_request import TrainRequest
from transduce.studies import claims, claims_models, claims_report
from transduce.studies.claims import run_claims, split_texts
from transduce.studies.claims_models import (
    UnscaledTransformer,
    _Recorder,
    jacobian_norm,
    run_in_process,
    unscaled_attention,
)
from transduce.studies.claims_report import report
from transduce.studies.results import Results, encode_config, read_results
from transduce.studies.trainings import Texts, Training
from transduce.training.optimizer import learning_rate

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


def test_pairs_are_cut_by_the_pieces_of_the_tokenizer_of_the_trainings(tmp_path: Path) -> None:
    """And not by words: without merges, each letter of a rare word is a piece."""
    train = ["a b c d", "the man the man the man the man the man the man the man the man the man the man"] * 9
    train += ["qwertzuiopasdfghjklyxc", "vbnm qwer asdf yxcv hjkl"]
    valid = ["the man", "qwertzuiopasdfghjkl", "yxcvbnmasdfghjklqwertzuiop", "a b c d", "a b c d a b c d a b c d a"]
    texts = Texts(write_pairs(tmp_path, "train", train), write_pairs(tmp_path, "valid", valid), language="de")
    split = split_texts(texts, 300)
    short = split.write(tmp_path / "short", "de")
    assert short.test and list(read_pairs(*short.test)) == split.longer and short.language == "de"
    assert list(read_pairs(*short.train)) == split.train and list(read_pairs(*short.valid)) == split.valid

    request = TrainRequest(claims.BASE, short.train, short.valid, tmp_path / "run", ["data.vocab_size=300"])
    tokenizer = request.learn_tokenizer()

    def pieces(pairs: list[tuple[str, str]]) -> list[list[int]]:
        return [[len(tokenizer.encode(side)) for side in pair] for pair in pairs]

    assert max(map(max, pieces(split.train))) <= claims.SHORT and 9 <= len(split.train) < len(train)
    assert split.valid == [pair for pair in read_pairs(*texts.valid) if max(*pieces([pair])[0]) <= claims.SHORT]
    assert split.longer == [pair for pair in read_pairs(*texts.valid) if min(*pieces([pair])[0]) > claims.LONGER]
    assert ("yxcvbnmasdfghjklqwertzuiop",) * 2 in split.longer and ("the man", "man the") in split.valid
    new, total = (sum(tgt - less for _, tgt in pieces(split.longer)) for less in (claims.SHORT, 0))
    assert split.figures["new positions, %"] == pytest.approx(100 * new / total, abs=0.06)
    assert split.figures["longer pairs"] == len(split.longer) >= 1


def test_texts_without_short_or_longer_pairs_are_refused(tmp_path: Path) -> None:
    texts = Texts(write_pairs(tmp_path, "train", ["a b"]), write_pairs(tmp_path, "valid", ["a b"]))
    with pytest.raises(UserError, match=r"valid.src: expected pairs of at most 16 pieces, and pairs of more than 22"):
        split_texts(texts, 300)
    long = write_pairs(tmp_path, "long", ["qwertzuiopasdfghjklyxcvbnm"])
    with pytest.raises(UserError, match=r"long.src: expected pairs of at most 16 pieces on both sides"):
        split_texts(replace(texts, train=long), 290)


def test_relative_positions_know_the_order_only_by_distances() -> None:
    """Without their vectors the encoder has no order; a step of the search gives the same as all positions at once."""
    torch.manual_seed(1)
    model = claims_models.RelativeTransformer(SIZES).eval()
    src = torch.randint(5, 25, (2, 12))
    tgt_in, mask = torch.randint(5, 25, (2, 10)), torch.ones(2, 12, dtype=torch.bool)
    with torch.no_grad():
        memory = model.encode(src, mask)
        expected = model.logits(model.decode(tgt_in, memory, mask))
        cache, steps = model.start(memory, mask), []
        for ids in tgt_in.unbind(1):
            logits, cache = model.decode_step(ids, cache)
            steps.append(logits)
        torch.testing.assert_close(torch.stack(steps, dim=1), expected)
        assert not torch.allclose(model.encode(src.flip(1), mask).flip(1), memory, atol=1e-2)
        for name, parameter in model.named_parameters():
            if name.endswith(("to_keys", "to_values")):
                parameter.zero_()
        torch.testing.assert_close(model.encode(src.flip(1), mask).flip(1), model.encode(src, mask))


def test_the_trainings_differ_in_one_setting_each() -> None:
    base = find_recipe("small-table3-base")()
    assert len(claims.trainings()) == 10 and len(claims_models.scaling_trainings()) == 12
    configs = {one.row: one.config() for one in claims.trainings()}
    assert {row: config.train.label_smoothing for row, config in configs.items()} == {
        "smoothing0.1": 0.1, "smoothing0": 0, "sinusoids": 0.1, "learned": 0.1
    }  # fmt: skip
    assert [row for row, config in configs.items() if config.model != base.model] == ["learned"]
    relative = claims.relative_trainings()[0].config()
    assert relative == replace(configs["sinusoids"], train=relative.train), "its task replaces the positions"
    for one in claims_models.scaling_trainings():
        assert one.config().model.d_k in claims_models.WIDTHS and one.config().model.d_v == 32


def test_every_training_has_a_tenth_of_warm_up_and_the_peak_of_table_3() -> None:
    def peak(config: Config) -> float:
        train = config.train
        options = {"d_model": config.model.d_model, "warmup_steps": train.warmup_steps, "lr_factor": train.lr_factor}
        return learning_rate(train.warmup_steps, **options)

    base = find_recipe(claims.BASE)()
    for one in (*claims.trainings(), *claims.relative_trainings(), *claims_models.scaling_trainings()):
        config = one.config()
        assert config.train.warmup_steps == config.train.max_steps / 10
        assert peak(config) == pytest.approx(peak(base), rel=1e-3) == pytest.approx(1.77e-3, rel=1e-2)


# ---- the study ---------------------------------------------------------------------------------------------------


def entry(row: str, seed: int, perplexity: float, **figures: object) -> dict[str, object]:
    costs = {"parameters": 1_900_544, "seconds": 500.0, "cpu_seconds": 300.0, "bleu": 30.0 + seed / 10}
    return {"status": "done", "row": row, "seed": seed, "perplexity": perplexity, **costs, **figures}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Without the factor, d_k 256 is worse, and d_k 16 is not; longer text needs sinusoids; smoothing helps BLEU."""
    pairs = {"short training pairs": 14_367, "short pairs": 498, "longer pairs": 105, "new positions, %": 47.2}
    limits = {"most pieces of short pairs": 16, "least pieces of longer pairs": 23}
    study = Results(tmp_path / "results.json", claims.STUDY, {"language": "en", **pairs, **limits})
    config = encode_config(find_recipe("small-table3-base")())
    softmax = {"variance": 1.0, "gradient": 0.25, "components": 0.5}
    for seed in (1, 2):
        for width in claims_models.WIDTHS:
            for row, factor in (("scaled", 1.0), ("unscaled", 1.5 if width == 256 else 1.0)):
                statistics = {"softmax_start": softmax, "softmax_end": {**softmax, "variance": float(width)}}
                name = f"{row}-dk{width}"
                study.entries[f"{name}-{seed}"] = entry(name, seed, 20 * factor + seed / 10, **statistics)
        for row, level in (("sinusoids", 15.0), ("learned", 40.0), ("relative", 12.0)):
            test = {"perplexity": level + seed / 10, "bleu": 300 / level}
            study.entries[f"{row}-{seed}"] = entry(row, seed, 10 + seed / 10, test=test)
        for row, change in (("smoothing0.1", 1.0), ("smoothing0", 0.0)):
            one = entry(row, seed, 10 + change + seed / 10, accuracy=60 + 2 * change + seed / 10, config=config)
            study.entries[f"{row}-{seed}"] = one
    study.save()
    return study


def test_each_claim_has_one_sentence(results: Results) -> None:
    text = markdown(report(results))
    assert "d_k 16: inconclusive (x 1.000, 0.98" in text and "d_k 256: holds (x 1.4" in text
    assert "on longer pairs). This holds (x 2.6" in text and "On short pairs: x 1.000, 0.9" in text
    assert "Relative positions, divided by sinusoids, on longer pairs: x 0.80" in text
    assert "hurts perplexity: holds (x 1.09" in text and "accuracy: holds (+2.00, +1.70 to +2.30 %)" in text
    assert "BLEU: inconclusive (+0.00, -0.30 to +0.30)" in text
    assert "| 256 | none | 0.5 | 1 | 256 | 0.25 | 0.25 | 30.15 (30.10 to 30.20) | 1 2 |" in text
    assert "| learned | 10.15 (10.10 to 10.20) | 40.15 (40.10 to 40.20) | 3.96 |" in text
    assert "| relative | 10.15 (10.10 to 10.20) | 12.15 (12.10 to 12.20) | 1.20 |" in text
    assert "14,367 pairs with at most 16 pieces" in text and "105 longer pairs of the validation text have at" in text
    assert "at least 23 pieces on both sides; 47.2 % of their target tokens are at positions that no" in text
    assert "The model is 3 + 3 layers, d_model 128" in text and html_page(report(results))
    assert "The factor: not recorded; longer text: not recorded; label smoothing: 4,200 steps, 400 of them warm" in text
    assert markdown(report(read_results(results.path, claims.STUDY))) == text


def test_a_divergence_without_the_factor_is_evidence(results: Results) -> None:
    """And a training that ended for another reason is none."""
    failure = {"status": "failed", "row": "unscaled-dk256", "why": "the loss is nan at step 12", "diverged": True}
    results.entries["unscaled-dk256-1"] = {**failure, "seed": 1}
    text = markdown(report(results))
    assert "d_k 256: holds (x 1.49" in text and ", 1 of 2 trainings diverged without the factor." in text
    results.entries["unscaled-dk256-2"] = {**failure, "seed": 2}
    text = markdown(report(results))
    assert "d_k 256: holds, 2 of 2 trainings diverged without the factor." in text
    assert "| 256 | none | diverged |" in text and "unscaled-dk256-2: the loss is nan" in text
    results.entries["scaled-dk256-1"] = {**failure, "row": "scaled-dk256", "seed": 1}
    assert "d_k 256: inconclusive, 2 of 2 trainings diverged without the factor, 1 of 2" in markdown(report(results))
    for seed in (1, 2):
        results.entries[f"scaled-dk64-{seed}"] = {**failure, "row": "scaled-dk64", "seed": seed}
        results.entries[f"unscaled-dk256-{seed}"]["diverged"] = False
    text = markdown(report(results))
    assert "d_k 64: does not hold, 2 of 2 trainings diverged with it" in text
    assert "d_k 256: inconclusive, 1 of 2 trainings diverged with it" in text
    results.save()
    assert markdown(report(read_results(results.path, claims.STUDY))) == text


def test_the_spread_of_one_width_does_not_touch_the_others(results: Results) -> None:
    before = markdown(report(results)).split("d_k 256")[0].split("For d_k 16")[1]
    for seed, perplexity in ((1, 60.0), (2, 200.0)):
        results.entries[f"unscaled-dk256-{seed}"]["perplexity"] = perplexity
    text = markdown(report(results))
    assert before in text and "d_k 256: inconclusive (x 5.4" in text


def test_the_demo_beside_it_is_that_of_the_published_results(results: Results) -> None:
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| two CPU cores, machine otherwise idle |"))
    bleu, exact, longer_bleu, longer_exact = row.replace(" %", "").split(" | ")[-4:]
    page = markdown(report(results))
    assert f"has a BLEU of {bleu} on sentences as long as in its training, and {longer_bleu} on longer ones" in page
    assert f"ones; {exact} % and {longer_exact.strip(' |')} % of the outputs are exact" in page


def test_what_is_missing_is_reported(results: Results) -> None:
    results.entries = {name: one for name, one in results.entries.items() if name.startswith("smoothing")}
    del results.entries["smoothing0-1"]["accuracy"]
    results.entries["learned-1"] = {"status": "failed", "row": "learned", "seed": 1, "why": "train: a disk is full"}
    text = markdown(report(results))
    assert text.count("inconclusive, not run") == 5 and "Failed: learned-1: train: a disk is full." in text
    assert "on longer pairs: not run." in text and "| relative | not run |" in text
    empty = Results(results.path, claims.STUDY, {})
    assert "0 trainings done" in markdown(report(empty)) and html_page(report(empty))
    assert "numbers of pairs were not recorded" in markdown(report(empty))


def test_a_training_that_diverged_is_recorded_and_not_repeated(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json", claims.STUDY, {})
    trainings = [one for one in claims_models.scaling_trainings() if one.name in ("unscaled-dk256-1", "scaled-dk16-1")]
    problems: list[UserError] = [UserError("the disk is full"), NotFiniteError("the loss is nan\n  - remedies")]
    calls: list[str] = []

    def measure(training: Training, run: Path) -> dict[str, object]:
        calls.append(training.name)
        run.mkdir(parents=True, exist_ok=True)
        raise problems[training.row == "unscaled-dk256"]

    for _ in range(2):
        run_in_process(trainings, results, measure, rerun=False)
    assert calls == ["scaled-dk16-1", "unscaled-dk256-1", "scaled-dk16-1"]
    entries = read_results(results.path, claims.STUDY).entries
    assert entries["unscaled-dk256-1"]["diverged"] and entries["unscaled-dk256-1"]["why"] == "the loss is nan"
    assert "diverged" not in entries["scaled-dk16-1"]
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()] == ["scaled-dk16-1"]
    run_in_process(trainings, results, measure, rerun=True)
    assert calls[3:] == ["scaled-dk16-1", "unscaled-dk256-1"]


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
    lines = ["a b c d", "b c", "c d e f g", "a", "qwertzuiop asdfghjkl yxcvbnm ytrewq"] * 8
    texts = Texts(write_pairs(tmp_path, "train", lines), write_pairs(tmp_path, "valid", lines[:10]))
    recipe, out = f"{tmp_path / 'recipe.py'}:tiny", tmp_path / "out"
    learned = ("model.positions=learned", "model.max_positions=64")
    processes = [Training(row, 1, recipe) for row in ("smoothing0.1", "smoothing0", "sinusoids")]
    monkeypatch.setattr(claims, "trainings", lambda: [*processes, Training("learned", 1, recipe, learned)])
    here = [Training(row, 1, recipe, ("model.d_k=16",)) for row in ("scaled-dk16", "unscaled-dk16")]
    monkeypatch.setattr(claims_models, "scaling_trainings", lambda: here)
    monkeypatch.setattr(claims, "relative_trainings", lambda: [Training("relative", 1, recipe)])
    monkeypatch.setattr(claims, "BASE", recipe)
    monkeypatch.setattr(claims_report, "WIDTHS", (16,))

    measure, calls = claims_models.train_and_measure, []

    def interrupt(training: Training, texts: Texts, run: Path) -> dict[str, object]:
        calls.append(training.name)
        if calls.count("unscaled-dk16-1") == 1 and len(calls) == 2:
            raise KeyboardInterrupt
        return measure(training, texts, run)

    monkeypatch.setattr(claims_models, "train_and_measure", interrupt)
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
