"""An HTTP server on this machine that serves files, and misbehaves as a test asks it to."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Files:
    """The files of a server by path, how it serves them, and the requests that it got.

    cuts: for each of the next answers, the bytes after which the connection ends. before_cut: called between these
    bytes and the end. statuses: HTTP statuses of the next answers. redirects: addresses by path. has_ranges: it answers
    to Range. headers: sent with every file. validator: ETag, or a date as Last-Modified.
    """

    content: dict[str, bytes]
    cuts: list[int] = field(default_factory=list)
    before_cut: Callable[[], None] = lambda: None
    statuses: list[int] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    has_ranges: bool = True
    has_length: bool = True
    validator: str | None = '"1"'
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/octet-stream"})
    requests: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # path, Range, If-Range
    url: str = ""

    @property
    def ranges(self) -> list[str | None]:
        return [requested for _, requested, _ in self.requests]


@contextmanager
def serve(content: dict[str, bytes], **settings: Any) -> Iterator[Files]:
    """Serve `content` on 127.0.0.1 in the block."""
    files = Files(content, **settings)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, files)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    files.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(handler: BaseHTTPRequestHandler, files: Files) -> None:
    """Answer one request as `files` says."""
    requested, condition = handler.headers.get("Range"), handler.headers.get("If-Range")
    files.requests.append((handler.path, requested, condition))
    if handler.path in files.redirects:
        handler.send_response(302)
        handler.send_header("Location", files.redirects[handler.path])
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    body = files.content.get(handler.path)
    status = files.statuses.pop(0) if files.statuses else 200 if body is not None else 404
    if body is None or status >= 400:
        handler.send_error(status)
        return
    match = re.fullmatch(r"bytes=(\d+)-", requested or "")
    start, total = 0, len(body)
    if match and files.has_ranges and condition in (None, files.validator):
        start = int(match[1])
        if start >= total:
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{total}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        status = 206
    handler.send_response(status)
    if status == 206:
        handler.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
    if files.has_length:
        handler.send_header("Content-Length", str(total - start))
    if files.validator is not None:
        handler.send_header("ETag" if '"' in files.validator else "Last-Modified", files.validator)
    for name, value in files.headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    end = min(total, start + files.cuts.pop(0)) if files.cuts else total
    handler.wfile.write(body[start:end])
    if end < total:
        files.before_cut()
    handler.close_connection = True
