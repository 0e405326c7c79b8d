"""Fetching a file from servers, networks and disks that fail: it resumes, and never keeps a wrong file."""

import errno
import hashlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from support.http_server import Files, serve

from transduce.data import disk
from transduce.data.disk import LocatedFile
from transduce.download.fetch import RemoteFile, at_mirror, fetch
from transduce.errors import UserError

CONTENT = bytes(range(256)) * 40  # 10,240 bytes
OTHER = bytes(reversed(CONTENT))
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def remote(files: Files, **changes: Any) -> RemoteFile:
    facts: dict[str, Any] = {"size": len(CONTENT), "checksum": sha256(CONTENT), **changes}
    return RemoteFile(f"{files.url}/a/file.tgz", **facts)


def server(**settings: Any) -> Any:
    return serve({"/a/file.tgz": CONTENT}, **settings)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize(
    "checksum", [sha256(CONTENT), f"md5:{hashlib.md5(CONTENT).hexdigest()}"], ids=["sha256", "md5"]
)
@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_file_arrives_and_is_not_asked_for_again(tmp_path: Path, size: int | None, checksum: str) -> None:
    with server() as files:
        file = remote(files, size=size, checksum=checksum)
        for _ in range(2):
            assert fetch(file, tmp_path).read_bytes() == CONTENT
        assert files.ranges == [None] and names(tmp_path) == ["file.tgz"]


@pytest.mark.parametrize("validator", ['"v1"', DATE])
def test_a_cut_connection_is_resumed_where_it_ended(tmp_path: Path, validator: str) -> None:
    with server(cuts=[4_000, 0, 1], validator=validator) as files:
        assert fetch(remote(files), tmp_path).read_bytes() == CONTENT
        assert files.ranges == [None, "bytes=4000-", "bytes=4000-", "bytes=4001-"]
        assert [condition for *_, condition in files.requests] == [None, validator, validator, validator]
    assert names(tmp_path) == ["file.tgz"]


@pytest.mark.parametrize("validator", [None, 'W/"weak"'])
def test_without_a_mark_of_the_version_the_checksum_decides(tmp_path: Path, validator: str | None) -> None:
    with server(cuts=[4_000], validator=validator) as files:
        assert fetch(remote(files), tmp_path).read_bytes() == CONTENT
        assert files.requests[1][1:] == ("bytes=4000-", None)


def test_an_end_without_a_length_is_resumed_if_the_size_is_known(tmp_path: Path) -> None:
    with server(cuts=[4_000], has_length=False) as files:
        assert fetch(remote(files), tmp_path).read_bytes() == CONTENT
        assert files.ranges == [None, "bytes=4000-"]


def test_a_server_that_always_cuts_is_left_and_asked_for_the_rest_later(tmp_path: Path) -> None:
    with server(cuts=[100, 200, 0, 0]) as files:
        with pytest.raises(OSError, match=r"ended after 300 of 10,240 bytes, 3 times in a row; .* at byte 300$"):
            fetch(remote(files), tmp_path)
        assert names(tmp_path) == ["file.tgz.partial", "file.tgz.partial.json"]
        assert fetch(remote(files), tmp_path).read_bytes() == CONTENT
        assert files.ranges[-1] == "bytes=300-"


def test_a_server_without_ranges_sends_the_file_again(tmp_path: Path) -> None:
    with server(cuts=[4_000], has_ranges=False) as files:
        assert fetch(remote(files), tmp_path).read_bytes() == CONTENT
        assert len(files.requests) == 2
        files.cuts = [5_000, 5_000, 5_000, 5_000]
        (tmp_path / "file.tgz").unlink()
        with pytest.raises(OSError, match="3 times in a row"):  # the same 5,000 bytes are no progress
            fetch(remote(files), tmp_path)


def test_a_file_that_changes_between_attempts_is_not_mixed(tmp_path: Path) -> None:
    with server(cuts=[4_000, 0, 0]) as files:
        with pytest.raises(OSError, match="ended after 4,000"):
            fetch(remote(files, checksum=sha256(OTHER)), tmp_path)
        files.content["/a/file.tgz"], files.validator = OTHER, '"2"'
        assert fetch(remote(files, checksum=sha256(OTHER)), tmp_path).read_bytes() == OTHER
        assert files.requests[-1][1:] == ("bytes=4000-", '"1"')


def test_parts_of_two_versions_are_found_without_a_mark(tmp_path: Path) -> None:
    with server(cuts=[4_000, 0, 0], validator=None) as files:
        with pytest.raises(OSError, match="ended after 4,000"):
            fetch(remote(files, checksum=sha256(OTHER)), tmp_path)
        files.content["/a/file.tgz"] = OTHER
        assert fetch(remote(files, checksum=sha256(OTHER)), tmp_path).read_bytes() == OTHER
        assert files.ranges[-2:] == ["bytes=4000-", None]


