"""A small HTTP server: one request per connection, short timeouts, and answers that browsers cannot misuse.

The handler produces the content. This module has the limits against strangers, the check of `Host` and
`Origin`, and event streams, which last as long as their reader keeps up.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from roamcast.config.sections import Metrics
from roamcast.errors import InputError, cannot_listen
from roamcast.net.doorway import Doorway
from roamcast.net.hosts import host_objection
from roamcast.net.strangers import Stranger, Strangers
from roamcast.net.tls import ServerContext, http_context

if TYPE_CHECKING:
    import h11

log = logging.getLogger("roamcast.http")

HEAD_BYTES_MAX = 8192
BODY_BYTES_MAX = 65_536
REQUEST_S_MAX = 5.0
ANSWER_S_MAX = 60.0
"""Time limit for producing an answer."""
WRITING_S_MAX = 30.0
"""Time limit for the client to read the answer."""
CONNECTIONS_MAX = 64
"""Maximum number of open connections; a new one replaces the one that has been silent for longest."""
STREAM_BUFFER_BYTES = 65_536
STREAM_WRITING_S_MAX = 10.0
"""Seconds after which a stream is closed if its reader reads nothing."""

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

SECURITY_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
    ),
)
"""Headers of every answer: nothing from other sites is loaded, and no other site shows or reads this one."""


class Request(NamedTuple):
    method: str
    path: str
    """Decoded path, without the query."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Headers by lower-case name."""
    body: bytes
    host: str
    """Address of the client."""
    is_secure: bool


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Stream(NamedTuple):
    """A continuing answer: Server-Sent Events."""

    events: AsyncIterator[bytes]
    rank: int = 0
    """With too many streams, this one takes the place of one with a lower rank."""


Handler = Callable[[Request], Awaitable[Answer | Stream]]


class Problem(Exception):
    """Raised to answer the request with this status and one line."""

    def __init__(self, status: HTTPStatus, text: str = "") -> None:
        super().__init__(text or status.phrase)
        self.status = status


class TooSlow(Exception):
    """Raised when the reader of a stream does not keep up; the text says how far it is behind."""


def as_json(value: object, status: HTTPStatus = HTTPStatus.OK, *headers: tuple[str, str]) -> Answer:
    return Answer(status, JSON, msgspec.json.encode(value) + b"\n", headers)


def problem(status: HTTPStatus, text: str = "") -> Answer:
    return Answer(status, TEXT, f"{text or status.phrase}\n".encode())


