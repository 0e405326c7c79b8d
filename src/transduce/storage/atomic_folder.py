"""Folders of files that belong together: written whole or not at all, and verified when they are read.

A folder holds a manifest.json with the size and SHA-256 of every other file (but README.md, which may be edited). It is
written beside its place under another name, flushed to disk, and renamed.
"""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from transduce.errors import UserError

FORMAT_VERSION = 1
SPARE = 1.5  # how many times the room that a folder needs must be free
MAX_JSON_BYTES = 1 << 20
MAX_TOKENIZER_BYTES = 64 << 20

Content = Sequence[bytes | memoryview]  # of a file, in pieces, so that no copy of it need be made

# ---- writing -----------------------------------------------------------------------------------------------------


def write_folder(path: Path, files: Mapping[str, Content]) -> None:
    """Write `files` and their manifest as the folder `path`, whole or not at all. An older `path` is replaced.

    After an OSError, which says where and how many bytes were needed, everything is as before. Whoever dies while a
    folder is replaced leaves the old one beside its place, and `remove_unfinished` puts it back.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _refuse_too_little_room(path, sum(map(_size, files.values())))
    building = path.parent / f".tmp-{path.name}-{os.getpid()}"
    shutil.rmtree(building, ignore_errors=True)
    try:
        _fill(building, files)
        _put_in_place(building, path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    _sync(path.parent)


def _size(content: Content) -> int:
    """In bytes."""
    return sum(map(len, content))


def _refuse_too_little_room(path: Path, size: int) -> None:
    """OSError if the disk has not `SPARE` times `size` bytes free: what has no room is not begun."""
    needed, free = int(SPARE * size), shutil.disk_usage(path.parent).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes needed, {free:,} free", str(path))


def _fill(folder: Path, files: Mapping[str, Content]) -> None:
    """Make `folder` with `files` and, last, their manifest, all of it on the disk and not only on its way there."""
    folder.mkdir()
    listed = {}
    for name, content in files.items():
        sha256 = _write_synced(folder / name, content)
        if name != "README.md":
            listed[name] = {"size": _size(content), "sha256": sha256}
    manifest = encode_json({"format_version": FORMAT_VERSION, "files": listed})
    _write_synced(folder / "manifest.json", [manifest])
    _sync(folder)


def _put_in_place(building: Path, path: Path) -> None:
    if not path.exists():
        building.rename(path)
        return
    old = path.parent / f".tmp-old-{path.name}-{os.getpid()}"
    path.rename(old)
    try:
        building.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Write `path`, whole or not at all, and as durably as a folder. An older one is replaced."""
    building = path.with_name(f".tmp-{path.name}")
    _write_synced(building, [content])
    building.replace(path)
    _sync(path.parent)