def test_another_server_continues_the_file(tmp_path: Path) -> None:
    with server(cuts=[4_000, 0, 0]) as first, server(validator='"9"') as second:
        with pytest.raises(OSError, match="ended after 4,000"):
            fetch(remote(first), tmp_path)
        assert fetch(remote(second), tmp_path).read_bytes() == CONTENT
        assert second.requests == [("/a/file.tgz", "bytes=4000-", None)]


def test_a_file_that_is_complete_but_was_not_renamed(tmp_path: Path) -> None:
    (tmp_path / "file.tgz.partial").write_bytes(CONTENT)
    with server() as files:
        assert fetch(remote(files), tmp_path).read_bytes() == CONTENT
        assert files.requests == []
        (tmp_path / "file.tgz").rename(tmp_path / "file.tgz.partial")
        assert fetch(remote(files, size=None), tmp_path).read_bytes() == CONTENT  # the server answers 416
        assert files.ranges == ["bytes=10240-"]


def test_a_part_that_is_too_long_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "file.tgz.partial").write_bytes(CONTENT + b"more")
    with server() as files:
        assert fetch(remote(files), tmp_path).read_bytes() == CONTENT
        assert files.ranges == ["bytes=10244-", None]


def test_a_wrong_checksum_leaves_no_file(tmp_path: Path) -> None:
    with server() as files, pytest.raises(UserError, match=r"expected the SHA256 \w+, not \w+; .*--mirror"):
        fetch(remote(files, checksum=sha256(OTHER)), tmp_path)
    assert names(tmp_path) == [] and len(files.requests) == 1


def test_a_wrong_file_that_comes_in_parts_is_received_twice_at_most(tmp_path: Path) -> None:
    """The first parts may be of two versions; the parts of the second download are not."""
    with server(cuts=[4_000, 1 << 20, 4_000, 1 << 20]) as files:
        with pytest.raises(UserError, match="expected the SHA256"):
            fetch(remote(files, checksum=sha256(OTHER)), tmp_path)
        assert files.ranges == [None, "bytes=4000-", None, "bytes=4000-"]
    assert names(tmp_path) == []


def test_a_wrong_size_is_refused_before_the_file_arrives(tmp_path: Path) -> None:
    (tmp_path / "file.tgz.partial").write_bytes(CONTENT[:50])
    with (
        server(has_ranges=False) as files,
        pytest.raises(UserError, match="expected 99 bytes, but the server has 10,240"),
    ):
        fetch(remote(files, size=99), tmp_path)
    assert (tmp_path / "file.tgz.partial").read_bytes() == CONTENT[:50]


def test_a_file_of_the_user_is_used_or_refused_and_never_replaced(tmp_path: Path) -> None:
    with server() as files:
        (tmp_path / "file.tgz").write_bytes(OTHER)
        with pytest.raises(UserError, match=r"file\.tgz: expected the SHA256 \w+, not \w+; delete the file"):
            fetch(remote(files), tmp_path)
        (tmp_path / "file.tgz").write_bytes(b"short")
        with pytest.raises(UserError, match="expected 10,240 bytes, not 5; delete the file"):
            fetch(remote(files), tmp_path)
        assert (tmp_path / "file.tgz").read_bytes() == b"short" and files.requests == []


def test_a_missing_file_is_not_asked_for_twice(tmp_path: Path) -> None:
    with serve({}) as files, pytest.raises(UserError, match="404 Not Found; give another server with --mirror"):
        fetch(remote(files), tmp_path)
    assert len(files.requests) == 1 and names(tmp_path) == []


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    with server(statuses=[503, 429]) as files:
        assert fetch(remote(files), tmp_path).read_bytes() == CONTENT
        files.statuses = [500] * 3
        (tmp_path / "file.tgz").unlink()
        with pytest.raises(OSError, match="answers 500 Internal Server Error, 3 times in a row"):
            fetch(remote(files), tmp_path)


def test_a_log_has_lines_about_the_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("transduce.download.fetch.REPORT_SECONDS", 0)
    with server(cuts=[4_000]) as files:
        fetch(remote(files), tmp_path)
        assert "file.tgz: 4,000 of 10,240 bytes\n" in capsys.readouterr().err
        (tmp_path / "file.tgz").unlink()
        files.has_length = False
        fetch(remote(files, size=None), tmp_path)
        assert "file.tgz: 10,240 bytes\n" in capsys.readouterr().err


