"""The library of the kernels: compiled once for a level, and never loaded if it is not as it was compiled."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from transduce.decoding.compile_kernels import LEVEL, LEVELS, _cache_folder, levels, library
from transduce.decoding.compiled_kernels import Compiled, compiled
from transduce.errors import UserError

pytestmark = pytest.mark.skipif(compiled() is None, reason="needs a C++ compiler")

load = library.__wrapped__  # without the memory of earlier calls


@pytest.fixture(autouse=True)
def no_level_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEVEL, raising=False)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The library as the compiler writes it. It is linked with the shortest source, so that this takes no time."""
    source, built = tmp_path_factory.mktemp("code") / "small.cpp", tmp_path_factory.mktemp("code") / "small.so"
    source.write_text('extern "C" int answer() { return 42; }')
    subprocess.run(["c++", "-shared", "-fPIC", source, "-o", built], check=True)
    return built.read_bytes()


@pytest.fixture
def commands(code: bytes, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the compilations, which write `code`."""
    run: list[list[str]] = []

    def compile_at_once(command: list[str], **_: object) -> None:
        run.append(command)
        Path(command[-1]).write_bytes(code)

    monkeypatch.setattr("subprocess.run", compile_at_once)
    return run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "transduce"


def works(functions: ctypes.CDLL | None) -> bool:
    return functions is not None and functions.answer() == 42


def test_it_is_compiled_once(cache: Path, commands: list[list[str]]) -> None:
    assert works(load()) and works(load())
    assert len(commands) == 1
    assert [path.suffix for path in cache.iterdir()] == [".so"]


def test_the_compiler_builds_the_kernels(cache: Path) -> None:
    functions = load()
    assert functions is not None and Compiled(functions)


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "zeros at the end": lambda content: content[:-4096] + bytes(4096),
    "one bit": flipped,
    "text": lambda content: b"no library",
    "without its hash": lambda content: content[:-32],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_library_is_compiled_again(cache: Path, commands: list[list[str]], damage: str) -> None:
    load()
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.unlink()  # this process has the file in memory
    path.write_bytes(DAMAGE[damage](whole))
    path.chmod(0o600)
    assert works(load())
    assert len(commands) == 2 and path.read_bytes() == whole


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "dangling link"])
def test_another_kind_of_file_is_not_read(cache: Path, commands: list[list[str]], kind: str) -> None:
    load()
    (path,) = cache.iterdir()
    whole = path.rename(cache.parent / "elsewhere.so")
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(whole if kind == "link" else "nothing")
    assert works(load())
    assert len(commands) == 2
    assert works(load()) and len(commands) == (3 if kind == "folder" else 2)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_library_that_others_may_write_is_compiled_again(cache: Path, commands: list[list[str]], mode: int) -> None:
    load()
    (path,) = cache.iterdir()
    path.chmod(mode)
    assert works(load()) and len(commands) == 2
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_write_becomes_private(cache: Path, commands: list[list[str]]) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    assert works(load())
    assert cache.stat().st_mode & 0o777 == 0o700


def test_nothing_of_another_user_is_loaded_or_changed(
    cache: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    before = [(path.name, path.stat().st_mtime_ns) for path in cache.iterdir()]
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    assert works(load()) and len(commands) == 2
    assert [(path.name, path.stat().st_mtime_ns) for path in cache.iterdir()] == before


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert _cache_folder() is None
    assert works(load())


def test_a_file_in_the_place_of_the_folder_is_no_cache(cache: Path, commands: list[list[str]]) -> None:
    cache.write_text("a file where the folder should be")
    assert works(load())


# ---- machines without the kernels --------------------------------------------------------------------------------


def test_without_a_compiler_there_is_no_library(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert load() is None


def test_without_a_compiler_the_library_of_the_cache_is_used(
    cache: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have the cache of the image's first stage, and no compiler."""
    assert works(load())
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert works(load())
    assert len(commands) == 1


@pytest.mark.parametrize("flaw", ["compiler", "library", "temporary folder", "any other"])
def test_a_failure_is_no_error(cache: Path, flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> None:
        if flaw == "compiler":
            raise subprocess.CalledProcessError(1, command)
        Path(command[-1]).write_text("no library")

    def fail(*_: object, **__: object) -> None:
        raise ValueError("an unexpected failure")

    monkeypatch.setattr("subprocess.run", run)
    if flaw == "temporary folder":
        monkeypatch.setattr("tempfile.TemporaryDirectory", fail)
    if flaw == "any other":
        monkeypatch.setattr("ctypes.CDLL", fail)
    assert load() is None


# ---- levels ------------------------------------------------------------------------------------------------------


def test_the_best_level_of_the_processor_is_taken(cache: Path, commands: list[list[str]]) -> None:
    assert levels()[-1] == "portable"
    load()
    assert {*LEVELS[levels()[0]].flags} <= {*commands[0]}


def test_the_environment_takes_another_level(
    cache: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    monkeypatch.setenv(LEVEL, "portable")
    load()
    assert "-DPORTABLE" in commands[1]
    assert len([*cache.iterdir()]) == 2  # each level has its own library


@pytest.mark.parametrize("level", ["sse9", "avx2"])
def test_a_level_that_the_processor_lacks_is_an_error(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, level)
    monkeypatch.setattr("torch.cpu.get_capabilities", dict)
    with pytest.raises(UserError, match=f"{LEVEL}={level}: expected one of portable on this processor; unset {LEVEL}"):
        load()


def test_a_level_without_a_compiler_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, "portable")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match=r"portable: expected a C\+\+ compiler; install g\+\+"):
        load()


def test_an_older_torch_tells_the_levels_of_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    for name, has in {"avx2": True, "avx512": True, "vnni": False}.items():
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda has=has: has)
    assert levels() == ["avx512", "avx2", "portable"]


def test_a_compiler_that_does_not_know_the_best_level_takes_the_next(
    cache: Path, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_lower_levels(command: list[str], **_: object) -> None:
        if LEVELS[levels()[0]].flags[-1] in command:
            raise subprocess.CalledProcessError(1, command)
        Path(command[-1]).write_bytes(code)

    monkeypatch.setattr("subprocess.run", compile_lower_levels)
    assert works(load())
