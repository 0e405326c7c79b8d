"""Fixtures of the tests of the service."""

from pathlib import Path

import pytest
from support.toy_task import Toy, run_transduce


@pytest.fixture(scope="session")
def exported(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model of the toy task, exported to CTranslate2."""
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("exported") / "model"
    result = run_transduce("export", toy.model, "--to", "ctranslate2", "--out", folder)
    assert result.code == 0, result.err
    return folder
