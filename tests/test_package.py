"""The names that the package offers, the names of its classes, and what its modules import."""

import ast
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


def names_of_types(module: ast.Module) -> list[tuple[str, int]]:
    """Return the name and the line of each class, and of each alias and type variable that a module has in CamelCase.

    Short variables such as T, and constants, do not count.
    """
    names = [(node.name, node.lineno) for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            if re.fullmatch(r"_?[A-Z]\w*", name) and not name.isupper():
                names.append((name, node.lineno))
    return names


def test_every_class_and_every_alias_of_a_type_has_its_own_name() -> None:
    places = dict[str, str]()
    for path in sorted(Path(transduce.__file__).parent.rglob("*.py")):
        for name, line in names_of_types(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path}:{line}"
            assert name not in places, f"two types {name}: {places[name]} and {place}"
            places[name] = place


def test_names_of_types_are_found() -> None:
    lines = [
        "class T5: ...",
        "T = str",
        "Pair = tuple",
        'Key = TypeVar("Key")',
        "SIZE = 1",
        "_Row: type = int",
        "rows = 2",
    ]
    assert names_of_types(ast.parse("\n".join(lines))) == [("T5", 1), ("Pair", 3), ("Key", 4), ("_Row", 6)]
