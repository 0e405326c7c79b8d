"""Folders with a manifest: written completely or not at all; damaged and foreign files are refused by name."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from transduce.errors import UserError
from transduce.storage.atomic_folder import (
    Content,
    check_folder,
    decode_json,
    encode_json,
    read_folder,
    remove_unfinished,
    write_file,
    write_folder,
)

FILES: dict[str, Content] = {
    "a.json": [b'{"x": 1}'],
    "b.safetensors": [bytes(range(128)), memoryview(bytes(range(128, 256)))],
    "README.md": [b"# A card\n"],
}
CONTENT = {name: b"".join(pieces) for name, pieces in FILES.items()}


# ---- folders -----------------------------------------------------------------------------------------------------


def test_a_folder_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_folder(tmp_path / "deep" / "er" / "model", FILES)
    assert read_folder(tmp_path / "deep" / "er" / "model") == {
        name: content for name, content in CONTENT.items() if name != "README.md"
    }
    assert {path.name for path in (tmp_path / "deep" / "er" / "model").iterdir()} == {*FILES, "manifest.json"}
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["model"]


def test_an_older_folder_is_replaced_completely(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", FILES)
    write_folder(tmp_path / "model", {"c.json": [b"{}"]})
    assert read_folder(tmp_path / "model") == {"c.json": b"{}"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_manifest_has_size_and_hash_of_every_file_except_the_card(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", FILES)
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_bytes())
    assert manifest == {
        "format_version": 1,
        "files": {
            name: {"size": len(CONTENT[name]), "sha256": hashlib.sha256(CONTENT[name]).hexdigest()}
            for name in ("a.json", "b.safetensors")
        },
    }


def test_the_card_may_be_edited_or_removed(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", FILES)
    (tmp_path / "model" / "README.md").write_text("other words", encoding="utf-8")
    read_folder(tmp_path / "model")
    (tmp_path / "model" / "README.md").unlink()
    read_folder(tmp_path / "model")


@pytest.mark.parametrize(("umask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int, file_mode: int, folder_mode: int) -> None:
    before = os.umask(umask)
    try:
        write_folder(tmp_path / "model", FILES)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == folder_mode
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()} == {file_mode}


def test_files_are_flushed_before_the_folder_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, str]] = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        real_fsync(descriptor)

    def rename(self: Path, target: Path) -> Path:
        events.append(("rename", target.name))
        return real_rename(self, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    write_folder(tmp_path / "model", FILES)
    index = events.index(("rename", "model"))
    before = [name for kind, name in events[:index] if kind == "fsync"]
    assert before[:-2] == list(FILES) and before[-2] == "manifest.json" and before[-1].startswith(".tmp-model-")
    assert events[index + 1 :] == [("fsync", tmp_path.name)]


# ---- damage ------------------------------------------------------------------------------------------------------


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "manifest.json"
    content = decode_json(path.read_bytes())
    path.write_bytes(encode_json(change(content) or content))


def entry(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "model", FILES)
    return tmp_path / "model"


def test_every_changed_byte_is_detected(folder: Path) -> None:
    for name in ("a.json", "b.safetensors"):
        content = (folder / name).read_bytes()
        for i in range(len(content)):
            (folder / name).write_bytes(content[:i] + bytes([content[i] ^ 0x10]) + content[i + 1 :])
            with pytest.raises(UserError, match=f"{name}: expected the SHA-256 in manifest.json"):
                read_folder(folder)
        for damaged in (content[:-1], content + b"\0", b""):
            (folder / name).write_bytes(damaged)
            with pytest.raises(UserError, match=rf"{name}: expected {len(content)} bytes, not {len(damaged)}"):
                read_folder(folder)
        (folder / name).unlink()
        with pytest.raises(UserError, match=f"{name}: expected a file, but it is missing"):
            read_folder(folder)
        (folder / name).write_bytes(content)


def test_every_changed_byte_of_the_manifest_is_detected(folder: Path) -> None:
    manifest = (folder / "manifest.json").read_bytes()
    for i in range(len(manifest)):
        for flip in (0x01, 0x10, 0x80):
            damaged = manifest[:i] + bytes([manifest[i] ^ flip]) + manifest[i + 1 :]
            (folder / "manifest.json").write_bytes(damaged)
            with pytest.raises(UserError, match=re.escape(str(folder))):
                check_folder(folder)
    for damaged in (*(manifest[:length] for length in range(len(manifest))), manifest + b" ", manifest + b"{}"):
        (folder / "manifest.json").write_bytes(damaged)
        with pytest.raises(UserError, match="manifest.json: expected a manifest written by transduce"):
            read_folder(folder)


def test_reading_and_checking_refuse_the_same_folder(folder: Path) -> None:
    check_folder(folder)
    (folder / "b.safetensors").write_bytes(CONTENT["b.safetensors"][::-1])
    for read in (read_folder, check_folder):
        with pytest.raises(UserError, match="b.safetensors: expected the SHA-256 in manifest.json"):
            read(folder)


@pytest.mark.parametrize(
    "text", ["null", "[]", "{}", '{"format_version": 1}', '{"format_version": 1, "files": []}', "[" * 100_000, "\xff"]
)
def test_a_foreign_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="manifest.json: expected a manifest written by transduce"):
        read_folder(folder)


def test_another_format_version_is_refused(folder: Path) -> None:
    rewrite_manifest(folder, lambda content: {**content, "format_version": 2})
    with pytest.raises(UserError, match="manifest.json: expected format version 1, not 2; update transduce"):
        read_folder(folder)


@pytest.mark.parametrize(
    "name",
    ["../secret.json", "/etc/passwd", "sub/a.json", "a.pt", "a.bin", ".json", "a.json\n", "A.json", "", "a.json/"],
)
def test_a_manifest_may_list_only_files_of_transduce(folder: Path, name: str) -> None:
    (folder.parent / "secret.json").write_bytes(b"secret")
    rewrite_manifest(folder, lambda content: content["files"].update({name: entry(b"secret")}))
    with pytest.raises(UserError, match="manifest.json: expected files of transduce, not "):
        read_folder(folder)


def test_a_link_is_not_followed(folder: Path) -> None:
    (folder.parent / "secret.json").write_bytes(CONTENT["a.json"])
    (folder / "a.json").unlink()
    (folder / "a.json").symlink_to(folder.parent / "secret.json")
    with pytest.raises(UserError, match="expected files of transduce, not 'a.json'"):
        read_folder(folder)


def test_a_folder_instead_of_a_file_is_refused(folder: Path) -> None:
    (folder / "a.json").unlink()
    (folder / "a.json").mkdir()
    with pytest.raises(UserError, match="a.json: expected a file, but it is missing"):
        read_folder(folder)


def test_an_absent_and_a_foreign_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a folder, but it does not exist"):
        read_folder(tmp_path / "absent")
    with pytest.raises(UserError, match="expected a folder written by transduce"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "text", [b'{"a": 1, "a": 1}', b'{"a":1}', b"[1,\n  2\n]", b"1 ", b"1e0", b"[" * 100_000, b"\xff"]
)
def test_json_has_one_form(text: bytes) -> None:
    for content in ({"a": [1, 2.5, None, "ü\u2028"], "b": {}}, [], "x", 0.1):
        assert decode_json(encode_json(content)) == content
    with pytest.raises(ValueError, match="^(?!.*Traceback)"):
        decode_json(text)


# ---- free space and interrupted writes ---------------------------------------------------------------------------


class Usage(NamedTuple):
    """The part of the result of `shutil.disk_usage` that transduce reads."""

    free: int


@pytest.mark.parametrize(("free", "is_enough"), [(150, True), (149, False), (0, False)])
def test_a_folder_that_does_not_fit_on_the_disk_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_enough: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(free))
    files: dict[str, Content] = {"a.json": [bytes(40), bytes(10)], "b.safetensors": [bytes(50)]}
    if is_enough:
        write_folder(tmp_path / "model", files)
        return
    with pytest.raises(OSError, match=f"150 bytes needed, {free} free") as caught:
        write_folder(tmp_path / "model", files)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "model")
    assert not [*tmp_path.iterdir()]


def test_temporary_files_of_an_interrupted_write_are_removed(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", FILES)
    for name in (".tmp-model-12", ".tmp-old-model-12"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".tmp-model-9").symlink_to(tmp_path / "elsewhere")
    remove_unfinished(tmp_path, "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "model"]
    check_folder(tmp_path / "model")


def test_a_folder_that_was_moved_for_a_new_one_is_renamed_back(tmp_path: Path) -> None:
    write_folder(tmp_path / "a-model-7", FILES)
    (tmp_path / "a-model-7").rename(tmp_path / ".tmp-old-a-model-7-12")
    (tmp_path / ".tmp-a-model-7-12").mkdir()
    remove_unfinished(tmp_path, "a-model-7")
    assert [path.name for path in tmp_path.iterdir()] == ["a-model-7"]
    check_folder(tmp_path / "a-model-7")


def test_temporary_files_of_others_remain(tmp_path: Path) -> None:
    names = [".tmp-precious", ".tmp-notes-1", ".tmp-model", ".tmp-model-x", ".tmp-old-other-1"]
    for name in names:
        (tmp_path / name).mkdir()
    remove_unfinished(tmp_path, "model")
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_files_of_the_user_move_to_the_new_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", FILES)
    (tmp_path / "model" / "notes.txt").write_text("mine", encoding="utf-8")
    write_folder(tmp_path / "model", {"c.json": [b"{}"]})
    assert sorted(os.listdir(tmp_path / "model")) == ["c.json", "manifest.json", "notes.txt"]
    (tmp_path / "model").rename(tmp_path / ".tmp-old-model-3")  # killed before it moved the file
    write_folder(tmp_path / "model", FILES)
    remove_unfinished(tmp_path, "model")
    assert os.listdir(tmp_path) == ["model"]
    assert sorted(os.listdir(tmp_path / "model")) == sorted([*FILES, "manifest.json", "notes.txt"])


def test_the_target_of_a_link_is_replaced(tmp_path: Path) -> None:
    write_folder(tmp_path / "other" / "disk", FILES)
    (tmp_path / "model").symlink_to(tmp_path / "other" / "disk")
    write_folder(tmp_path / "model", {"c.json": [b"{}"]})
    assert (tmp_path / "model").is_symlink() and read_folder(tmp_path / "other" / "disk") == {"c.json": b"{}"}
    assert sorted(os.listdir(tmp_path)) == ["model", "other"] and os.listdir(tmp_path / "other") == ["disk"]


def test_a_file_with_the_name_of_the_folder_remains(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine", encoding="utf-8")
    with pytest.raises(NotADirectoryError):
        write_folder(tmp_path / "model", FILES)
    assert os.listdir(tmp_path) == ["model"] and (tmp_path / "model").read_text("utf-8") == "mine"


def test_no_write_follows_a_link_under_a_temporary_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "victim").write_text("mine", encoding="utf-8")
    monkeypatch.setattr(secrets, "randbelow", lambda limit: 5)
    (tmp_path / ".tmp-config.json-5").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "config.json", b"{}")
    assert (tmp_path / "victim").read_text("utf-8") == "mine"
