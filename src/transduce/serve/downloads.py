"""Files of the service: the work on each is bounded in time, and its translation waits in memory for its download."""

import asyncio
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from transduce.serve.refusal import Refusal

MOST_FILES = 8  # that are translated at the same time
SECONDS = 600  # a file waits so long
MOST_BYTES = 64 << 20  # of all that wait


T = TypeVar("T")


@dataclass(frozen=True)
class Download:
    """A file for a client. name: for the client. until: by the monotonic clock."""

    name: str
    content: bytes
    until: float


class Downloads:
    """The files that wait. Their keys cannot be guessed, and nothing that a client sends is part of a path."""

    def __init__(self) -> None:
        self._files: dict[str, Download] = {}
        self._limits = set[asyncio.Timeout]()  # of the files that are translated
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1)  # reads and writes one file at a time: a hostile one takes up to 200 MB

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Return what a function returns that reads or writes a file."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    @asynccontextmanager
    async def work(self, seconds: float) -> AsyncIterator[None]:
        """Bound the work on a file. Raises Refusal after `seconds`, and for one more than MOST_FILES."""
        if len(self._limits) >= MOST_FILES:
            raise Refusal(429, "too many files are translated at the same time", "files", retry_after=10)
        too_late = f"no translation of the file within {seconds:g} s; try again later, or split the file"
        limit = asyncio.timeout(0 if self._is_closed else seconds)
        self._limits.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError:
            message = "the server is shutting down; send the file again" if self._is_closed else too_late
            reason = "shutdown" if self._is_closed else "deadline"
            raise Refusal(503, message, reason, retry_after=10) from None
        finally:
            self._limits.remove(limit)

    def close(self) -> None:
        """End the work on all files, because the server that keeps them ends."""
        self._is_closed = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0)

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
