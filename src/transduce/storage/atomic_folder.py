"""Folders of files that belong together: written completely or not at all, and verified when they are read.

A folder has a manifest.json with the size and SHA-256 of every other file except README.md, which may be edited. It is
written under a temporary name in the same folder, flushed to disk, and renamed.
"""

import errno
import hashlib
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from transduce.data.disk import check_room, error_at
from transduce.data.system import sync_folder
from transduce.errors import UserError

FORMAT_VERSION = 1
FREE_SPACE_FACTOR = 1.5  # the disk must have this many times the bytes of a folder free
FILE_NAMES = r"[a-z]+\.(json|safetensors)|model\.bin|shared_vocabulary\.json|vmap\.txt"
MAX_JSON_BYTES = 1 << 20
MAX_TOKENIZER_BYTES = 64 << 20

Content = Sequence[bytes | memoryview]  # the content of a file, in pieces, to avoid a copy

# ---- writing -----------------------------------------------------------------------------------------------------


def folder_problems(out: Path) -> list[str]:
    """Return a line if `out` cannot be a folder, because it or a folder above it is a file."""
    parent = next(path for path in (out, *out.absolute().parents) if path.exists())
    return [] if parent.is_dir() else [f"--out={out}: expected a folder, but {parent} is a file; give another folder"]


