"""Fixtures of several test files: trained models, and the command line."""

import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.toy_task import RECIPE, CommandResult, Toy, run_transduce, toy_lines, write_pairs

os.environ["TRANSDUCE_DEVICE"] = "cpu"  # also for processes that tests start
settings.register_profile("transduce", deadline=None)  # a test that fails on a busy machine tells nothing
settings.load_profile("transduce")
MEMORY = Path("/dev/shm")
LEAST_MEMORY = 4 << 30  # bytes


def pytest_configure() -> None:
    """Keep the files of the tests in memory where enough is free: many tests wait for a disk half of their time."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= LEAST_MEMORY:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the two rehearsals of WMT14, of a minute each, so that one process does not end with both."""
    items.sort(key=lambda item: item.path.name != "test_wmt14.py")


@pytest.fixture(scope="session", autouse=True)
def no_signal_is_ignored() -> None:
    """Handle signals as on a terminal. A background job of a script ignores SIGINT, and `nohup` ignores SIGHUP."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def device_of_the_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests with the marker `cuda` compute on the GPU. All others compute on the CPU, also where there is a GPU."""
    if request.node.get_closest_marker("cuda"):
        monkeypatch.delenv("TRANSDUCE_DEVICE")


@pytest.fixture(scope="session", autouse=True)
def one_thread_at_first() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Give torch one thread again after a test that changed it: two threads wait for each other on a busy machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Return the toy task, trained through the command line, once for all processes of a session."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "toy"
    folder.mkdir(exist_ok=True)
    lines = {"train": toy_lines(1, 6_000), "valid": toy_lines(2, 60)}
    train, valid = ((folder / f"{name}.src", folder / f"{name}.tgt") for name in lines)
    with (folder.parent / "toy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "run" / "model").exists():
            for name in lines:
                write_pairs(folder, name, lines[name])
            recipe = folder / "recipe.py"
            recipe.write_text(RECIPE, encoding="utf-8")
            texts = ["--train", *train, "--valid", *valid]
            result = run_transduce("train", "--recipe", f"{recipe}:reverse", *texts, "--out", folder / "run")
            assert result.code == 0, result.err
    return Toy(folder, train, valid, sorted(set(toy_lines(3, 400)) - set(lines["train"])))


@pytest.fixture(scope="session")
def run_texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Return the texts of the runs in `finished_runs`: "train" and "valid", each with source and target."""
    from support.trainings import write_texts

    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory, run_texts: dict[str, tuple[Path, Path]]) -> dict[str, Path]:
    """Return an uninterrupted run of each configuration in `support.trainings.USES`. Tests must not change them."""
    from support.trainings import USES, train

    folders = {use: tmp_path_factory.mktemp(use) / "run" for use in USES}
    for use, folder in folders.items():
        train(USES[use], out=folder, **run_texts)
    return folders


@pytest.fixture
def cli(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., CommandResult]]:
    """Run the command line in this process: `cli("translate", folder, ...)`."""
    from transduce.cli.main import main

    def run(*arguments: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["transduce", *map(str, arguments)])
        monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # `main` sets another one
        capfdbinary.readouterr()
        code = 0
        try:
            main()
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
        out, err = capfdbinary.readouterr()
        return CommandResult(code, out, err.decode(errors="replace"))

    yield run