class HttpServer:
    """Listens, reads requests within limits, and writes what the handler answers."""

    def __init__(self, settings: Metrics, handler: Handler, streams_max: Callable[[], int]) -> None:
        self._settings = settings
        self._handler = handler
        self._streams_max = streams_max
        self._streams: dict[asyncio.Task[None], int] = {}
        """Streams and their ranks, the oldest first."""
        self.streams_dropped = 0
        """Number of streams closed because their readers were too slow."""
        self._context = ServerContext(lambda: http_context(settings)) if settings.certificate else None
        self._strangers = Strangers(lambda: CONNECTIONS_MAX)
        self._doorway = Doorway(self._strangers, self._enter, lambda: REQUEST_S_MAX)

    @property
    def scheme(self) -> str:
        return "https" if self._context is not None else "http"

    @property
    def streams(self) -> int:
        return len(self._streams)

    async def start(self) -> int:
        """Listen, and return the port."""
        import_module("h11")  # Not at the first request, which may come because the disk is full.
        address, port = self._settings.address, self._settings.port
        try:
            await self._doorway.open(address, port)
        except OSError as error:
            raise cannot_listen(f"metrics {address}:{port}", error) from None
        return self._doorway.ports[0]

    def reload(self, settings: Metrics) -> None:
        """Read the certificate again; raise InputError if it cannot be used."""
        if self._context is not None:
            self._context.reload(lambda: http_context(settings))

    def close(self) -> None:
        self._doorway.close()
        for task in self._streams:
            task.cancel()

    async def _enter(self, one: socket.socket, stranger: Stranger) -> None:
        context = self._context.context if self._context is not None else None
        streams = await self._doorway.open_streams(one, stranger, context, bytes_max=BODY_BYTES_MAX)
        if streams is None:
            return
        reader, writer = streams
        has_stream = False
        try:
            answer, with_body = await self._answer(reader, stranger)
            if isinstance(answer, Stream) and with_body:
                has_stream = self._begin_stream(writer, answer)
            if not has_stream:
                await self._write(writer, answer, with_body)
        except (OSError, EOFError, TimeoutError):
            pass  # The client has disconnected.
        finally:
            if not has_stream:
                writer.transport.abort()  # The task has already ended, unless it took too long.
            self._strangers.settle(stranger)

    async def _write(self, writer: asyncio.StreamWriter, answer: Answer | Stream, with_body: bool) -> None:
        if isinstance(answer, Stream):
            answer = problem(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open; close one")
        writer.write(_written(answer, with_body))
        writer.close()
        # The connection counts until the client has read the answer, or has been silent for too long.
        async with asyncio.timeout(WRITING_S_MAX):
            await writer.wait_closed()

    # --- requests ---

    async def _answer(self, reader: asyncio.StreamReader, stranger: Stranger) -> tuple[Answer | Stream, bool]:
        """Return the answer, and whether its body is wanted."""
        import h11  # Loaded by `start`: a broker that answers nobody over HTTP does not need it.

        try:
            request = await self._read(reader, stranger.host)
        except Problem as error:
            return problem(error.status, str(error)), True
        except h11.RemoteProtocolError as error:
            return problem(HTTPStatus(error.error_status_hint)), True
        # A client that has sent its request is not replaced by others while the answer is produced.
        stranger.is_asking = True
        with_body = request.method != "HEAD"
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await self._handler(request), with_body
        except Problem as error:
            return problem(error.status, str(error)), with_body
        except InputError as error:
            return problem(HTTPStatus.BAD_REQUEST, str(error)), with_body
        except TimeoutError:
            return problem(HTTPStatus.GATEWAY_TIMEOUT), with_body
        finally:
            stranger.is_asking = False

    async def _read(self, reader: asyncio.StreamReader, host: str) -> Request:
        import h11

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        head: h11.Request | None = None
        body = b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(HEAD_BYTES_MAX)
                if not data and head is None:
                    raise EOFError
                connection.receive_data(data)
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > BODY_BYTES_MAX:
                    raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return self._checked(head, body, host)
            else:
                raise Problem(HTTPStatus.BAD_REQUEST)

    def _checked(self, head: h11.Request, body: bytes, host: str) -> Request:
        """Return the request, unless a page of another site sent it."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        settings, named = self._settings, headers.get("host", "")
        foreign = named and host_objection(named, settings.address, settings.hosts, "metrics.hosts")
        if foreign:
            raise Problem(HTTPStatus.MISDIRECTED_REQUEST, foreign)
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{self.scheme}://{named}".lower():
            raise Problem(HTTPStatus.FORBIDDEN, "requests from pages of other sites are refused")
        target = head.target.decode("latin-1")
        try:
            parts = urlsplit(target)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=32, errors="strict"))
            path = unquote(parts.path, errors="strict")
        except ValueError:  # This includes UnicodeDecodeError.
            raise Problem(HTTPStatus.BAD_REQUEST) from None
        is_secure = self._context is not None
        return Request(head.method.decode("latin-1"), path, query, headers, body, host, is_secure)

    # --- streams ---

    def _begin_stream(self, writer: asyncio.StreamWriter, stream: Stream) -> bool:
        if len(self._streams) >= self._streams_max():
            lower = next((task for task, rank in self._streams.items() if rank < stream.rank), None)
            if lower is None:
                return False
            del self._streams[lower]
            lower.cancel()
        task = asyncio.get_running_loop().create_task(self._run_stream(writer, stream))
        self._streams[task] = stream.rank
        task.add_done_callback(lambda task: self._streams.pop(task, None))
        return True

    async def _run_stream(self, writer: asyncio.StreamWriter, stream: Stream) -> None:
        transport = writer.transport
        transport.set_write_buffer_limits(STREAM_BUFFER_BYTES)
        head = _head(HTTPStatus.OK, "text/event-stream", ())
        try:
            writer.write(head + b"\r\n")
            async for event in stream.events:
                if transport.is_closing():
                    return
                writer.write(event)
                async with asyncio.timeout(STREAM_WRITING_S_MAX):
                    await writer.drain()
        except TooSlow as error:
            self._drop(str(error))
        except TimeoutError:
            self._drop(f"it has read nothing for {STREAM_WRITING_S_MAX:g} s")
        except OSError:
            pass  # The reader has gone.
        finally:
            transport.abort()

    def _drop(self, why: str) -> None:
        self.streams_dropped += 1
        log.info("closing a page of the live view: %s", why)


def _head(status: HTTPStatus, content_type: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    given = dict(headers)
    usual = {"Content-Type": content_type, "Cache-Control": "no-store", "Connection": "close"}
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in (usual | dict(SECURITY_HEADERS) | given).items()]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def _written(answer: Answer, with_body: bool) -> bytes:
    head = _head(HTTPStatus(answer.status), answer.content_type, answer.headers)
    return head + b"Content-Length: %d\r\n\r\n" % len(answer.body) + (answer.body if with_body else b"")
