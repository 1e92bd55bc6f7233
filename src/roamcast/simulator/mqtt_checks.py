"""The promises of a broker network to MQTT clients, judged from what clients did and saw.

Nothing here looks at the brokers' tables. The rules, each checked by the function of its name:

`accepted`      Every publish of QoS 1 or 2 is acknowledged in the end, and refused only if a rule denies it.
`owed`          What was published with QoS 1 or 2 after SUBACK, and is acknowledged, reaches the subscriber,
                unless its session or the subscription ended, it expired, or a broker says that it dropped
                it from a full queue.
`owed_qos_0`    QoS 0 is lost only if somebody was away or moving, or a broker or link was down.
`wanted`        Nobody gets what no subscription matches, or what was published after UNSUBACK.
                A filter on the client's place matches at every place where the client may be by its reports.
                A message that another subscription brings has the options of this one, too, if the rest of
                the filter matches.
`as_published`  RETAIN is set on messages from the store. Subscribers with "retain as published" also see it
                on messages that were published with it.
`qos`           What arrives has the lower of the QoS of publish and subscription, and only identifiers of
                subscriptions that match.
`repeated`      QoS 0 and 2 come once. QoS 1 is repeated only with DUP on a later connection, or if its
                publisher sent it more than once. It is not repeated if a broker had the acknowledgement, and
                time to tell the other brokers, before the client connected again.
`ordered`       What one publisher published with the same QoS comes in that order, repeats aside; QoS 0
                while both stay connected. A message that was sent more than once has the place of its first
                sending only if the client was owed that one. A publisher whose session a stand-in replaces is
                promised no order.
`shared`        Each notification for a group goes to one member, and none is lost. Another member may get it
                once more if the session of the first has ended.
`expired`       Nothing is delivered later than its expiry, and what is left of the expiry never grows.
`wills`         A will is published once if its connection broke without DISCONNECT and nobody came back in
                time, and not at all after a DISCONNECT or a return in time.
`rights`        What a rule denied when it was sent is delivered to nobody.
`retained`      At the end, all brokers give new subscribers the same messages: the last of each topic.
`sessions`      A session is there until it is ended by its client, its expiry, or its broker's end.

A client whose session may have ended without its knowing (a CONNACK was lost) is promised nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from roamcast.mobility import Promise
from roamcast.mqtt.server.access import Access, AccessRules, Identity
from roamcast.simulator.checkers import Result
from roamcast.simulator.mqtt_ledger import (
    ClientLedger,
    Connection,
    Delivery,
    Ledger,
    Life,
    Message,
    Subscription,
)

NORMAL, RETAINED, EITHER = "", "retained", "normal or retained"
"""Ways by which a message arrives; any other value is the name of a shared group. A client that asks for
RETAIN as published cannot tell the first two apart.
"""
KNOWN_AFTER_S = 1.0
"""Time until copies of a session know what its attached client has acknowledged."""
PROBE = "probe-"
"""Prefix of the clients that look at every broker at the end."""


@dataclass
class Circumstances:
    """Events of a story at brokers that excuse differences."""

    access_s: float
    """The longest delay between client and broker."""
    forgotten: dict[str, None] = field(default_factory=dict)
    joined_at: float = -inf
    """Time at which the last broker joined; before that there were several networks."""
    has_quota: bool = False
    """True if brokers may refuse to retain messages."""
    makes_room: bool = False
    """True if brokers may become full; they then end sessions without subscriptions."""
    rules: dict[str, list[tuple[float, AccessRules]]] = field(default_factory=dict)
    """By broker: its rules, and the time from which they hold."""


class MqttChecker:
    def __init__(self, ledger: Ledger, promise: Promise, about: Circumstances) -> None:
        self.result = Result()
        self._ledger = ledger
        self._promise = promise
        self._about = about
        self._accesses: dict[str, list[tuple[float, Access]]] = {
            broker: [(at, Access(rules)) for at, rules in changes] for broker, changes in about.rules.items()
        }

    def judge(self) -> Result:
        self._settle_wills()
        clients = list(self._ledger.clients.values())
        self.result.crashes, self.result.links_down = self._ledger.crashes, self._ledger.links_down
        self.result.published = sum(not one.is_will for one in self._ledger.messages.values())
        for client in clients:
            self.result.handoffs += len(client.moved_at)
        self.sessions()
        for message in self._ledger.messages.values():
            self.accepted(message)
        for client in clients:
            self.owed(client)
            self.owed_qos_0(client)
            for life in client.lives:
                self.result.delivered += len(life.deliveries)
                self.repeated(client, life)
                self.ordered(client, life)
                for delivery in life.deliveries:
                    self.wanted(client, life, delivery)
                    self.as_published(client, life, delivery)
                    self.qos(client, life, delivery)
                    self.expired(client, delivery)
                    self.rights(client, delivery)
        self.shared()
        self.wills()
        self.retained()
        return self.result

    # --- sessions and publishes ---

    def sessions(self) -> None:
        for client, at in self._ledger.lost_sessions:
            if not self._was_at_forgotten(client) and not self._had_to_make_room(client, at):
                self.result.violate("session lost", f"{client} came back at {at:.6f} and began anew")

    def _had_to_make_room(self, client: str, at: float) -> bool:
        """Return whether a full broker may have ended the lost session, because the client held no
        subscription.
        """
        lost = next(life for life in self._ledger.clients[client].lives if life.ended_at == at)
        held = [one for one in lost.subscriptions if one.granted_at < one.gone_at == inf]
        return self._about.makes_room and not held

    def accepted(self, message: Message) -> None:
        if message.is_will or not message.qos or message.is_abandoned:
            return
        if message.acknowledged_at is None:
            if self._was_at_forgotten(message.publisher):
                return
            self.result.violate("never acknowledged", f"{_told(message)}")
        elif message.reason.failed and not (
            self._may_be_denied(message) or self._was_stood_in_for(message.publisher)
        ):
            self.result.violate("refused", f"{_told(message)}: {message.reason.name}")

    def _was_stood_in_for(self, client: str) -> bool:
        known = self._ledger.clients[client]
        return self._ledger.serves or any(one.stands_in for one in known.connections)

    def rights(self, client: ClientLedger, delivery: Delivery) -> None:
        message = delivery.message
        if (
            not message.is_will
            and message.sendings
            and all(
                self._is_denied(message, one.broker, one.at, one.at + self._longest_s)
                for one in message.sendings
            )
        ):
            text = f"{client.id} got {_told(message)}, which {message.publisher} may not publish"
            self.result.violate("denied", text)
        broker = next((one.broker for one in client.connections if one.number == delivery.connection), "")
        in_force = self._in_force(broker, delivery.at - self._longest_s, delivery.at)
        if in_force and not any(_may_receive(access, client, message) for access in in_force):
            text = f"{client.id} got {_told(message)} at {delivery.at:.6f}, which {broker} denies to it"
            self.result.violate("denied", text)

    @property
    def _longest_s(self) -> float:
        return self._about.access_s + 1e-6

    def _may_be_denied(self, message: Message) -> bool:
        return any(
            not access.of(Identity(message.publisher)).may_publish(message.topic, message.attributes)
            for one in message.sendings
            for at, access in self._accesses.get(one.broker, ())
            if at <= message.taken_by
        )

    def _is_denied(self, message: Message, broker: str, start: float, end: float) -> bool:
        """Return whether the rules of a broker denied it during the whole time."""
        in_force = self._in_force(broker, start, end)
        return bool(in_force) and not any(
            access.of(Identity(message.publisher)).may_publish(message.topic, message.attributes)
            for access in in_force
        )

    def _in_force(self, broker: str, start: float, end: float) -> list[Access]:
        """Return the rules that a broker had at some time in between; none if it began without rules."""
        changes = self._accesses.get(broker, [])
        before = [access for at, access in changes if at <= start][-1:]
        return before + [access for at, access in changes if start < at <= end] if before else []

    def _may_be_withheld(self, client: ClientLedger, message: Message) -> bool:
        """Return whether the rules of some broker ever denied it to the client."""
        accesses = (access for changes in self._accesses.values() for _, access in changes)
        return any(not _may_receive(access, client, message) for access in accesses)

    def _was_at_forgotten(self, client: str) -> bool:
        known = self._ledger.clients.get(client.rstrip("~"))
        return known is not None and any(one.broker in self._about.forgotten for one in known.connections)

    def _is_from_doubtful(self, message: Message) -> bool:
        """Return whether its publisher's session may have restarted without the publisher's knowledge."""
        publisher = self._ledger.clients.get(message.publisher)
        return publisher is not None and any(
            publisher.lives[one.life].is_doubtful for one in message.sendings
        )

    def _has_overtaken(self, message: Message) -> bool:
        """Return whether it was published in a session that stood in for the publisher's own, whose messages
        were not known.
        """
        publisher = self._ledger.clients.get(message.publisher)
        return publisher is not None and any(
            publisher.lives[one.life].has_stand_in for one in message.sendings
        )

    def _acceptances_max(self, message: Message) -> int:
        """Return how often brokers may have accepted the message as a new one."""
        is_repeatable = message.qos == 1 or self._is_from_doubtful(message)
        return len(message.sendings) if is_repeatable and not message.is_will else 1

    # --- what must arrive ---

    def owed(self, client: ClientLedger) -> None:
        life = client.life
        if life is None or life.is_doubtful:
            return
        had = Counter(_key(client, one) for one in life.deliveries)
        missing: list[Message] = []
        for message in self._ledger.messages.values():
            if not (message.is_accepted and message.qos) or message.is_clear or self._may_be_denied(message):
                continue
            owing = [one for one in life.subscriptions if self._owes(one, message, client, life)]
            if not owing:
                continue
            self.result.expected += 1
            if had[message.key, NORMAL] or had[message.key, EITHER]:
                continue
            if self._may_have_expired(client, message) or self._is_excused(client, message):
                continue
            if self._may_be_withheld(client, message):
                continue
            missing.append(message)
        self._miss(client, missing)

    def _miss(self, client: ClientLedger, missing: list[Message]) -> None:
        dropped = self._ledger.dropped[client.id]
        self.result.lost += len(missing)
        self.result.dropped += dropped
        if len(missing) > dropped and not self._promise.lost & {"away", "remainder", "in_transit", "move_in"}:
            for message in missing:
                self.result.violate("lost", f"{client.id} misses {_told(message)}")

    def _owes(self, one: Subscription, message: Message, client: ClientLedger, life: Life) -> bool:
        """Return whether the message was published while the subscription was active, with a QoS that is
        stored."""
        if one.depends_on_place and not self._is_surely_there(one, message, client, life, message.taken_by):
            return False
        if one.group or not one.qos or not one.wants(message, client.id):
            return False
        if not self._ledger.settled_at(one) <= message.first_at < one.changed_at:
            return False
        if one.changed_at == inf:
            return True
        # What was still on its way when the end was asked for may be left out.
        arrived_at = message.taken_by + self._ledger.slack_s
        return (
            arrived_at < one.changed_at
            and self._ledger.is_calm(message.first_at, arrived_at)
            and client.is_there(message.first_at - self._ledger.slack_s, one.changed_at)
        )

    def _is_surely_there(
        self, one: Subscription, message: Message, client: ClientLedger, life: Life, taken_by: float
    ) -> bool:
        """Return whether the message matches at every place where the client may have been while it was in
        transit."""
        start, end = message.first_at - self._ledger.slack_s, taken_by + self._ledger.slack_s
        if not (client.is_there(start, end) and self._ledger.is_calm(start, end)):
            return False
        places = self._places(client, life, start, end)
        return all(one.wants_at(place, message, client.id) for place in places)

    def _places(self, client: ClientLedger, life: Life, start: float, end: float) -> list[str]:
        """Return the places where brokers may have believed the client to be at some moment in between; "" is
        nowhere.

        A place ends when the client has reported another one while nothing was down and it was attached for a
        while: during a handoff reports wait.
        """
        said = [(-inf, ""), *((at, place) for at, place in life.places if at <= end)]
        for position in range(len(said) - 1, 0, -1):
            at = said[position][0]
            known_at = at + 2 * self._ledger.slack_s
            is_steady = client.is_there(at - self._ledger.slack_s, known_at)
            if known_at <= start and is_steady and self._ledger.is_calm(at, known_at):
                return [place for _, place in said[position:]]
        return [place for _, place in said]

    def _is_excused(self, client: ClientLedger, message: Message) -> bool:
        """Return whether actions of operators excuse it: separate networks, forgotten brokers."""
        if self._is_before_join(message):
            return True
        return self._was_at_forgotten(client.id) or self._was_at_forgotten(message.publisher)

    def _is_before_join(self, message: Message) -> bool:
        """Return whether it was published while there were several networks, or shortly after."""
        return message.first_at < self._about.joined_at + self._ledger.slack_s

    def _may_have_expired(self, client: ClientLedger, message: Message) -> bool:
        if message.expiry_s is None:
            return False
        if any(one.has_small_window for one in client.connections):
            return True  # It may have waited behind others.
        end = message.first_at + min(message.expiry_s, self._ledger.slack_s)
        was_there = client.is_there(message.first_at - self._ledger.slack_s, end)
        quick = message.taken_by - message.first_at < self._ledger.slack_s < message.expiry_s
        return not (was_there and quick and self._ledger.is_calm(message.first_at, end))

    def owed_qos_0(self, client: ClientLedger) -> None:
        slack_s = self._ledger.slack_s
        for life in client.lives:
            had = {one.message.key for one in life.deliveries}
            until = life.over_from
            for message in self._ledger.messages.values():
                if (
                    message.qos
                    or message.is_will
                    or message.is_clear
                    or message.key in had
                    or not message.sendings
                ):
                    continue
                sent, publisher = message.sendings[0], self._ledger.clients[message.publisher]
                start, end = sent.at - slack_s, sent.at + slack_s
                if until < end or life.is_doubtful or not any(
                    not one.group and one.wants(message, client.id)
                    and self._ledger.settled_at(one) <= start and one.changed_at >= end
                    and not (
                        one.depends_on_place
                        and not self._is_surely_there(one, message, client, life, message.first_at)
                    )
                    for one in life.subscriptions
                ):  # fmt: skip
                    continue
                is_quiet = client.is_there(start, end) and publisher.is_there(start, end)
                if not is_quiet or not self._ledger.is_calm(start, end) or self._is_excused(client, message):
                    continue
                if self._may_be_denied(message) or (message.expiry_s or inf) <= slack_s:
                    continue
                if self._may_be_withheld(client, message):
                    continue
                self.result.violate("lost QoS 0", f"{client.id} misses {_told(message)}")

    # --- what may arrive ---

    def wanted(self, client: ClientLedger, life: Life, delivery: Delivery) -> None:
        message = delivery.message
        way = _way(life, delivery)
        places = self._places(client, life, message.first_at, delivery.at)
        asked = [
            one
            for one in life.subscriptions
            if one.asked_at <= delivery.at
            and any(one.wants_at(place, message, client.id) for place in places)
            and (way in (one.group, RETAINED, EITHER))
        ]
        text = f"{client.id} got {_told(message)} at {delivery.at:.6f}"
        is_stored = way in (RETAINED, EITHER)
        held = [one for one in asked if is_stored or one.gone_at >= message.first_at]
        if not held and not self._has_options_of_a_place(client, life, delivery):
            if not asked:
                self.result.violate("not wanted", text)
            elif not life.has_stand_in:
                # What a stand-in is subscribed to counts when the two sessions become one.
                self.result.violate("stale", f"{text}, after UNSUBACK")
        elif is_stored and not message.retain:
            self.result.violate("not retained", text)

    def _has_options_of_a_place(self, client: ClientLedger, life: Life, delivery: Delivery) -> bool:
        """Return whether the client's own message arrived by a subscription with No Local because another
        subscription depends on the client's place: only the broker that matched it knew the place.
        """
        message = delivery.message
        asked = [
            one
            for one in life.subscriptions
            if one.asked_at <= delivery.at and one.gone_at >= message.first_at and not one.group
        ]
        by_place = any(one.depends_on_place and one.wants(message, client.id) for one in asked)
        return (
            by_place
            and message.publisher == client.id
            and any(
                one.asked.no_local and not one.depends_on_place and one.filter.matches(message.attributes)
                for one in asked
            )
        )

    def as_published(self, client: ClientLedger, life: Life, delivery: Delivery) -> None:
        message, way = delivery.message, _way(life, delivery)
        group = NORMAL if way in (RETAINED, EITHER) else way
        asked = [
            one
            for one in life.subscriptions
            if one.group == group and one.asked_at <= delivery.at and one.wants(message, client.id)
        ]
        is_live = all(one.answered_at <= message.first_at and one.changed_at > delivery.at for one in asked)
        if not is_live or life.has_stand_in or life.is_doubtful or _left_groups(life, message):
            return
        wishes = {one.asked.retain_as_published for one in asked}
        if len(wishes) == 1 and delivery.is_retained != (message.retain and True in wishes):
            text = f"{client.id} got {_told(message)} at {delivery.at:.6f}"
            self.result.violate("as published", f"{text} with RETAIN {int(delivery.is_retained)}")

    def qos(self, client: ClientLedger, life: Life, delivery: Delivery) -> None:
        message, way = delivery.message, _way(life, delivery)
        is_stored = way in (RETAINED, EITHER)
        group = NORMAL if is_stored else way
        of_way = [one for one in life.subscriptions if one.group == group and not one.is_refused]
        asked = [one for one in of_way if one.asked_at <= delivery.at and one.wants(message, client.id)]
        known = {one.asked.identifier for one in asked}
        strange = [one for one in delivery.identifiers if one not in known]
        text = f"{client.id} got {_told(message)} at {delivery.at:.6f}"
        if strange:
            self.result.violate("identifier", f"{text} with {strange}")
        if delivery.qos > message.qos:
            self.result.violate("qos", f"{text} with QoS {delivery.qos}")
        is_stable = all(
            one.granted_at <= message.first_at and one.changed_at > delivery.at for one in of_way
        ) and bool(asked)
        if any(one.depends_on_place for one in asked):
            return  # Which of them it was for depends on where the client was.
        if not is_stable or is_stored or life.has_stand_in or life.is_doubtful:
            return
        if delivery.qos != min(message.qos, max(one.qos for one in asked)):
            self.result.violate("qos", f"{text} with QoS {delivery.qos}")
        wanted = sorted(one.asked.identifier for one in asked if one.asked.identifier is not None)
        if sorted(delivery.identifiers) != wanted and not delivery.is_dup:
            self.result.violate("identifier", f"{text} with {delivery.identifiers}, not {wanted}")

    def repeated(self, client: ClientLedger, life: Life) -> None:
        copies: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        for delivery in life.deliveries:
            way = _way(life, delivery)
            if way not in (RETAINED, EITHER) and not (way and self._is_before_join(delivery.message)):
                copies[delivery.message.key, way].append(delivery)
        for several in copies.values():
            if len(several) == 1:
                continue
            self.result.duplicates += len(several) - 1
            message, first = several[0].message, several[0]
            fresh = [one for one in several if not (one.is_dup and one.connection > first.connection)]
            if max(one.qos for one in several) == 2:
                fresh = several
            # Each time that it was accepted, every group had a copy of its own.
            most = self._acceptances_max(message) * (1 + len(_left_groups(life, message)))
            times = ", ".join(f"{one.at:.6f}" for one in several)
            if self._was_stood_in_for(client.id) and several[0].qos < 2:
                continue  # A stand-in of an earlier life may have kept it, too.
            if len(fresh) > most and not life.has_stand_in:
                self.result.violate("repeated", f"{client.id} got {_told(message)} at {times}")
            elif any(self._is_needless(client, life, first, one) for one in several[1:]):
                text = f"{client.id} got {_told(message)} at {times}, though it had acknowledged it"
                self.result.violate("repeated", text)

    def _is_needless(self, client: ClientLedger, life: Life, first: Delivery, again: Delivery) -> bool:
        """Return whether all brokers knew, before the client connected, that it had the message which it then
        received again.
        """
        if len(first.message.sendings) != 1 or life.has_stand_in or life.is_doubtful or not first.qos:
            return False
        if _left_groups(life, first.message) or self._is_before_join(first.message):
            return False
        known_at = first.at + self._ledger.slack_s + KNOWN_AFTER_S
        connections = {one.number: one for one in client.connections}
        on, later = connections[first.connection], connections[again.connection]
        is_known = on.left_at > known_at and later.asked_at > known_at
        return is_known and self._ledger.is_calm(first.at, later.asked_at)

    def ordered(self, client: ClientLedger, life: Life) -> None:
        newest: dict[tuple[object, ...], Delivery] = {}
        seen: dict[str, None] = {}
        for delivery in life.deliveries:
            message = delivery.message
            if _way(life, delivery) != NORMAL or message.is_will or message.key in seen:
                continue
            seen[message.key] = None
            lives = {one.life for one in message.sendings}
            is_doubtful = life.has_stand_in or _left_groups(life, message) or self._is_from_doubtful(message)
            if len(lives) != 1 or is_doubtful or self._may_be_denied(message) or self._has_overtaken(message):
                continue
            place: tuple[object, ...] = (message.publisher, message.qos, *lives)
            if not delivery.qos:
                # It may have been lost before, so that only the second sending arrived.
                place += (0, message.sendings[0].connection, delivery.connection)
            last = newest.get(place)
            may_be_left_out = message.expiry_s is not None or self._ledger.dropped[client.id] > 0
            may_be_left_out = may_be_left_out or self._may_be_withheld(client, message)
            was_owed = not may_be_left_out and any(
                self._owes(one, message, client, life) for one in life.subscriptions
            )
            if len(message.sendings) > 1 and not was_owed:
                continue  # Perhaps only a later sending was to be delivered, or the first one with QoS 0.
            if last is not None and last.message.number > message.number:
                self.result.out_of_order += 1
                text = f"{client.id} got {_told(message)} at {delivery.at:.6f} after {last.message.key}"
                self.result.violate("out of order", text)
            else:
                newest[place] = delivery

    def expired(self, client: ClientLedger, delivery: Delivery) -> None:
        message = delivery.message
        if message.expiry_s is None or delivery.is_dup:
            return
        late_s = delivery.at - self._longest_s - message.taken_by
        if late_s >= message.expiry_s:
            self.result.violate("expired", f"{client.id} got {_told(message)} at {delivery.at:.6f}")
        if delivery.expiry_s is not None and delivery.expiry_s > message.expiry_s:
            self.result.violate("expired", f"{client.id} got {_told(message)} with a longer expiry")

    # --- shared subscriptions ---

    def shared(self) -> None:
        members: dict[tuple[str, str], list[tuple[ClientLedger, Life, Subscription]]] = defaultdict(list)
        for client in self._ledger.clients.values():
            for life in client.lives:
                for one in life.subscriptions:
                    if one.group:
                        members[one.group, one.filter.text].append((client, life, one))
        for key, all_of in members.items():
            receivers: dict[str, list[tuple[ClientLedger, Life]]] = defaultdict(list)
            for client, life in {
                (client.id, life.number): (client, life) for client, life, _ in all_of
            }.values():
                keys = {one.message.key for one in life.deliveries if _way(life, one) == key[0]}
                for one_key in keys:
                    receivers[one_key].append((client, life))
            for message in self._ledger.messages.values():
                if all_of[0][2].filter.matches(message.attributes):
                    self._share(key[0], message, all_of, receivers.get(message.key, []))

    def _share(
        self,
        group: str,
        message: Message,
        members: list[tuple[ClientLedger, Life, Subscription]],
        receivers: list[tuple[ClientLedger, Life]],
    ) -> None:
        if self._is_before_join(message) or self._about.forgotten or message.is_clear:
            return
        ended = [life for _, life in receivers if life.may_be_over]
        most = self._acceptances_max(message) + (len(ended) if message.qos == 1 or message.qos == 2 else 0)
        if len(receivers) > most:
            names = ", ".join(client.id for client, _ in receivers)
            self.result.violate("shared twice", f"{_told(message)} in group {group} went to {names}")
        lasting = [
            one
            for client, life, one in members
            if life is client.life and not life.is_doubtful
            and self._ledger.settled_at(one) <= message.first_at and one.changed_at == inf
        ]  # fmt: skip
        if receivers or not lasting or not message.is_accepted or not message.qos:
            return
        if self._may_be_denied(message):
            return
        if any(self._may_be_withheld(client, message) for client, _, _ in members):
            return
        # Any of these may have been chosen, and have taken it with it.
        chosen = [
            (life, one) for _, life, one in members if one.gone_at >= message.first_at and not one.is_refused
        ]
        if any(not one.qos for _, one in chosen) or message.expiry_s is not None:
            return
        ends = [one for life, one in chosen if life.may_be_over]
        if any(min(message.qos, one.qos) == 2 or one.changed_at < inf for one in ends):
            return
        if any(self._ledger.dropped.get(client.id) for client, _, _ in members):
            return
        if self._promise.lost & {"away", "remainder", "in_transit", "move_in"}:
            return
        self.result.violate("lost by group", f"nobody in group {group} got {_told(message)}")

    # --- wills ---

    def _settle_wills(self) -> None:
        """Decide which wills must be published, and which must not be."""
        for client in self._ledger.clients.values():
            for place, one in enumerate(client.connections):
                if one.will is not None:
                    self._settle_will(client, one, client.connections[place + 1 :])

    def _settle_will(self, client: ClientLedger, one: Connection, later: list[Connection]) -> None:
        from roamcast.simulator.mqtt_ledger import Sending

        will = one.will
        assert will is not None
        ended_at = min(one.left_at, one.noticed_at)
        will.sendings = [Sending(min(one.asked_at, ended_at), one.number, one.broker, one.life)]
        if one.welcome_at == inf:
            return
        if ended_at == inf or (one.has_said_goodbye and one.is_goodbye_heard):
            will.is_void = True
            return
        will.sendings[0].at = ended_at
        delay_s = min(one.will_delay_s, one.expiry_s)
        if one.has_said_goodbye or self._was_at_forgotten(client.id) or self._was_stood_in_for(client.id):
            return
        if self._is_will_doubtful(will):
            return
        if not delay_s:
            will.is_due = True
            return
        following = later[0] if later else None
        if following is None or one.noticed_at + delay_s + self._ledger.slack_s < following.asked_at:
            end = one.noticed_at + delay_s
            will.is_due = self._ledger.is_calm(one.left_at, end)
        elif following.life == one.life and following.welcome_at < ended_at + delay_s:
            will.is_void = True

    def _is_will_doubtful(self, will: Message) -> bool:
        return any(self._accesses.values())

    def wills(self) -> None:
        for client in self._ledger.clients.values():
            for life in client.lives:
                for delivery in life.deliveries:
                    if delivery.message.is_void:
                        text = f"{client.id} got {_told(delivery.message)} at {delivery.at:.6f}"
                        self.result.violate("will", text)

    # --- retained messages ---

    def retained(self) -> None:
        found: dict[str, dict[str, str]] = {}
        for client in self._ledger.clients.values():
            if client.id.startswith(PROBE) and client.life is not None:
                mine = [one for one in client.life.deliveries if one.is_retained]
                found[client.id] = {one.message.topic: one.message.key for one in mine}
        if not found:
            return
        topics = sorted(
            {topic for values in found.values() for topic in values} | set(self._retained_topics())
        )
        for topic in topics:
            values = {
                probe: values.get(topic, "")
                for probe, values in found.items()
                if not self._ledger.dropped.get(probe)
            }
            if len(set(values.values())) > 1 and not self._about.has_quota:
                self.result.violate("retained", f"brokers differ about {topic}: {values}")
            for probe, value in values.items():
                if not self._may_be_last(topic, value, probe):
                    text = f"{probe} got {value or 'nothing'} under {topic}, which is not the last message"
                    self.result.violate("retained", text)

    def _retained_topics(self) -> Iterator[str]:
        return (one.topic for one in self._ledger.messages.values() if one.retain)

    def _may_be_last(self, topic: str, key: str, probe: str) -> bool:
        writers = [
            one
            for one in self._ledger.messages.values()
            if one.retain and one.topic == topic and one.sendings and not one.is_void
        ]
        last = [one for one in writers if not any(self._is_before(one, other) for other in writers)]
        if key:
            return any(one.key == key for one in last)
        if self._about.has_quota or self._about.forgotten:
            return True
        if all(self._is_doubtful(one) for one in last) or any(one.is_clear for one in last):
            return True
        return any(one.expiry_s is not None for one in last)

    def _is_doubtful(self, message: Message) -> bool:
        """Return whether it is unknown if any broker accepted the message."""
        return not message.is_accepted or self._may_be_denied(message)

    def _is_before(self, one: Message, other: Message) -> bool:
        """Return whether one message was certainly accepted before another one, which was certainly
        accepted."""
        if one.is_will or self._is_doubtful(other):
            return False
        taken_by = one.sendings[-1].at + self._longest_s if not one.qos else one.taken_by
        return taken_by < other.first_at and not one.is_abandoned


def _may_receive(access: Access, client: ClientLedger, message: Message) -> bool:
    return access.of(Identity(client.id)).receive(message.topic).of(message.attributes)


def _told(message: Message) -> str:
    what = "the will" if message.is_will else message.key
    told = f"{what} {message.key}" if message.is_will else what
    return f"{told} ({message.topic}, QoS {message.qos}, sent at {message.first_at:.6f})"


def _key(client: ClientLedger, delivery: Delivery) -> tuple[str, str]:
    life = client.life
    assert life is not None
    way = _way(life, delivery)
    return delivery.message.key, way


def _left_groups(life: Life, message: Message) -> list[Subscription]:
    """Return groups that the client has left: what they still owe it cannot be distinguished."""
    groups = [one for one in life.subscriptions if one.group and one.changed_at < inf]
    return [one for one in groups if one.filter.matches(message.attributes)]


def _way(life: Life, delivery: Delivery) -> str:
    """Return the way by which it came: shared subscriptions always have their own identifiers."""
    groups = [one for one in life.subscriptions if one.group]
    for one in groups:
        if one.asked.identifier in delivery.identifiers:
            return one.group
    if delivery.is_retained:
        sees_it = any(
            one.asked.retain_as_published and one.filter.matches(delivery.message.attributes)
            for one in life.subscriptions
            if not one.group and one.asked_at <= delivery.at
        )
        return EITHER if sees_it else RETAINED
    if groups and not delivery.identifiers:
        # What its group still owed to a client that has left the group comes without an identifier.
        message = delivery.message
        if not any(one.filter.matches(message.attributes) for one in life.subscriptions if not one.group):
            left = [one for one in groups if one.changed_at <= delivery.at]
            return next((one.group for one in left if one.filter.matches(message.attributes)), NORMAL)
    return NORMAL
