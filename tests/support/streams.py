"""Standard streams and pipes for tests in this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def standard_input(path: Path) -> Iterator[None]:
    """Let the number of standard input stand for `path`, as `< path` does."""
    before, file = os.dup(0), os.open(path, os.O_RDONLY)
    os.dup2(file, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(file)


@contextmanager
def piped(*contents: bytes) -> Iterator[list[Path]]:
    """Return the path of a pipe for each of `contents`, as `<(...)` does in a shell. Each is at most 64 KB."""
    numbers = []
    for content in contents:
        reader, writer = os.pipe()
        numbers.append(reader)
        with open(writer, "wb") as file:
            file.write(content)
    try:
        yield [Path(f"/dev/fd/{number}") for number in numbers]
    finally:
        for number in numbers:
            os.close(number)
