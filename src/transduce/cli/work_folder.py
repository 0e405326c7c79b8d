"""The folder beside an output in which a job keeps what it has done. After a kill, the same command continues."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transduce.data.system import locked
from transduce.data.text import encode_names, file_sha256
from transduce.errors import UserError
from transduce.storage.atomic_folder import remove, write_file

ORIGIN = "origin.json"  # the inputs of the job, by their SHA-256, and its options
# Files of a model folder that change no translation; the manifest lists the SHA-256 of all others.
WITHOUT_EFFECT = {"README.md", "calibration.json", "manifest.json"}


@contextmanager
def open_work(folder: Path, inputs: Sequence[Path], options: object) -> Iterator[Path]:
    """Yield the folder, which is made if it is missing, and may have the work of an earlier call.

    inputs, options: the files and model folders, and the values, that the work depends on. Raises UserError if the
    folder has other work, or if another process uses it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, f"{folder}: expected a folder that no other process uses; wait until the other has ended"):
        _check_origin(folder, encode_names([[_contents(path) for path in inputs], options]))
        yield folder


@contextmanager
def keep_work(out: Path, name: str, inputs: Sequence[Path], options: object) -> Iterator[Path]:
    """Yield the folder OUT.NAME, as `open_work` does, and remove it at the end without an error, or without work."""
    folder = out.with_name(f"{out.name}.{name}")
    is_over = False
    try:
        with open_work(folder, inputs, options):
            try:
                yield folder
                is_over = True
            finally:
                is_over = is_over or not has_work(folder)
    finally:
        if is_over:
            remove(folder)


def _contents(path: Path) -> object:
    """Return the SHA-256 of a file, or of each file in a model folder that can change a translation."""
    if not path.is_dir():
        return file_sha256(path)
    files = [file for file in sorted(path.iterdir()) if file.is_file() and file.name not in WITHOUT_EFFECT]
    return {file.name: file_sha256(file) for file in files}


def _check_origin(folder: Path, origin: bytes) -> None:
    """Note what the work depends on in a folder without work. Raises UserError if the folder has other work."""
    path = folder / ORIGIN
    if not has_work(folder):
        write_file(path, origin)
    elif not path.exists() or path.read_bytes() != origin:
        raise UserError(
            f"{folder}: expected the work of the same command on the same files; delete it to begin again, or give the "
            "command that began it"
        )


def has_work(folder: Path) -> bool:
    """Return True if a folder of `open_work` has a result of the work."""
    return any(path.name != ORIGIN and path.stat().st_size for path in folder.iterdir())
