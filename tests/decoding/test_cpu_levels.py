"""The libraries of the kernels, as the installation compiles them, and the level that is taken."""

import ctypes
import logging
import shutil
from pathlib import Path

import pytest
import torch

from transduce.data import native_library
from transduce.decoding import cpu_levels
from transduce.decoding.compiled_kernels import Compiled, compiled
from transduce.decoding.cpu_levels import LEVEL, NATIVE, levels, library, library_of
from transduce.errors import UserError

load = library.__wrapped__  # without the memory of earlier calls
needs_compiled = pytest.mark.skipif(compiled() is None, reason="needs compiled kernels")


@pytest.fixture(autouse=True)
def no_level_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEVEL, raising=False)


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the libraries, which is empty."""
    monkeypatch.setattr(cpu_levels, "NATIVE", tmp_path)
    (tmp_path / "libraries").mkdir()
    return tmp_path / "libraries"


def level_of(functions: ctypes.CDLL | None) -> str:
    assert functions is not None and Compiled(functions)
    return Path(functions._name).stem


@pytest.mark.skipif(not (NATIVE / "kernels.cpp").exists(), reason="a wheel has no source")
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_the_installation_has_compiled_this_source() -> None:
    """Otherwise tests of the compiled kernels would be skipped, or test an earlier source."""
    is_current = library_of("portable") is not None
    assert is_current, "native/ has changed since its last compilation; CONTRIBUTING.md has the command"


@needs_compiled
def test_a_library_of_another_source_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "source_hash", lambda folder: b"another")
    assert load() is None


@needs_compiled
def test_the_best_level_of_the_processor_is_taken() -> None:
    assert levels()[-1] == "portable"
    assert level_of(load()) == levels()[0]


@needs_compiled
def test_the_environment_takes_another_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, "portable")
    assert level_of(load()) == "portable"


@needs_compiled
def test_a_level_that_is_missing_or_of_another_system_gives_the_next(libraries: Path) -> None:
    (portable,) = NATIVE.glob("libraries/portable.*")
    shutil.copy(portable, libraries)
    (libraries / f"{levels()[0]}.so").write_text("no library")
    assert level_of(load()) == "portable"


def test_without_libraries_the_program_says_so(libraries: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load() is None
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("transduce", logging.WARNING)
    assert "no compiled kernels" in record.message and "install a C++ compiler" in record.message


@pytest.mark.parametrize("level", ["sse9", "avx2"])
def test_a_level_that_the_processor_lacks_is_an_error(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, level)
    monkeypatch.setattr("torch.cpu.get_capabilities", dict)
    with pytest.raises(UserError, match=f"{LEVEL}={level}: expected one of portable on this processor; unset {LEVEL}"):
        load()


def test_a_level_that_is_not_installed_is_an_error(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, "portable")
    with pytest.raises(UserError, match=r"=portable: expected its compiled kernels; install a C\+\+ .*, or unset"):
        load()


def test_an_older_torch_tells_the_levels_of_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    for name, has in {"avx2": True, "avx512": True, "vnni": False}.items():
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda has=has: has)
    assert levels() == ["avx512", "avx2", "portable"]
