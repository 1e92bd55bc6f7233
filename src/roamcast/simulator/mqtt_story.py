"""Lines of a story whose clients speak MQTT.

    front mqtt
    at 0.0 c0 attach b0 version 5 expiry 60 window 2 will a/gone qos 1 retain delay 3
    at 0.5 c0 subscribe a/+ qos 1 no-local retain-handling 1 identifier 7 where x > 1
    at 0.5 c1 subscribe $share/g/job/# qos 2 identifier 9 retain-as-published
    at 0.6 c1 move b
    at 1.0 c1 publish a/1 qos 2 retain expiry 5 size 300 times 3 x=2
    at 1.1 c1 publish a/1 qos 1 retain clear
    at 2.0 c0 leave
    at 2.5 c0 attach b1 clean
    at 3.0 c0 disconnect to b0
    at 3.5 c1 disconnect with-will expiry 0

`leave` breaks the connection silently; what is in transit is lost. `disconnect` sends DISCONNECT first.
Options missing in `attach` are taken from the client's last `attach`, except `clean`. With `says 1` the
client lists in CONNECT the messages it has, as our own client does. Options after `will` belong to the will,
and a selector follows `where`. `move` reports the client's location, in a story with a `graph`. The topic
filter `'#'` is quoted, since `#` begins a comment unless it follows a `/`.

Operators act on brokers:

    at 4.0 b0 drain b1
    at 5.0 b1 forget b0
    at 5.0 b3 join b1
    at 6.0 b1 rules deny c0 publish a/#
    at 7.0 b1 rules
    at 8.0 b1 limit queue_max 3

The link of a `join` does not exist earlier: until then the broker is alone, with its own sessions. `forget`
is used after a broker has stopped for good. `rules` without arguments allows everything. Each limit
(`queue_max`, `sessions_max`, `retained_max`) can also be a line of the story for all brokers, and so can
`unreachable serve`, `settle_timeout_s` and `locate_timeout_s`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from roamcast.errors import InputError
from roamcast.mqtt.codec.packets import Version, Will
from roamcast.mqtt.codec.topics import split_shared, subscription_filter
from roamcast.mqtt.server.access import AccessRules, Rule
from roamcast.protocol.effects import AttachTo, Input, LeaveFor, MoveTo
from roamcast.simulator.faults import Fault
from roamcast.simulator.location_story import format_move, parse_move
from roamcast.simulator.verbs import Lines, Phrase, Verb, quoted

EXPIRY_DEFAULT_S = 3600
FOR_EVER_S = 1e9
PLACE = "location"
"""The variable of clients' state that `move` changes."""

# --- settings ---------------------------------------------------------------------------------------


class MqttSettings(msgspec.Struct, frozen=True):
    """Settings of the MQTT endpoints of all brokers in a story; None means no limit."""

    queue_max: int | None = None
    """Maximum notifications queued for one client."""
    sessions_max: int | None = None
    """Maximum sessions at one broker."""
    retained_max: int | None = None
    """Maximum retained messages at one broker."""
    unreachable: Literal["refuse", "serve"] = "refuse"
    """What happens to a client whose session cannot be located."""
    settle_timeout_s: float = 5.0
    locate_timeout_s: float = 10.0


MQTT_LINES = Lines(MqttSettings)
Limit = Literal["queue_max", "sessions_max", "retained_max"]


# --- what clients do --------------------------------------------------------------------------------


class Connect(AttachTo, frozen=True):
    """Open a connection to a broker; None means as in the last connection."""

    version: Version | None = None
    clean: bool = False
    expiry_s: int | None = None
    """How long the session outlives the connection."""
    window: int | None = None
    """The receive maximum."""
    keep_alive_s: int | None = None
    says: int | None = None
    """1 if the client lists its messages in CONNECT, as our own client does; otherwise 0."""
    will: Will | None = None
    """The will of this connection; its payload is created with the connection."""


class Disconnect(LeaveFor, frozen=True):
    """Send DISCONNECT and close the connection."""

    with_will: bool = False
    expiry_s: int | None = None


class PublishMessage(Input, frozen=True):
    topic: str
    qos: int = 0
    retain: bool = False
    is_clear: bool = False
    """True to send no payload, which clears the retained message of the topic."""
    times: int = 1
    size: int = 0
    """Minimum size of the payload in bytes."""
    expiry_s: int | None = None
    properties: tuple[tuple[str, str], ...] = ()


class SubscribeFilter(Input, frozen=True):
    filter: str
    qos: int = 0
    no_local: bool = False
    retain_handling: int = 0
    identifier: int | None = None
    where: str = ""
    retain_as_published: bool = False


class UnsubscribeFilter(Input, frozen=True):
    filter: str


# --- what operators do ------------------------------------------------------------------------------


