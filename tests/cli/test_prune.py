"""`transduce heads` and `transduce prune`: the table, the JSON, and a model folder that every engine reads."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.random_models import CONFIG, random_model, save_to
from support.toy_task import CommandResult, Toy, write_pairs

import transduce
from transduce.evaluation.heads import heads_of, is_pruned, transformer_of
from transduce.storage.model_folder import card_of, load_model

Cli = Callable[..., CommandResult]


@pytest.fixture
def text(toy: Toy) -> list[object]:
    return ["--src", toy.valid[0], "--tgt", toy.valid[1]]


def test_heads_prints_the_most_important_head_first(toy: Toy, text: list[object], cli: Cli) -> None:
    result = cli("heads", toy.model, *text, "--pairs", 30)
    assert (result.code, result.err) == (0, "")
    first, blank, titles, *rows = result.out.decode().splitlines()
    assert (
        first.startswith("30 pairs, ") and blank == "" and titles.split()[:4] == ["head", "without", "it", "gradient"]
    )
    increases = [float(row[15:25]) for row in rows]
    assert len(rows) == 24 and increases == sorted(increases, reverse=True)
    report = json.loads(cli("heads", toy.model, *text, "--pairs", 30, "--json").out)
    assert report["pairs"] == 30 and report["heads"][0]["name"] == "encoder 1.1"
    best = max(report["heads"], key=lambda head: head["loss_increase"])
    assert rows[0].startswith(best["name"]) and best["next"] is None


def test_a_pruned_model_is_a_model_folder(toy: Toy, text: list[object], tmp_path: Path, cli: Cli) -> None:
    """Its own figures are those that the command printed, and a second pruning counts the heads that are left."""
    out = tmp_path / "pruned"
    result = cli("prune", toy.model, "--keep", 20, *text, "--out", out, "--json")
    assert result.code == 0
    report = json.loads(result.out)
    model = transformer_of(load_model(out).model)
    assert [str(head) for head in heads_of(model) if is_pruned(model, head)] == report["pruned"]
    assert len(report["pruned"]) == 4 and report["after"]["loss"] > report["before"]["loss"]
    figures = json.loads(cli("heads", out, *text, "--json").out)
    assert figures["loss"] == pytest.approx(report["after"]["loss"], abs=1e-4)
    card = card_of(out)
    assert card.startswith(card_of(toy.model)) and "switched off 4 of 24" in card and report["pruned"][0] in card
    again = json.loads(
        cli("prune", out, "--keep", 19, *text, "--by", "loss", "--out", tmp_path / "again", "--json").out
    )
    assert {*report["pruned"]} < {*again["pruned"]} and len(again["pruned"]) == 5
    assert card_of(tmp_path / "again").count("## Pruned heads") == 1
    result = cli("prune", out, "--keep", 20, *text, "--out", tmp_path / "none")
    assert result.code == 2 and "--keep=20: expected 0 to 19, fewer than the 20 heads of the model" in result.err


def test_every_engine_reads_it(toy: Toy, text: list[object], tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "pruned"
    assert cli("prune", toy.model, "--keep", 18, *text, "--out", out).code == 0
    lines = toy.unseen[:60]
    translations, whole = (transduce.load(folder).translate(lines) for folder in (out, toy.model))
    texts = [translation.text for translation in translations]
    assert [translation.score for translation in translations] != [translation.score for translation in whole]
    for precision in ("bf16", "int8"):
        others = [translation.text for translation in transduce.load(out, precision=precision).translate(lines)]
        assert sum(a == b for a, b in zip(texts, others, strict=True)) >= 55, precision
    pytest.importorskip("ctranslate2", reason="needs transduce[export]")
    source, _ = write_pairs(tmp_path, "lines", lines)
    assert cli("export", out, "--to", "ctranslate2", "--out", tmp_path / "exported").code == 0
    exported = cli("translate", tmp_path / "exported", "--input", source).out.decode().splitlines()
    assert sum(a == b for a, b in zip(texts, exported, strict=True)) >= 58


def test_mistakes_are_refused_before_the_work(toy: Toy, text: list[object], tmp_path: Path, cli: Cli) -> None:
    rival = save_to(random_model(replace(CONFIG, kind="recurrent", n_heads=8, d_ff=2048)), tmp_path / "lstm")
    for command, message in (
        (["heads", toy.model, *text, "--pairs", 0], "--pairs=0: expected at least 1"),
        (["heads", rival, *text], "expected a Transformer"),
        (["prune", toy.model, *text, "--keep", 24, "--out", tmp_path / "new"], "--keep=24: expected 0 to 23"),
        (
            ["prune", toy.model, *text, "--keep", 3, "--pairs", 0, "--out", tmp_path / "new"],
            "--pairs=0: expected at least",
        ),
        (["prune", toy.model, *text, "--keep", -1, "--out", tmp_path / "new"], "--keep=-1: expected 0 to 23"),
        (["prune", toy.model, *text, "--keep", 3, "--out", tmp_path], "expected the name of a new folder"),
        (["prune", rival, *text, "--keep", 3, "--out", tmp_path / "new"], "expected a Transformer"),
    ):
        result = cli(*command)
        assert (result.code, result.out) == (2, b"") and message in result.err, (command, result)
    assert not (tmp_path / "new").exists()
