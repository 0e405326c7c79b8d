"""Taking members out of an archive: only those, only regular files, and nothing outside of the folder."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.wmt_archives import tar

from transduce.download.archive import extract
from transduce.errors import UserError

TEXT = b"a line\n" * 1_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


def archive_of(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "a.tgz"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("compression", ["gz", ""])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_only_the_named_members_are_written(tmp_path: Path, folder: Path, compression: str, prefix: str) -> None:
    members = {f"{prefix}training/x.en": TEXT, f"{prefix}training/x.de": b"", f"{prefix}y.en": b"no"}
    archive = archive_of(tmp_path, tar(members, compression))
    extract(archive, {"training/x.en": folder / "x.en", "training/x.de": folder / "x.de"})
    assert (folder / "x.en").read_bytes() == TEXT and (folder / "x.de").read_bytes() == b""
    assert sorted(os.listdir(folder)) == ["x.de", "x.en"]


def test_the_rest_of_the_archive_is_not_read(tmp_path: Path, folder: Path) -> None:
    content = tar({"x": TEXT, "y": os.urandom(1_000_000)}, "")
    archive = archive_of(tmp_path, content[:500_000])
    extract(archive, {"x": folder / "x"})
    assert (folder / "x").read_bytes() == TEXT


def changed_member(change: Callable[[tarfile.TarInfo], None], name: str = "x") -> bytes:
    """Return an archive with one member after `change`, and one of its names after that."""
    member = tarfile.TarInfo(name)
    member.size = len(TEXT)
    change(member)
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as archive:
        archive.addfile(member, io.BytesIO(TEXT) if member.isreg() else None)
    return output.getvalue()


def link(kind: bytes, target: str) -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        member.type = kind
        member.linkname = target
        member.size = 0

    return change


@pytest.mark.parametrize(
    "change",
    [
        link(tarfile.SYMTYPE, "/etc/passwd"),
        link(tarfile.SYMTYPE, "../own"),
        link(tarfile.LNKTYPE, "../own"),
        link(tarfile.DIRTYPE, ""),
        link(tarfile.FIFOTYPE, ""),
        link(tarfile.CHRTYPE, ""),
    ],
    ids=["link to a system file", "link outside", "hard link", "folder", "pipe", "device"],
)
def test_links_folders_and_devices_are_refused(
    tmp_path: Path, folder: Path, change: Callable[[tarfile.TarInfo], None]
) -> None:
    (tmp_path / "own").write_bytes(b"mine")
    archive = archive_of(tmp_path, changed_member(change))
    with pytest.raises(UserError, match=r"a\.tgz: expected a regular file as x in the archive; delete the archive"):
        extract(archive, {"x": folder / "x"})
    assert os.listdir(folder) == [] and (tmp_path / "own").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["../own", "/tmp/own", "a/../../own", "x\0", "X"])
def test_a_name_that_leads_outside_is_another_name(tmp_path: Path, folder: Path, name: str) -> None:
    (tmp_path / "own").write_bytes(b"mine")
    archive = archive_of(tmp_path, tar({name: TEXT, "y": TEXT}))
    extract(archive, {"y": folder / "y"})
    assert os.listdir(folder) == ["y"] and (tmp_path / "own").read_bytes() == b"mine"


def test_permissions_and_owners_of_the_archive_do_not_count(tmp_path: Path, folder: Path) -> None:
    def change(member: tarfile.TarInfo) -> None:
        member.mode = 0o6777
        member.uid = 12
        member.gid = 12

    extract(archive_of(tmp_path, changed_member(change)), {"x": folder / "x"})
    status = (folder / "x").stat()
    assert status.st_mode & 0o7111 == 0 and status.st_uid == os.getuid()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>log in</html>" * 100,
        tar({"x": TEXT})[:60],
        tar({"x": os.urandom(100_000)})[:50_000],
        tar({"x": os.urandom(100_000)}, "")[:50_000],
        tar({"x": TEXT})[:-30] + bytes(30),
        tar({"y": TEXT}),
    ],
    ids=["empty", "a page", "cut gz", "cut in a gz member", "cut in a member", "damaged", "without the member"],
)
def test_a_damaged_archive_is_named_and_leaves_no_file(tmp_path: Path, folder: Path, content: bytes) -> None:
    archive = archive_of(tmp_path, content)
    with pytest.raises(UserError, match=r"a\.tgz: expected .*; delete the archive, and run the command again"):
        extract(archive, {"x": folder / "x", "z": folder / "z"})
    assert [name for name in os.listdir(folder) if name != "x"] == []


def test_a_member_larger_than_the_disk_is_refused_before_it_is_written(tmp_path: Path, folder: Path) -> None:
    """The header promises 2^60 bytes, as of a sparse file or a bomb."""
    output = io.BytesIO()
    member = tarfile.TarInfo("x")
    member.size = 1 << 60
    output.write(member.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))
    with pytest.raises(OSError, match="No space left on device: 1,152,921,504,606,846,976 bytes needed"):
        extract(archive_of(tmp_path, output.getvalue()), {"x": folder / "x"})
    assert os.listdir(folder) == []
