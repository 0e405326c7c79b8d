"""Translated files that wait in memory for their download: once, for a limited time."""

import asyncio
import math
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from transduce.serve.refusal import Refusal

MOST_FILES = 8  # that are translated at the same time
SECONDS = 600  # a file waits so long
MOST_BYTES = 64 << 20  # of all that wait


@dataclass(frozen=True)
class Download:
    """A file for a client. name: for the client. until: by the monotonic clock."""

    name: str
    content: bytes
    until: float


class Downloads:
    """The files that wait. Their keys cannot be guessed, and nothing that a client sends is part of a path.

    turn: lets one file at a time be read or written, because a hostile one takes up to 300 MB.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._files: dict[str, Download] = {}
        self._n_in_work = 0

    @contextmanager
    def work(self) -> Iterator[None]:
        """Count a file that is translated. Raises Refusal for one more than MOST_FILES."""
        if self._n_in_work >= MOST_FILES:
            raise Refusal(429, "too many files are translated at the same time", "files", retry_after=10)
        self._n_in_work += 1
        try:
            yield
        finally:
            self._n_in_work -= 1

    def add(self, name: str, target: str, content: bytes) -> str:
        """Keep a file, and return its key. name: of the source. target: its new language. Raises Refusal if full."""
        now = time.monotonic()
        self._files = {key: file for key, file in self._files.items() if file.until > now}
        if sum(len(file.content) for file in self._files.values()) + len(content) > MOST_BYTES:
            first = min((file.until for file in self._files.values()), default=now)
            raise Refusal(429, "too many files wait for their download", "files", retry_after=math.ceil(first - now))
        path = PurePosixPath(name.replace("\\", "/"))
        stem = re.sub(r"[^\w-]+", "_", path.stem)[:100]
        key = secrets.token_hex(16) + path.suffix.lower()
        self._files[key] = Download(f"{stem}_{target}{path.suffix.lower()}", content, now + SECONDS)
        return key

    def take(self, key: str, *, is_kept: bool = False) -> Download:
        """Return a file, and forget it unless `is_kept`. Raises Refusal if it does not wait."""
        file = self._files.get(key) if is_kept else self._files.pop(key, None)
        if file is None or file.until < time.monotonic():
            raise Refusal(404, "File not found; each file can be downloaded once", "files")
        return file
