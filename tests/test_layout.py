"""The layout: CONTRIBUTING.md lists every module, and imports go the way it says."""

import ast
import re
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "src" / "transduce"
ROWS = re.findall(r"^\| (`.*) \| (noun|VERB|) ?\| ", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
KINDS = {name: kind for cell, kind in ROWS for name in re.findall(r"`(\w+)(?:\.py|/)`", cell)}
LEVEL = {name: level for level, (cell, _) in enumerate(ROWS) for name in re.findall(r"`(\w+)(?:\.py|/)`", cell)}


def files_of(module: str) -> list[Path]:
    return [*(PACKAGE / module).rglob("*.py"), *PACKAGE.glob(f"{module}.py")]


def imported_by(module: str) -> set[str]:
    """The modules of the package that the files of `module` import, wherever in them."""
    found = set()
    for path in files_of(module):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "transduce":
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transduce."):
                found.add((node.module or "").split(".")[1])
            elif isinstance(node, ast.Import):
                found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("transduce.")}
    return found - {module, "__version__"}


def test_every_module_is_in_the_table_and_nothing_else() -> None:
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules - {"__init__", "__main__"} == KINDS.keys()


@pytest.mark.parametrize("module", KINDS)
def test_imports_go_up_the_table(module: str) -> None:
    assert KINDS[module] == "" or files_of(module)
    for other in imported_by(module):
        assert LEVEL[other] <= LEVEL[module], f"{module} imports {other}, which stands below it"
        if KINDS[module] == "noun":
            assert KINDS[other] == "noun", f"{module} imports the program {other}"
