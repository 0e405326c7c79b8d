"""The rehearsal of docs/wmt14.md: its commands, in their order, on archives in WMT's layout, to the four BLEUs.

The training text comes from the corpora wmt_news_en_de and wmt_news_en_fr; newstest2013 and newstest2014 are the real
ones. The recipes become tiny, and keep what does not change the size. `pytest -s` prints the figures.
"""

import json
import os
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.documents import code_blocks
from support.http_server import serve
from support.toy_task import ROOT, CommandResult
from support.wmt_archives import Lines, miniature

from transduce.config import recipes
from transduce.config.overrides import override
from transduce.config.schema import Config
from transduce.data.text import read_lines
from transduce.download import catalogue
from transduce.storage.model_folder import load_model

DATA = Path(os.environ.get("TRANSDUCE_DATA", ROOT / "data"))
PAGE = ROOT / "docs" / "wmt14.md"
TINY = ["model.d_model=64", "model.n_heads=2", "model.n_layers=1", "model.d_ff=128", "train.warmup_steps=60"]
VOCAB_SIZE = 4_000
TEST_LINES = 200
SHORT = [
    f"data.vocab_size={VOCAB_SIZE}",
    "data.batch_tokens=2500",
    "train.max_steps=100",
    "train.evaluate_every_steps=100",
]
# After few steps, the end of the sentence can be the most likely first token, or never the most likely one.
SHORT += ["search.min_tokens=10", "search.max_extra_tokens=10"]
DROPPED = {
    "blank": ("A sentence without a translation.", ""),
    "long": ("word " * 251, "Wort " * 251),
    "copied": ("Copyright and all rights reserved.", "Copyright and all rights reserved."),
    "ratio": ("No.", "x" * 500),
}  # pairs that cleaning drops, by outcome; one of each is in the training text

pytestmark = pytest.mark.slow


def tiny(recipe: Callable[[], Config]) -> Callable[[], Config]:
    """Return `recipe` with the same kind of pieces, dropout, averaging and search, for 100 steps of a tiny model."""
    every = 20 if recipe().train.average_checkpoints == 5 else 5
    return lambda: override(recipe(), [*TINY, *SHORT, f"train.checkpoint_every_steps={every}"])


