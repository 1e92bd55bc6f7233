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

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from roamcast.errors import InputError
from roamcast.mqtt.codec.packets import Version, Will
from roamcast.mqtt.codec.topics import split_shared, subscription_filter
from roamcast.mqtt.server.access import AccessRules, Rule
from roamcast.protocol.effects import AttachTo, Input, LeaveFor, MoveTo
from roamcast.simulator.faults import Fault
from roamcast.simulator.location_story import format_move, parse_move

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


MQTT_LINES = {field.name: field for field in msgspec.structs.fields(MqttSettings)}
LIMITS = ("queue_max", "sessions_max", "retained_max")
NONE_WORD = "none"


def format_mqtt_lines(settings: MqttSettings | None) -> Iterator[str]:
    if settings is None:
        return
    yield "front mqtt"
    for name, field in MQTT_LINES.items():
        value = getattr(settings, name)
        if value != field.default:
            yield f"{name} {NONE_WORD if value is None else value}"


def parse_mqtt_line(settings: MqttSettings, name: str, text: str) -> MqttSettings:
    field = MQTT_LINES[name]
    try:
        value = msgspec.convert(None if text == NONE_WORD else text, field.type, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"{name} {text!r}: {error}") from None
    return msgspec.structs.replace(settings, **{name: value})


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

    name: str
    value: int | None


# --- text -------------------------------------------------------------------------------------------

Words = list[str]


def _options(verb: str, words: Words, flags: Mapping[str, str], values: Mapping[str, str]) -> dict[str, Any]:
    """Parse `flag` and `name value` words into fields; refuse unknown ones."""
    found: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        if word in flags:
            found[flags[word]] = True
        elif word in values:
            value = next(left, "")
            if not value.lstrip("-").isdigit():
                raise InputError(f"{verb}: {word} {value!r} is not a whole number")
            found[values[word]] = int(value)
        else:
            valid = ", ".join((*flags, *values))
            raise InputError(f"{verb}: {word!r} is not known; valid are {valid}")
    return found


def _written(item: Input, flags: Mapping[str, str], values: Mapping[str, str], default: Input) -> str:
    """Format the fields that differ from the defaults, the inverse of `_options`."""
    words = [word for word, field in flags.items() if getattr(item, field)]
    for word, field in values.items():
        value = getattr(item, field)
        if value is not None and value != getattr(default, field):
            words.append(f"{word} {value}")
    return "".join(f" {word}" for word in words)


_ATTACH = {
    "version": "version",
    "expiry": "expiry_s",
    "window": "window",
    "alive": "keep_alive_s",
    "says": "says",
}
_WILL = {"qos": "qos", "delay": "delay"}
_PUBLISH = {"qos": "qos", "times": "times", "size": "size", "expiry": "expiry_s"}
_SUBSCRIBE_FLAGS = {"no-local": "no_local", "retain-as-published": "retain_as_published"}
_SUBSCRIBE = {"qos": "qos", "retain-handling": "retain_handling", "identifier": "identifier"}


def _check_qos(qos: int) -> None:
    if not 0 <= qos <= 2:
        raise InputError(f"qos {qos}: valid are 0, 1 and 2")


def _parse_attach(text: str) -> Connect:
    words = text.split()
    if not words:
        raise InputError("attach: the broker is missing")
    broker, rest = words[0], words[1:]
    will = None
    if "will" in rest:
        place = rest.index("will")
        rest, about = rest[:place], rest[place + 1 :]
        if not about:
            raise InputError("attach: the will has no topic")
        will = Will(about[0], b"", **_options("will", about[1:], {"retain": "retain"}, _WILL))
        _check_qos(will.qos)
    options = _options("attach", rest, {"clean": "clean"}, _ATTACH)
    if options.get("version", 5) not in (4, 5):
        raise InputError("attach: the version must be 4 (MQTT 3.1.1) or 5 (MQTT 5)")
    return Connect(broker, 0, will=will, **options)


def _format_attach(item: Connect) -> str:
    text = f"attach {item.broker}" + _written(item, {"clean": "clean"}, _ATTACH, Connect("", 0))
    if item.will is None:
        return text
    will = item.will
    about = _written(will, {"retain": "retain"}, _WILL, Will("", b""))  # type: ignore[arg-type]
    return f"{text} will {will.topic}{about}"


def _parse_publish(text: str) -> PublishMessage:
    words = text.split()
    if not words:
        raise InputError("publish: the topic is missing")
    told = [word for word in words[1:] if "=" in word]
    rest = [word for word in words[1:] if "=" not in word]
    options = _options("publish", rest, {"retain": "retain", "clear": "is_clear"}, _PUBLISH)
    _check_qos(options.get("qos", 0))
    properties = tuple((name, value) for name, _, value in (word.partition("=") for word in told))
    return PublishMessage(words[0], properties=properties, **options)


