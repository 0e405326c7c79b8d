"""The download of a file over HTTP. It continues after a cut connection or a kill. At the end it is checked.

The part that has arrived is in NAME.partial. NAME.partial.json holds its address and the server's mark of the version
(ETag or Last-Modified). The next attempt asks for the rest (Range) of this version only (If-Range). Without a mark it
asks for the rest as well, since the checksum finds a mixture of two versions. If the server sends the file from its
start again, because the file has changed or the server cannot continue, the download starts again too.

A server without the file, or with another one, means a mistake in the address (UserError): the next attempt would find
the same. A failure of the network or the server is an OSError: the next attempt continues.
"""

import hashlib
import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from transduce import __version__
from transduce.console import printable
from transduce.data.disk import LocatedFile, check_room
from transduce.data.system import NO_LINK
from transduce.errors import UserError
from transduce.storage.atomic_folder import decode_json, encode_json, write_file

PAUSES = (1, 2, 5, 10, 30, 60)  # seconds before each further attempt; after new bytes the first pause is next again
TIMEOUT = 60  # seconds without an answer or a byte
REPORT_SECONDS = 60  # seconds between two lines about the progress, where no bar can be drawn
BLOCK_BYTES = 1 << 20
BUSY = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses of errors that may be over at the next attempt


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server. size: in bytes; None: unknown. checksum: as "sha256:0224c7" or "md5:a8cd7"."""

    url: str
    size: int | None
    checksum: str

    @property
    def name(self) -> str:
        """The part of the address after the last slash."""
        return self.url.rpartition("/")[2]

    def difference(self, path: Path) -> str | None:
        """Return how the file at `path` differs from this one, as in "5 bytes, not 3"; None if it does not."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return f"{self.size:,} bytes, not {size:,}"
        kind, _, expected = self.checksum.partition(":")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, kind).hexdigest()
        return None if digest == expected else f"the {kind.upper()} {expected}, not {digest}"


class _Interruption(Exception):
    """The cause of another attempt."""


def fetch(file: RemoteFile, folder: Path) -> Path:
    """Return the path of `file` in `folder`. Download the file, unless it is there and has the right checksum.

    Raises UserError if the server does not have this file, or if another file in `folder` has its name. Raises OSError
    if the network, the server or the disk fails; the next call continues where this one stopped.
    """
    path = folder / file.name
    if path.exists():
        if difference := file.difference(path):
            raise UserError(f"{path}: expected {difference}; delete the file, and run the command again")
        return path
    partial = _Partial(path.with_name(f"{file.name}.partial"))
    failures = 0
    most = partial.size()
    may_be_mixed = True
    while True:
        try:
            has_parts = _attempt(file, partial)
        except _Interruption as problem:
            failures = 0 if partial.size() > most else failures
            most = max(most, partial.size())
            if failures == len(PAUSES):
                resumption = f": it continues at byte {partial.size():,}" if partial.size() else ""
                raise OSError(
                    f"{file.url}: expected a file, but {problem}, {failures + 1} times in a row; check the network "
                    f"(and https_proxy), and run the command again{resumption}"
                ) from problem
            place = f", at byte {partial.size():,}" if partial.size() else ""
            _say(f"{file.name}: {problem}; another attempt in {PAUSES[failures]} s{place}")
            time.sleep(PAUSES[failures])
            failures += 1
            continue
        difference = file.difference(partial.path)
        if difference is None:
            break
        partial.remove()
        if not (has_parts and may_be_mixed):
            raise UserError(
                f"{file.url}: expected {difference}; the server has another file, or the network changed it: give "
                "another server with --mirror, or run the command again"
            )
        _say(f"{file.name}: expected {difference}; the parts may be of two versions: downloading it again, once")
        failures = 0
        most = 0
        may_be_mixed = False
    partial.path.replace(path)
    partial.remove()
    return path


# ---- the part that has arrived -----------------------------------------------------------------------------------


