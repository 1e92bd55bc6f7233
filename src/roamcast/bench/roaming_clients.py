"""Clients that move between brokers all the time: our own, with exact accounting, and foreign programs.

Foreign clients are unaware of their moves: each connects to its own relay, which is cut and pointed at
another broker. They reconnect by themselves, as after any broken connection.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from roamcast.bench.broker_network import Door
from roamcast.bench.ledger import Ledger, Message
from roamcast.bench.processes import HOST
from roamcast.bench.relays import Relay
from roamcast.bench.roaming_session import EXPIRY_S, RoamingSession
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write

WELCOME_S = 6.0
"""How long a client waits for CONNACK before it tries another broker."""
PAUSE_S = 0.1
STAY_S = (0.3, 3.0)
AWAY_S = (0.0, 0.8)
PUBLISH_S = (0.3, 1.7)
READ_BYTES = 1 << 16


@dataclass
class World:
    """State shared by all clients."""

    brokers: Sequence[Door]
    ledger: Ledger
    topics: Sequence[str]
    is_roaming: bool = True
    """True while clients move and publish; otherwise they stay and receive what they are owed."""
    is_publishing: bool = False
    may_return: bool = False
    """True if clients may return to the broker where they were, which may have several processes."""
    moves: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Number of CONNACKs at another broker than the last one, by the numbers of both brokers."""
    refusals: dict[str, int] = field(default_factory=dict)


class Client(Protocol):
    id: str
    broker: int

    async def run(self) -> None: ...
    @property
    def is_subscribed(self) -> bool: ...
    @property
    def is_idle(self) -> bool:
        """Return whether all its publishes are acknowledged."""


class RoamingClient:
    """Our own client: when it moves, it drops its old connection silently, sends DISCONNECT, or leaves it
    open.
    """

    def __init__(self, id: str, world: World, rng: random.Random, qos: int) -> None:
        self.id = id
        self.broker = rng.randrange(len(world.brokers))
        self.hops: list[int] = []
        """Brokers to visit next, at once; if empty, the client goes anywhere after a while."""
        self._is_hurried = False
        self._world = world
        self._rng = rng
        self._qos = qos
        self._session = RoamingSession(id, world.ledger, world.ledger.subscriptions[id])
        self._writer: asyncio.StreamWriter | None = None
        self._opened: list[asyncio.StreamWriter] = []
        """Connections that may still be open, newest last."""
        self._was_at: int | None = None

    @property
    def is_subscribed(self) -> bool:
        return self._session.is_subscribed

    @property
    def is_idle(self) -> bool:
        return self._session.is_idle

    def hurry(self, hops: Sequence[int]) -> None:
        """Visit these brokers one after the other, at once."""
        self.hops = list(hops)
        self._is_hurried = True

    async def run(self) -> None:
        publishing = asyncio.get_running_loop().create_task(self._publish())
        try:
            while True:
                await self._visit()
                if self._world.is_roaming:
                    await self._move()
                else:
                    await asyncio.sleep(PAUSE_S)
        finally:
            publishing.cancel()
            for writer in self._opened:
                writer.transport.abort()

    async def _move(self) -> None:
        world = self._world
        others = [n for n in range(len(world.brokers)) if n != self.broker or world.may_return]
        if self.hops:
            self.broker = self.hops.pop(0)
            return
        self.broker = self._rng.choice(others)
        if self._rng.random() < 0.3:
            await asyncio.sleep(self._rng.uniform(*AWAY_S))

    async def _visit(self) -> None:
        """Use one connection, from its CONNECT until it is lost or left."""
        session = self._session
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(HOST, self._world.brokers[self.broker].port), WELCOME_S
            )
        except (OSError, TimeoutError):
            await asyncio.sleep(PAUSE_S)
            return
        self._writer = writer
        self._opened.append(writer)
        writer.write(session.connect())
        with suppress(OSError):
            if not await self._read(reader, writer, WELCOME_S, until_welcome=True):
                writer.transport.abort()
                await asyncio.sleep(PAUSE_S)
                return
            self._on_welcome()
            self._is_hurried = False
            await self._read(reader, writer, 0.1 if self.hops else self._rng.uniform(*STAY_S))
        self._leave(writer)

    async def _read(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        seconds: float,
        until_welcome: bool = False,
    ) -> bool:
        """Read and answer for `seconds`, or until the client has to move; return whether it
        received CONNACK.
        """
        loop, session = asyncio.get_running_loop(), self._session
        deadline = loop.time() + seconds
        while True:
            left_s = deadline - loop.time()
            if until_welcome:
                is_over = left_s <= 0
            else:
                is_over = self._world.is_roaming and (left_s <= 0 or self._is_hurried)
            if is_over:
                return session.is_welcome
            try:
                data = await asyncio.wait_for(reader.read(READ_BYTES), min(max(left_s, 0.05), 0.25))
            except TimeoutError:
                continue
            if not data:
                return False
            answer = session.receive(data)
            if answer:
                writer.write(answer)
            if session.refused is not None:
                self._count_refusal(session.refused)
                return False
            if until_welcome and session.is_welcome:
                return True

    def _on_welcome(self) -> None:
        if self._was_at is not None and self._was_at != self.broker:
            self._world.moves[self._was_at, self.broker] += 1
        self._was_at = self.broker
        for writer in self._opened[:-1]:
            writer.transport.abort()
        del self._opened[:-1]

    def _count_refusal(self, reason: Reason) -> None:
        name = reason.name.lower()
        self._world.refusals[name] = self._world.refusals.get(name, 0) + 1

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        self._session.is_welcome = False
        self._writer = None
        how = self._rng.choice(("silent", "goodbye", "linger")) if self._world.is_roaming else "silent"
        if how == "goodbye":
            with suppress(OSError):
                writer.write(write(packets.Disconnect(), 5))
            writer.close()
        elif how == "silent":
            writer.transport.abort()

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(*PUBLISH_S))
            if self._world.is_publishing:
                data = self._session.publish(self._rng.choice(self._world.topics), self._qos)
                if data and self._writer is not None and not self._writer.is_closing():
                    self._writer.write(data)


