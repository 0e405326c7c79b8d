"""The study of forms of attention: its costs, its trainings, and the whole of it in tiny sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce import UserError
from transduce.data.vocabulary import EOS, UNK
from transduce.evaluation.study_report import html_page, markdown
from transduce.family.longformer import LongformerAttention
from transduce.studies import attention_costs, attention_models
from transduce.studies.attention import run_attention
from transduce.studies.attention_costs import Pass, measure, peak_bytes
from transduce.studies.attention_forms import FORM, FORMS
from transduce.studies.attention_models import ROWS, TokenTexts, evaluate, model_of, task_of, token_texts, train
from transduce.studies.attention_report import report
from transduce.studies.results import Results, read_results

ROW = {row.name: row for row in ROWS}
TINY = {"LENGTH": 24, "D_MODEL": 16, "LAYERS": 1, "HEADS": 2, "VOCABULARY": 300, "STEPS": 3, "BATCH": 2, "WARMUP": 1}


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are measured and trained in milliseconds."""
    for name, value in TINY.items():
        monkeypatch.setattr(attention_models, name, value)
    monkeypatch.setattr(attention_costs, "LENGTHS", (32, 64))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name, count in (("train", 60), ("valid", 20)):
        (tmp_path / name).write_text("".join(f"a b c {i % 7} d e f\n" for i in range(count)), "utf-8")
    return tmp_path / "train", tmp_path / "valid"


def texts_of(values: Tensor) -> TokenTexts:
    return TokenTexts(20, values, values[:4])


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
    sizes = {name: [Pass(FORM[name], n).peak_bytes() for n in (256, 512)] for name in ("fused", "reference", "window")}
    assert sizes["fused"][1] < 2.1 * sizes["fused"][0] and sizes["window"][1] < 2.1 * sizes["window"][0]
    assert sizes["reference"][1] > 3.5 * sizes["reference"][0]
    assert sizes["fused"][1] < sizes["window"][1] < sizes["reference"][1]


@pytest.mark.slow
def test_every_form_is_measured_forward_and_backward() -> None:
    costs = measure(48)
    assert costs.keys() == {form.name for form in FORMS}
    for one in costs.values():
        assert one["forward_seconds"] > 0 and one["backward_seconds"] > 0 and one["peak_bytes"] >= 4 * 48 * 8 * 64


def test_forms_with_a_square_are_not_run_at_long_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_costs, "LONGEST_SQUARE", 16)
    assert {"reference", "strided", "fixed", "bigbird"} == {form.name for form in FORMS} - measure(17).keys()


# ---- trainings ---------------------------------------------------------------------------------------------------


def test_texts_follow_one_another(files: tuple[Path, Path]) -> None:
    texts = token_texts(*files)
    assert texts.train.shape[1] == texts.valid.shape[1] == 25
    assert (texts.train == EOS).any() and int(texts.train.max()) < texts.vocab_size <= 300


@pytest.mark.parametrize(("name", "text"), [("train", ""), ("train", "\n \n"), ("valid", ""), ("valid", "a b\n")])
def test_a_short_text_is_refused(files: tuple[Path, Path], name: str, text: str) -> None:
    (files[0].parent / name).write_text(text, "utf-8")
    with pytest.raises(UserError, match=rf"--{name}=.*{name}: expected at least 25 tokens; give a longer text"):
        token_texts(*files)


def test_the_task_of_a_causal_form_is_the_next_token() -> None:
    texts = torch.arange(50).view(2, 25)
    inputs, targets, places = task_of(texts, torch.Generator(), causal=True)
    assert torch.equal(targets, inputs + 1) and places.all()


def test_the_task_of_another_form_is_to_restore_masked_tokens() -> None:
    texts = torch.arange(10, 10 + 25 * 80).view(80, 25)
    inputs, targets, places = task_of(texts, torch.Generator().manual_seed(1), causal=False)
    assert torch.equal(targets, texts[:, :-1]) and torch.equal(inputs == UNK, places)
    assert torch.equal(inputs[~places], targets[~places])
    assert places.float().mean() == pytest.approx(0.15, abs=0.03)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_causal_model_does_not_see_later_tokens(row: Any) -> None:
    torch.manual_seed(1)
    model, ids = model_of(row, 20), torch.randint(20, (1, 24))
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
    losses = [train(ROW[name], 1, texts, lambda *_: None)["loss"] for name in ("fused", "online", "fused", "window")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and losses[0] == losses[2]


@pytest.mark.slow
def test_a_model_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_models, "STEPS", 50)
    monkeypatch.setattr(attention_models, "RATE", 1e-2)
    texts = texts_of((torch.arange(25) % 5 + 4).expand(8, 25))
    steps: list[int] = []
    figures = train(ROW["performer"], 1, texts, lambda step, _: steps.append(step))
    assert figures["loss"] < 1.0 and figures["steps"] == 50 and steps == [50]


