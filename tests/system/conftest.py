"""Fixtures of the system tests."""

import pytest
from support.small_runs import Texts, write_texts


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """Return the texts of the small runs."""
    return write_texts(tmp_path_factory.mktemp("texts"))
