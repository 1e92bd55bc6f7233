"""Stories: a network and its clients' actions, as a short text that people can read and replay.

    brokers b0-b1 b1-b2
    protocol sub_unsub
    link 0.001..0.03
    at 0.0 c1 attach b0
    at 0.1 c1 subscribe x > 3
    at 1.0 c1 leave
    at 1.2 p publish {"x": 5}
    at 1.4 c1 attach b2

A client that is away at the end attaches once more at its last broker, so that what is stored can be
delivered. `leave b2` announces where the client goes (a proclaimed move); `publish 3 {…}` publishes three
notifications at once, which travel as one burst. Lines like `neighbours_max 3` set the protocol's settings
(`mobility.base.Settings`); the value `none` means no limit.

Faults are lines about brokers:

    loss 0.1
    at 2.0 b1 crash
    at 2.5 b1 restart
    at 3.0 b0 cut b1
    at 4.0 b0 heal b1

`crash unsent` happens within the broker's next step, after it is journalled and before its effects. `b1
snapshot` writes a snapshot of b1, which then recovers from it and from the journal after it. Clients of a
crashed broker attach again when it is back, unless the story has another action for them. `b1 backup` copies
the disk of b1, and `b1 impostor` starts a process on that copy, beside b1 or in its place; `impostor empty`
starts one on an empty disk. Peers must refuse it if its disk lacks anything. All that is down at the end
comes up again. `loss` is the share of lost transmissions over links.

If brokers move (`protocol mft`), `b1 relink b0 b2` replaces the link to b0 by one to b2, `heal` creates a
link between any two brokers unless it would close a cycle, and `crash amnesia` makes a broker restart without
its memory. `reach b0-b2 b1-b3` adds possible links: then the brokers elect a leader, and the tree follows
from it.

With the line `front mqtt` clients speak MQTT, and operators act on brokers: see `mqtt_story`. There a broker
can `crash torn`, too: the journal entry of its next step is lost with the step.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from roamcast.errors import InputError
from roamcast.filters.selector import parse as parse_filter
from roamcast.mobility import MOBILE_PROTOCOLS, Settings
from roamcast.protocol.effects import (
    AdvertiseThat,
    AttachTo,
    Input,
    LeaveFor,
    MoveTo,
    PublishThis,
    SubscribeTo,
    UnadvertiseThat,
    UnsubscribeFrom,
)
from roamcast.protocol.notification import Message, decode_attributes, encode_attributes
from roamcast.protocol.records import Row
from roamcast.simulator import faults
from roamcast.simulator.checkers import Result, Violation
from roamcast.simulator.links import Delay
from roamcast.simulator.location_oracle import judge_location
from roamcast.simulator.location_story import (
    LINES,
    format_location_lines,
    format_move,
    parse_location_line,
    parse_move,
)
from roamcast.simulator.mobile_run import check_mobile_action, run_mobile
from roamcast.simulator.mqtt_run import run_mqtt
from roamcast.simulator.mqtt_story import MQTT_LINES, MQTT_VERBS, Join, MqttSettings
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.run import Run, run_checked
from roamcast.simulator.topology import Topology, from_edges
from roamcast.simulator.verbs import Lines, Phrase, Verb

HOME_AFTER_S = 1.0
"""Time after the last action at which absent clients return."""


@dataclass(frozen=True)
class Story:
    topology: Topology
    settings: NetworkSettings
    actions: tuple[Action, ...]

    @property
    def has_faults(self) -> bool:
        settings = self.settings
        is_faulty = bool(settings.hostile or settings.replicas)
        return is_faulty or any(isinstance(item, faults.Fault) for _, _, item in self.actions)

    def judge(
        self,
        observe: Callable[[list[Row]], None] | None = None,
        trace: Callable[[float, str, str, Message], None] | None = None,
    ) -> Result:
        """Simulate a story with any kind of brokers, and judge it."""
        if self.settings.protocol in MOBILE_PROTOCOLS:
            return run_mobile(self.topology, self.settings, self.with_homecoming(), observe, trace)[0]
        if self.settings.mqtt is not None:
            return run_mqtt(self.topology, self.settings, tuple(self.with_homecoming()), observe, trace)
        return self.run(observe, trace).result

    def run(
        self,
        observe: Callable[[list[Row]], None] | None = None,
        trace: Callable[[float, str, str, Message], None] | None = None,
    ) -> Run:
        """Simulate a story and judge it, including clients whose filters depend on their location."""
        run = self.simulate(observe, trace)
        judge_location(self, run)
        return run

    def simulate(
        self,
        observe: Callable[[list[Row]], None] | None = None,
        trace: Callable[[float, str, str, Message], None] | None = None,
    ) -> Run:
        return run_checked(
            self.topology,
            self.settings,
            self.with_homecoming(),
            observe,
            trace=trace,
            faults=self.has_faults,
        )

    def with_homecoming(self) -> Iterator[Action]:
        """Return the actions, followed by repairs of everything that is down and an attach for every
        absent client."""
        last_broker: dict[str, str] = {}
        away: dict[str, None] = {}
        repairs: dict[frozenset[str], tuple[str, faults.Fault]] = {}
        end_s = 0.0
        for action in self.actions:
            end_s, client, item = action
            if isinstance(item, AttachTo):
                last_broker[client] = item.broker
                away.pop(client, None)
            elif isinstance(item, LeaveFor) and client in last_broker:
                away[client] = None
            elif isinstance(item, faults.Crash):
                repairs[frozenset({client})] = (client, faults.Restart())
            elif isinstance(item, faults.Cut) and self.settings.protocol not in MOBILE_PROTOCOLS:
                repairs[frozenset({client, item.peer})] = (client, faults.Heal(item.peer))
            elif isinstance(item, faults.Restart):
                repairs.pop(frozenset({client}), None)
            elif isinstance(item, faults.Heal):
                repairs.pop(frozenset({client, item.peer}), None)
            yield action
        for broker, _ in self.settings.replicas:
            yield (end_s + HOME_AFTER_S, broker, faults.Repair())
        for broker, repair in repairs.values():
            yield (end_s + HOME_AFTER_S, broker, repair)
        for client in away:
            yield (end_s + HOME_AFTER_S, client, AttachTo(last_broker[client], 0))


# --- text ---

_SETTINGS = (
    "protocol", "routing", "advertisements", "link", "access", "notice",
    "window", "names_last_broker", "access_bits_per_s", "service_s", "buffer_bytes", "loss", "reach", "seed",
    "hostile", "replicas", "lease_s",
)  # fmt: skip
_COMMENT = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*')|(?<!/)#.*""")
"""A quoted text, which may contain a `#`, or a comment; the `#` of a topic filter does not begin a
comment.
"""
MOBILITY_LINES = Lines(Settings, "delay_bound_s")
"""The bound on the delay comes from the network, and has no line in a story."""
_DELAYS = {"link": "link_delay", "access": "access_delay", "notice": "notice_delay"}


