"""The fuzzer finds mistakes: each of these is planted in the machine that ships, or in what drives it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import roamcast.simulator.network as network_module
from roamcast.broker.directory import Directory
from roamcast.broker.inputs import LinkDown, MachineEffects
from roamcast.broker.links.end import LinkEnd, Resume
from roamcast.broker.links.links import Links
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.places import Places
from roamcast.broker.retained import Retain, RetainedMessages
from roamcast.broker.shared import SharedSubscriptions
from roamcast.broker.shared_messages import GroupDeliver
from roamcast.filters.own import widest
from roamcast.filters.selector import parse
from roamcast.mqtt.codec.packets import Will
from roamcast.mqtt.server import delivering
from roamcast.mqtt.server.access import ALLOWED, Access, AccessRules
from roamcast.mqtt.server.endpoint import Endpoint
from roamcast.mqtt.server.in_flight import InFlight
from roamcast.mqtt.server.sessions import MqttSession, Subscription
from roamcast.mqtt.server.subscribing import Pending, Subscribing
from roamcast.protocol.notification import Fleeting
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.protocol.snapshot import thaw
from roamcast.simulator.faults import Crash
from roamcast.simulator.fuzz import fuzz
from roamcast.simulator.mqtt_draw import draw_mqtt_story
from roamcast.simulator.mqtt_network import MqttNetwork
from roamcast.simulator.story import Story, parse_story, verdict, violations_of

SEEDS_MAX = 200
FAULTS = ("crash", "partition", "loss")
Plant = Callable[[pytest.MonkeyPatch], None]


def resume_skips_one(patch: pytest.MonkeyPatch) -> None:
    up = LinkEnd.up

    def skip(self: LinkEnd, resume: Resume, *more: Any) -> None:
        up(self, replace(resume, received=min(resume.received + 1, self.sent)), *more)

    patch.setattr(LinkEnd, "up", skip)


def resume_forgets_what_was_received(patch: pytest.MonkeyPatch) -> None:
    resume = LinkEnd.resume
    patch.setattr(LinkEnd, "resume", lambda self: replace(resume(self), received=0))


def journal_loses_its_last_entry(patch: pytest.MonkeyPatch) -> None:
    recover = MqttNetwork._recover

    def lose(self: MqttNetwork, broker: str) -> Any:
        del self._journals[broker].entries[-1:]
        return recover(self, broker)

    patch.setattr(MqttNetwork, "_recover", lose)


def acknowledges_before_it_journals(patch: pytest.MonkeyPatch) -> None:
    crashes = MqttNetwork._crashes

    def answer(self: MqttNetwork, broker: str, effects: MachineEffects) -> bool:
        fate = self._doomed.get(broker)
        if fate is None or not fate.torn or not effects.writes:
            return crashes(self, broker, effects)
        # The answers have arrived when the broker crashes.
        del self._doomed[broker]
        self.push(self.now + 0.05, self._happen, broker, Crash())
        return False

    patch.setattr(MqttNetwork, "_crashes", answer)


def snapshot_loses(change: Callable[[Any], None]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def lose(data: bytes) -> Any:
            machine: Any = thaw(data)
            change(machine)
            return machine

        patch.setattr(network_module, "thaw", lose)

    return plant


def lose_queues(machine: Any) -> None:
    for _, queue in machine.broker.protocol.stored():
        queue.drain()


def lose_retained(machine: Any) -> None:
    machine.retained._kept.clear()
    machine.retained._restore()


def lose_groups(machine: Any) -> None:
    machine.shared._groups.clear()


def lose_packet_ids(machine: Any) -> None:
    for session in machine.front.sessions.values():
        session.received.clear()


def group_return_is_ignored(patch: pytest.MonkeyPatch) -> None:
    on_return = SharedSubscriptions.on_return

    @wraps(on_return)
    def ignore(self: SharedSubscriptions, sender: str, message: Any) -> None:
        if message.is_over:
            on_return(self, sender, message)

    patch.setattr(SharedSubscriptions, "on_return", ignore)


def group_has_everyone_take_it(patch: pytest.MonkeyPatch) -> None:
    hand_out = SharedSubscriptions._hand_out

    def twice(self: SharedSubscriptions, key: Any, group: Any, burst: Any) -> None:
        hand_out(self, key, group, burst)
        if len(group.members) > 1:
            hand_out(self, key, group, burst)

    patch.setattr(SharedSubscriptions, "_hand_out", twice)


def retained_stamps_are_compared_the_wrong_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retain, "stamp", property(lambda self: (-self.time, -self.count, self.broker)))


def retained_is_not_told_to_peers(patch: pytest.MonkeyPatch) -> None:
    on_retain = RetainedMessages.on_retain

    @wraps(on_retain)
    def keep(self: RetainedMessages, sender: str, message: Retain) -> None:
        if sender == self._broker.id:
            on_retain(self, sender, message)

    patch.setattr(RetainedMessages, "on_retain", keep)


def rules_do_not_reach_connections(patch: pytest.MonkeyPatch) -> None:
    def set_access(self: Endpoint, rules: AccessRules) -> None:
        self.access = Access(rules)

    patch.setattr(Endpoint, "set_access", set_access)


def denied_messages_are_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delivering, "_decision", lambda *_: ALLOWED)


def packet_ids_of_qos_2_do_not_travel(patch: pytest.MonkeyPatch) -> None:
    pack = MqttSession.pack

    def forget(self: MqttSession, will: Will | None = None, will_at: float = 0.0) -> bytes:
        self.received.clear()
        return pack(self, will, will_at)

    patch.setattr(MqttSession, "pack", forget)


def in_flight_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    rewind = InFlight.rewind

    def forget(self: InFlight) -> None:
        rewind(self)
        self._forget_resend()

    patch.setattr(InFlight, "rewind", forget)


def wills_are_published_twice(patch: pytest.MonkeyPatch) -> None:
    publish = Endpoint._publish_will

    def twice(self: Endpoint, session: MqttSession, will: Will) -> None:
        publish(self, session, will)
        publish(self, session, will)

    patch.setattr(Endpoint, "_publish_will", twice)


def wills_follow_a_disconnect(patch: pytest.MonkeyPatch) -> None:
    drop = Endpoint._drop
    patch.setattr(
        Endpoint, "_drop", lambda self, connection, with_will: drop(self, connection, with_will=True)
    )


def subscriptions_are_granted_at_once(patch: pytest.MonkeyPatch) -> None:
    def answer(self: Subscribing, connection: Any, requests: Any, pending: Pending) -> None:
        self._answer(pending)

    patch.setattr(Subscribing, "_wait", answer)


def expired_messages_are_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delivering, "is_expired", lambda burst, now: False)


def qos_0_does_not_cross_links(patch: pytest.MonkeyPatch) -> None:
    send = Links.send
    patch.setattr(
        Links, "send", lambda self, sends: send(self, [one for one in sends if type(one[1]) is not Fleeting])
    )


def bad_frames_leave_no_trace(patch: pytest.MonkeyPatch) -> None:
    receive = BrokerMachine._on_link_frames

    def take(self: BrokerMachine, peer: str, data: bytes) -> None:
        before = len(self._out.durable)
        receive(self, peer, data)
        self._out.durable[before:] = [
            one for one in self._out.durable[before:] if not isinstance(one, LinkDown)
        ]

    patch.setattr(BrokerMachine, "_on_link_frames", take)


def qos_0_of_a_group_is_numbered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupDeliver, "is_fleeting", False)


def handoffs_turn_queues_round(patch: pytest.MonkeyPatch) -> None:
    drain = DeliveryQueue.drain
    patch.setattr(DeliveryQueue, "drain", lambda self: list(reversed(drain(self))))


def clients_stay_where_they_were(patch: pytest.MonkeyPatch) -> None:
    """Only the first move counts."""
    take = Places._take

    def stay(self: Places, session: Session, steps: Any, **how: Any) -> None:
        if not session.places:
            take(self, session, steps, **how)

    patch.setattr(Places, "_take", stay)


def places_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    read = Subscribing._read

    def widen(self: Subscribing, *about: Any) -> Subscription:
        subscription = read(self, *about)
        return replace(subscription, filter=widest(parse(subscription.filter)).text)

    patch.setattr(Subscribing, "_read", widen)


def retain_is_never_as_published(patch: pytest.MonkeyPatch) -> None:
    read = Subscribing._read
    patch.setattr(
        Subscribing, "_read", lambda self, *about: replace(read(self, *about), retain_as_published=False)
    )


def retain_is_always_as_published(patch: pytest.MonkeyPatch) -> None:
    read = Subscribing._read
    patch.setattr(
        Subscribing, "_read", lambda self, *about: replace(read(self, *about), retain_as_published=True)
    )


def nobody_remembers_who_holds_a_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Directory, "_add", lambda self, client, broker, told: None)


def former_holders_forget_where_a_session_went(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Directory, "went", lambda self, client, destination, told: self.changed(client))


# A broker that is down and may hold a session can be left out of a question, and nothing breaks: everyone is
# asked again then, without leaving it out.


def both_parts_make_sessions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Directory, "may_make_without", lambda self, brokers: True)


def who_asks_everyone_is_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Directory, "asked", lambda self, client, broker, told: None)


def lose_directory(machine: Any) -> None:
    machine.broker.directory._holders.clear()
    machine.broker.directory._brief.clear()


BREAKAGES: dict[str, Plant] = {
    "nobody remembers who holds a session": nobody_remembers_who_holds_a_session,
    "former holders forget where a session went": former_holders_forget_where_a_session_went,
    "both parts of a network make sessions": both_parts_make_sessions,
    "who asks everyone is not remembered": who_asks_everyone_is_not_remembered,
    "a snapshot loses who holds which session": snapshot_loses(lose_directory),
    "a link resumes one message too late": resume_skips_one,
    "a link forgets what it has received": resume_forgets_what_was_received,
    "a journal entry is dropped": journal_loses_its_last_entry,
    "an answer leaves ahead of the journal": acknowledges_before_it_journals,
    "a snapshot loses queues": snapshot_loses(lose_queues),
    "a snapshot loses retained messages": snapshot_loses(lose_retained),
    "a snapshot loses groups": snapshot_loses(lose_groups),
    "a snapshot loses packet ids of QoS 2": snapshot_loses(lose_packet_ids),
    "GroupReturn is ignored": group_return_is_ignored,
    "two members get the same": group_has_everyone_take_it,
    "retained stamps are compared the wrong way": retained_stamps_are_compared_the_wrong_way,
    "retained messages stay at one broker": retained_is_not_told_to_peers,
    "rules do not reach connections that exist": rules_do_not_reach_connections,
    "what is denied is delivered": denied_messages_are_delivered,
    "packet ids of QoS 2 do not travel": packet_ids_of_qos_2_do_not_travel,
    "what is in flight is forgotten": in_flight_is_forgotten,
    "wills are published twice": wills_are_published_twice,
    "wills follow a DISCONNECT": wills_follow_a_disconnect,
    "SUBACK does not wait": subscriptions_are_granted_at_once,
    "expiry is not looked at": expired_messages_are_delivered,
    "a handoff turns a queue round": handoffs_turn_queues_round,
    "a move has no effect": clients_stay_where_they_were,
    "where a client is does not matter": places_are_not_looked_at,
    "RETAIN is never as published": retain_is_never_as_published,
    "RETAIN is always as published": retain_is_always_as_published,
    "QoS 0 does not cross links": qos_0_does_not_cross_links,
    "a link that bad frames end is up in the journal": bad_frames_leave_no_trace,
    "QoS 0 of a group takes the numbered lane": qos_0_of_a_group_is_numbered,
}


def first_failing_seed(protocol: str, seeds_max: int = SEEDS_MAX) -> int | None:
    for seed in range(seeds_max):
        topology, settings, actions = draw_mqtt_story(protocol, seed, FAULTS)
        if verdict(Story(topology, settings, tuple(actions))).violations:
            return seed
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKAGES)
def test_a_planted_breakage_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKAGES[name](monkeypatch)
    assert first_failing_seed("multi_hop_handoff") is not None


def queues_stay_behind(patch: pytest.MonkeyPatch) -> None:
    drain = DeliveryQueue.drain
    patch.setattr(DeliveryQueue, "drain", lambda self: drain(self) and [])


def sessions_arrive_as_new_ones(patch: pytest.MonkeyPatch) -> None:
    arrived = Endpoint.arrived
    patch.setattr(
        Endpoint,
        "arrived",
        lambda self, client, capsule, owner, reads_on=False: arrived(self, client, b"", owner, reads_on),
    )


@pytest.mark.parametrize(
    ("plant", "story", "violation"),
    [
        (
            queues_stay_behind,
            "a_stand_in_becomes_part_of_the_session_made_elsewhere",
            "lost: n0 misses p0/2 (a/1, QoS 1, sent at 26.000000)",
        ),
        (
            sessions_arrive_as_new_ones,
            "a_stand_in_without_its_client_becomes_the_session",
            "session lost: n0 came back at 26.060000 and began anew",
        ),
    ],
)
def test_a_client_that_had_only_a_stand_in_is_owed_as_much_as_others(
    plant: Plant, story: str, violation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parent / "mqtt_stories" / f"{story}.txt").read_text()
    plant(monkeypatch)
    assert violations_of(parse_story(text)) == [violation]


def test_a_breakage_is_found_and_shrunk_to_a_story_that_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wills_are_published_twice(monkeypatch)
    (failure,) = fuzz("multi_hop_handoff", range(SEEDS_MAX), failures_max=1, front="mqtt").failures
    assert violations_of(parse_story(failure.story)) == failure.violations != []
    assert failure.story.count("\nat ") <= 6