async def publish_unheard(
    port: int, ledger: Ledger, id: str, topics: Sequence[str], qos: int, stay_s: float | None
) -> None:
    """Publish to these topics as a client that leaves for good without learning the result: after a while, or
    when the answers are on their way.

    The fate of such messages stays unknown: they may arrive, once and in order, or not.
    """
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.wait_for(asyncio.open_connection(HOST, port), WELCOME_S)
        # Without an id of its own it is welcome at once, whoever is out of reach.
        writer.write(write(packets.Connect(5, "", clean_start=True), 5))
        await asyncio.wait_for(reader.read(READ_BYTES), WELCOME_S)
        for packet_id, topic in enumerate(topics, start=1):
            payload = ledger.publish(id, topic, qos).payload.encode()
            writer.write(write(packets.Publish(topic, payload, qos, packet_id=packet_id), 5))
        if stay_s is None:
            await asyncio.wait_for(reader.read(READ_BYTES), WELCOME_S)
        else:
            await asyncio.sleep(stay_s)
        writer.transport.abort()


class Foreign:
    """A foreign client behind its own relay."""

    def __init__(self, id: str, world: World, rng: random.Random, qos: int) -> None:
        self.id = id
        self.broker = rng.randrange(len(world.brokers))
        self.is_subscribed = False
        self._world = world
        self._rng = rng
        self._qos = qos
        self._relay = Relay(world.brokers[self.broker].port)
        self._open: list[Message] = []
        """Published and unacknowledged messages."""

    @property
    def is_idle(self) -> bool:
        return not self._open

    @property
    def subscriptions(self) -> dict[str, int]:
        return self._world.ledger.subscriptions[self.id]

    async def run(self) -> None:
        await self._relay.start()
        moving = asyncio.get_running_loop().create_task(self._move())
        try:
            await self._live()
        finally:
            moving.cancel()
            await self._relay.close()

    async def _live(self) -> None:
        raise NotImplementedError

    async def _move(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(2 * STAY_S[0], 2 * STAY_S[1]))
            if self._world.is_roaming and self.is_subscribed:
                self.broker = self._rng.randrange(len(self._world.brokers))
                self._relay.target = self._world.brokers[self.broker].port
                self._relay.cut()

    def _next_message(self) -> Message:
        topic = self._rng.choice(self._world.topics)
        message = self._world.ledger.publish(self.id, topic, self._qos)
        self._open.append(message)
        return message

    def _took(self, payload: bytes) -> None:
        self._world.ledger.received[self.id].append(payload.decode(errors="replace"))


