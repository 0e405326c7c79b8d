"""Fixtures of the tests of the service."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.calls import fork_transduce
from support.serving import ServerProcess, server_process
from support.toy_task import Toy


@pytest.fixture(scope="session")
def exported(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model of the toy task, exported to CTranslate2."""
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("exported") / "model"
    result = fork_transduce("export", toy.model, "--to", "ctranslate2", "--out", folder)
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def server(toy: Toy, tmp_path: Path) -> Iterator[ServerProcess]:
    """Return a server with its default limits."""
    with server_process(tmp_path, toy.model) as server:
        yield server
        server.stop_and_check()