def _write_synced(path: Path, content: Content) -> str:
    """Write a file, and return its SHA-256."""
    digest = hashlib.sha256()
    try:
        with path.open("wb") as file:
            for piece in content:
                file.write(piece)
                digest.update(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:  # which does not say where
        raise located(problem, f"writing {_size(content):,} bytes", path) from problem
    return digest.hexdigest()


def located(problem: OSError, doing: str, path: Path) -> OSError:
    """`problem` with what was being done, and where."""
    return OSError(problem.errno, f"{problem.strerror}, {doing}", str(path))


def _sync(folder: Path) -> None:
    """Make the names in `folder` durable, where the system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        raise located(problem, "making its names durable", folder) from problem
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove what interrupted writes left in `folder`, and put back what they had moved out of the way."""
    for path in folder.glob(".tmp-*"):
        moved = re.fullmatch(r"\.tmp-old-(.+)-\d+", path.name)
        if moved and not (folder / moved[1]).exists():
            path.rename(folder / moved[1])
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


# ---- reading -----------------------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    size: int
    sha256: str


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    files: dict[str, _Entry]


def read_folder(path: Path) -> dict[str, bytes]:
    """Every file that the manifest of `path` lists, checked against it. UserError if anything is missing or differs."""
    return {name: read_verified(path, name) for name in listed_files(path)}


def check_folder(path: Path) -> None:
    """UserError if `read_folder` would raise one. Takes no memory for what is read."""
    for name, entry in _manifest(path).items():
        with _place(path, name, entry).open("rb") as file:
            _refuse_other(path / name, hashlib.file_digest(file, "sha256").hexdigest(), entry)


def listed_files(path: Path, *, kind: str = "", needed: Sequence[str] = ()) -> list[str]:
    """The names in the manifest of `path`. UserError if one is not there that is `needed` for it to be a `kind`, or a
    file is not in its place, or has another size; its content is not looked at."""
    entries = _manifest(path)
    for name in needed:
        if name not in entries:
            raise UserError(f"{path} is not a {kind}: it has no {name}")
    for name, entry in entries.items():
        _place(path, name, entry)
    return [*entries]


def read_verified(path: Path, name: str) -> bytes:
    """One of the listed files, checked against the manifest."""
    entry = _manifest(path)[name]
    content = _place(path, name, entry).read_bytes()
    _refuse_other(path / name, hashlib.sha256(content).hexdigest(), entry)
    return content


def listed_file(path: Path, name: str) -> Path:
    """Where a listed file is; it is one of ours and has the right size, and that is all that is known of it."""
    return _place(path, name, _manifest(path)[name])


def _manifest(path: Path) -> dict[str, _Entry]:
    if not path.is_dir():
        raise UserError(f"{path}: no such folder")
    manifest = path / "manifest.json"
    if not manifest.is_file():
        raise UserError(f"{path} is not a folder written by transduce: it has no manifest.json")
    if manifest.is_symlink() or manifest.stat().st_size > MAX_JSON_BYTES:
        raise UserError(f"{manifest} is none of ours; use another copy of {path}")
    try:
        content = decode_json(manifest.read_bytes())
        version = content.pop("format_version")
        files = content if version != FORMAT_VERSION else msgspec.convert(content, _Manifest).files
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{manifest} is damaged; use another copy of {path}") from None
    if version != FORMAT_VERSION:
        raise UserError(f"{path} has format version {version}, this program reads {FORMAT_VERSION}; update transduce")
    return files


def _place(path: Path, name: str, entry: _Entry) -> Path:
    file = path / name
    if not re.fullmatch(r"[a-z]+\.(json|safetensors)|model\.bin|shared_vocabulary\.json", name) or file.is_symlink():
        raise UserError(f"{path}/manifest.json lists {name!r}, which is not a file of a transduce folder")
    if not file.is_file() or file.stat().st_size != entry.size:
        found = f"has {file.stat().st_size} bytes" if file.is_file() else "is missing"
        raise UserError(f"{file} {found}, expected {entry.size} bytes; the folder is incomplete, use another copy")
    most = MAX_TOKENIZER_BYTES if name in ("tokenizer.json", "shared_vocabulary.json") else MAX_JSON_BYTES
    if file.suffix == ".json" and entry.size > most:
        raise UserError(f"{file} has {entry.size:,} bytes, expected at most {most:,}; use another copy")
    return file


def _refuse_other(file: Path, sha256: str, entry: _Entry) -> None:
    if sha256 != entry.sha256:
        raise UserError(f"{file} differs from its manifest; it is damaged or was changed, use another copy")


# ---- JSON --------------------------------------------------------------------------------------------------------


def encode_json(content: Any) -> bytes:
    """JSON, in the one form that `decode_json` takes."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2)


def decode_json(text: bytes) -> Any:
    """What `encode_json` was given.

    ValueError for any other text, also if it differs only in its spaces, or says something twice.
    """
    try:
        content = msgspec.json.decode(text)
        if encode_json(content) == text:
            return content
    except RecursionError:
        pass
    raise ValueError("it is not in the form in which it is written")