def _parse_share(text: str) -> float:
    share = float(text)
    if not 0 <= share < 1:
        raise InputError(f"loss {text}: valid is a number from 0 to below 1")
    return share


def _parse_truth(key: str, text: str) -> bool:
    if text not in ("True", "False"):
        raise InputError(f"{key} {text!r}: valid are True and False")
    return text == "True"


def _parse_replicas(text: str) -> tuple[tuple[str, int], ...]:
    pairs = [word.partition(":") for word in text.split()]
    return tuple((broker, int(count)) for broker, _, count in pairs)


_PARSERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(_DELAYS, Delay.parse),
    **dict.fromkeys(("seed", "window", "buffer_bytes"), int),
    **dict.fromkeys(("access_bits_per_s", "service_s", "lease_s"), float),
    **{key: partial(_parse_truth, key) for key in ("advertisements", "names_last_broker")},
    "loss": _parse_share,
    "replicas": _parse_replicas,
    "reach": lambda text: tuple(_parse_edges(f"reach {text}", text)),
}
"""How values are read that are no plain text."""


def format_story(story: Story) -> str:
    edges = " ".join(f"{a}-{b}" for a, b in story.topology.overlay) or story.topology.brokers[0]
    lines = [f"brokers {edges}"]
    default = NetworkSettings()
    for name in _SETTINGS:
        field = _DELAYS.get(name, name)
        value = getattr(story.settings, field)
        if value != getattr(default, field) or name in ("protocol", "seed"):
            told = " ".join(map("-".join, value)) if name == "reach" else value
            if name == "replicas":
                told = " ".join(f"{broker}:{count}" for broker, count in value)
            lines.append(f"{name} {told}")
    lines += [f"link {one}-{other} {delay}" for one, other, delay in story.settings.link_delays]
    if story.settings.mqtt is not None:
        lines += ["front mqtt", *MQTT_LINES.write(story.settings.mqtt)]
    lines += MOBILITY_LINES.write(story.settings.mobility)
    lines += format_location_lines(story.settings.location)
    lines += [f"at {time_s:.6f} {client} {_format_input(item)}" for time_s, client, item in story.actions]
    return "\n".join(lines) + "\n"


