"""Fixtures of the download tests."""

import pytest

from transduce.download import fetch


@pytest.fixture(autouse=True)
def direct_and_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask servers on this machine directly, and do not wait before another attempt."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "PAUSES", (0, 0))
