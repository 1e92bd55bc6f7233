"""The files of the live view: part of the package, read once, and addressed by their names alone."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from pathlib import Path

import roamcast
from roamcast.daemon.http import TEXT, Answer, Problem

FOLDER = Path(roamcast.__file__).parent / "web"
INDEX = "index.html"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".geojson": "application/geo+json",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".pmtiles": "application/octet-stream",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": TEXT,
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
FOR_EVER = ("Cache-Control", "public, max-age=31536000, immutable")
"""Assets carry a hash of their content in their names."""


def files(folder: Path = FOLDER) -> dict[str, Path]:
    """Map paths of the site to their files. No request can read any other file."""
    found = {
        f"/{path.relative_to(folder).as_posix()}": path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in TYPES
    }
    return {"/": found[f"/{INDEX}"], **found} if f"/{INDEX}" in found else {}


@cache
def site() -> dict[str, Path]:
    return files()


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


def page(path: str) -> Answer:
    """The file of the live view that a browser asks for."""
    file = site().get(path)
    if file is None:
        if path == "/" and not site():
            raise Problem(
                HTTPStatus.NOT_FOUND, "the live view is not part of this installation; see /api/v1/network"
            )
        raise Problem(HTTPStatus.NOT_FOUND)
    headers = (FOR_EVER,) if path.startswith("/assets/") else ()
    return Answer(HTTPStatus.OK, TYPES[file.suffix], _content(file), headers)
