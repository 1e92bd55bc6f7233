"""One connection to a broker: bytes between a socket and a listener."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, Protocol, cast

from roamcast.client.addresses import Address
from roamcast.client.errors import ConnectError

FLUSH_TIMEOUT_S = 2.0


class Listener(Protocol):
    """Callbacks of a wire, which is passed because an old wire may still call."""

    def on_data(self, wire: Wire, data: bytes) -> None: ...

    def on_lost(self, wire: Wire, why: str) -> None: ...

    def on_writable(self, wire: Wire) -> None: ...


class Wire(asyncio.Protocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self._is_listening = True
        self.is_full = False
        """True while the write buffer is above its limit."""

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        plain = transport.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._listener.on_data(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self._closed.done():
            self._closed.set_result(None)
        self._listener.on_lost(self, describe(error) if error is not None else "the broker closed it")

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._listener.on_writable(self)

    # --- what the client calls ---

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def listen(self, is_listening: bool) -> None:
        self._is_listening = is_listening
        self._read(is_listening)

    def rest(self, seconds: float) -> None:
        """Pause reading briefly, so that more bytes arrive for one read."""
        self._read(False)
        asyncio.get_running_loop().call_later(seconds, self._end_rest)

    def _end_rest(self) -> None:
        self._read(self._is_listening)

    def _read(self, is_wanted: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if is_wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def finish(self) -> None:
        """Close when everything is written."""
        if self._transport is not None:
            self._transport.close()

    async def finished(self) -> None:
        """Wait until the wire is closed, within a short time."""
        await asyncio.wait([self._closed], timeout=FLUSH_TIMEOUT_S)
        self.abort()
        await self._closed

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def open_wire(
    address: Address, listener: Listener, context: ssl.SSLContext | None, bind: str | None
) -> Wire:
    """Connect, or raise ConnectError."""
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {"ssl": context or ssl.create_default_context()} if address.is_tls else {}
    if bind is not None:
        options["local_addr"] = (bind, 0)
    try:
        _, wire = await loop.create_connection(lambda: Wire(listener), address.host, address.port, **options)
    except ssl.SSLCertVerificationError as error:
        text = f"{address}: its certificate is not trusted ({error.verify_message})"
        raise ConnectError(text, is_final=True) from None
    except OSError as error:
        raise ConnectError(f"{address}: {describe(error)}") from None
    return wire


def describe(error: Exception) -> str:
    """Short text of a connection error."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nobody listens there"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "the connection was reset"
    if isinstance(error, socket.gaierror):
        return "there is no host of this name"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection ({(error.reason or 'closed').lower().replace('_', ' ')})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
