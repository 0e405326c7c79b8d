"""Training: what it learns, and which files a run writes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.toy_task import Toy, reverse_words, toy_lines, write_lines
from support.trainings import CONFIG, Texts, checkpoint_steps, train, with_train

import transduce
from transduce.demo.grammar import corpus as grammar


def accuracy(model: transduce.Translator, toy: Toy) -> float:
    """Return the fraction of the unseen lines that `model` reverses exactly."""
    outputs = [translation.text for translation in model.translate(toy.unseen)]
    return sum(output == reverse_words(line) for output, line in zip(outputs, toy.unseen, strict=True)) / len(outputs)


def test_the_toy_task_is_learned_through_the_command_line(toy: Toy) -> None:
    assert len(toy.unseen) > 100
    assert accuracy(transduce.load(toy.model), toy) >= 0.98


@pytest.mark.slow
def test_the_toy_task_is_learned_in_bf16(toy: Toy, tmp_path: Path) -> None:
    model = transduce.fit(
        *toy.train,
        valid=toy.valid,
        out=tmp_path / "run",
        recipe=f"{toy.folder / 'recipe.py'}:reverse",
        settings=["train.precision=bf16"],
    )
    assert accuracy(model, toy) >= 0.98


def test_fit_trains_resumes_and_translates(run_texts: Texts, tmp_path: Path) -> None:
    src, tgt = run_texts["train"]
    for _ in range(2):  # the second call has no step to train
        model = transduce.fit(
            src,
            str(tgt),
            valid=run_texts["valid"],
            out=tmp_path / "run",
            recipe=with_train(CONFIG, warmup_steps=2),
            settings=["train.max_steps=4"],
        )
    assert isinstance(model.translate(["a b c"])[0].text, str)
    assert checkpoint_steps(tmp_path / "run") == [4]


def test_pairs_with_an_empty_side_are_skipped_and_counted(
    run_texts: Texts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    src = write_lines(tmp_path / "t.src", [*toy_lines(1, 50), "", "a", "a " * 50])
    tgt = write_lines(tmp_path / "t.tgt", [*toy_lines(1, 50), "a", "", "a"])
    config = with_train(CONFIG, max_steps=1, warmup_steps=1)
    train(config, train=(src, tgt), valid=run_texts["valid"], out=tmp_path / "run")
    assert "of 53 pairs, training leaves out 2 with an emp" in capfd.readouterr().err


def test_a_small_vocabulary_is_reported_only_when_it_is_learned(
    run_texts: Texts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_train(replace(CONFIG, data=replace(CONFIG.data, vocab_size=5_000)), max_steps=1)
    notice = "pieces, not 5,000: the text is too short for more"
    model = train(config, out=tmp_path / "run", **run_texts)
    assert notice in capsys.readouterr().err
    train(config, out=tmp_path / "run", resume=True, **run_texts)
    train(config, out=tmp_path / "other", start_from=model, **run_texts)
    assert "pieces, not" not in capsys.readouterr().err


def test_the_log_has_its_keys_and_the_run_folder_its_files(finished_runs: dict[str, Path]) -> None:
    folder = finished_runs["average"]
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    reports = [line for line in lines if "loss" in line]
    evaluations = [line for line in lines if "valid_loss" in line]
    assert [line["step"] for line in reports] == [7, 14, 21, 28, 35, 42, 49, 56, 60]
    assert {
        "step",
        "epoch",
        "loss",
        "lr",
        "gradient_norm",
        "tokens_per_second",
        "seconds",
        "processor_share",
    } == reports[0].keys()
    assert [line["step"] for line in evaluations] == [15, 30, 45, 60]
    assert {"step", "valid_loss", "valid_perplexity", "valid_bleu", "valid_chrf"} == evaluations[0].keys()
    assert evaluations[-1]["valid_loss"] < evaluations[0]["valid_loss"]
    assert {path.name for path in folder.iterdir()} == {
        "checkpoints",
        "config.json",
        "data",
        "log.jsonl",
        "model",
        "report.html",
        "tokenizer.json",
    }


def test_tensorboard_writes_events(run_texts: Texts, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = with_train(CONFIG, max_steps=2, warmup_steps=1)
    train(config, out=tmp_path / "run", tracker="tensorboard", **run_texts)
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_exchanged_sides_of_the_validation_text_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("t.en", "t.de", "v.en", "v.de")]
    for (src, tgt), pairs in ((paths[:2], grammar(3, 1_500)), (paths[2:], grammar(4, 20))):
        write_lines(src, [en for en, _ in pairs])
        write_lines(tgt, [de for _, de in pairs])
    config = replace(with_train(CONFIG, max_steps=1, warmup_steps=1), data=replace(CONFIG.data, vocab_size=400))
    train(config, train=tuple(paths[:2]), valid=(paths[3], paths[2]), out=tmp_path / "wrong")
    line = "--valid=v.de v.en: expected source and target text, but the words of each are on the other side"
    assert line in capfd.readouterr().err
    train(config, train=tuple(paths[:2]), valid=tuple(paths[2:]), out=tmp_path / "right")
    assert "on the other side" not in capfd.readouterr().err