def _format_input(item: Input) -> str:
    if type(item) not in _VERB_OF:
        raise InputError(f"{type(item).__name__} cannot be written in a story")
    verb, how = _VERB_OF[type(item)]
    return how.write(verb, item)


def _filter_verb(kind: type[Input]) -> Phrase:
    return Phrase(kind, lambda text: kind(parse_filter(text).text), attrgetter("filter"))


def _read_publish(text: str) -> PublishThis:
    """Parse `{"x": 1}`, or `3 {"x": 1}` for three notifications at once."""
    times, brace, rest = text.partition("{")
    if not brace or not (times.strip() or "1").isdigit() or not int(times.strip() or "1"):
        raise InputError(f"publish {text!r}: valid is a JSON object, or a number and a JSON object")
    attributes = json.loads(brace + rest)
    return PublishThis(encode_attributes(attributes), (b"",) * int(times.strip() or "1"))


def _write_publish(item: PublishThis) -> str:
    times = f"{len(item.bodies)} " if len(item.bodies) > 1 else ""
    return f"{times}{json.dumps(decode_attributes(item.attributes))}"


_OfLink = faults.Cut | faults.Heal | faults.Detour | Join
_FAULT_VERBS: dict[str, Verb | Phrase] = {
    kind.__name__.lower(): Verb.of(kind)
    for kind in faults.Fault.__subclasses__()
    if kind.__module__ == faults.__name__ and kind is not faults.Relink
}
_VERBS: dict[str, Verb | Phrase] = {
    "attach": Phrase(AttachTo, lambda text: AttachTo(text, 0), attrgetter("broker")),
    "leave": Phrase(LeaveFor, LeaveFor, attrgetter("destination")),
    "publish": Phrase(PublishThis, _read_publish, _write_publish),
    "move": Phrase(MoveTo, parse_move, format_move),
    "subscribe": _filter_verb(SubscribeTo),
    "unsubscribe": _filter_verb(UnsubscribeFrom),
    "advertise": _filter_verb(AdvertiseThat),
    "unadvertise": _filter_verb(UnadvertiseThat),
    **_FAULT_VERBS,
    "relink": Verb.of(faults.Relink),
}
_VERB_OF = {how.kind: (verb, how) for verbs in (MQTT_VERBS, _VERBS) for verb, how in verbs.items()}


