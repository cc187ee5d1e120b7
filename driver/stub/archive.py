"""The workspace as one uncompressed tar with a fixed order, owner and time: the same tree, the same digest."""

import hashlib
import io
import os
import tarfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from driver.stub.errors import StubError
from driver.stub.results import digest_field
from driver.workspace.names import split_name

_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True)
class Archive:
    """A packed workspace on disk. `digest` is a Repr-Digest field."""

    path: Path
    size: int
    digest: str

    @property
    def etag(self) -> str:
        return f'"{self.digest}"'


def pack_directory(root: Path, target: Path) -> Archive:
    """Pack everything below `root` into the file `target`. Blocks.

    Raises StubError for what an incoming archive may not hold: links, devices, odd names.
    """
    if not root.is_dir():
        raise StubError(f"{root}: no such directory")
    with target.open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in walk(root):
            problem = unpackable(root, path)
            if problem:
                raise StubError(f"{path.relative_to(root)}: {problem}")
            _add(tar, root, path)
    return seal(target)


def seal(target: Path) -> Archive:
    """The archive that a finished file is."""
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return Archive(target, target.stat().st_size, digest_field(digest))


def walk(root: Path) -> Iterator[Path]:
    """Everything below `root`, in a fixed order, a directory before what it holds; follows no link."""
    for entry in sorted(os.scandir(root), key=lambda entry: os.fsencode(entry.name)):
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from walk(Path(entry.path))


def unpackable(root: Path, path: Path) -> str | None:
    """Why `path` may not go into a workspace archive, or None."""
    if path.is_symlink():
        return "is a link"
    if not path.is_file() and not path.is_dir():
        return "is neither a file nor a directory"
    try:
        split_name(str(path.relative_to(root)).encode())
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    except ValueError as error:
        return f"its name: {error}"
    return None


def _add(tar: tarfile.TarFile, root: Path, path: Path) -> None:
    entry = tarfile.TarInfo(str(path.relative_to(root)))
    if path.is_dir():
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
        return
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        entry.size = status.st_size
        entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
        tar.addfile(entry, file)


def read_slices(archive: Archive, first: int, last: int) -> Generator[bytes, None, None]:
    """Bytes `first` to `last` inclusive, in slices. Blocks on the disk."""
    with archive.path.open("rb") as file:
        file.seek(first, io.SEEK_SET)
        left = last - first + 1
        while left > 0 and (data := file.read(min(_READ_BYTES, left))):
            left -= len(data)
            yield data