class _Partial:
    """The part of a file that has arrived, and the version of the file that it belongs to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._origin_path = path.with_name(f"{path.name}.json")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def validator(self, url: str) -> str | None:
        """Return the server's mark of the version, if the part came from `url` and the server gave a mark."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            origin = decode_json(self._origin_path.read_bytes())
            return origin["validator"] if origin["url"] == url else None
        return None

    def restart(self, url: str, validator: str | None) -> None:
        """Remove the part, and store the version of the next one."""
        self.path.unlink(missing_ok=True)  # first: a part must never stand next to the mark of another version
        write_file(self._origin_path, encode_json({"url": url, "validator": validator}))

    def open(self) -> LocatedFile:
        """Open the part, to write at its end."""
        number = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK, 0o666)
        return LocatedFile(number, self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._origin_path.unlink(missing_ok=True)


# ---- one attempt -------------------------------------------------------------------------------------------------


def _attempt(file: RemoteFile, partial: _Partial) -> bool:
    """Receive the rest of a file. Return True if the file now has bytes of several attempts.

    Raises _Interruption if a further attempt may succeed, and UserError if the server does not have the file.
    """
    start = partial.size()
    if start and start == file.size:
        return True  # an earlier process stopped before it renamed the file
    headers = {"Accept-Encoding": "identity", "User-Agent": f"transduce/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if validator := partial.validator(file.url):
            headers["If-Range"] = validator
    try:
        response: HTTPResponse = urlopen(Request(file.url, headers=headers), timeout=TIMEOUT)
    except HTTPError as answer:
        _explain(answer, file, partial)
        return True
    except (OSError, HTTPException, ValueError) as problem:  # ValueError: a redirection to a damaged address
        raise _Interruption(_reason(problem)) from problem
    with response:
        _check_kind(response, file)
        total = _total(response, partial)
        if file.size is not None and total not in (None, file.size):
            raise UserError(
                f"{file.url}: expected {file.size:,} bytes, but the server has {total:,}; give another server with "
                "--mirror"
            )
        if response.status == 200:
            start = 0
            partial.restart(file.url, _validator(response))
        _receive(response, partial, start, file.size or total)
    return start > 0


def _explain(answer: HTTPError, file: RemoteFile, partial: _Partial) -> None:
    """Raise the error for an HTTP status, unless it says that nothing is missing."""
    status = f"the server answers {answer.code} {printable(' '.join(str(answer.reason).split()))}"
    if answer.code == 416:  # it has no bytes from `start` on
        if answer.headers.get("Content-Range") == f"bytes */{partial.size()}":
            return
        partial.remove()
        raise _Interruption("the file on the server is now shorter")
    if answer.code in BUSY:
        raise _Interruption(status)
    message = f"{file.url}: expected a file, but {status}; give another server with --mirror"
    raise UserError(message) if answer.code < 500 else OSError(message)


def _total(response: HTTPResponse, partial: _Partial) -> int | None:
    """Return the size of the whole file according to the server; None if it does not say."""
    if response.status == 200:
        length = response.headers.get("Content-Length", "")
        return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
    match = re.fullmatch(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)", response.headers.get("Content-Range", ""))
    if response.status != 206 or match is None or int(match[1]) != partial.size():
        partial.remove()
        raise _Interruption(f"the server answers {response.status} with another part than the rest")
    return None if match[2] == "*" else int(match[2])


def _validator(response: HTTPResponse) -> str | None:
    """Return the mark of the version for If-Range: a strong ETag, or the date of the last change."""
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else response.headers.get("Last-Modified")


def _check_kind(response: HTTPResponse, file: RemoteFile) -> None:
    """Raise UserError if the answer is a web page, such as the page of a proxy or of a login."""
    if response.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
        raise UserError(
            f"{file.url}: expected a file, but a web page came, as of a proxy or a login ({response.url}); check the "
            "network (and https_proxy), or give another server with --mirror"
        )


def _receive(response: HTTPResponse, partial: _Partial, start: int, total: int | None) -> None:
    """Append the body of an answer to a part. start: size of the part. total: size of the whole file, None: unknown."""
    check_room(partial.path, (total or 0) - start)
    size = start
    reported_at = time.monotonic()
    with partial.open() as out, _progress_bar() as bar:
        task = bar.add_task(partial.path.stem, total=total, completed=start)
        while True:
            try:
                block = response.read1(BLOCK_BYTES)
            except (OSError, HTTPException) as problem:
                raise _Interruption(_reason(problem)) from problem
            if not block:
                break
            _write(out, block)
            size += len(block)
            bar.update(task, completed=size)
            if bar.disable and time.monotonic() - reported_at >= REPORT_SECONDS:
                reported_at = time.monotonic()
                _say(f"{partial.path.stem}: {size:,} {f'of {total:,} ' if total else ''}bytes")
        out.sync()
    if total is not None and size < total:
        raise _Interruption(f"the connection ended after {size:,} of {total:,} bytes")


def _write(out: LocatedFile, block: bytes) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[out.write(rest) :]


def _reason(problem: Exception) -> str:
    """Return the cause of a failed connection in words."""
    cause = getattr(problem, "reason", problem)  # urllib wraps the error of the socket
    if isinstance(cause, TimeoutError):
        return f"the server was silent for {TIMEOUT} s"
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return f"the connection failed ({printable(text)})"


def at_mirror(url: str, mirror: str) -> str:
    """Return the address of a file on another server, under the same path. mirror: such as https://example.org/copies.

    Raises UserError for anything else.
    """
    with suppress(ValueError):
        parts = urlsplit(mirror)
        host = (parts.hostname or "").encode("idna")
        is_usable = host and (parts.port is None or parts.port > 0) and mirror.isascii() and mirror.isprintable()
        if is_usable and parts.scheme in ("http", "https") and not set(mirror) & set(" ?#"):
            return mirror.rstrip("/") + urlsplit(url).path
    raise UserError(f"--mirror={mirror}: expected an address such as https://example.org/copies; correct it")


def _progress_bar() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    console = Console(stderr=True)
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not sys.stderr.isatty())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
