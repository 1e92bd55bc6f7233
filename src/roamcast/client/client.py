"""The client that applications use: `async with roamcast.connect([...]) as client:`."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Unpack

from roamcast.client.addresses import Address, AddressBook
from roamcast.client.attachment import Attachment, Policy
from roamcast.client.errors import ClientClosed
from roamcast.client.messages import (
    Payload,
    Properties,
    PublishOptions,
    SubscribeOptions,
    make_publish,
    make_subscribe,
    to_bytes,
    user_properties,
)
from roamcast.client.notification import Notification, notification_of
from roamcast.client.records import ClientLog
from roamcast.client.waiting import Answer, Batch, Room
from roamcast.errors import InputError
from roamcast.mqtt.client.client import ClientSession, ClientSettings
from roamcast.mqtt.codec.packets import Publish, Unsubscribe, Version, Will
from roamcast.mqtt.codec.user_properties import NETWORK
from roamcast.mqtt.server.moves import LOCATION, MOVE_TOPIC, write_move
from roamcast.mqtt.server.steering import NEXT_TOPIC, SIGNAL_TOPIC

SESSION_EXPIRY_S = 3600
"""Default time that a broker keeps the session of a disconnected client."""
IN_FLIGHT_MAX = {4: 20, 5: 1024}
"""Unacknowledged publishes at a time. MQTT 5 brokers state a limit; with 3.1.1 some close beyond this one."""
BURST_MAX, BURST_BYTES_MAX = 1024, 1 << 18
"""Number of payloads, and of their bytes, taken from an iterable at once."""
OUTBOX_MAX = 4096
"""Unacknowledged publishes; further ones wait."""


def connect(
    addresses: str | Sequence[str],
    *,
    client_id: str | None = None,
    clean: bool = True,
    session_expiry: int = SESSION_EXPIRY_S,
    keep_alive: int = 60,
    version: Version = 5,
    username: str | None = None,
    password: str | bytes | None = None,
    scram: bool = False,
    tls: bool | ssl.SSLContext = False,
    cafile: str | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    will: Will | None = None,
    receive_maximum: int = 1024,
    packet_max: int | None = None,
    properties: Properties = (),
    in_flight_max: int | None = None,
    bind: str | None = None,
    queue_max: int = 1024,
    connect_timeout: float = 10.0,
    reconnect: bool = True,
    give_up_after: float | None = None,
    back_off_max: float = 10.0,
    records: str | Path | None = None,
    run: str | None = None,
    steered: bool = False,
) -> Client:
    """Create a client for the brokers at these addresses; `async with` connects it, and disconnects it at the
    end.

    An address is `[BROKER=][mqtt://|mqtts://]HOST[:PORT]`; BROKER is the broker's id, which a proclaimed move
    needs. The first broker that answers is taken; when the connection is lost, the next in order is tried,
    cyclically, with growing pauses, for `give_up_after` seconds or forever (or never, without `reconnect`).
    Publishes, subscriptions and acknowledgements are retried.

    - `clean`: begin without what an earlier client of this `client_id` left, and leave nothing behind. With
      `clean=False` the session outlives the client by `session_expiry` seconds: subscriptions stay, and what
      is published with QoS 1 and 2 is kept.
    - `scram`: prove to know the password by SCRAM-SHA-256 instead of sending it (MQTT 5); a broker that does
      not know it, either, is left at once.
    - `queue_max`: notifications that wait to be taken; then reading stops.
    - `receive_maximum`, `packet_max`, `properties`: what the broker is told of this client in its CONNECT:
      how many unacknowledged notifications it takes, the largest packet, and user properties.
    - `in_flight_max`: publishes on their way at once, if the broker allows as many.
    - `bind`: the address of this machine to connect from.
    - `records`: a folder for this client's own event log (Parquet): what was delivered, where it attached.
      `run` names the run to which its rows belong; by default the network that the broker tells.
    - `steered`: go where the broker says (MQTT 5, a broker of Roamcast with `[steering]`): see `signal`.
    """
    check_version(version)
    if steered and version != 5:
        raise InputError("steered needs MQTT 5")
    asked = ((NETWORK, ""),) if records is not None and run is None and version == 5 else ()
    if scram and (version != 5 or username is None):
        raise InputError("scram needs MQTT 5 and a username")
    return Client(
        AddressBook(addresses, bool(tls)),
        ClientSettings(
            client_id=client_id or f"roamcast-{random.SystemRandom().getrandbits(64):016x}",
            version=version,
            clean=clean,
            session_expiry_s=session_expiry,
            keep_alive_s=keep_alive,
            username=username,
            password=password.encode() if isinstance(password, str) else password,
            scram=scram,
            will=will,
            receive_maximum=receive_maximum,
            in_flight_max=in_flight_max or IN_FLIGHT_MAX[version],
            packet_max=packet_max,
            user_properties=user_properties(properties) + asked,
            first_packet_id=random.randint(1, 65_535),
            says_what_it_has=version == 5,
            steered=steered,
        ),
        Policy(connect_timeout, reconnect, give_up_after, back_off_max, queue_max, bind),
        tls_context(tls, cafile, certfile, keyfile),
        (Path(records), run) if records is not None else None,
    )


def check_version(version: int) -> None:
    if version not in (4, 5):
        raise InputError(f"MQTT version {version}: valid are 4 (MQTT 3.1.1) and 5")


def tls_context(
    tls: bool | ssl.SSLContext, cafile: str | None, certfile: str | None, keyfile: str | None
) -> ssl.SSLContext | None:
    """Return the TLS context; None uses only the system's authorities."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if cafile is None and certfile is None:
        return None  # Reading them takes a tenth of a second, so clients without TLS do not.
    try:
        context = ssl.create_default_context(cafile=cafile)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"cafile {cafile}: cannot be used ({error.strerror or 'no certificate'})") from None
    if certfile is not None:
        try:
            context.load_cert_chain(certfile, keyfile)
        except (OSError, ssl.SSLError) as error:
            what = error.strerror or "no certificate or key in PEM, or they do not belong together"
            raise InputError(f"certfile {certfile}: cannot be used ({what})") from None
    return context


