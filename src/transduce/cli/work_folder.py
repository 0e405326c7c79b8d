"""The folder beside an output in which a job keeps what it has done. After a kill, the same command continues."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transduce.data.system import locked
from transduce.data.text import encode_names, file_sha256
from transduce.errors import UserError
from transduce.storage.atomic_folder import remove, write_file

ORIGIN = "origin.json"  # the inputs of the job, by their SHA-256, and its options


@contextmanager
def keep_work(out: Path, name: str, inputs: Sequence[Path], options: object) -> Iterator[Path]:
    """Yield the folder OUT.NAME, which may have the work of an earlier call. Remove it at the end without an error.

    inputs, options: what the work depends on. Raises UserError if the folder has other work.
    """
    folder = out.with_name(f"{out.name}.{name}")
    folder.mkdir(parents=True, exist_ok=True)
    is_over = False
    try:
        message = f"{folder}: expected a folder that no other process uses; wait until the other has ended"
        with locked(folder, message):
            check_origin(folder, encode_names([[file_sha256(path) for path in inputs], options]))
            try:
                yield folder
                is_over = True
            finally:
                is_over = is_over or not _has_work(folder)
    finally:
        if is_over:
            remove(folder)


def check_origin(folder: Path, origin: bytes) -> None:
    """Note what the work depends on in a folder without work. Raises UserError if the folder has other work."""
    path = folder / ORIGIN
    if not _has_work(folder):
        write_file(path, origin)
    elif not path.exists() or path.read_bytes() != origin:
        raise UserError(
            f"{folder}: expected the work of the same command on the same files; delete it to begin again, or give the "
            "command that began it"
        )


def _has_work(folder: Path) -> bool:
    return any(path.name != ORIGIN and path.stat().st_size for path in folder.iterdir())
