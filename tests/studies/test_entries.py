"""The entries of results.json: odd values are refused, and an entry holds the settings that made it."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.study_results import (
    attention_results,
    experts_results,
    positions_results,
    scaling_results,
    table2_results,
    table4_results,
)
from support.toy_task import ROOT

from transduce import UserError
from transduce.config.recipes import find_recipe
from transduce.config.schema import with_value
from transduce.evaluation.study_report import html_page, markdown
from transduce.storage.atomic_folder import encode_json
from transduce.studies import (
    attention,
    experts,
    positions,
    scaling_laws,
    scaling_report,
    table1,
    table2,
    table3,
    table4,
)
from transduce.studies.results import changes_since, config_of, encode_config, read_results

STUDIES = {
    "table1": (table1.STUDY, table1.report),
    "table2": (table2.STUDY, table2.report),
    "table3": (table3.STUDY, table3.report),
    "table4": (table4.STUDY, table4.report),
    "positions": (positions.STUDY, positions.report),
    "experts": (experts.STUDY, experts.report),
    "attention": (attention.STUDY, attention.report),
    "scaling": (
        scaling_laws.STUDY,
        lambda results: scaling_report.report(results, scaling_report.fit_laws(results, 0)),
    ),
}
MADE_UP = {
    "table2": table2_results,
    "table4": table4_results,
    "positions": positions_results,
    "experts": experts_results,
    "attention": attention_results,
    "scaling": lambda folder: scaling_results(folder, count=4),  # too few for a fit, which takes a second
}
ODD = [None, True, 0, -1, 1, 2**62, 2**70, 1e-300, 1e300, -0.5, "", "x", "1", "done", [], {}, [1], [None], {"a": 1}]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value within `value`."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*path, key)
        yield from paths(value[key], (*path, key))


def damaged(content: Any, rng: random.Random) -> Any:
    """Return a copy with a value that is missing or odd. Values at each depth have the same share."""
    content = copy.deepcopy(content)
    by_depth: dict[int, list[tuple[Any, ...]]] = {}
    for path in paths(content):
        by_depth.setdefault(len(path), []).append(path)
    *parents, key = rng.choice(by_depth[rng.choice(list(by_depth))])
    place = content
    for parent in parents:
        place = place[parent]
    if rng.random() < 0.2:
        del place[key]
    else:
        place[key] = rng.choice(ODD)
    return content


def results_of(study: str, folder: Path) -> dict[str, Any]:
    """Return the content of a results.json of a study: the published one, or one that nobody trained."""
    if study not in MADE_UP:
        return json.loads((ROOT / "docs" / "results" / study / "results.json").read_bytes())
    results = MADE_UP[study](folder)
    results.save()
    return json.loads(results.path.read_bytes())


@pytest.mark.parametrize("study", STUDIES)
def test_odd_values_are_refused_or_reported(study: str, tmp_path: Path) -> None:
    original = results_of(study, tmp_path)
    path, rng = tmp_path / "results.json", random.Random(1)
    refused = 0
    for _ in range(150):
        path.write_bytes(encode_json(damaged(original, rng)))
        try:
            results = read_results(path, STUDIES[study][0])
        except UserError as error:
            assert "results.json: expected " in str(error)
            refused += 1
            continue
        if results.settings == original["asked"]:  # others are refused by a study
            report = STUDIES[study][1](results)
            assert markdown(report) and html_page(report)
    assert 50 < refused < 150


def test_the_message_names_the_entry_and_the_value(tmp_path: Path) -> None:
    content = json.loads((ROOT / "docs" / "results" / "table3" / "results.json").read_bytes())
    content["cells"]["n2-1"]["perplexity"] = "x"
    (tmp_path / "results.json").write_bytes(encode_json(content))
    with pytest.raises(UserError, match=r"n2-1: Expected `float`, got `str` - at `\$.perplexity`\); restore it"):
        read_results(tmp_path / "results.json", table3.STUDY)
    content["cells"]["n2-1"] |= {"perplexity": 12.5, "config": {"format_version": 1}}
    (tmp_path / "results.json").write_bytes(encode_json(content))
    with pytest.raises(UserError, match=r"\(n2-1: config: expected the sections and keys"):
        read_results(tmp_path / "results.json", table3.STUDY)


PUBLISHED = [study for study in ("table2", "table3") if (ROOT / "docs" / "results" / study).exists()]


@pytest.mark.parametrize("study", PUBLISHED)
def test_the_published_entries_hold_the_settings_of_todays_recipes(study: str) -> None:
    """Without this, `transduce study` would refuse to continue them."""
    path = ROOT / "docs" / "results" / study / "results.json"
    for entry in read_results(path, STUDIES[study][0]).entries.values():
        config = config_of(entry)
        if config is None:  # not run
            continue
        recipe = find_recipe(f"small-{study}-{entry['row'].removesuffix('-large')}")()
        assert changes_since(entry, with_value(recipe, "train.seed", entry.get("seed", 1))) == []  # a cost has no seed


def test_changed_settings_are_named() -> None:
    config = find_recipe("small-table3-base")()
    entry = {"config": encode_config(with_value(config, "model.vocab_size", 3_901))}
    assert changes_since(entry, config) == []  # the tokenizer sets the number of rows
    assert changes_since(entry, with_value(config, "train.max_steps", 400)) == ["train.max_steps=4200 then, 400 now"]
    assert changes_since(entry, with_value(config, "model.vocab_size", 7)) == ["model.vocab_size=3901 then, 7 now"]
    assert config_of({}) is None and changes_since({}, config) == []
    assert changes_since(entry, with_value(config, "train.precision", "auto")) == []  # the machine sets it
    fp32 = with_value(config, "train.precision", "fp32")
    assert changes_since(entry, fp32) == ["train.precision='bf16' then, 'fp32' now"]