class Drain(Fault, frozen=True):
    """The broker sends its clients away and hands their sessions to another one."""

    destination: str


class Forget(Fault, frozen=True):
    """The broker is told that another broker, which has stopped, is gone for good."""

    gone: str


class Join(Fault, frozen=True):
    """The link to this peer is created for the first time."""

    peer: str


class SetRules(Fault, frozen=True):
    """The broker reloads its access rules."""

    rules: AccessRules


class SetLimit(Fault, frozen=True):
    """The broker reloads a limit."""

    name: Limit
    value: int | None


# --- text -------------------------------------------------------------------------------------------

_WILL = Verb(Will, ("topic",), {"retain": "retain"}, {"qos": "qos", "delay": "delay"})
_ATTACH = Verb(
    Connect,
    ("broker",),
    {"clean": "clean"},
    {
        "version": "version", "expiry": "expiry_s", "window": "window", "alive": "keep_alive_s",
        "says": "says",
    },
)  # fmt: skip
_PUBLISH = Verb(
    PublishMessage,
    ("topic",),
    {"retain": "retain", "clear": "is_clear"},
    {"qos": "qos", "times": "times", "size": "size", "expiry": "expiry_s"},
)
_SUBSCRIBE = Verb(
    SubscribeFilter,
    ("filter",),
    {"no-local": "no_local", "retain-as-published": "retain_as_published"},
    {"qos": "qos", "retain-handling": "retain_handling", "identifier": "identifier"},
)


def _read_attach(text: str) -> Connect:
    before, _, about = f"{text} ".partition(" will ")
    will = _WILL.read("will", about, payload=b"") if about else None
    connect: Connect = _ATTACH.read("attach", before, connection=0, will=will)
    return connect


def _write_attach(item: Connect) -> str:
    return _ATTACH.write("", item) + ("" if item.will is None else f" {_WILL.write('will', item.will)}")


def _read_publish(text: str) -> PublishMessage:
    words = text.split()
    rest = " ".join(word for word in words if "=" not in word)
    properties = tuple((name, value) for name, told, value in (word.partition("=") for word in words) if told)
    publish: PublishMessage = _PUBLISH.read("publish", rest, properties=properties)
    return publish


def _write_publish(item: PublishMessage) -> str:
    return _PUBLISH.write("", item) + "".join(f" {name}={value}" for name, value in item.properties)


def _read_subscribe(text: str) -> SubscribeFilter:
    before, _, where = text.partition(" where ")
    subscribe: SubscribeFilter = _SUBSCRIBE.read("subscribe", before, where=where.strip())
    shared = split_shared(subscribe.filter)
    subscription_filter(shared[1] if shared else subscribe.filter, subscribe.where or None)
    return subscribe


def _write_subscribe(item: SubscribeFilter) -> str:
    return _SUBSCRIBE.write("", item) + (f" where {item.where}" if item.where else "")


def _read_leave(text: str) -> LeaveFor:
    if text:
        raise InputError(f"leave {text!r}: leave takes no argument; `disconnect to {text}` proclaims a move")
    return LeaveFor()


def _read_rules(text: str) -> SetRules:
    words = text.split()
    if not words:
        return SetRules(AccessRules())
    actions = ("publish", "subscribe", "both")
    if len(words) != 4 or words[0] not in ("allow", "deny") or words[2] not in actions:
        raise InputError(f"rules {text!r}: valid is nothing, or `deny CLIENT publish|subscribe|both TOPIC`")
    rule = Rule(words[0], topic=words[3].strip("'"), action=words[2], client=words[1])  # type: ignore[arg-type]
    return SetRules(AccessRules((rule,)))


def _write_rules(item: SetRules) -> str:
    rules = item.rules.rules
    return " ".join(f"{one.verdict} {one.client} {one.action} {quoted(str(one.topic))}" for one in rules)


MQTT_VERBS: dict[str, Verb | Phrase] = {
    "attach": Phrase(Connect, _read_attach, _write_attach),
    "leave": Phrase(LeaveFor, _read_leave, lambda item: item.destination),
    "disconnect": Verb(
        Disconnect, (), {"with-will": "with_will"}, {"to": "destination", "expiry": "expiry_s"}
    ),
    "publish": Phrase(PublishMessage, _read_publish, _write_publish),
    "subscribe": Phrase(SubscribeFilter, _read_subscribe, _write_subscribe),
    "unsubscribe": Verb.of(UnsubscribeFilter),
    "move": Phrase(MoveTo, parse_move, format_move),
    "drain": Verb.of(Drain),
    "forget": Verb.of(Forget),
    "join": Verb.of(Join),
    "rules": Phrase(SetRules, _read_rules, _write_rules),
    "limit": Verb.of(SetLimit),
}
"""Actions of clients and operators in a story with `front mqtt`."""
