"""Named members of a tar archive, written as files of a folder. Nothing else of an archive reaches the disk."""

import lzma
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from transduce.data.disk import check_room, synced_file
from transduce.errors import UserError
from transduce.storage.atomic_folder import replacement

BLOCK_BYTES = 1 << 20
DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Write the members of a tar archive (plain, gz, bz2 or xz) to the paths of `members`, by their names in it.

    The archive is read once, up to the last of these members. Raises UserError if the archive is damaged, or if a
    member is missing or not a regular file. The names in the archive never become paths.
    """
    missing = dict(members)
    try:
        with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                path = missing.pop(member.name.removeprefix("./"), None)
                if path is not None:
                    _write(tar, member, path, archive)
                if not missing:
                    return
    except DAMAGE as error:
        raise _problem(archive, f"a complete tar archive ({error})") from error
    raise _problem(archive, f"{next(iter(missing))} in the archive")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, archive: Path) -> None:
    source = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if source is None:
        raise _problem(archive, f"a regular file as {member.name} in the archive")
    check_room(path, member.size)
    with source, replacement(path) as building, synced_file(building) as target:
        shutil.copyfileobj(source, target, BLOCK_BYTES)
        if target.tell() != member.size:
            raise EOFError(f"{member.name} ends after {target.tell():,} of {member.size:,} bytes")


def _problem(archive: Path, expectation: str) -> UserError:
    return UserError(f"{archive}: expected {expectation}; delete the archive, and run the command again")