def _format_publish(item: PublishMessage) -> str:
    flags = {"retain": "retain", "clear": "is_clear"}
    told = "".join(f" {name}={value}" for name, value in item.properties)
    return f"publish {item.topic}{_written(item, flags, _PUBLISH, PublishMessage(''))}{told}"


def _parse_subscribe(text: str) -> SubscribeFilter:
    before, _, where = text.partition(" where ")
    words = before.split()
    if not words:
        raise InputError("subscribe: the topic filter is missing")
    options = _options("subscribe", words[1:], _SUBSCRIBE_FLAGS, _SUBSCRIBE)
    _check_qos(options.get("qos", 0))
    filter = words[0].strip("'")
    shared = split_shared(filter)
    subscription_filter(shared[1] if shared else filter, where.strip() or None)
    return SubscribeFilter(filter, where=where.strip(), **options)


def _quoted(filter: str) -> str:
    """Quote a topic filter that is only `#`, which would begin a comment."""
    return f"'{filter}'" if filter.startswith("#") else filter


def _format_subscribe(item: SubscribeFilter) -> str:
    options = _written(item, _SUBSCRIBE_FLAGS, _SUBSCRIBE, SubscribeFilter(""))
    return f"subscribe {_quoted(item.filter)}{options}" + (f" where {item.where}" if item.where else "")


def _parse_disconnect(text: str) -> Disconnect:
    words = text.split()
    destination = ""
    if "to" in words:
        place = words.index("to")
        destination = words[place + 1] if place + 1 < len(words) else ""
        words[place : place + 2] = []
    return Disconnect(
        destination, **_options("disconnect", words, {"with-will": "with_will"}, {"expiry": "expiry_s"})
    )


def _format_disconnect(item: Disconnect) -> str:
    to = f" to {item.destination}" if item.destination else ""
    options = _written(item, {"with-will": "with_will"}, {"expiry": "expiry_s"}, Disconnect())
    return f"disconnect{to}{options}"


def _parse_leave(text: str) -> LeaveFor:
    if text:
        raise InputError(f"leave {text!r}: leave takes no argument; `disconnect to {text}` proclaims a move")
    return LeaveFor()


def _parse_rules(text: str) -> SetRules:
    words = text.split()
    if not words:
        return SetRules(AccessRules())
    actions = ("publish", "subscribe", "both")
    if len(words) != 4 or words[0] not in ("allow", "deny") or words[2] not in actions:
        raise InputError(f"rules {text!r}: valid is nothing, or `deny CLIENT publish|subscribe|both TOPIC`")
    rule = Rule(words[0], topic=words[3].strip("'"), action=words[2], client=words[1])  # type: ignore[arg-type]
    return SetRules(AccessRules((rule,)))


def _format_rules(item: SetRules) -> str:
    told = [f"{one.verdict} {one.client} {one.action} {_quoted(str(one.topic))}" for one in item.rules.rules]
    return " ".join(("rules", *told))


def _parse_limit(text: str) -> SetLimit:
    name, _, value = text.partition(" ")
    if name not in LIMITS or not (value == NONE_WORD or value.isdigit()):
        raise InputError(f"limit {text!r}: valid is one of {', '.join(LIMITS)}, and a number or none")
    return SetLimit(name, None if value == NONE_WORD else int(value))


def _one_broker(kind: type[Any], verb: str) -> Callable[[str], Input]:
    def parse(text: str) -> Input:
        if not text or " " in text:
            raise InputError(f"{verb} {text!r}: valid is the name of one broker")
        made: Input = kind(text)
        return made

    return parse


MQTT_VERBS: dict[str, Callable[[str], Input]] = {
    "attach": _parse_attach,
    "leave": _parse_leave,
    "disconnect": _parse_disconnect,
    "publish": _parse_publish,
    "subscribe": _parse_subscribe,
    "unsubscribe": lambda text: UnsubscribeFilter(text.strip("'")),
    "move": parse_move,
    "drain": _one_broker(Drain, "drain"),
    "forget": _one_broker(Forget, "forget"),
    "join": _one_broker(Join, "join"),
    "rules": _parse_rules,
    "limit": _parse_limit,
}
"""Actions of clients and operators in a story with `front mqtt`."""


def format_mqtt_input(item: Input) -> str | None:
    """Return an action of a client or operator as text; None if it is something else."""
    match item:
        case Connect():
            return _format_attach(item)
        case Disconnect():
            return _format_disconnect(item)
        case PublishMessage():
            return _format_publish(item)
        case SubscribeFilter():
            return _format_subscribe(item)
        case UnsubscribeFilter(filter):
            return f"unsubscribe {_quoted(filter)}"
        case MoveTo():
            return f"move {format_move(item)}"
        case Drain(broker):
            return f"drain {broker}"
        case Forget(broker):
            return f"forget {broker}"
        case Join(broker):
            return f"join {broker}"
        case SetRules():
            return _format_rules(item)
        case SetLimit(name, value):
            return f"limit {name} {NONE_WORD if value is None else value}"
    return None