def lasting() -> Any:
    """Return CONNECT properties of a session that outlives its connections, for paho-mqtt and libraries based
    on it.
    """
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = EXPIRY_S
    return properties


def paho_client(id: str) -> Any:
    """Return a client of paho-mqtt that does not publish again what the broker has received with QoS 2.

    As it comes (2.2.0), it repeats PUBREL after one attempt to connect, and PUBLISH after two of which the
    first failed.
    """
    from paho.mqtt import client as paho
    from paho.mqtt.enums import CallbackAPIVersion, MessageState

    class Client(paho.Client):
        def _messages_reconnect_reset_out(self) -> None:
            pubrel = MessageState.MQTT_MS_RESEND_PUBREL
            received = [message for message in self._out_messages.values() if message.state == pubrel]
            super()._messages_reconnect_reset_out()
            for message in received:
                message.state = pubrel

    return Client(CallbackAPIVersion.VERSION2, id, protocol=paho.MQTTv5)


class PahoClient(Foreign):
    """paho-mqtt in its own thread; one message at a time, so that order is under our control."""

    def __init__(self, id: str, world: World, rng: random.Random, qos: int) -> None:
        super().__init__(id, world, rng, qos)
        self._done: set[int] = set()
        """Ids of acknowledged messages that are not yet processed."""

    async def _live(self) -> None:
        client = paho_client(self.id)

        def on_connect(*arguments: Any) -> None:
            if not self.is_subscribed:
                client.subscribe(list(self.subscriptions.items()))

        def on_subscribe(*arguments: Any) -> None:
            self.is_subscribed = True

        client.on_connect, client.on_subscribe = on_connect, on_subscribe
        client.on_message = lambda client, data, message: self._took(bytes(message.payload))
        client.on_publish = lambda client, data, mid, reason, properties: self._done.add(mid)
        client.reconnect_delay_set(1, 1)
        await asyncio.to_thread(
            client.connect, HOST, self._relay.port, keepalive=10, clean_start=False, properties=lasting()
        )
        client.loop_start()
        try:
            await self._publish(client)
        finally:
            client.disconnect()
            client.loop_stop()

    async def _publish(self, client: Any) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(*PUBLISH_S))
            if not self._world.is_publishing:
                continue
            message = self._next_message()
            mid = client.publish(message.topic, message.payload.encode(), message.qos).mid
            while mid not in self._done:
                await asyncio.sleep(0.05)
            self._done.discard(mid)
            message.is_acknowledged = True
            self._open.remove(message)


class Forgetful(Foreign):
    """A client that keeps no session state across connections, so it publishes and subscribes with QoS 1."""

    def __init__(self, id: str, world: World, rng: random.Random, qos: int) -> None:
        super().__init__(id, world, rng, 1)
        world.ledger.subscriptions[id] = dict.fromkeys(self.subscriptions, 1)


