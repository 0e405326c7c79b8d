"""The study of forms of attention: its costs, its trainings, and the whole of it in tiny sizes."""

import json
import os
import signal
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import to_builtins
from torch import Tensor

from transduce import UserError
from transduce.data.vocabulary import EOS, UNK
from transduce.evaluation.study_report import html_page, markdown
from transduce.family.longformer import LongformerAttention
from transduce.model.attention import Mask
from transduce.studies import attention, attention_forms
from transduce.studies.attention import evaluate, model_of, run_attention, task_of, token_texts
from transduce.studies.attention_forms import (
    SIZES,
    AttentionShape,
    AttentionSizes,
    Pass,
    forms,
    layers,
    measure,
    peak_bytes,
    rows,
)
from transduce.studies.attention_report import report
from transduce.studies.results import Results, read_results
from transduce.studies.small_models import Streams

SHORT = replace(
    SIZES, lengths=(32, 64), rounds=(1, 1), cost_heads=2, cost_width=8
)  # measured and trained in milliseconds
MODEL = replace(SHORT, length=24, d_model=16, n_layers=1, n_heads=2, vocab_size=300)
TINY = replace(MODEL, steps=3, batch=2, warmup=1)
ROWS = rows(TINY)
ROW = {row.name: row for row in ROWS}
FORM = {form.name: form for form in forms(TINY)}
LAYER = {layer.name: layer for layer in layers(TINY)}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name, count in (("train", 60), ("valid", 20)):
        (tmp_path / name).write_text("".join(f"a b c {i % 7} d e f\n" for i in range(count)), "utf-8")
    return tmp_path / "train", tmp_path / "valid"


def texts_of(values: Tensor) -> Streams:
    return Streams(values, values[:4], 20)


def train(name: str, texts: Streams, sizes: AttentionSizes = TINY) -> dict[str, Any]:
    return attention.train_and_evaluate(ROW[name], 1, texts, sizes)


# ---- costs -------------------------------------------------------------------------------------------------------


def test_the_peak_is_what_is_held_at_once() -> None:
    def work() -> None:
        first = torch.empty(1_000, 256)
        del first
        second = torch.empty(500, 256)
        _third = torch.empty(700, 256)
        del second

    assert peak_bytes(work) == 4 * 256 * 1_200


def test_the_fused_kernel_holds_no_square_of_weights() -> None:
    names = ("fused", "reference", "window", "online")
    sizes = {name: [Pass(FORM[name], AttentionShape(n, 8, 64)).peak_bytes() for n in (256, 512)] for name in names}
    assert all(sizes[name][1] < 2.1 * sizes[name][0] for name in ("fused", "window", "online"))
    assert sizes["reference"][1] > 3.5 * sizes["reference"][0]
    assert sizes["fused"][1] < sizes["window"][1] < sizes["reference"][1]


@pytest.mark.slow
def test_every_form_is_measured_forward_and_backward() -> None:
    costs = measure(48, TINY)["forms"]
    assert costs.keys() == FORM.keys() | LAYER.keys()
    for one in costs.values():
        assert one["forward_seconds"] > 0 and one["backward_seconds"] > 0 and one["peak_bytes"] >= 4 * 48 * 2 * 8


def test_forms_with_a_square_are_not_run_at_long_lengths() -> None:
    costs = measure(17, replace(TINY, longest_square=16))["forms"]
    assert {"reference", "strided", "fixed", "bigbird"} == (FORM.keys() | LAYER.keys()) - costs.keys()
    caches = {name: int(one["cache_bytes_per_token"]) for name, one in costs.items() if "cache_bytes_per_token" in one}
    assert caches == {"layer-llama": 4 * 2 * 2 * 8, "layer-tpa": 4 * (2 + 2) * (2 + 8)}


