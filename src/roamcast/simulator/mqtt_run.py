"""One checked run of a story whose clients speak MQTT."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from roamcast.mobility import find_protocol
from roamcast.protocol.notification import Message
from roamcast.protocol.records import Row
from roamcast.simulator.checkers import Result
from roamcast.simulator.faults import Backup, Crash, Cut, Fault, Heal, Restart, Snapshot, longest_detour
from roamcast.simulator.mqtt_checks import PROBE, Circumstances, MqttChecker
from roamcast.simulator.mqtt_ledger import Ledger
from roamcast.simulator.mqtt_network import MqttNetwork
from roamcast.simulator.mqtt_story import (
    Connect,
    Drain,
    Forget,
    Join,
    PublishMessage,
    SetLimit,
    SetRules,
    SubscribeFilter,
)
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.run import check_settings
from roamcast.simulator.topology import Topology

CALM_S = 30.0
"""Simulated time with all clients home, before probes check whether all brokers agree."""
REST_S = 60.0
"""Simulated time after the last action in which the network comes to rest; later timers are ignored."""
SURE_S = 0.25
"""Margin added to computed maximum delays."""


def run_mqtt(
    topology: Topology,
    settings: NetworkSettings,
    actions: Sequence[Action],
    observe: Callable[[list[Row]], None] | None = None,
    trace: Callable[[float, str, str, Message], None] | None = None,
    prepare: Callable[[MqttNetwork], None] | None = None,
) -> Result:
    """Perform the actions, let the network come to rest, and judge what clients received."""
    check_settings(topology, settings)
    bound_s = longest_detour(actions) * settings.delay_bound_s(topology)
    slack_s = 4 * bound_s + 4 * settings.access_delay.high_s + SURE_S
    ledger = Ledger(tuple(_disturbances(actions, slack_s)), slack_s)
    about = _circumstances(settings, actions)
    ledger.hostile = settings.hostile
    ledger.serves = settings.mqtt is not None and settings.mqtt.unreachable == "serve"
    drains: dict[str, list[tuple[float, str]]] = {}
    for at, broker, item in actions:
        if isinstance(item, Drain):
            drains.setdefault(broker, []).append((at, item.destination))

    def on_rows(rows: list[Row]) -> None:
        ledger.observe(rows)
        if observe is not None:
            observe(rows)

    joins = [frozenset((broker, item.peer)) for _, broker, item in actions if isinstance(item, Join)]
    network = MqttNetwork(topology, settings, on_rows, ledger, drains, joins, trace)
    if prepare is not None:
        prepare(network)
    script = [*actions, *_last_look([id for id in topology.brokers if id != settings.hostile], actions)]
    network.run(script, until_s=(script[-1][0] if script else 0.0) + REST_S)
    checker = MqttChecker(ledger, find_protocol(settings.protocol).promise, about)
    for kind, text in network.wrongs():
        checker.result.violate(kind, text)
    return checker.judge()


def _last_look(brokers: Iterable[str], actions: Sequence[Action]) -> Iterator[Action]:
    """Let a new client at every broker subscribe to everything, and publish once to every topic."""
    start_s = (actions[-1][0] if actions else 0.0) + CALM_S
    topics = sorted({item.topic for _, _, item in actions if isinstance(item, PublishMessage)})
    gone = {item.gone for _, _, item in actions if isinstance(item, Forget)}
    brokers = [id for id in brokers if id not in gone]
    for broker in brokers:
        yield (start_s, PROBE + broker, Connect(broker, 0, clean=True, expiry_s=0))
    for broker in brokers:
        yield (start_s + 1.0, PROBE + broker, SubscribeFilter("#", 1))
    for qos in (0, 1, 2):
        for broker in brokers:
            for topic in topics:
                yield (start_s + CALM_S + qos, PROBE + broker, PublishMessage(topic, qos=qos))


def _disturbances(actions: Sequence[Action], slack_s: float) -> Iterator[tuple[float, float]]:
    """Return start and end of each outage and each operator's change."""
    down: dict[object, float] = {}
    last_s = 0.0
    for at, broker, item in actions:
        last_s = at
        if not isinstance(item, Fault) or isinstance(item, Snapshot | Backup):
            continue
        match item:
            case Crash():
                down.setdefault(broker, at)
            case Cut(peer):
                down.setdefault(frozenset((broker, peer)), at)
            case Restart():
                yield (down.pop(broker, at), at + slack_s)
            case Heal(peer):
                yield (down.pop(frozenset((broker, peer)), at), at + slack_s)
            case _:
                yield (at, at + slack_s)
    for start_s in down.values():
        yield (start_s, last_s + slack_s)


def _circumstances(settings: NetworkSettings, actions: Sequence[Action]) -> Circumstances:
    about = Circumstances(settings.access_delay.high_s)
    about.has_quota = settings.mqtt is not None and settings.mqtt.retained_max is not None
    about.makes_room = settings.mqtt is not None and settings.mqtt.sessions_max is not None
    for at, broker, item in actions:
        match item:
            case Forget(gone):
                about.forgotten[gone] = None
            case Join():
                # Whoever was down then joins, or hears of it, when the last outage is over.
                repairs = [when for when, _, one in actions if isinstance(one, Restart | Heal)]
                about.joined_at = max((at, *repairs))
            case SetLimit("retained_max", value):
                about.has_quota = about.has_quota or value is not None
            case SetLimit("sessions_max", value):
                about.makes_room = about.makes_room or value is not None
            case SetRules(rules):
                about.rules.setdefault(broker, []).append((at, rules))
    return about