def parse_story(text: str, name: str = "story") -> Story:
    """Read a story; an error names the line."""
    topology: Topology | None = None
    settings = NetworkSettings()
    told: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = _COMMENT.sub(lambda found: found[1] or "", line).split(None, 1)
        if not words:
            continue
        key, rest = words[0], words[1].strip() if len(words) > 1 else ""
        try:
            if key == "brokers":
                topology = _parse_brokers(name, rest)
            elif key == "at":
                told.append((number, rest))
            else:
                settings = _parse_setting(settings, key, rest)
        except (InputError, ValueError) as error:
            raise InputError(f"{name}, line {number}: {error}") from None
    if topology is None:
        raise InputError(f"{name}: the line `brokers a-b b-c …` is missing")
    actions: list[Action] = []
    for number, rest in told:
        try:
            actions.append(_parse_action(rest, settings))
            _check_places(topology, settings, actions[-1])
        except (InputError, ValueError) as error:
            raise InputError(f"{name}, line {number}: {error}") from None
    return Story(topology, settings, tuple(sorted(actions, key=lambda action: action[0])))


def _check_places(topology: Topology, settings: NetworkSettings, action: Action) -> None:
    """Refuse actions at brokers and links that do not exist, and faults that the protocol does not
    support.
    """
    _, node, item = action
    broker = node if isinstance(item, faults.Fault) else ""
    broker = broker or getattr(item, "broker", "") or getattr(item, "destination", "")
    if broker and broker not in topology.brokers:
        raise InputError(f"there is no broker {broker!r}; valid are {', '.join(topology.brokers)}")
    if settings.protocol in MOBILE_PROTOCOLS:
        check_mobile_action(topology, node, item)
        return
    if isinstance(item, _OfLink) and item.peer not in topology.peers(node):
        valid = ", ".join(topology.peers(node))
        raise InputError(f"{node} has no link to {item.peer!r}; valid are {valid}")
    if isinstance(item, faults.Relink) or (isinstance(item, faults.Crash) and item.amnesia):
        valid = ", ".join(sorted(MOBILE_PROTOCOLS))
        raise InputError(f"`{_format_input(item)}` is for brokers that move; their protocols are {valid}")


def _parse_brokers(name: str, text: str) -> Topology:
    pairs = _parse_edges(f"brokers {text!r}", text)
    alone = [word for word in text.split() if "-" not in word]
    return from_edges(name, tuple(sorted({*alone, *(broker for edge in pairs for broker in edge)})), pairs)


def _parse_edges(what: str, text: str) -> list[tuple[str, str]]:
    edges = [tuple(edge.split("-")) for edge in text.split() if "-" in edge]
    if any(len(edge) != 2 for edge in edges):
        raise InputError(f"{what}: an edge is two names joined by one `-`")
    return [(edge[0], edge[1]) for edge in edges]


def _parse_setting(settings: NetworkSettings, key: str, value: str) -> NetworkSettings:
    if key == "front" and value in ("plain", "mqtt"):
        return replace(settings, mqtt=MqttSettings() if value == "mqtt" else None)
    if key in MQTT_LINES.fields and settings.mqtt is not None:
        return replace(settings, mqtt=MQTT_LINES.read(settings.mqtt, key, value))
    if key in LINES:
        return replace(settings, location=parse_location_line(settings.location, key, value))
    if key in MOBILITY_LINES.fields:
        return replace(settings, mobility=MOBILITY_LINES.read(settings.mobility, key, value))
    if key not in _SETTINGS:
        valid = ", ".join(("brokers", "at", "front", *_SETTINGS, *MOBILITY_LINES.fields, *LINES))
        raise InputError(f"{key!r} is not known: valid are {valid}")
    if key == "link" and " " in value:
        return replace(settings, link_delays=(*settings.link_delays, _parse_link(value)))
    parsed: Any = _PARSERS.get(key, str)(value)
    return replace(settings, **{_DELAYS.get(key, key): parsed})


