"""MQTT over WebSocket: the same connections, with another envelope around their bytes.

The client must ask for the sub-protocol `mqtt` and the configured path. A web
page may connect only if its origin is allowed: browsers send it, and a page that
somebody happens to visit must not reach a broker on that person's machine.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from roamcast.config.sections import Listener
from roamcast.net.clients import ClientConnection
from roamcast.net.hosts import host_objection

log = logging.getLogger("roamcast.clients")

SUBPROTOCOL = "mqtt"
REQUEST_BYTES_MAX = 16 << 10
"""Maximum size of the HTTP request that opens a WebSocket."""
SLICE_BYTES = 16 << 10
"""Bytes parsed at once: a larger slice of tiny messages would delay other connections."""
PONGS_BYTES_MAX = 64 << 10
"""Maximum size of unsent answers to pings; RFC 6455, section 5.5.3, allows omitting some."""
GOING_AWAY, UNSUPPORTED, NORMAL = 1001, 1003, 1000


class WebSocketTransport(asyncio.Transport):
    """The transport of the inner connection: each write becomes one message."""

    def __init__(self, socket: WebSocketConnection) -> None:
        super().__init__()
        self._socket = socket

    def write(self, data: Any) -> None:
        self._socket.send(BytesMessage(data=bytes(data)))

    def close(self) -> None:
        self._socket.close(NORMAL)

    def abort(self) -> None:
        self._socket.transport.abort()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._socket.is_closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._socket.transport.pause_reading()

    def resume_reading(self) -> None:
        self._socket.transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.transport.get_write_buffer_size()


class WebSocketConnection(asyncio.Protocol):
    """Decodes WebSocket frames of the client, and encodes those to the client."""

    def __init__(self, inner: ClientConnection, listener: Listener) -> None:
        self.transport = cast(asyncio.Transport, None)
        self.is_closing = False
        self._inner = inner
        self._listener = listener
        self._machine = WSConnection(ConnectionType.SERVER)
        self._received = 0
        self._rest = b""
        """Received bytes that are not parsed yet."""
        self._is_open = False

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(WebSocketTransport(self))

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            self._received += len(data)
            if self._received > REQUEST_BYTES_MAX:
                self.transport.abort()
                return
        self._rest += data
        self._take_some()

    def _take_some(self) -> None:
        data, self._rest = self._rest[:SLICE_BYTES], self._rest[SLICE_BYTES:]
        self._take(data)
        if self._rest and not self.is_closing and not self.transport.is_closing():
            asyncio.get_running_loop().call_soon(self._take_some)
            self._inner.hold_back()

    def _take(self, data: bytes) -> None:
        try:
            self._machine.receive_data(data)
            for event in self._machine.events():
                self._on_event(event)
        # The library decodes headers as ASCII.
        except (RemoteProtocolError, LocalProtocolError, UnicodeDecodeError) as error:
            log.info("a WebSocket was closed: %s", error)
            hint = getattr(error, "event_hint", None)
            if hint is not None and self._machine.state is not ConnectionState.CLOSED:
                self.send(hint)
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closing = True
        self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    # --- messages ---

    def _on_event(self, event: object) -> None:
        match event:
            case Request():
                self._on_request(event)
            case BytesMessage(data=data):
                self._inner.data_received(bytes(data))
            case TextMessage():
                # MQTT uses binary messages; section 6 of both standards.
                self.close(UNSUPPORTED)
            case Ping():
                if self.transport.get_write_buffer_size() < PONGS_BYTES_MAX:
                    self.send(event.response())
            case CloseConnection():
                if self._machine.state is ConnectionState.REMOTE_CLOSING:
                    self.send(event.response())
                self.transport.close()

    def _on_request(self, request: Request) -> None:
        why = _objection(request, self._listener)
        if why is not None:
            log.info("a WebSocket was refused: %s", why.text)
            self.send(RejectConnection(status_code=why.status))
            self.transport.close()
            return
        self.send(AcceptConnection(subprotocol=SUBPROTOCOL))
        self._is_open = True

    def send(self, event: Any) -> None:
        if not self.is_closing and not self.transport.is_closing():
            self.transport.write(self._machine.send(event))

    def close(self, code: int) -> None:
        if not self.is_closing:
            if self._machine.state is ConnectionState.OPEN:
                self.send(CloseConnection(code=code))
            self.is_closing = True
            self.transport.close()


class Objection(NamedTuple):
    text: str
    status: HTTPStatus


def _objection(request: Request, listener: Listener) -> Objection | None:
    """Return why this request may not open a WebSocket; None if it may."""
    # With TLS the certificate proves the host name, so no other name can lead here.
    if listener.hosts or not listener.is_secure:
        foreign = host_objection(request.host, listener.address, listener.hosts, "listener.hosts")
        if foreign:
            return Objection(foreign, HTTPStatus.MISDIRECTED_REQUEST)
    if request.target.partition("?")[0] != listener.path:
        text = f"the path {request.target!r} is not served; valid is {listener.path!r}"
        return Objection(text, HTTPStatus.NOT_FOUND)
    if SUBPROTOCOL not in request.subprotocols:
        return Objection(f"the client did not request the sub-protocol {SUBPROTOCOL!r}", HTTPStatus.NOT_FOUND)
    headers = {name.lower(): value.decode("latin-1") for name, value in request.extra_headers}
    origin = headers.get(b"origin", "")
    if origin and not _is_allowed(origin, request.host, listener):
        return Objection(f"the origin {origin!r} is not allowed", HTTPStatus.FORBIDDEN)
    return None


def _is_allowed(origin: str, host: str, listener: Listener) -> bool:
    if listener.origins:
        return origin in listener.origins or "*" in listener.origins
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