def write_folder(path: Path, files: Mapping[str, Content]) -> None:
    """Write `files` and their manifest as the folder `path`, completely or not at all. Replace an older `path`.

    The user's own files in the older folder move to the new one. If `path` is a link, its target is replaced. If a
    process is killed while it replaces a folder, the old one remains under a temporary name; `remove_unfinished`
    renames it back. Raises OSError, with the path and the bytes needed; everything is then as before.
    """
    path = path.resolve() if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    check_room(path, int(FREE_SPACE_FACTOR * sum(map(_size, files.values()))))
    building = _temporary(path)
    try:
        _fill(building, files)
        _rename_into_place(building, path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    sync_folder(path.parent)


def _temporary(path: Path, prefix: str = "") -> Path:
    """Return a new, unpredictable name in the folder of `path`."""
    return path.with_name(f".tmp-{prefix}{path.name}-{secrets.randbelow(10**12)}")


def _size(content: Content) -> int:
    """Return the size in bytes."""
    return sum(map(len, content))


def _fill(folder: Path, files: Mapping[str, Content]) -> None:
    """Create `folder` with `files` and then their manifest, and flush all of it to disk."""
    folder.mkdir()
    for subfolder in sorted({(folder / name).parent for name in files} - {folder}):
        subfolder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for name, content in files.items():
        sha256 = _write_synced(folder / name, content)
        if name != "README.md":
            entries[name] = {"size": _size(content), "sha256": sha256}
    manifest = encode_json({"format_version": FORMAT_VERSION, "files": entries})
    _write_synced(folder / "manifest.json", [manifest])
    sync_folder(folder)


def _rename_into_place(building: Path, path: Path) -> None:
    if not path.exists():
        building.rename(path)
        return
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    old = _temporary(path, "old-")
    path.rename(old)
    try:
        building.rename(path)
    except BaseException:
        old.rename(path)
        raise
    _remove_replaced(old, path)


def _remove_replaced(old: Path, new: Path) -> None:
    """Remove the folder `old`, which `new` has replaced. Move its files of other origin to `new`."""
    own = {"manifest.json", "README.md", *os.listdir(new)}
    with suppress(UserError):
        own |= _manifest(old).keys()
    with suppress(OSError):
        for path in old.iterdir():
            if path.name not in own:
                path.rename(new / path.name)
        shutil.rmtree(old, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Write the file `path` completely or not at all, and flush it to disk. Replace an older file."""
    with replacement(path) as building:
        _write_synced(building, [content])
    sync_folder(path.parent)


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield the name of a file to create, which replaces `path` at the end of the block. An error removes it."""
    building = _temporary(path)
    try:
        yield building
        building.replace(path)
    except BaseException:
        building.unlink(missing_ok=True)
        raise


def _write_synced(path: Path, content: Content) -> str:
    """Write a file, flush it to disk, and return its SHA-256."""
    digest = hashlib.sha256()
    try:
        with path.open("xb") as file:  # never through a link
            for piece in content:
                file.write(piece)
                digest.update(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:  # its message has no path
        raise error_at(problem, f"writing {_size(content):,} bytes", path) from problem
    return digest.hexdigest()


def remove_unfinished(folder: Path, names: str) -> None:
    """Remove the temporary files of interrupted writes from `folder`, and rename replaced folders back.

    names: a regular expression; only files whose final names match it are removed or renamed. All others remain.
    """
    for path in folder.glob(".tmp-*"):
        match = re.fullmatch(rf"\.tmp-(old-)?({names})-\d+", path.name)
        if match is None:
            continue
        final = folder / match[2]
        if match[1] and not final.exists():
            path.rename(final)
        elif match[1]:
            _remove_replaced(path, final)
        else:
            with suppress(OSError):
                remove(path)


def remove(path: Path) -> None:
    """Remove a file, a folder with its content, or a link without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# ---- reading -----------------------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    size: int
    sha256: str


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    files: dict[str, _Entry]


def read_folder(path: Path) -> dict[str, bytes]:
    """Return the content of every file in the manifest of `path`, by name.

    Raises UserError if a file is missing or differs from the manifest.
    """
    return {name: read_verified(path, name) for name in listed_files(path)}


def check_folder(path: Path) -> None:
    """Check a folder as `read_folder` does, in constant memory. Raises the same UserError."""
    for name, entry in _manifest(path).items():
        with _checked_path(path, name, entry).open("rb") as file:
            _check_sha256(path / name, hashlib.file_digest(file, "sha256").hexdigest(), entry)


def listed_files(path: Path, *, kind: str = "", needed: Sequence[str] = ()) -> list[str]:
    """Return the names in the manifest of `path`. Checks sizes, but does not read the content of the files.

    needed: the files that a folder of this `kind` must have. kind: the kind of folder, for the message.
    Raises UserError if a needed file is not listed, or a listed file is missing or has another size.
    """
    entries = _manifest(path)
    for name in needed:
        if name not in entries:
            raise UserError(f"{path}: expected a {kind} with {name}; use another folder")
    for name, entry in entries.items():
        _checked_path(path, name, entry)
    return [*entries]


def read_verified(path: Path, name: str) -> bytes:
    """Return the content of a listed file, checked against the manifest. Raises UserError if it differs."""
    entry = _manifest(path)[name]
    content = _checked_path(path, name, entry).read_bytes()
    _check_sha256(path / name, hashlib.sha256(content).hexdigest(), entry)
    return content


def listed_file(path: Path, name: str) -> Path:
    """Return the path of a listed file. Checks its name and its size, but does not read its content."""
    return _checked_path(path, name, _manifest(path)[name])


def listed_sha256(path: Path, name: str) -> str:
    """Return the digest that the manifest has of a listed file."""
    return _manifest(path)[name].sha256


def _manifest(path: Path) -> dict[str, _Entry]:
    if not path.is_dir():
        raise UserError(f"{path}: expected a folder, but it does not exist; check the path")
    manifest = path / "manifest.json"
    if not manifest.is_file():
        raise UserError(f"{path}: expected a folder written by transduce, with manifest.json; use another folder")
    if manifest.is_symlink() or manifest.stat().st_size > MAX_JSON_BYTES:
        raise UserError(f"{manifest}: expected a file of at most {MAX_JSON_BYTES:,} bytes; use another copy of {path}")
    try:
        content = decode_json(manifest.read_bytes())
        version = content.pop("format_version")
        files = content if version != FORMAT_VERSION else msgspec.convert(content, _Manifest).files
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{manifest}: expected a manifest written by transduce; use another copy of {path}") from None
    if version != FORMAT_VERSION:
        raise UserError(f"{manifest}: expected format version {FORMAT_VERSION}, not {version}; update transduce")
    return files


def _checked_path(path: Path, name: str, entry: _Entry) -> Path:
    """Return the path of a listed file. Raises UserError for a foreign name, or if the file is missing or changed."""
    file = path / name
    if not re.fullmatch(FILE_NAMES, name) or file.is_symlink():
        raise UserError(f"{path}/manifest.json: expected files of transduce, not {name!r}; use another copy of {path}")
    if not file.is_file():
        raise UserError(f"{file}: expected a file, but it is missing; use another copy of {path}")
    size = file.stat().st_size
    if size != entry.size:
        raise UserError(f"{file}: expected {entry.size:,} bytes, not {size:,}; use another copy of {path}{_edit(file)}")
    most = MAX_TOKENIZER_BYTES if name in ("tokenizer.json", "shared_vocabulary.json") else MAX_JSON_BYTES
    if file.suffix == ".json" and entry.size > most:
        raise UserError(f"{file}: expected at most {most:,} bytes, not {size:,}; use another copy of {path}")
    return file


def _check_sha256(file: Path, sha256: str, entry: _Entry) -> None:
    if sha256 != entry.sha256:
        raise UserError(f"{file}: expected the SHA-256 in manifest.json; use another copy{_edit(file)}")


def _edit(file: Path) -> str:
    """Return the end of a message about a changed file: the command that edits the configuration of a model."""
    if file.name != "config.json" or not (file.parent / "tokenizer.json").exists():
        return ""
    command = f"transduce configure {shlex.quote(f'{file.parent}')} --set search.KEY=VALUE"
    return f", or undo the edit; {command} changes a setting of the search"


# ---- JSON --------------------------------------------------------------------------------------------------------


def encode_json(content: object) -> bytes:
    """Return `content` as JSON text, in the only form that `decode_json` accepts."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2)


def decode_json(text: bytes) -> Any:
    """Return the value that `encode_json` wrote as `text`.

    Raises ValueError for any other text, even if it differs only in spaces or repeats a key.
    """
    try:
        content = msgspec.json.decode(text)
        if encode_json(content) == text:
            return content
    except RecursionError:
        pass
    raise ValueError("not in the form in which transduce writes it")