class Client:
    """A client; `connect` makes one. It is an async context manager and an async iterator."""

    def __init__(
        self,
        book: AddressBook,
        settings: ClientSettings,
        policy: Policy,
        context: ssl.SSLContext | None,
        records: tuple[Path, str | None] | None,
    ) -> None:
        self._book, self._settings, self._policy, self._context = book, settings, policy, context
        self._records_to = records
        self._records: ClientLog | None = None
        self._session = ClientSession(settings)
        self._attachment: Attachment | None = None

    # --- life ---

    async def __aenter__(self) -> Client:
        if self._attachment is not None:
            raise ClientClosed("a client is entered once: make another one with connect()")
        self._arrival = asyncio.Event()
        self._room = Room(OUTBOX_MAX)
        if self._records_to is not None:
            self._records = ClientLog(*self._records_to, self.client_id)
        attachment = Attachment(
            self._session, self._book, self._policy, self._context, self._records, self._arrival.set
        )
        self._attachment = attachment
        try:
            await attachment.start()
            if self._settings.steered:
                await self.subscribe(NEXT_TOPIC)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, forget: bool = False) -> None:
        """Disconnect. What waits to be taken is not acknowledged: a lasting session keeps it.

        `forget` ends a lasting session as well (MQTT 5).
        """
        attachment, records = self._attachment, self._records
        self._records = None
        try:
            if attachment is not None:
                ends = (self._settings.clean or forget) and self._settings.version == 5
                self._arrival.set()
                await attachment.close(0 if ends else None)
        finally:
            if records is not None:
                records.close()

    @property
    def client_id(self) -> str:
        return self._session.client_id

    @property
    def address(self) -> Address:
        """Address of the present or last broker."""
        return self._book.current

    @property
    def is_attached(self) -> bool:
        return self._session.is_connected

    @property
    def session_present(self) -> bool:
        """True if the broker had the session at the last attach."""
        return self._attachment is not None and self._attachment.connack.session_present

    @property
    def waiting(self) -> int:
        """Number of received notifications that the application has not taken."""
        return len(self._session.incoming)

    @property
    def dropped(self) -> int:
        """Number of QoS 0 notifications dropped because the application did not take them."""
        return self._attachment.dropped if self._attachment is not None else 0

    def _live(self) -> Attachment:
        attachment = self._attachment
        if attachment is None:
            raise ClientClosed("the client is not connected: use it within `async with`")
        if attachment.failure is not None:
            raise attachment.failure
        return attachment

    # --- subscribing ---

    async def subscribe(
        self,
        filter: str,
        *,
        where: str | None = None,
        identifier: int | None = None,
        identify: bool = False,
        properties: Properties = (),
        **options: Unpack[SubscribeOptions],
    ) -> int:
        """Subscribe to a topic filter; return the granted QoS when the broker has acknowledged.

        `city/+/air?pm10>50` filters by content too, and `where` takes a whole selector; both need a broker of
        Roamcast, as does `identify`: notifications then say whose they are, and which. SubscribeError if the
        broker refuses.
        """
        attachment = self._live()
        wants_identity = identify or self._records is not None
        packet = make_subscribe(
            self._settings.version, filter, where, wants_identity, identifier, properties, **options
        )
        answer = Answer(attachment, self._session.subscribe(packet))
        attachment.flush_soon()
        granted = await answer.granted()
        if self._records is not None:
            self._records.subscribed(packet, int(granted.reasons[0]))
        return int(granted.reasons[0])

    async def unsubscribe(self, filter: str) -> None:
        """End a subscription, and return when the broker has acknowledged it."""
        attachment = self._live()
        answer = Answer(attachment, self._session.unsubscribe(Unsubscribe(0, (filter,))))
        attachment.flush_soon()
        await answer.granted()

    # --- receiving ---

    def __aiter__(self) -> Client:
        return self

    async def __anext__(self) -> Notification:
        """Return the next notification, which acknowledges it. Ends when the client is closed."""
        if not await self._has_arrived():
            raise StopAsyncIteration
        return self._take()

    async def peek(self, limit: int = 1024) -> list[Notification]:
        """Return waiting notifications in order, at least one and at most `limit`; none if the client was
        closed.

        They stay in the queue, and the broker keeps them, until they are taken or acknowledged with
        `acknowledge`.
        """
        await self._has_arrived()
        return [notification_of(publish) for publish in self._session.incoming.first(limit)]

    def acknowledge(self, count: int) -> None:
        """Acknowledge the first `count` waiting notifications."""
        for _ in range(min(count, self.waiting)):
            publish = self._session.take()
            if self._records is not None:
                self._records.delivered(notification_of(publish))
        self._after_taking()

    async def _has_arrived(self) -> bool:
        """Wait until a notification waits; False if the client was closed instead."""
        while not len(self._session.incoming):
            attachment = self._attachment
            if attachment is None:
                raise ClientClosed("the client is not connected: use it within `async with`")
            if isinstance(attachment.failure, ClientClosed):
                return False
            if attachment.failure is not None:
                raise attachment.failure
            self._arrival.clear()
            await self._arrival.wait()
        return True

    def _take(self) -> Notification:
        notification = notification_of(self._session.take())
        if self._records is not None:
            self._records.delivered(notification)
        self._after_taking()
        return notification

    def _after_taking(self) -> None:
        """Acknowledge taken notifications, and resume reading if there is room again."""
        attachment = self._attachment
        if attachment is not None and attachment.failure is None:
            attachment.flush_soon()
            if len(self._session.incoming) <= self._policy.queue_max // 2:
                attachment.listen()

    # --- publishing ---

    async def publish(
        self,
        topic: str,
        payload: Payload = b"",
        **options: Unpack[PublishOptions],
    ) -> None:
        """Publish, and return when the broker has acknowledged it (QoS 0: when it is on its way).

        PublishError if the broker refuses. Publishes of one client arrive in the order of these calls.
        Cancelling ends the waiting, not the publish.
        """
        self._live()
        await self.publish_packet(make_publish(self._settings.version, topic, payload, **options))

    async def publish_packet(self, publish: Publish) -> None:
        """Publish a PUBLISH packet of another connection, with all its properties."""
        self._session.outgoing.check(publish)
        await self._room.take()
        attachment = self._live()
        token, events = self._session.publish(publish)
        answers = Batch(publish.topic, self._room, token)
        answers.expect(attachment, 1)
        attachment.perform(events)
        await attachment.pace((publish.payload,))
        await answers.done()

    async def publish_each(
        self,
        topic: str,
        payloads: Iterable[Payload] | AsyncIterable[Payload | list[bytes]],
        **options: Unpack[PublishOptions],
    ) -> int:
        """Publish payloads under one topic without waiting for each; how many, when all are acknowledged.

        An async iterable may give them one by one or in lists: many at once cost little more than one.
        PublishError at the first that the broker refuses; what was published until then has been published.
        """
        publish = make_publish(self._settings.version, topic, b"", **options)
        attachment = self._live()
        self._session.outgoing.check(publish)
        token = self._session.new_token()
        batch = Batch(topic, self._room, token)
        async for burst in in_bursts(payloads):
            await self._room.take(len(burst))
            batch.check(len(burst))
            attachment = self._live()
            batch.expect(attachment, len(burst))
            attachment.perform(self._session.publish_burst(token, publish, burst))
            await attachment.pace(burst)
        await batch.done()
        return batch.count

    # --- moving ---

    async def move(self, location: str | None = None, **state: str | bool | int | float) -> None:
        """Report the client's location, or other variables of its own state (`my.NAME` in filters).

        Subscriptions that depend on it follow. This is another kind of moving than `move_to`: the client
        stays attached where it is. It needs a broker of Roamcast with a movement graph.
        """
        values = {**({} if location is None else {LOCATION: location}), **state}
        if not values:
            raise InputError("a move needs a location, or another variable of the client's own state")
        await self.publish(MOVE_TOPIC.decode(), write_move(values), qos=1)

    async def signal(self, *heard: str) -> None:
        """Tell the broker which access points or cells the client hears, strongest first, or its position.

        A client with `steered` that should be at another broker then goes there: it connects to that one,
        tells the old broker where it goes, and leaves. If the client reports nothing, the broker's own model
        decides.
        """
        await self.publish(SIGNAL_TOPIC.decode(), "\n".join(heard), qos=1)

    async def move_to(self, where: str, *, proclaimed: bool = False) -> None:
        """Leave this broker and attach to another, named by its id or its address; returns when it is done.

        A proclaimed move tells the old broker where the client goes, so that it can send ahead what is owed:
        the id of the other broker must be known (`b=127.0.0.1:1884`). ConnectError if the other broker cannot
        be reached; the client then reconnects, as after a lost connection.
        """
        attachment = self._live()
        address = self._book.find(where)
        if proclaimed and (not address.broker or self._settings.version == 4):
            raise InputError(
                f"a proclaimed move to {where!r} needs MQTT 5 and the id of that broker: "
                f"give its address as ID={address}"
            )
        await attachment.move(address, address.broker if proclaimed else "")


async def in_bursts(
    payloads: Iterable[Payload] | AsyncIterable[Payload | list[bytes]],
) -> AsyncIterator[list[bytes]]:
    """Group payloads into lists of limited length."""
    if isinstance(payloads, AsyncIterable):
        async for given in payloads:
            if isinstance(given, list):
                for start in range(0, len(given), BURST_MAX):
                    yield [to_bytes(payload) for payload in given[start : start + BURST_MAX]]
            else:
                yield [to_bytes(given)]
        return
    burst: list[bytes] = []
    size = 0
    for given in payloads:
        payload = to_bytes(given)
        burst.append(payload)
        size += len(payload)
        if len(burst) == BURST_MAX or size >= BURST_BYTES_MAX:
            yield burst
            burst, size = [], 0
    if burst:
        yield burst
