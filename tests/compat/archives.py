"""Archives of the corpus: packed the same way every time, so that a change of their content shows."""

from __future__ import annotations

import tarfile
from pathlib import Path


def pack(folder: Path, archive: Path) -> None:
    """Pack all files of a folder, without owners and times."""
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.add(path, path.relative_to(folder).as_posix(), filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        extract(tar, folder)


def extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Extract our own files; Python 3.11.0 to 3.11.3 know no filters."""
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
    else:
        tar.extractall(folder)


def contents(archive: Path) -> dict[str, bytes]:
    """The files of an archive by name."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None, member.name
            found[member.name] = file.read()
    return found