def corpus_texts(folder: Path, corpus: catalogue.PublicCorpus) -> dict[str, Lines]:
    """Return the lines of each part and test set of `corpus`: the training text of `folder` in parts."""

    def sides(name: str) -> list[list[str]]:
        return [list(read_lines(folder / f"{name}.{language}")) for language in (corpus.src, corpus.tgt)]

    src, tgt = sides("train")
    for bad_src, bad_tgt in [*DROPPED.values(), (src[0], tgt[0])]:  # the last is repeated
        src.append(bad_src)
        tgt.append(bad_tgt)
    size = -(-len(src) // len(corpus.train))
    parts: dict[str, Lines] = {
        part.name: (src[i * size : (i + 1) * size], tgt[i * size : (i + 1) * size])
        for i, part in enumerate(corpus.train)
    }
    tests = {test.name: sides(test.name) for test in corpus.tests}
    return parts | {name: (src[:TEST_LINES], tgt[:TEST_LINES]) for name, (src, tgt) in tests.items()}


@pytest.mark.parametrize(
    ("number", "name", "kind"),
    [(0, "wmt14-en-de", "bpe"), (1, "wmt14-en-fr", "wordpiece")],
    ids=["English-German", "English-French"],
)
def test_the_commands_of_the_page_lead_from_archives_to_four_bleus(
    number: int,
    name: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Callable[..., CommandResult],
) -> None:
    folder = DATA / name.replace("wmt14-en-", "wmt_news_en_")
    if not folder.exists():
        pytest.skip(f"needs the corpus {folder.name} in {DATA}")
    corpus, archives = miniature(catalogue.CORPORA[name], corpus_texts(folder, catalogue.CORPORA[name]))
    monkeypatch.setitem(catalogue.CORPORA, name, corpus)
    for recipe in [recipe for recipe in recipes.RECIPES if re.match(r"vaswani2017-(base|big)", recipe)]:
        monkeypatch.setitem(recipes.RECIPES, recipe, tiny(recipes.RECIPES[recipe]))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.chdir(tmp_path)

    commands = code_blocks(PAGE, "bash")[number].replace("\\\n", " ").splitlines()
    started_at, figures = time.monotonic(), []
    with serve(archives, cuts=[1 << 30, 100_000]) as server:
        for command in commands:
            result = run(command, server.url, cli)
            if command.startswith("transduce evaluate"):
                check_scores(result.out.decode())
            figures += [command, result.out.decode()]
        requests = len(server.requests)
        for command in commands:
            if not command.startswith("transduce evaluate"):  # the sequence may be started again
                run(command, server.url, cli)
        assert len(server.requests) == requests
    print(*figures, f"{name}: {time.monotonic() - started_at:.0f} s", sep="\n")

    check_corpus(tmp_path / name, folder, corpus)
    for size, average in (("base", 5), ("big", 20)):
        out = tmp_path / f"{name.removeprefix('wmt14-')}-{size}"
        config = load_model(out / "model").config
        assert (config.data.tokenizer, config.search.beam_size, config.search.alpha) == (kind, 4, 0.6)
        origin = re.search(r"the mean of the checkpoints ([^|]*)", (out / "model" / "README.md").read_text("utf-8"))
        assert origin and origin[1].count("step-") == average


def run(command: str, url: str, cli: Callable[..., CommandResult]) -> CommandResult:
    """Run a command of the page; `download` gets the address of the local server."""
    words = shlex.split(command)
    assert words[0] == "transduce", command
    result = cli(*words[1:], *(["--mirror", url] if words[1] == "download" else []))
    assert result.code == 0, f"{command}\n{result.err}"
    return result


def check_scores(text: str) -> None:
    """Check that the output of `evaluate` has the four BLEUs of the page, each with its signature."""
    assert text.startswith(f"{TEST_LINES:,} lines, beam 4, alpha 0.6 (gnmt)")
    signatures = {
        "bleu": "case:mixed|eff:no|tok:13a",
        "bleu_uncased": "case:lc|eff:no|tok:13a",
        "bleu_tokenised": "compounds:whole",
        "bleu_compound_split": "compounds:split",
    }
    for name, part in signatures.items():
        match = re.search(rf"^{name} +(\d+\.\d\d)  .*\n +(nrefs:1\|\S+)$", text, re.MULTILINE)
        assert match and part in match[2], (name, text)
        assert f"`{name}`" in PAGE.read_text("utf-8")
    # After so few steps some models write only punctuation (chrF 0.2), but all have learned which tokens are frequent.
    values = {name: float(value) for name, value in re.findall(r"^(perplexity|chrf) +(\S+)", text, re.MULTILINE)}
    assert values["chrf"] > 0 and values["perplexity"] < VOCAB_SIZE / 2, text


def check_corpus(out: Path, data: Path, corpus: catalogue.PublicCorpus) -> None:
    """Check the counts of the cleaning, and that the test sets are the real ones."""
    pairs = json.loads((out / "summary.json").read_bytes())["pairs"]
    totals = {outcome: sum(part[outcome] for part in pairs.values()) for outcome in pairs[corpus.train[0].name]}
    assert all(totals[outcome] >= 1 for outcome in [*DROPPED, "repeated"])
    assert totals["kept"] == len((out / "train.en").read_bytes().splitlines()) > 0.98 * sum(totals.values())
    for test in corpus.tests:
        for language in (corpus.src, corpus.tgt):
            lines = [" ".join(line.split()) for line in read_lines(data / f"{test.name}.{language}")][:TEST_LINES]
            assert [" ".join(line.split()) for line in read_lines(out / f"{test.name}.{language}")] == lines