def test_a_redirection_is_followed_at_each_attempt(tmp_path: Path) -> None:
    with server(cuts=[4_000]) as second, serve({}, redirects={"/a/file.tgz": f"{second.url}/a/file.tgz"}) as first:
        assert fetch(remote(first), tmp_path).read_bytes() == CONTENT
        assert first.ranges == second.ranges == [None, "bytes=4000-"]


@pytest.mark.parametrize("target", ["/a/file.tgz", "/missing", "file:///etc/passwd", "http://[damaged", ""])
def test_a_redirection_to_no_file_ends_the_download(tmp_path: Path, target: str) -> None:
    with serve({}, redirects={"/a/file.tgz": target}) as files:
        with pytest.raises((OSError, UserError), match="expected a file, but"):
            fetch(remote(files), tmp_path)
    assert names(tmp_path) == []


def test_a_web_page_of_a_proxy_is_named(tmp_path: Path) -> None:
    (tmp_path / "file.tgz.partial").write_bytes(CONTENT[:50])
    page = {"/a/file.tgz": b"<!DOCTYPE html><title>Please log in</title>"}
    with serve(page, headers={"Content-Type": "text/html; charset=utf-8"}, has_ranges=False) as files:
        with pytest.raises(UserError, match="expected a file, but a web page came, as of a proxy or a login"):
            fetch(remote(files, size=None), tmp_path)
    assert (tmp_path / "file.tgz.partial").read_bytes() == CONTENT[:50]  # what had arrived before


def test_no_server_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        file = RemoteFile(f"http://127.0.0.1:{unused.getsockname()[1]}/f", 1, sha256(b"x"))
        message = r"failed \(Connection refused\), 3 times in a row; .* https_proxy\), and run the command again$"
        with pytest.raises(OSError, match=message):
            fetch(file, tmp_path)
    assert capsys.readouterr().err.count("failed (Connection refused); another attempt in 0 s\n") == 2


def test_a_silent_server_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.download.fetch.TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = RemoteFile(f"http://127.0.0.1:{silent.getsockname()[1]}/f", 1, sha256(b"x"))
        with pytest.raises(OSError, match=r"the server was silent for 0\.05 s, 3 times"):
            fetch(file, tmp_path)


# ---- disks ---------------------------------------------------------------------------------------------------------


def test_without_room_nothing_is_received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(path: object) -> Any:
        return type("Usage", (), {"free": 10})

    with server() as files:
        monkeypatch.setattr(disk.shutil, "disk_usage", no_room)
        with pytest.raises(OSError, match="No space left on device: 10,240 bytes needed, 10 free") as caught:
            fetch(remote(files), tmp_path)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "file.tgz.partial")
    assert len(files.requests) == 1


def test_a_disk_that_fills_up_ends_the_download_which_continues_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [5_000]
    real = LocatedFile.write

    def write(self: LocatedFile, data: Any) -> int:
        """Write as on a disk with `room` free bytes."""
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))
        size = real(self, data[: room[0]])
        room[0] -= size
        return size

    with server() as files:
        with monkeypatch.context() as patch:
            patch.setattr(LocatedFile, "write", write)
            with pytest.raises(OSError) as caught:
                fetch(remote(files), tmp_path)
        assert caught.value.errno == errno.ENOSPC and len(files.requests) == 1  # a full disk is no lost connection
        assert (tmp_path / "file.tgz.partial").read_bytes() == CONTENT[:5_000]
        assert fetch(remote(files), tmp_path).read_bytes() == CONTENT
        assert files.ranges == [None, "bytes=5000-"]


def test_a_link_in_the_place_of_a_part_is_not_followed(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_bytes(b"mine")
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "file.tgz.partial").symlink_to(own)
    with server() as files, pytest.raises(OSError, match=r"[Ss]ymbolic links"):
        fetch(remote(files), folder)
    assert own.read_bytes() == b"mine"


# ---- mirrors -------------------------------------------------------------------------------------------------------


def test_a_mirror_has_the_paths_of_the_server() -> None:
    url = "https://www.statmt.org/wmt14/test-full.tgz"
    assert at_mirror(url, "http://127.0.0.1:8000/copies/") == "http://127.0.0.1:8000/copies/wmt14/test-full.tgz"


@pytest.mark.parametrize(
    "mirror",
    ["", "x", "file:///etc", "ftp://a/b", "http://", "http://a b", "http://a?b", "http://[a", "http://a:b", "http://ä",
     "http://a:99999", "http://a\n", f"http://{'a' * 99}"],
)  # fmt: skip
def test_another_mirror_is_refused(mirror: str) -> None:
    with pytest.raises(UserError, match="expected an address such as"):
        at_mirror("https://www.statmt.org/f", mirror)