@pytest.mark.parametrize("name", LAYER)
def test_a_layer_that_is_measured_is_that_of_a_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer of the row in Llama, T6, BERT and Longformer gives the same output under the same mask."""
    row = {"layer-llama": "llama", "layer-tpa": "tpa", "layer-bert": "fused-both", "layer-longformer": "longformer"}
    torch.manual_seed(1)
    layer = LAYER[name].make(AttentionShape(24, 2, 8))
    model: Any = model_of(ROW[row[name]], 20, TINY)
    stack = model if LAYER[name].causal else model.bert.encoder
    attention = stack.layers[0].self_attention
    layer.module.load_state_dict(attention.state_dict())
    passes: list[Tensor] = []
    projections, attend = attention.projections, attention.attend
    monkeypatch.setattr(attention, "projections", lambda x: passes.append(x) or projections(x))
    monkeypatch.setattr(attention, "attend", lambda *args: passes.append(attend(*args)) or passes[-1])
    model(torch.randint(20, (1, 24)))
    mask: Mask = "causal" if LAYER[name].causal else torch.ones(1, 1, 1, 24, dtype=torch.bool)
    torch.testing.assert_close(layer(passes[0], mask), passes[1])


def test_the_measured_longformer_has_a_global_position_with_projections_of_its_own() -> None:
    layer = LAYER["layer-longformer"].make(AttentionShape(300, 2, 8))
    x, mask = torch.randn(1, 300, 16), torch.ones(1, 1, 1, 300, dtype=torch.bool)
    changed = x.clone()
    changed[0, 299] += 1
    difference = (layer(x, mask) - layer(changed, mask)).abs().amax(dim=-1)[0]
    assert difference[0] > 0 and not difference[1 : 299 - TINY.reach].any()  # only the global position looks so far
    layer(x, mask).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


# ---- trainings ---------------------------------------------------------------------------------------------------


def test_texts_follow_one_another(files: tuple[Path, Path]) -> None:
    texts = token_texts(*files, TINY)
    assert texts.train.shape[1] == texts.valid.shape[1] == 25
    assert (texts.train == EOS).any() and int(texts.train.max()) < texts.vocab_size <= 300


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train", "", "a line that is not blank; give another text"),
        ("train", "\n \n", "a line that is not blank; give another text"),
        ("valid", "", "a text of at least 25 tokens, not 0; give a longer text"),
        ("valid", "a b\n", "a text of at least 25 tokens, not 3; give a longer text"),
    ],
)
def test_a_short_text_is_refused(files: tuple[Path, Path], name: str, text: str, message: str) -> None:
    (files[0].parent / name).write_text(text, "utf-8")
    with pytest.raises(UserError, match=rf"{name}: expected {message}"):
        token_texts(*files, TINY)


def test_the_task_of_a_causal_form_is_the_next_token() -> None:
    texts = torch.arange(50).view(2, 25)
    inputs, targets, places = task_of(texts, torch.Generator(), None)
    assert torch.equal(targets, inputs + 1) and places.all()


def test_the_task_of_another_form_is_to_restore_masked_tokens() -> None:
    texts = torch.arange(10, 10 + 25 * 80).view(80, 25)
    inputs, targets, places = task_of(texts, torch.Generator().manual_seed(1), 0.15)
    assert torch.equal(targets, texts[:, :-1]) and torch.equal(inputs == UNK, places)
    assert torch.equal(inputs[~places], targets[~places])
    assert places.float().mean() == pytest.approx(0.15, abs=0.03)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_causal_model_does_not_see_later_tokens(row: Any) -> None:
    torch.manual_seed(1)
    model, ids = model_of(row, 20, TINY), torch.randint(20, (1, 24))
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    changed = ids.clone()
    changed[0, 12] = (ids[0, 12] + 1) % 20
    difference = (model(ids) - model(changed)).abs().amax(dim=-1)[0]
    assert difference[12:].max() > 1e-3
    assert (difference[:12].max() < 1e-5) == row.causal


def test_the_online_softmax_trains_the_same_model_as_the_fused_kernel() -> None:
    texts = texts_of(torch.randint(4, 20, (30, 25)))
    losses = [train(name, texts)["loss"] for name in ("fused", "online", "fused", "window")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and losses[0] == losses[2]


@pytest.mark.slow
def test_a_model_learns(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = replace(TINY, steps=50, rate=1e-2)
    texts = texts_of((torch.arange(25) % 5 + 4).expand(8, 25))
    figures = train("performer", texts, sizes)
    assert figures["loss"] < 1.0 and figures["steps"] == 50
    assert "Performer, 256 features, seed 1: step 50, loss " in capsys.readouterr().err


def test_an_evaluation_masks_the_same_tokens() -> None:
    torch.manual_seed(1)
    model, texts = model_of(ROW["bigbird"], 20, TINY), torch.randint(4, 20, (5, 25))
    assert evaluate(model, texts, 2, 0.15) == evaluate(model, texts, 2, 0.15)


def test_longformer_is_in_the_layers() -> None:
    model: Any = model_of(ROW["longformer"], 20, TINY)
    assert all(isinstance(layer.self_attention, LongformerAttention) for layer in model.bert.encoder.layers)


# ---- the study ---------------------------------------------------------------------------------------------------


def test_the_study_measures_and_trains_everything_once(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SIGTERM in its third training ends it, with a report. The next run resumes there."""
    out, progress = tmp_path / "out", attention.train_and_evaluate
    with monkeypatch.context() as context:
        remaining = iter(range(3))

        def train_two(*arguments: Any) -> dict[str, Any]:
            if next(remaining) == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return progress(*arguments)

        context.setattr(attention, "train_and_evaluate", train_two)
        with pytest.raises(KeyboardInterrupt):
            run_attention(*files, out, sizes=TINY)
    first = read_results(out / "results.json", attention.STUDY).entries
    done = {name for name, entry in first.items() if entry["status"] == "done"}
    assert done == {"costs-32", "costs-64", "fused-1", "fused-2"}
    assert "2 of 2 lengths measured, 2 of" in (out / "report.md").read_text("utf-8")

    run_attention(*files, out, sizes=TINY)
    entries = read_results(out / "results.json", attention.STUDY).entries
    assert all(entry["status"] == "done" for entry in entries.values())
    assert all(entries[name] == first[name] for name in done)
    names = {f"{row.name}-{seed}" for row in ROWS for seed in row.seeds}
    assert entries.keys() == names | {"costs-32", "costs-64"}
    page = (out / "report.md").read_text("utf-8")
    assert "| not run |" not in page and "| base |" in page and (out / "report.html").exists()

    monkeypatch.setattr(attention, "train_and_evaluate", None)
    run_attention(*files, out, sizes=TINY)
    assert read_results(out / "results.json", attention.STUDY).entries == entries


