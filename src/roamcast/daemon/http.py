"""A very small HTTP server, for /metrics and /healthz: one request per connection, and little patience."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple

from roamcast.errors import InputError

HEAD_BYTES_MAX = 8192
REQUEST_S_MAX = 5.0
CONNECTIONS_MAX = 32


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


Page = Callable[[], Answer]


class HttpServer:
    """Serves pages that take no arguments, to GET and HEAD."""

    def __init__(self, pages: dict[str, Page]) -> None:
        self._pages = pages
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self, address: str, port: int) -> int:
        """Listen; the port that it is."""
        try:
            self._server = await asyncio.start_server(self._serve, address, port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"metrics {address}:{port}: cannot listen ({reason})") from None
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open += 1
        try:
            await _in_time(self._answer(reader, writer))
        except (TimeoutError, OSError):
            writer.transport.abort()
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            writer.write(_written(_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), with_body=True))
        else:
            writer.write(self._answer_to(head))
        await writer.drain()

    def _answer_to(self, head: bytes) -> bytes:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return _written(_error(HTTPStatus.BAD_REQUEST), with_body=True)
        method, target, _ = parts
        page = self._pages.get(target.partition("?")[0])
        if method not in ("GET", "HEAD"):
            answer = _error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif page is None:
            answer = _error(HTTPStatus.NOT_FOUND, f"there are {', '.join(self._pages)}")
        else:
            answer = page()
        return _written(answer, with_body=method != "HEAD")


async def _in_time(work: Awaitable[None]) -> None:
    async with asyncio.timeout(REQUEST_S_MAX):
        await work


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
