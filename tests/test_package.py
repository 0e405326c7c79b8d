"""The names that the package offers, and what its modules import."""

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
