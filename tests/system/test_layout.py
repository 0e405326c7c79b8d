"""The layout: imports follow one order, without cycles, and some packages never load torch."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest
from support.toy_task import ROOT

PACKAGE = ROOT / "src" / "transduce"

# A group may import the groups before it. Members of one group do not import each other.
ORDER = """
errors console | config | data model | training decoding | storage | evaluation | translate |
evaluate cleaning | train | interop download parsing serve family | studies demo | cli
"""
LEVEL = {name: level for level, group in enumerate(ORDER.split("|")) for name in group.split()}
DOORS = {"__init__", "__main__"}  # imported from outside the package, by no file inside
WITHOUT_TORCH = [
    "transduce",
    "transduce.cli.main",
    "transduce.data.corpora",
    "transduce.evaluation.metrics",
    "transduce.serve.app",
    "transduce.download.corpus",
]


def place(path: Path) -> str:
    """Return the package or the program of a file."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imported_modules(path: Path) -> set[str]:
    """Return the modules of `transduce` that a file imports, by dotted name, also within functions."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "transduce":
            modules |= {alias.name for alias in node.names if alias.name != "__version__"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transduce."):
            parent = (node.module or "").removeprefix("transduce.")
            names = {f"{parent}.{alias.name}" for alias in node.names}
            modules |= {name if is_module(name) else parent for name in names}
        elif isinstance(node, ast.Import):
            modules |= {a.name.removeprefix("transduce.") for a in node.names if a.name.startswith("transduce.")}
    return modules


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


FILES = sorted(path for path in PACKAGE.rglob("*.py") if place(path) not in DOORS)


def test_every_package_and_program_has_a_place_in_the_order() -> None:
    places = {place(path) for path in FILES}
    assert places <= LEVEL.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_order(path: Path) -> None:
    place_of_file = place(path)
    for module in imported_modules(path):
        other = module.split(".")[0]
        assert other == place_of_file or LEVEL[other] < LEVEL[place_of_file], f"{path} imports {module}"


def test_imports_have_no_cycles() -> None:
    graph = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): imported_modules(path) for path in FILES}
    acyclic: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in acyclic:
            for other in graph.get(module, set()) | graph.get(f"{module}.__init__", set()):
                visit(other, (*path, module))
            acyclic.add(module)

    for module in graph:
        visit(module, ())


def test_packages_have_no_code_in_init() -> None:
    for path in PACKAGE.glob("*/**/__init__.py"):
        if path.parent.name not in ("recipes", "family"):
            assert [type(node) for node in ast.parse(path.read_text("utf-8")).body] == [ast.Expr], path


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_it_does_not_load_torch(module: str) -> None:
    program = f"import sys, {module}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program]).strip() == b"False"


def test_the_top_of_the_package_is_short() -> None:
    assert len([path for path in PACKAGE.iterdir() if path.name != "__pycache__"]) <= 24
