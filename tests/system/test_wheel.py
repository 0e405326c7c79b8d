"""The wheel in an environment without a compiler: with the kernels, or without them where its build had no compiler."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from support.toy_task import ROOT

from transduce.decoding.cpu_levels import levels

pytest.importorskip("scikit_build_core")
pytestmark = pytest.mark.slow

MODEL = ROOT / "tests" / "support" / "golden" / "run" / "model"
LEVEL = "import transduce.decoding.cpu_levels as levels; print(levels.__file__, levels.library()._name)"
DROPOUT = "from transduce.data.bpe_dropout import library; print(getattr(library(), '_name', None))"


def install_wheel(folder: Path, **environment: str) -> tuple[str, Path]:
    """Build a wheel with variables of the environment; return its name and the programs of a new environment with it.

    The new environment takes the other packages from this process.
    """
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True, env=os.environ | environment)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    (packages,) = folder.glob("venv/lib/*/site-packages")
    (packages / "others.pth").write_text(str(Path(torch.__file__).parents[1]))
    programs = folder / "venv" / "bin"
    subprocess.run([*pip, "--python", programs / "python", "install", "--no-deps", "--no-index", wheel], check=True)
    return wheel.name, programs


def run(command: list[str | Path], **options: str) -> subprocess.CompletedProcess[str]:
    """Run a program where no other program is on the path."""
    return subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=True, **options)


def test_it_translates_by_the_kernels_of_the_best_level(tmp_path: Path) -> None:
    wheel, programs = install_wheel(tmp_path)
    assert wheel.split("-")[2:4] == ["py3", "none"] and not wheel.endswith("any.whl")
    translation = run([programs / "transduce", "translate", MODEL, "--precision", "int8"], input="a b c\n")
    assert translation.stdout.count("\n") == 1 and not translation.stderr
    module, library = map(Path, run([programs / "python", "-I", "-c", LEVEL]).stdout.split())
    assert module.is_relative_to(tmp_path) and library.is_relative_to(tmp_path)
    assert library.stem == levels()[0]
    dropout = Path(run([programs / "python", "-I", "-c", DROPOUT]).stdout.strip())
    assert dropout.is_relative_to(tmp_path) and dropout.stem == "bpe_dropout"
    assert not [*module.parents[1].glob("*/native/*.*")]  # no source


def test_without_a_compiler_it_translates_and_says_once_that_this_is_slow(tmp_path: Path) -> None:
    wheel, programs = install_wheel(tmp_path, CXX=str(tmp_path / "missing"))
    assert wheel.endswith("-py3-none-any.whl")
    translation = run([programs / "transduce", "translate", MODEL, "--precision", "int8"], input="a b c\nd\n")
    assert translation.stdout.count("\n") == 2
    assert translation.stderr.count("\n") == 1 and "install a C++ compiler" in translation.stderr
    dropout = run([programs / "python", "-I", "-c", DROPOUT])
    assert dropout.stdout == "None\n" and "install a C++ compiler" in dropout.stderr