def test_a_signal_ends_a_measurement(files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_passes, seconds = iter(range(100)), Pass.seconds

    def measured(one: Pass) -> tuple[float, float]:
        if next(n_passes) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return seconds(one)

    monkeypatch.setattr(attention_forms.Pass, "seconds", measured)
    with pytest.raises(KeyboardInterrupt):
        run_attention(*files, tmp_path / "out", sizes=TINY)
    assert next(n_passes) == 3
    assert "0 of 2 lengths measured" in (tmp_path / "out" / "report.md").read_text("utf-8")


def test_another_text_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    settings = {"training text": "another", "sizes": to_builtins(TINY)}
    results = Results(tmp_path / "out" / "results.json", attention.STUDY, settings)
    results.path.parent.mkdir()
    results.save()
    with pytest.raises(UserError, match="expected results with the same training text and the same validation text"):
        run_attention(*files, tmp_path / "out", sizes=TINY)


@pytest.mark.parametrize("name", [field.name for field in fields(AttentionSizes)])
def test_other_sizes_are_refused(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(attention, "hashes", lambda *_: {})
    results = Results(tmp_path / "results.json", attention.STUDY, {"sizes": to_builtins(TINY)})
    results.save()
    value = getattr(TINY, name)
    other = replace(TINY, **{name: (*value[:-1], value[-1] + 1) if isinstance(value, tuple) else value + 1})
    with pytest.raises(UserError, match="expected results with the same sizes"):
        run_attention(*files, tmp_path, sizes=other)
    del results.settings["sizes"][name]
    results.save()
    with pytest.raises(UserError, match=f"expected the results of a study.*`{name}`"):
        run_attention(*files, tmp_path, sizes=TINY)


def results_of(**peaks: int) -> Results:
    figures = {
        name: {"forward_seconds": 0.001, "backward_seconds": 0.002, "peak_bytes": peak} for name, peak in peaks.items()
    }
    results = Results(Path("results.json"), attention.STUDY, {"sizes": to_builtins(TINY)})
    results.entries["costs-64"] = {"status": "done", "n": 64, "forms": figures}
    return results


def test_the_report_has_the_sizes_of_the_results() -> None:
    results = results_of(fused=100)
    other = replace(TINY, reach=7, features=11, rank=13, d_model=48, n_heads=3, steps=17, rate=0.25, cost_heads=5)
    results.settings["sizes"] = to_builtins(other)
    page = markdown(report(results))
    for words in ("window of 8 ", "window of 15 ", "11 features", "rank 13", "d_model 48, 3 heads", "17 steps", "0.25"):
        assert words in page, words
    assert "5 heads of 8" in page and "d_model 16" not in page


def test_the_report_says_which_forms_need_less_memory() -> None:
    page = markdown(report(results_of(fused=100, window=200)))
    assert "At n = 64, these ran: window of 65 (causal). Of them, none needs less memory than the fused kernel" in page
    assert "1.0 + 2.0 (x 1.00)" in page
    page = markdown(report(results_of(fused=100, window=80, online=200)))
    assert "Of them, these forms need less memory than the fused kernel, which is exact: window of 65 (cau" in page
    assert "not run" in page and html_page(report(results_of(window=80)))


def test_a_claim_about_a_length_names_only_the_forms_that_ran_there() -> None:
    results = results_of(**dict.fromkeys(FORM, 100))
    results.entries["costs-32"] = {**results.entries["costs-64"], "n": 32}
    names = {"fused": 100, "window": 200, "fused-both": 100}
    few = {name: one for name, one in results.entries["costs-64"]["forms"].items() if name in names}
    results.entries["costs-64"] = {**results.entries["costs-64"], "forms": few}
    page = markdown(report(results))
    assert "At n = 32, these ran: all forms. Of them, none needs less memory than" in page
    assert "At n = 64, these ran: window of 65 (causal). Of them, none needs less memory than" in page


def test_the_report_has_the_caches() -> None:
    results = results_of(fused=100)
    costs = {"forward_seconds": 0.001, "backward_seconds": 0.002, "peak_bytes": 9}
    results.entries["costs-64"]["forms"] |= {
        "layer-llama": {**costs, "cache_bytes_per_token": 4_096},
        "layer-tpa": {**costs, "cache_bytes_per_token": 1_152},
    }
    page = markdown(report(results))
    assert "| exact, with RoPE | 4,096 | x 1.00 |" in page
    assert "| tensor product attention, ranks 6, 2, 2, with RoPE | 1,152 | x 0.28 |" in page


def test_the_figure_has_the_forms_of_two_lengths() -> None:
    results = results_of(window=80, fused=100)
    assert "Figure" not in markdown(report(results))
    results.entries["costs-32"] = {**results.entries["costs-64"], "n": 32, "forms": {}}
    assert "Figure" not in markdown(report(results))
    forms = {"window": results.entries["costs-64"]["forms"]["window"]}
    results.entries["costs-32"]["forms"] = forms
    page = markdown(report(results))
    assert "Time against n, causal. window of 65: 3.0 ms at 32, 3.0 ms at 64" in page and html_page(report(results))


def with_losses(losses: dict[str, list[float]]) -> Results:
    results = results_of(fused=100)
    for name, values in losses.items():
        for seed, loss in enumerate(values, 1):
            figures = {"row": name, "seed": seed, "loss": loss, "parameters": 5, "cpu_seconds": 9.0}
            results.entries[f"{name}-{seed}"] = {"status": "done", **figures}
    return results


def test_a_verdict_is_by_the_spread_of_exact_attention() -> None:
    """Seeds of 3.9, 4.0 and 4.1 deviate by 0.1: 4.30 x 0.1 x sqrt(1 + 1/3) is 0.497."""
    causal = {"fused": [3.9, 4.0, 4.1], "window": [4.25], "strided": [4.51], "performer": [3.49]}
    page = markdown(report(with_losses({**causal, "fused-both": [2.0, 2.1], "linformer": [3.0]})))
    assert "| exact, torch's fused kernel | 3.900, 4.000, 4.100 |  | base | 5 | 9 |" in page
    assert "| window of 65 | 4.250 | +0.250, -0.247 to +0.747 | inconclusive | 5 | 9 |" in page
    assert "| strided, √n | 4.510 | +0.510, +0.013 to +1.007 | worse | 5 | 9 |" in page
    words = "Better: Performer, 256 features. Worse: strided, √n. Inconclusive: window of 65."
    assert f"Next token, compared with exact attention after as many steps. {words}" in page
    assert "steps. Inconclusive: Linformer, rank 64." in page  # 12.71 x 0.071 x sqrt(1 + 1/2) is 1.1
    assert "| T6: tensor product attention | not run |" in page


def test_without_a_spread_nothing_can_be_told() -> None:
    page = markdown(report(with_losses({"fused": [4.0], "window": [9.0]})))
    assert "| window of 65 | 9.000 | +5.000 | inconclusive | 5 | 9 |" in page
    assert "Masked tokens: nothing to compare yet." in page


def test_damaged_results_are_refused(tmp_path: Path) -> None:
    results = results_of(fused=100)
    results.path = tmp_path / "results.json"
    results.save()
    content = json.loads(results.path.read_text("utf-8"))
    content["cells"]["costs-64"]["forms"]["fused"]["forward_seconds"] = 0
    results.path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(UserError, match="expected the results of a study"):
        read_results(results.path, attention.STUDY)
