"""Serves the live view's page with replays, on this machine only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from urllib.parse import quote, urlsplit

import roamcast
from roamcast.errors import InputError

HOST = "127.0.0.1"
BUNDLE = Path(roamcast.__file__).parent / "web"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
TEXT = "text/plain; charset=utf-8"

Make = Callable[[], bytes]
"""Returns the content of a `*.roamview` file."""


class ReplayServer(ThreadingHTTPServer):
    """Serves the files of the bundle and the replays; a replay is created at its first request."""

    daemon_threads = True

    def __init__(self, replays: Mapping[str, Make], port: int = 0) -> None:
        self.pages = {
            "/" + file.relative_to(BUNDLE).as_posix(): file
            for file in BUNDLE.rglob("*")
            if file.suffix in TYPES
        }
        if "/index.html" not in self.pages:
            raise InputError("the page is not part of this installation; `make web` builds it")
        self.pages["/"] = self.pages["/index.html"]
        self._replays = list(replays.items())
        self._made: dict[int, bytes] = {}
        self._making = Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise InputError(f"--port {port}: {(error.strerror or str(error)).lower()}") from None
        port = self.server_address[1]
        self.hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
        self.url = f"http://{HOST}:{port}/?replay={quote(self._replays[0][0])}"

    def listed(self) -> bytes:
        names = enumerate(name for name, _ in self._replays)
        replays = [{"file": f"/replays/{number}", "name": name} for number, name in names]
        return json.dumps({"replays": replays}).encode()

    def replay(self, number: str) -> bytes | None:
        if not number.isdecimal() or int(number) >= len(self._replays):
            return None
        index = int(number)
        with self._making:
            if index not in self._made:
                self._made[index] = self._replays[index][1]()
            return self._made[index]


class _Handler(BaseHTTPRequestHandler):
    server: ReplayServer

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests of a page do not matter."""

    def do_GET(self) -> None:
        # Another host name means a foreign page that leads its visitors here.
        if self.headers.get("Host") not in self.server.hosts:
            return self._send(HTTPStatus.MISDIRECTED_REQUEST, TEXT, b"ask for 127.0.0.1 or localhost\n")
        path = urlsplit(self.path).path
        if path == "/replays.json":
            return self._send(HTTPStatus.OK, "application/json", self.server.listed())
        if path.startswith("/replays/"):
            return self._send_replay(path.removeprefix("/replays/"))
        file = self.server.pages.get(path)
        if file is None:
            return self._send(HTTPStatus.NOT_FOUND, TEXT, b"not found\n")
        return self._send(HTTPStatus.OK, TYPES[file.suffix], file.read_bytes())

    def _send_replay(self, number: str) -> None:
        try:
            content = self.server.replay(number)
        except InputError as error:
            return self._send(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, f"{error}\n".encode())
        if content is None:
            return self._send(HTTPStatus.NOT_FOUND, TEXT, b"not found\n")
        return self._send(HTTPStatus.OK, "application/octet-stream", content)

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # The page was closed.
            self.wfile.write(content)