def test_an_evaluation_masks_the_same_tokens() -> None:
    torch.manual_seed(1)
    model, texts = model_of(ROW["bigbird"], 20), torch.randint(4, 20, (5, 25))
    assert evaluate(model, texts, causal=False) == evaluate(model, texts, causal=False)


def test_longformer_is_in_the_layers() -> None:
    model: Any = model_of(ROW["longformer"], 20)
    assert all(isinstance(layer.self_attention, LongformerAttention) for layer in model.bert.encoder.layers)


# ---- the study ---------------------------------------------------------------------------------------------------


def test_the_study_measures_and_trains_everything_once(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as context:  # it is interrupted in its third training
        rows = iter(range(3))

        def train_two(*arguments: Any) -> dict[str, Any]:
            if next(rows) == 2:
                raise KeyboardInterrupt
            return train(*arguments)

        context.setattr(attention_models, "train", train_two)
        with pytest.raises(KeyboardInterrupt):
            run_attention(*files, out)
    first = read_results(out / "results.json").entries
    done = {name for name, entry in first.items() if entry["status"] == "done"}
    assert done == {"costs-32", "costs-64", "fused-1", "fused-2"}
    assert "2 of 2 lengths measured, 2 of" in (out / "report.md").read_text("utf-8")

    run_attention(*files, out)
    entries = read_results(out / "results.json").entries
    assert all(entry["status"] == "done" for entry in entries.values())
    assert all(entries[name] == first[name] for name in done)
    names = {f"{row.name}-{seed}" for row in ROWS for seed in row.seeds}
    assert entries.keys() == names | {"costs-32", "costs-64"}
    page = (out / "report.md").read_text("utf-8")
    assert "| not run |" not in page and "| base |" in page and (out / "report.html").exists()

    monkeypatch.setattr(attention_models, "train", None)
    run_attention(*files, out)
    assert read_results(out / "results.json").entries == entries


def test_another_text_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    results = Results(tmp_path / "out" / "results.json", "attention", {"training text": "another"})
    results.path.parent.mkdir()
    results.save()
    with pytest.raises(UserError, match="expected results with the same"):
        run_attention(*files, tmp_path / "out")


def results_of(**peaks: int) -> Results:
    forms = {
        name: {"forward_seconds": 0.001, "backward_seconds": 0.002, "peak_bytes": peak} for name, peak in peaks.items()
    }
    results = Results(Path("results.json"), "attention", {})
    results.entries["costs-64"] = {"status": "done", "n": 64, "forms": forms}
    return results


def test_the_report_says_which_forms_need_less_memory() -> None:
    page = markdown(report(results_of(fused=100, window=200)))
    assert "At n = 64, no form needs less memory than the fused kernel" in page and "1.0 + 2.0 (x 1.00)" in page
    page = markdown(report(results_of(fused=100, window=80)))
    assert "exact, at n = 64: window of 65 (causal) at n = 64; no other." in page
    assert "not run" in page and html_page(report(results_of(window=80)))


def test_the_figure_has_the_forms_of_two_lengths() -> None:
    results = results_of(window=80, fused=100)
    assert "Figure" not in markdown(report(results))
    results.entries["costs-32"] = {**results.entries["costs-64"], "n": 32, "forms": {}}
    assert "Figure" not in markdown(report(results))
    forms = {"window": results.entries["costs-64"]["forms"]["window"]}
    results.entries["costs-32"]["forms"] = forms
    page = markdown(report(results))
    assert "Time against n, causal. window of 65: 3.0 ms at 32, 3.0 ms at 64" in page and html_page(report(results))


def test_a_difference_is_that_of_the_first_seed() -> None:
    results = results_of(fused=100)
    for name, seed, loss in (("fused", 1, 4.0), ("fused", 2, 4.1), ("window", 1, 4.25)):
        figures = {"row": name, "seed": seed, "loss": loss, "parameters": 5, "cpu_seconds": 9.0}
        results.entries[f"{name}-{seed}"] = {"status": "done", **figures}
    page = markdown(report(results))
    assert "| exact, torch's fused kernel | 4.000, 4.100 | base | 5 | 9 |" in page
    assert "| window of 65 | 4.250 | +0.250 | 5 | 9 |" in page


def test_damaged_results_are_refused(tmp_path: Path) -> None:
    results = results_of(fused=100)
    results.path = tmp_path / "results.json"
    results.save()
    content = json.loads(results.path.read_text("utf-8"))
    content["cells"]["costs-64"]["forms"]["fused"]["forward_seconds"] = 0
    results.path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(UserError, match="expected the results of a study"):
        read_results(results.path)
