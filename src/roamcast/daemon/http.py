"""A very small HTTP server, for /metrics and /healthz: one request per connection, and little patience."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from roamcast.config.sections import Metrics
from roamcast.errors import InputError
from roamcast.net.doorway import Doorway
from roamcast.net.hosts import host_objection
from roamcast.net.strangers import Stranger, Strangers

HEAD_BYTES_MAX = 8192
REQUEST_S_MAX = 5.0
CONNECTIONS_MAX = 64
"""Connections at once; the one that has been silent for longest gives way."""


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


Page = Callable[[], Answer]


class HttpServer:
    """Serves pages that take no arguments, to GET and HEAD."""

    def __init__(self, settings: Metrics, pages: dict[str, Page]) -> None:
        self._settings = settings
        self._pages = pages
        self._strangers = Strangers(lambda: CONNECTIONS_MAX)
        self._doorway = Doorway(self._strangers, self._enter, lambda: REQUEST_S_MAX)

    async def start(self) -> int:
        """Listen; the port that it is."""
        address, port = self._settings.address, self._settings.port
        try:
            await self._doorway.open(address, port)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"metrics {address}:{port}: cannot listen ({reason})") from None
        return self._doorway.ports[0]

    def close(self) -> None:
        self._doorway.close()

    async def _enter(self, one: socket.socket, stranger: Stranger) -> None:
        streams = await self._doorway.open_streams(one, stranger, bytes_max=HEAD_BYTES_MAX)
        if streams is None:
            return
        try:
            await self._answer(*streams)
        except OSError:
            pass  # Whoever asked has gone.
        finally:
            streams[1].transport.abort()  # Nothing waits there any more, unless it took too long.
            self._strangers.settle(stranger)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        except asyncio.LimitOverrunError:
            writer.write(_written(_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), with_body=True))
        else:
            writer.write(self._answer_to(head))
        writer.close()
        # It counts until it has taken the answer, or has been silent for too long.
        await writer.wait_closed()

    def _answer_to(self, head: bytes) -> bytes:
        first, *headers = head.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        hosts = [line.partition(":")[2] for line in headers if line[:5].lower() == "host:"]
        if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or len(hosts) > 1:
            return _written(_error(HTTPStatus.BAD_REQUEST), with_body=True)
        method, target, _ = parts
        settings = self._settings
        foreign = hosts and host_objection(hosts[0], settings.address, settings.hosts, "metrics.hosts")
        if foreign:
            return _written(_error(HTTPStatus.MISDIRECTED_REQUEST, foreign), with_body=method != "HEAD")
        page = self._pages.get(target.partition("?")[0])
        if method not in ("GET", "HEAD"):
            answer = _error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif page is None:
            answer = _error(HTTPStatus.NOT_FOUND, f"there are {', '.join(self._pages)}")
        else:
            answer = page()
        return _written(answer, with_body=method != "HEAD")


def _error(status: HTTPStatus, text: str = "") -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text or status.phrase}\n".encode())


def _written(answer: Answer, with_body: bool) -> bytes:
    status = HTTPStatus(answer.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (answer.body if with_body else b"")