class AiomqttClient(Forgetful):
    """aiomqtt, with a new client object for each connection."""

    async def _live(self) -> None:
        import aiomqtt

        took = self._took

        class Noting(asyncio.Queue[Any]):
            """Records a message on arrival, because that is when it is acknowledged, not when it is read."""

            def put_nowait(self, item: Any) -> None:
                took(bytes(item.payload))

        quiet = logging.getLogger("roamcast.bench.aiomqtt")
        quiet.setLevel(logging.CRITICAL)
        while True:
            client = aiomqtt.Client(
                HOST, self._relay.port, identifier=self.id, protocol=aiomqtt.ProtocolVersion.V5,
                clean_start=False, properties=lasting(), keepalive=10, timeout=WELCOME_S, logger=quiet,
                queue_type=Noting,
            )  # fmt: skip
            with suppress(aiomqtt.MqttError):
                async with client:
                    if not self.is_subscribed:
                        await client.subscribe(list(self.subscriptions.items()))
                        self.is_subscribed = True
                    await self._publish(client)
            await asyncio.sleep(PAUSE_S)

    async def _publish(self, client: Any) -> None:
        """Publish until the connection is lost: then MqttError is raised, and the fate of unacknowledged
        messages is unknown.
        """
        while True:
            # Nothing is published to it for now, but it tells by this when the connection is lost.
            with suppress(TimeoutError):
                await asyncio.wait_for(anext(client.messages), self._rng.uniform(*PUBLISH_S))
            if self._world.is_publishing:
                message = self._next_message()
                try:
                    await client.publish(message.topic, message.payload.encode(), message.qos)
                    message.is_acknowledged = True
                finally:
                    self._open.remove(message)


class MosquittoClient(Forgetful):
    """mosquitto_sub, restarted when it was refused, and a mosquitto_pub for each message."""

    async def _live(self) -> None:
        command = [
            "mosquitto_sub", "-h", HOST, "-p", str(self._relay.port), "-i", self.id, "-c", "-V", "5",
            "-x", str(EXPIRY_S), "-q", "1",
        ]  # fmt: skip
        # It does not say when it has subscribed, but a message for it does.
        for topic in [*self.subscriptions, f"ready/{self.id}"]:
            command += ["-t", topic]
        publishing = asyncio.get_running_loop().create_task(self._publish())
        try:
            while True:
                await self._run(command)
                await asyncio.sleep(PAUSE_S)
        finally:
            publishing.cancel()

    async def _run(self, command: Sequence[str]) -> None:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                if line == b"ready\n":
                    self.is_subscribed = True
                else:
                    self._took(line.rstrip(b"\n"))
            await process.wait()
        except asyncio.CancelledError:
            process.kill()
            raise

    async def _publish(self) -> None:
        while not self.is_subscribed:
            await self._publish_once(f"{self.id}-ready", f"ready/{self.id}", "ready", 0)
            await asyncio.sleep(PAUSE_S)
        for number in count():
            await asyncio.sleep(2 * self._rng.uniform(*PUBLISH_S))
            if self._world.is_publishing:
                # Each is a publisher of its own: no session outlives the program.
                publisher, topic = f"{self.id}-{number}", self._rng.choice(self._world.topics)
                message = self._world.ledger.publish(publisher, topic, self._qos)
                message.is_acknowledged = await self._publish_once(
                    publisher, topic, message.payload, self._qos
                )

    async def _publish_once(self, id: str, topic: str, payload: str, qos: int) -> bool:
        """Publish one message; return whether it was acknowledged. Without, its fate is unknown."""
        port = self._world.brokers[self._rng.randrange(len(self._world.brokers))].port
        process = await asyncio.create_subprocess_exec(
            "mosquitto_pub", "-h", HOST, "-p", str(port), "-i", id, "-V", "5", "-q", str(qos), "-t", topic,
            "-m", payload, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return await asyncio.wait_for(process.wait(), WELCOME_S) == 0
        except (TimeoutError, asyncio.CancelledError) as error:
            process.kill()
            if isinstance(error, asyncio.CancelledError):
                raise
            return False


def foreign_kinds() -> dict[str, Callable[..., Foreign]]:
    """Return the foreign programs and libraries that are installed here."""
    found: dict[str, Callable[..., Foreign]] = {}
    if importlib.util.find_spec("paho"):
        found["paho-mqtt"] = PahoClient
    if importlib.util.find_spec("aiomqtt"):
        found["aiomqtt"] = AiomqttClient
    if shutil.which("mosquitto_sub") and shutil.which("mosquitto_pub"):
        found["mosquitto_sub, mosquitto_pub"] = MosquittoClient
    return found
