"""A hostile neighbour: a broker that ignores all messages and sends random ones.

It has honest links (numbers, acknowledgements), since breaking these would only end its connection. All its
messages are made up: any type with any fields, or a copy of a message somewhere in the network with some
fields changed. Brokers linked with it have rules for it (`rules_for`), and the checkers judge all other
brokers.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import inspect

import roamcast.broker.moving.machine  # noqa: F401 (with it, every type of message is loaded)
from roamcast.broker.inputs import LinkDown, LinkFrames, LinkUp, MachineEffects, MachineInput
from roamcast.broker.links.end import LinkError
from roamcast.broker.links.rules import USUAL, PeerRules
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.errors import InputError
from roamcast.filters.selector import parse, parse_subscription
from roamcast.mqtt.server.sessions import NamedCapsule
from roamcast.protocol.codec import message_types
from roamcast.protocol.effects import Input
from roamcast.protocol.messages import About, Relayed
from roamcast.protocol.notification import Burst, Message, encode_attributes
from roamcast.protocol.session import Session

HEARD_MAX = 200
ROOMS = ("roamcast.protocol.", "roamcast.broker.", "roamcast.mobility.", "roamcast.routing.")
TOPIC = "evil/plan"
RULES = (
    PeerRules(imports=("evil/#",), exports=("evil/#",), clients=("evil*",)),
    PeerRules(imports=("evil/#",), exports=(), clients=(), subscriptions_max=3, retained_max=2),
    PeerRules(prefix="evil", clients=()),
    PeerRules(imports=("evil/#",), exports=("evil/#",), may=("data", "subscriptions")),
)
"""Rules for a hostile neighbour, by seed: they grant nothing that affects clients of a story."""
MEMBERS = PeerRules(may=(*USUAL, "forget"))
"""Rules of honest brokers, who may forget each other."""
NUMBERS = (0, 0, 1, 1, 2, 3, 7, 64, -1, 10**6, 1 << 40, (1 << 63) - 1)
FLOATS = (0.0, 1.0, 11.5, -3.0, 1e12, float("inf"), float("nan"))
FILTERS = (
    "TRUE", "x = 1", "kind = 'a'", "topic MATCHES 'evil/#'", "topic MATCHES '#'", "topic = 'evil/plan'",
)  # fmt: skip
OWN_CLIENTS = ("evil1", "evil2")
TEXTS = ("", *OWN_CLIENTS, TOPIC, "TRUE", "x = 1", "$broker/b00", "in", "own", "a/b", "#", "\0")
BYTES = (
    b"", b"\x00", b"\x01", b"\x02", b"\x11\x02\x00\x00\x00\x05", b"\xff\xff", b"x" * 40,
    encode_attributes({"topic": TOPIC}), encode_attributes({"x": 1, "kind": "a"}), encode_attributes({}),
)  # fmt: skip


def rules_for(seed: int) -> PeerRules:
    return RULES[seed % len(RULES)]


def border_of(hostile: str, seed: int) -> dict[str, PeerRules]:
    """Return the rules of the honest brokers, which may forget each other."""
    return {hostile: rules_for(seed), "": MEMBERS}


def is_of_hostile(reason: str, hostile: str) -> bool:
    """Return whether only clients of the hostile broker still have messages in transit."""
    clients = re.findall(r"'([^':]*): holding", reason)
    return bool(hostile and clients) and all(client.startswith(hostile) for client in clients)


class HostileBroker(BrokerMachine):
    """Maintains its links, and ignores every message."""

    __state__ = BrokerMachine.__state__

    def __init__(self, settings: MachineSettings) -> None:
        super().__init__(msgspec.structs.replace(settings, border=None))
        self.heard: deque[Message] = deque(maxlen=HEARD_MAX)
        """Recent messages of the network."""

    def step(self, now: float, inputs: Iterable[MachineInput | Input]) -> MachineEffects:
        for item in inputs:
            match item:
                case LinkFrames(peer, data):
                    try:
                        self.links.ends[peer].receive(data)
                    except LinkError:
                        continue
                case LinkUp(peer, offer, _, version):
                    self.links.ends[peer].up(offer.resume, version)
                case LinkDown(peer):
                    self.links.disconnected(peer)
                case _:
                    super().step(now, (item,))
        return MachineEffects()

    def lie(self, rng: random.Random, clients: Sequence[str], brokers: Sequence[str]) -> None:
        """Send a made-up message to every neighbour."""
        liar = Liar(rng, (*clients, *OWN_CLIENTS), brokers, list(self.heard))
        for end in self.links.ends.values():
            for _ in range(rng.choice((1, 1, 3))):
                message = liar.message()
                try:
                    (end.send_fleeting if message.is_fleeting else end.send)(message)
                except (InputError, TypeError, OverflowError, ValueError, AttributeError):
                    continue  # A message that cannot be encoded cannot be sent.

    def deadline(self) -> None:
        return None


class Liar:
    """Draws messages by msgspec's knowledge of their types."""

    def __init__(
        self, rng: random.Random, clients: Sequence[str], brokers: Sequence[str], heard: Sequence[Message]
    ) -> None:
        self._rng = rng
        self._clients = clients
        self._brokers = brokers
        self._heard = heard
        self._sessions = [one for one in heard if isinstance(getattr(one, "session", None), Session)]
        # Others may define messages, too: what a seed draws must not depend on which of them are loaded.
        self._kinds = [kind for kind in message_types() if kind.__module__.startswith(ROOMS)]

    def message(self, depth: int = 0) -> Message:
        rng = self._rng
        if self._sessions and rng.random() < 0.1:
            message = self._pushed(rng.choice(self._sessions))
        elif self._heard and rng.random() < 0.4:
            message = self._changed(rng.choice(self._heard))
        else:
            message = self._struct(rng.choice(self._kinds), depth)
        if not depth and rng.random() < 0.3 and not isinstance(message, Relayed | Burst):
            source, destination = rng.choice(self._brokers), rng.choice((*self._brokers, "nobody"))
            message = Relayed(rng.choice(("evil", source)), destination, message)
        return message

    def _pushed(self, message: Any) -> Message:
        """Return a handoff that was heard, as one of a client that the hostile broker may speak for."""
        session = msgspec.structs.replace(
            message.session,
            client=self._rng.choice(OWN_CLIENTS),
            number=message.session.number + self._rng.randrange(1000),
            capsule=self._capsule(),
        )
        pushed: Message = msgspec.structs.replace(message, session=session)
        return pushed

    def _changed(self, message: Message) -> Message:
        """Return a copy of a message with some fields changed."""
        names = [one.name for one in msgspec.structs.fields(message)]
        fields = {one.name: one for one in _fields(type(message))}
        drawn = {name: self._field(fields[name], 1) for name in names if self._rng.random() < 0.3}
        return msgspec.structs.replace(message, **drawn)

    def _struct(self, kind: type[Any], depth: int) -> Any:
        if kind in (Relayed, About) and depth > 2:
            kind = Burst
        return kind(**{one.encode_name: self._field(one, depth + 1) for one in _fields(kind)})

    def _field(self, field: inspect.Field, depth: int) -> Any:
        """Draw a field; a capsule is well-formed more often than random bytes would be."""
        is_capsule = field.name == "capsule" and self._rng.random() < 0.8
        return self._capsule() if is_capsule else self._value(field.type, depth)

    def _capsule(self) -> bytes:
        return msgspec.msgpack.encode(self._struct(NamedCapsule, 2))

    def _value(self, kind: inspect.Type, depth: int) -> Any:
        rng = self._rng
        match kind:
            case inspect.StrType():
                return rng.choice((*TEXTS, *self._clients, *self._clients, *self._brokers, *self._brokers))
            case inspect.IntType():
                return rng.choice(NUMBERS)
            case inspect.FloatType():
                return rng.choice(FLOATS)
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.BytesType():
                return rng.choice(BYTES)
            case inspect.NoneType():
                return None
            case inspect.LiteralType(values=values):
                return rng.choice(values)
            case inspect.UnionType(types=types):
                return self._value(rng.choice(types), depth)
            case inspect.TupleType(item_types=types):
                return tuple(self._value(one, depth) for one in types)
            case inspect.VarTupleType(item_type=inner) | inspect.ListType(item_type=inner):
                drawn = [self._value(inner, depth + 1) for _ in range(self._size(depth))]
                return drawn if isinstance(kind, inspect.ListType) else tuple(drawn)
            case inspect.DictType(key_type=key, value_type=value):
                keys = [self._value(key, depth + 1) for _ in range(self._size(depth))]
                return {one: self._value(value, depth + 1) for one in keys}
            case inspect.StructType(cls=cls):
                return self.message(depth + 1) if cls is Message else self._struct(cls, depth + 1)
            case inspect.CustomType():
                text = rng.choice(FILTERS)
                return parse(text) if rng.random() < 0.8 else parse_subscription("evil/+")
            case inspect.Metadata(type=inner):
                return self._value(inner, depth)
        raise TypeError(f"no message has a field of type {kind}")

    def _size(self, depth: int) -> int:
        return self._rng.choice((0, 1, 1, 2)) if depth < 4 else 0


def _fields(kind: type[Any]) -> tuple[inspect.Field, ...]:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return described.fields
