"""The MQTT endpoint of a proxy: unmodified clients of MQTT 3.1.1 and 5 in front of a Mosquitto.

A client connects here instead of at the broker. Its session is a resident handler of the proxy
(residents.py), so it follows the client to the endpoint of any other site, also when the client went away
without a word. Publishes are forwarded to the broker unchanged.

Subscription identifiers, no local, retained messages and their options, shared subscriptions and the
properties of messages work as with the broker itself. Differences: QoS 2 subscriptions are granted as QoS 1
(while a session moves, both brokers deliver to it, and duplicates without an identity cannot be recognised),
and there are no topic aliases.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from typing import Any

import msgspec

from roamcast.client import Client, ClientError, connect
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.packets import Connack, Connect, Publish, PublishProperties, Will
from roamcast.mqtt.codec.reading import CONNECT, cut, parse, parse_connect
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import refusal, write
from roamcast.mqtt.server.welcoming import refused
from roamcast.net.doorway import Doorway
from roamcast.net.strangers import Stranger, Strangers
from roamcast.proxy.adapter import IDENTITY_HEADER, ForeignMessage
from roamcast.proxy.base import parse_url
from roamcast.proxy.driver import ProxyServer, open_listener, server_context
from roamcast.proxy.mqtt_notes import foreign_message
from roamcast.proxy.mqtt_session import Session

log = logging.getLogger("roamcast.proxy")

PACKET_MAX = 1 << 20
CONNECT_TIMEOUT_S = 10.0
KEEP_ALIVE_GRACE = 1.5
READ_BYTES = 65_536
RECALLED_MAX = 10_000
"""Maximum number of retained messages for one subscription."""


class MqttEndpoint:
    """Listener for MQTT clients."""

    def __init__(self, server: ProxyServer) -> None:
        self.server = server
        self.settings = server.config.mqtt
        self.address = ""
        self._admitted: set[Stranger] = set()
        """Authenticated connections that have not ended."""
        self._strangers = Strangers(lambda: server.connections_max - len(self._admitted))
        self._doorway = Doorway(self._strangers, self._enter, lambda: CONNECT_TIMEOUT_S)
        self._context = server_context(self.settings.certificate, self.settings.key, "mqtt")
        self._publisher: Client | None = None
        self._opening = asyncio.Lock()
        self._incarnation = secrets.token_hex(4)
        self._published = 0

    async def start(self) -> None:
        self.address = await open_listener(self._doorway, "mqtt", self.settings)
        log.info("site %s: MQTT clients connect to %s", self.server.config.site, self.address)

    async def stop(self) -> None:
        await self._doorway.closed()
        if self._publisher is not None:
            await self._publisher.close()

    def new_identity(self, client: str) -> str:
        """Identity for a publish of a client: see publisher_of."""
        self._published += 1
        return f"{client}/{self._incarnation}/{self._published}"

    async def publish(self, message: Publish | Will, identity: str) -> None:
        """Forward a publish of a client; raise ClientError if the broker refuses."""
        publisher = await self._open_publisher()
        described = message.properties or PublishProperties()
        if not any(name == IDENTITY_HEADER for name, _ in described.user_properties):
            named = (*described.user_properties, (IDENTITY_HEADER, identity))
            described = msgspec.structs.replace(described, user_properties=named)
        await publisher.publish_packet(
            Publish(message.topic, message.payload, message.qos, message.retain, properties=described)
        )

    async def recall(self, filter: str) -> tuple[ForeignMessage, ...]:
        """Return the broker's retained messages under a filter; raise ClientError if the broker does not
        answer."""
        async with self._connect() as client:
            await client.subscribe(filter)
            # A broker answers in order: retained messages come before the answer to this.
            await client.unsubscribe(filter)
            found = await client.peek(RECALLED_MAX) if client.waiting else []
        now = time.time()
        return tuple(foreign_message(one, now, is_recalled=True) for one in found if one.retain)

    def _connect(self) -> Client:
        place = parse_url(self.server.config.broker.own_url, "mqtt", 1883)
        return connect(
            str(place), clean=True, username=place.user, password=place.password, queue_max=RECALLED_MAX
        )

    async def _open_publisher(self) -> Client:
        """Open one connection for all clients, which reconnects by itself."""
        async with self._opening:
            if self._publisher is None:
                publisher = self._connect()
                await publisher.__aenter__()
                self._publisher = publisher
        return self._publisher

    # --- connections ---

    async def _enter(self, one: socket.socket, stranger: Stranger) -> None:
        """Handle a connection that has sent its first byte."""
        streams = await self._doorway.open_streams(one, stranger, self._context)
        if streams is None:
            return
        reader, writer = streams
        try:
            await self._converse(reader, writer, stranger)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ClientError):
            pass  # The client disconnected, or was too slow, or the broker is gone: the session stays.
        finally:
            writer.close()
            self._admitted.discard(stranger)
            self._strangers.settle(stranger)

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stranger: Stranger
    ) -> None:
        packets = _Packets(reader)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                first, body = await packets.next()
                if first >> 4 != CONNECT:
                    return
                connect = parse_connect(body)
        except PacketError as error:
            writer.write(refusal(error))
            return
        host = stranger.host
        stranger.is_asking = True
        outcome = await self.server.verify(connect.username or "", connect.password or b"", host)
        stranger.is_asking = False
        if outcome.name != "ACCEPTED":
            writer.write(write(Connack(reason=Reason.BAD_USER_NAME_OR_PASSWORD), connect.version))
            return
        kept_out = self.server.refusal("client", connect.client_id)
        if kept_out:
            log.info("%s: %s", host, kept_out)
            writer.write(refused(connect, Reason.SERVER_UNAVAILABLE, kept_out))
            return
        self._admitted.add(stranger)
        self._strangers.settle(stranger)
        session = Session(self, connect, writer)
        try:
            async with asyncio.timeout(self.settings.locate_timeout_s):
                reason = await session.begin()
        except TimeoutError:
            reason = Reason.SERVER_UNAVAILABLE
        if reason is not None:
            session.end()
            writer.write(write(Connack(reason=reason), connect.version))
            return
        await self._read(packets, session, connect)

    async def _read(self, packets: _Packets, session: Session, connect: Connect) -> None:
        limit_s = connect.keep_alive * KEEP_ALIVE_GRACE or None
        is_clean = False
        try:
            while not is_clean and not session.is_over:
                async with asyncio.timeout(limit_s):
                    first, body = await packets.next(session.over)
                is_clean = await session.take(parse(first, body, connect.version))
        except PacketError as error:
            session.disconnect(error.reason)
        finally:
            session.end()
            if not is_clean and connect.will is not None and not session.is_moved:
                self.server.spawn(self._publish_will(session.client, connect.will))

    async def _publish_will(self, client: str, will: Will) -> None:
        await asyncio.sleep(will.delay)
        try:
            await self.publish(will, self.new_identity(client))
        except ClientError as error:
            log.warning("the will of %s was not published: %s", client, error)


class _Packets:
    """Reads whole packets of a connection."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._data = b""

    async def next(self, over: asyncio.Future[None] | None = None) -> tuple[int, bytes]:
        """Return the next packet; raise IncompleteReadError at the end of the connection, or when it is to
        be closed."""
        while True:
            found = cut(self._data, 0, PACKET_MAX)
            if found is not None:
                first, start, end = found
                body, self._data = self._data[start:end], self._data[end:]
                return first, body
            reading = asyncio.ensure_future(self._reader.read(READ_BYTES))
            awaited: list[asyncio.Future[Any]] = [reading] if over is None else [reading, over]
            try:
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not reading.done():
                    reading.cancel()
            if over is not None and over.done():
                raise asyncio.IncompleteReadError(b"", None)
            more = reading.result()
            if not more:
                raise asyncio.IncompleteReadError(self._data, None)
            self._data += more
