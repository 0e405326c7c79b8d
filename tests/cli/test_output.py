"""Output: files that are replaced only when complete, and standard output in any encoding and of any size."""

import errno
import io
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import assert_mistake
from support.streams import standard_input
from support.toy_task import CommandResult, Toy, needs_dev_full, write_lines

from transduce import UserError
from transduce.cli.output import check_output, output_file, standard_output


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a file with an old output."""
    return write_lines(tmp_path / "old", ["old"])


def partial_files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.glob("*.partial-*")]


# ---- files -------------------------------------------------------------------------------------------------------


def test_the_redirected_input_is_not_overwritten(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    """As in `translate MODEL --output F < F`."""
    source = write_lines(tmp_path / "in", ["a b"])
    with standard_input(source):
        assert_mistake(cli("translate", toy.model, "--output", source), "expected another file than the input")
    assert source.read_bytes() == b"a b\n"


def test_the_input_is_not_the_file_of_standard_output(tmp_path: Path) -> None:
    """As in `translate MODEL < F >> F`, which would read its own output without end."""
    file = write_lines(tmp_path / "in", ["a b"])
    before = os.dup(1)
    with file.open("ab") as output:
        os.dup2(output.fileno(), 1)
    try:
        with pytest.raises(UserError, match="^standard output: expected another file than the input"):
            check_output(None, file)
    finally:
        os.dup2(before, 1)
        os.close(before)


@pytest.mark.parametrize("lines", [b"", b"a b\n"])
def test_an_old_output_survives_a_bad_line(
    toy: Toy, tmp_path: Path, old: Path, cli: Callable[..., CommandResult], lines: bytes
) -> None:
    """The output so far is kept in a file that the message names."""
    (tmp_path / "in").write_bytes(lines + b"\xff\n")
    result = cli("translate", toy.model, "--input", tmp_path / "in", "--output", old)
    assert_mistake(result, "expected UTF-8")
    assert old.read_bytes() == b"old\n"
    assert partial_files(tmp_path) == ([b"b a\n"] if lines else [])
    assert ("unchanged; the output so far is in" in result.err) == bool(lines)


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left"), SystemExit(3)])
def test_an_old_output_survives_any_failure(tmp_path: Path, old: Path, problem: BaseException) -> None:
    with pytest.raises(type(problem)), output_file(old) as file:
        file.write(b"new\n")
        file.flush()
        raise problem
    assert old.read_bytes() == b"old\n" and partial_files(tmp_path) == [b"new\n"]


def test_a_link_stays_a_link_and_permissions_stay(tmp_path: Path, old: Path) -> None:
    old.chmod(0o640)
    (tmp_path / "link").symlink_to("old")
    with output_file(tmp_path / "link") as file:
        file.write(b"new\n")
        assert old.read_bytes() == b"old\n"
    assert (tmp_path / "link").is_symlink() and old.read_bytes() == b"new\n"
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert partial_files(tmp_path) == []


def test_missing_folders_of_an_output_are_made(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "folders" / "new"
    check_output(path, tmp_path / "in")
    assert [*tmp_path.iterdir()] == []
    with output_file(path) as file:
        file.write(b"new\n")
    assert path.read_bytes() == b"new\n"


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path, old: Path) -> None:
    with output_file(tmp_path / "new") as file:
        file.write(b"new\n")
    assert (tmp_path / "new").stat().st_mode == old.stat().st_mode


def test_a_mount_point_gets_the_content(tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container mounts single files, which cannot be renamed over."""

    def busy(self: Path, target: Path) -> Path:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(target))

    monkeypatch.setattr(Path, "replace", busy)
    with output_file(old) as file:
        file.write(b"new\n")
    assert old.read_bytes() == b"new\n" and partial_files(tmp_path) == []


def test_output_that_cannot_be_written_is_refused_first(
    tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for locked, message in ((old, "expected a file that may be written"), (tmp_path, "use standard output: > ")):
        monkeypatch.setattr(os, "access", lambda path, mode, locked=locked: Path(path) != locked)
        with pytest.raises(UserError, match=message):
            check_output(old, tmp_path / "in")


def test_pipes_and_devices_are_written_as_they_are(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    """/dev/stdout, also when it is a file that has content already; a pipe; /dev/null as input and output."""
    source = write_lines(tmp_path / "in", ["a b"])
    assert cli("translate", toy.model, "--input", source, "--output", "/dev/stdout").out == b"b a\n"
    assert cli("translate", toy.model, "--input", "/dev/null", "--output", "/dev/null").code == 0
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert cli("translate", toy.model, "--input", source, "--output", tmp_path / "pipe").code == 0
    assert os.read(reader, 100) == b"b a\n"
    os.close(reader)
    file = write_lines(tmp_path / "log", ["first"])
    with file.open("ab") as log, output_file(Path(f"/dev/fd/{log.fileno()}")) as output:
        output.write(b"second\n")
    assert file.read_bytes() == b"first\nsecond\n"


@needs_dev_full
def test_a_full_disk_is_named_with_the_bytes(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source = write_lines(tmp_path / "in", ["a b"])
    result = cli("translate", toy.model, "--input", source, "--output", "/dev/full")
    assert result.code == 3
    assert result.err.startswith("transduce: /dev/full: No space left on device, writing 4 bytes; make room there")


# ---- standard output ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "output"),
    [("utf-8", "▁█ ü \\udce4".encode()), ("latin-1", b"18 \xfc \\udce4"), ("ascii", b"18 \\xfc \\udce4")],
)
def test_any_character_is_printed_in_any_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, output: bytes
) -> None:
    """The bars of a histogram become digits, other characters escapes."""
    with (tmp_path / "out").open("wb") as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding))
        with standard_output():
            print("▁█ ü \udce4")
    assert (tmp_path / "out").read_bytes() == output + b"\n"


def test_check_prints_its_report_in_any_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., CommandResult]
) -> None:
    text = write_lines(tmp_path / "text", ["a b", "c"])
    with (tmp_path / "out").open("wb") as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, "ascii"))
        assert cli("check", text, text).code == 0
    assert b"1 |8 8 " in (tmp_path / "out").read_bytes()
