"""The names that the package offers, the names of its classes, and what its modules import."""

import re
from pathlib import Path

import pytest
from support.command_line import heavy_imports

import transduce


def test_modules_that_need_no_model_do_not_load_torch() -> None:
    modules = (
        "data.text",
        "data.tokenizer",
        "config.schema",
        "errors",
        "evaluation.metrics",
        "evaluate",
        "decoding.hypothesis",
        "decoding.options",
        "decoding.segmentation",
        "cli.stream",
        "interop.ctranslate2_engine",
    )
    assert "torch" not in heavy_imports(f"import {', '.join(f'transduce.{module}' for module in modules)}")
    assert heavy_imports("import transduce") == []


def test_every_public_name_can_be_imported() -> None:
    for name in transduce.__all__:
        assert getattr(transduce, name).__module__.startswith("transduce."), name
    assert {*transduce.__all__} <= {*dir(transduce)}
    everything: dict[str, object] = {}
    exec("from transduce import *", everything)
    assert {*transduce.__all__} <= everything.keys()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = transduce.nothing


def test_every_class_has_a_name_of_its_own() -> None:
    places = dict[str, str]()
    for path in sorted(Path(transduce.__file__).parent.rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if match := re.match(r"\s*class (\w+)[:(]", line):
                place = f"{path}:{number}"
                assert match[1] not in places, f"two classes {match[1]}: {places[match[1]]} and {place}"
                places[match[1]] = place
