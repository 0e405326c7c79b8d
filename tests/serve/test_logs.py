"""The log: a line for each request, and no request that waits for it or fails by it."""

import os
from pathlib import Path

import pytest
from support.toy_task import needs_dev_full

from transduce.serve.logs import Log


@pytest.mark.parametrize("kind", ["closed pipe", pytest.param("full disk", marks=needs_dev_full), "closed descriptor"])
def test_lines_that_cannot_be_written_are_counted(kind: str) -> None:
    errors: list[None] = []
    reading, descriptor = os.pipe()
    os.close(reading)
    if kind == "full disk":
        os.close(descriptor)
        descriptor = os.open("/dev/full", os.O_WRONLY)
    if kind == "closed descriptor":
        os.close(descriptor)
    log = Log(lambda: errors.append(None), descriptor)
    for _ in range(3):
        log.write("info", "request", status=200)
    log.close(10)
    assert len(errors) == 3


def test_a_defect_is_logged_only_by_its_kind_and_place(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        log = Log(lambda: None, file.fileno())
        try:
            int("canary")
        except ValueError as problem:
            log.write_defect(problem, id="a")
        log.close(10)
    text = path.read_text()
    assert '"kind":"ValueError"' in text and "test_logs.py:" in text and "canary" not in text