def _parse_link(text: str) -> tuple[str, str, Delay]:
    """Parse `b0-b1 0.05`: the delay of one link."""
    edge, _, delay = text.partition(" ")
    one, dash, other = edge.partition("-")
    if not (one and dash and other and delay):
        raise InputError(f"link {text!r}: valid is a delay, or two brokers and a delay: `link a-b 0.05`")
    return one, other, Delay.parse(delay.strip())


def _parse_action(text: str, settings: NetworkSettings) -> Action:
    parts = text.split(None, 3)
    if len(parts) < 3:
        raise InputError(f"{text!r}: expected `at SECONDS CLIENT VERB …`")
    time_s, client, verb = float(parts[0]), parts[1], parts[2]
    if not 0 <= time_s < float("inf"):
        raise InputError(f"at {parts[0]}: valid is a time from 0 on, in seconds")
    verbs = _VERBS if settings.mqtt is None else {**_FAULT_VERBS, **MQTT_VERBS}
    if verb not in verbs:
        raise InputError(f"{verb!r}: valid are {', '.join(verbs)}")
    if verb == "attach" and len(parts) < 4:
        raise InputError(f"{text!r}: attach: the broker is missing")
    return (time_s, client, verbs[verb].read(verb, parts[3] if len(parts) > 3 else ""))


def shrink(story: Story, fails: Callable[[Story], bool]) -> Story:
    """Return the shortest failing story found: first with simpler settings, then with fewer actions."""
    while True:
        shorter = _with_fewer_actions(_with_simpler_settings(story, fails), fails)
        if shorter == story:
            return story
        story = shorter


def _with_fewer_actions(story: Story, fails: Callable[[Story], bool]) -> Story:
    """Remove ever smaller groups of actions, down to single ones (delta debugging)."""
    actions = list(story.actions)
    size = max(len(actions) // 2, 1)
    while True:
        start, shrunk = 0, False
        while start < len(actions):
            fewer = actions[:start] + actions[start + size :]
            if fewer and fails(replace(story, actions=tuple(fewer))):
                actions, shrunk = fewer, True
            else:
                start += size
        if size == 1 and not shrunk:
            break
        size = max(size // 2, 1) if not shrunk or size > 1 else 1
    return replace(story, actions=tuple(actions))


def _with_simpler_settings(story: Story, fails: Callable[[Story], bool]) -> Story:
    for name in (
        "loss", "advertisements", "routing", "window", "names_last_broker",
        "access_bits_per_s", "service_s", "buffer_bytes", "notice_delay", "access_delay", "link_delay",
    ):  # fmt: skip
        value = getattr(story.settings, name)
        for simple in _simpler_values(name, value):
            simpler = replace(story, settings=replace(story.settings, **{name: simple}))
            if simple != value and fails(simpler):
                story = simpler
                break
    for part, lines in (("mqtt", MQTT_LINES), ("mobility", MOBILITY_LINES)):
        for name in lines.fields if getattr(story.settings, part) is not None else ():
            value = lines.at_default(getattr(story.settings, part), name)
            simpler = replace(story, settings=replace(story.settings, **{part: value}))
            if simpler != story and fails(simpler):
                story = simpler
    return story


def _simpler_values(name: str, value: object) -> list[Any]:
    """Return simpler values to try, the simplest first; a fixed delay does not depend on other traffic."""
    values = [getattr(NetworkSettings(), name)]
    if isinstance(value, Delay) and not value.is_fixed:
        values += [Delay(value.high_s, value.high_s), Delay(value.low_s, value.low_s)]
    return values


def violations_of(story: Story) -> list[str]:
    """Return the violations of a story; an exception in the protocol counts as one."""
    return [str(violation) for violation in verdict(story).violations]


def verdict(story: Story) -> Result:
    try:
        return story.judge()
    except InputError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.lineno})"
        crash = Violation("crash", f"{type(error).__name__} {error} in {where}")
        return Result(violations_total=1, violations=[crash])


def kinds_of(violations: Iterable[str]) -> set[str]:
    return {violation.split(":", 1)[0] for violation in violations}
