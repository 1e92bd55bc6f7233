"""Outgoing deliveries of the core: QoS, packet ids, resending, expiry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Protocol

from msgspec.structs import replace

from roamcast.filters.filter import Attributes
from roamcast.mqtt.codec.bursts import FrameWriter, write_each
from roamcast.mqtt.codec.packet_ids import consecutive
from roamcast.mqtt.codec.packets import PublishProperties
from roamcast.mqtt.codec.properties import PUBLISH, encode
from roamcast.mqtt.codec.user_properties import HAS
from roamcast.mqtt.server.access import ALLOWED, Decision
from roamcast.mqtt.server.connection import MqttConnection, PacketTaker
from roamcast.mqtt.server.marks import EXPIRY, QOS, RETAINED, SHARED, message_expiry
from roamcast.mqtt.server.outgoing import APART_BYTES, Encoder, runs_of
from roamcast.mqtt.server.sessions import NO_PLANS, MqttSession, Options, Plan, Plans
from roamcast.protocol.messages import Deliver
from roamcast.protocol.notification import Burst

PUBREL = b"\x62\x02"
DUP = 0x08
RECALLED = Options(2, False, ())
PLANS_KEPT_MAX, COMMON_PLANS_KEPT_MAX = 1024, 8192
"""Plans remembered for one session, and for all sessions with the same options."""
PLAN_BYTES_KEPT_MAX = 1024
"""Longest topic and properties for which a plan is remembered."""
ALIASES_MAX = 1024
"""Topic aliases towards one client, at most."""
ALIASED_BYTES_MAX = 512
"""Longer topics get no alias, because aliases are remembered for the whole connection."""


class Sender(PacketTaker, Protocol):
    """The endpoint, as delivery uses it."""

    now: float
    encoder: Encoder

    def contents(self, burst: Burst) -> Sequence[Attributes]: ...
    def left_over(self, client: str, burst: Burst) -> None: ...

    def left_out(self, client: str, burst: Burst, reason: str) -> None: ...


def deliver(endpoint: Sender, connection: MqttConnection, message: Deliver) -> int:
    """Write a delivery; returns how many notifications were left out (expired, or too large)."""
    session, burst = connection.session, message.burst
    assert session is not None
    sequence = message.sequence
    if sequence:
        session.stream = message.stream
        if session.copied_from and connection.has is not None:
            return _deliver_numbered(endpoint, connection, session, message)
        if session.in_flight.resend:
            burst, sequence = _send_again(endpoint, connection, session, burst, sequence)
            if not burst.count:
                return 0
    elif connection.is_slow:
        return burst.count
    own = burst.publisher in connection.own_names
    if sequence and sequence <= session.again_to:
        return _deliver_marked(endpoint, connection, session, burst, sequence, own)
    if burst.varied:
        return _deliver_varied(endpoint, connection, session, burst, sequence, own)
    # Nearly all bursts are sent like the last one of their kind, with or without packet ids.
    plan = session.plans.get((burst.attributes, burst.marks, own))
    if plan is not None and (plan[0] > 0 if sequence else plan[0] == 0):
        packet_id = session.in_flight.send_together(burst, sequence, plan[0]) if sequence else 1
        if packet_id:
            endpoint.traffic.sent[plan[0]] += burst.count
            encoder = endpoint.encoder
            if burst.count == 1 and len(burst.bodies[0]) < APART_BYTES and not encoder.is_mute:
                connection.out.append(plan[2].write_one(burst.bodies[0], packet_id))
            else:
                connection.out += encoder.write(burst, plan[2], packet_id)
            return 0
    return _deliver_uniform(endpoint, connection, session, burst, sequence, own)


def _deliver_numbered(
    endpoint: Sender, connection: MqttConnection, session: MqttSession, message: Deliver
) -> int:
    """Send one by one from a copy, to a client that reports what it has received: it can discard them if the
    copy is void."""
    left_out, sequence, burst = 0, message.sequence, message.burst
    for single in (one.part(at, at + 1) for one in burst.uniform() for at in range(one.count)):
        told = PublishProperties(user_properties=((HAS, f"{message.stream} {sequence}"),))
        single = replace(single, marks=single.marks + encode(told, PUBLISH))
        rest, at = single, sequence
        if session.in_flight.resend:
            rest, at = _send_again(endpoint, connection, session, single, sequence)
        if rest.count:
            own = rest.publisher in connection.own_names
            left_out += _deliver_marked(endpoint, connection, session, rest, at, own)
        sequence += 1
    return left_out


def _deliver_marked(
    endpoint: Sender, connection: MqttConnection, session: MqttSession, burst: Burst, sequence: int, own: bool
) -> int:
    """Send one by one, marking what a copy of the session may have sent before as duplicates."""
    left_out, out = 0, connection.out
    for position in range(burst.count):
        single, written = burst.part(position, position + 1), len(out)
        deliver_it = _deliver_varied if single.varied else _deliver_uniform
        left_out += deliver_it(endpoint, connection, session, single, sequence, own)
        if len(out) > written and sequence <= session.again_to and out[written][0] & 0x06 == 0x02:
            out[written] = bytes((out[written][0] | DUP,)) + out[written][1:]
        sequence += 1
    return left_out


def may_be_repeated(
    contents: Callable[[Burst], Sequence[Attributes]],
    connection: MqttConnection,
    session: MqttSession,
    burst: Burst,
    is_current: bool,
) -> bool:
    """True if a burst may be sent from a copy: all of it goes to the client with QoS 1 or not at all, or the
    client reports what it has received."""
    if burst.is_picked or is_current:
        return not burst.is_picked
    own = burst.publisher in connection.own_names
    for part in burst.uniform():
        options = session.options(part.attributes, own)
        some = [options] if options is not None else [
            session.options_of(one, own) for one in contents(part)
        ]  # fmt: skip
        if any(min(part.marks[0] & QOS, one.qos) not in (-1, 1) for one in some):
            return False
    return True


def _deliver_uniform(
    endpoint: Sender, connection: MqttConnection, session: MqttSession, burst: Burst, sequence: int, own: bool
) -> int:
    key = (burst.attributes, burst.marks, own)
    is_recalled = burst.marks[0] & RETAINED
    plan = session.plans.get(key) if not is_recalled else None
    common = _common_plans(endpoint, connection, session) if plan is None and not is_recalled else None
    if common is not None and session.plans is not common:
        session.plans = common
        plan = common.get(key)
    if plan is None:
        decision = _decision(endpoint, connection, burst)
        if decision.needs_content:
            return _send_singly(endpoint, connection, session, burst, sequence, None, decision)
        if not decision.allowed:
            _withhold(endpoint, connection, session, burst, sequence)
            return 0
        if is_recalled and _send_retained(endpoint, connection, session, burst, sequence):
            return 0
        options = session.options(burst.attributes, own, _is_shared(burst))
        is_plain = connection.connect.maximum_packet_size is None and not burst.marks[0] & EXPIRY
        if options is None or options.identity or not is_plain:
            return _send_singly(endpoint, connection, session, burst, sequence, options)
        plan, is_lasting = _plan(endpoint, connection, burst, options)
        if len(session.plans) >= (PLANS_KEPT_MAX if common is None else COMMON_PLANS_KEPT_MAX):
            session.plans.clear()
        # Bursts picked by groups are sent with other options.
        is_own_way = common is not None and _is_shared(burst)
        if (
            is_lasting and not (is_own_way or is_recalled)
            and len(burst.attributes) + len(burst.marks) <= PLAN_BYTES_KEPT_MAX
        ):  # fmt: skip
            if session.plans is NO_PLANS:
                session.plans = {}
            session.plans[key] = plan
    _send(endpoint, connection, session, burst, sequence, plan)
    return 0


def _common_plans(endpoint: Sender, connection: MqttConnection, session: MqttSession) -> Plans | None:
    """Return the plans shared by all clients whose subscriptions have the same options; None if this client
    is special.

    With some thousand topics and a subscription to all of them, plans kept per session were evicted before
    they were needed again.
    """
    connect = connection.connect
    if connect.maximum_packet_size is not None or connect.topic_alias_maximum:
        return None
    options = session.common_options() if connection.access.receives_all else None
    return endpoint.encoder.plans_of(connection.version, options) if options is not None else None


def _send_retained(
    endpoint: Sender, connection: MqttConnection, session: MqttSession, burst: Burst, sequence: int
) -> bool:
    """Send recalled messages; False if they need a closer check.

    The marks contain QoS and identifier of the subscription that requested the recall. Plans are not cached,
    because the next message of the recall has another topic.
    """
    marks = burst.marks[0]
    if marks & EXPIRY or connection.connect.maximum_packet_size is not None or session.wants_identity:
        return False
    writer = endpoint.encoder.new_writer(burst, connection.version, marks & QOS, RECALLED)
    _send(endpoint, connection, session, burst, sequence, Plan(marks & QOS, RECALLED, writer))
    return True


def _deliver_varied(
    endpoint: Sender, connection: MqttConnection, session: MqttSession, burst: Burst, sequence: int, own: bool
) -> int:
    """Send several topics together, if all have the same QoS and none needs a closer check."""
    plans, marks, qos = session.plans, burst.marks, -1
    is_mute = endpoint.encoder.is_mute
    writers: list[FrameWriter] = []
    # Nobody reads what a follower would write, so one look at each topic is enough there.
    for attributes in dict.fromkeys(burst.varied) if is_mute else burst.varied:
        plan = plans.get((attributes, marks, own))
        if plan is None or plan[0] < 0 or (writers and plan[0] != qos):
            return _deliver_runs(endpoint, connection, session, burst, sequence, own)
        qos = plan[0]
        writers.append(plan[2])
    bodies = burst.bodies
    endpoint.traffic.sent[qos if sequence else 0] += burst.count
    if not qos or not sequence:
        if not is_mute:
            connection.out.append(write_each(writers, bodies, repeat(1)))
        _pass_over(endpoint, connection, session, burst, sequence)
        return 0
    runs = session.in_flight.send(burst, sequence, qos)
    if is_mute:
        return 0
    ids = consecutive(*runs[0])
    if len(runs) > 1:
        ids = [one for packet_id, count in runs for one in consecutive(packet_id, count)]
    connection.out.append(write_each(writers, bodies, ids))
    return 0


def _deliver_runs(
    endpoint: Sender, connection: MqttConnection, session: MqttSession, burst: Burst, sequence: int, own: bool
) -> int:
    """Send topic by topic."""
    left_out = 0
    for part in burst.uniform():
        left_out += _deliver_uniform(endpoint, connection, session, part, sequence, own)
        sequence += part.count if sequence else 0
    return left_out


def _decision(endpoint: Sender, connection: MqttConnection, burst: Burst) -> Decision:
    """Return whether the client may receive this: rules may have changed since it subscribed, or differ
    here."""
    access = connection.access
    return ALLOWED if access.receives_all else access.receive(endpoint.encoder.topic_of(burst.attributes))


def _may_receive(endpoint: Sender, connection: MqttConnection, single: Burst) -> bool:
    decision = _decision(endpoint, connection, single)
    return decision.of(endpoint.contents(single)[0]) if decision.conditions else decision.allowed


def _withhold(
    endpoint: Sender, connection: MqttConnection, session: MqttSession, burst: Burst, sequence: int
) -> None:
    """Withhold what the rules deny the client; a notification of a group goes to another member."""
    endpoint.traffic.denied["receive"] += burst.count
    if _is_shared(burst):
        endpoint.left_over(connection.client, burst)
    _pass_over(endpoint, connection, session, burst, sequence)


def _is_shared(burst: Burst) -> bool:
    return bool(burst.marks[0] & SHARED)


def _plan(endpoint: Sender, connection: MqttConnection, burst: Burst, options: Options) -> tuple[Plan, bool]:
    """Return how to send a burst, and whether that applies to the next of its kind, too."""
    qos = min(burst.marks[0] & QOS, options.qos)
    alias = 0
    if connection.connect.topic_alias_maximum and qos >= 0:
        alias = _alias(connection, burst.attributes)
    writer = endpoint.encoder.writer(burst, connection.version, max(qos, 0), options, endpoint.now, alias)
    return Plan(qos, options, writer), alias >= 0


def _alias(connection: MqttConnection, attributes: bytes) -> int:
    """Return the alias for a topic: negative if the client does not know it yet, 0 if none is available."""
    connect = connection.connect
    if connection.sent_aliases is None:
        connection.sent_aliases = {}
    known = connection.sent_aliases
    alias = known.get(attributes, 0)
    if alias or connect.maximum_packet_size is not None:
        # Announcing an alias takes a few bytes, which could exceed the packet size.
        return alias
    if len(known) >= min(connect.topic_alias_maximum, ALIASES_MAX) or len(attributes) > ALIASED_BYTES_MAX:
        return 0
    alias = known[attributes] = len(known) + 1
    return -alias


def _send(
    endpoint: Sender,
    connection: MqttConnection,
    session: MqttSession,
    burst: Burst,
    sequence: int,
    plan: Plan,
) -> None:
    qos, _, writer = plan
    if qos >= 0:
        endpoint.traffic.sent[qos if sequence else 0] += burst.count
    if qos > 0 and sequence:
        for packet_id, part in runs_of(burst, session.in_flight.send(burst, sequence, qos)):
            connection.out += endpoint.encoder.write(part, writer, packet_id)
        return
    if qos >= 0:
        connection.out += endpoint.encoder.write(burst, writer, 1)
    _pass_over(endpoint, connection, session, burst, sequence)


def _pass_over(
    endpoint: Sender, connection: MqttConnection, session: MqttSession, burst: Burst, sequence: int
) -> None:
    """Acknowledge notifications that the client will not acknowledge."""
    if sequence:
        connection.acknowledged(endpoint, session.in_flight.pass_over(burst, sequence))


def _send_singly(
    endpoint: Sender,
    connection: MqttConnection,
    session: MqttSession,
    burst: Burst,
    sequence: int,
    options: Options | None,
    decision: Decision = ALLOWED,
) -> int:
    """Send one by one, because each has its own options, identity, expiry, size or verdict."""
    own, limit, left_out = burst.publisher in connection.own_names, connection.connect.maximum_packet_size, 0
    contents = endpoint.contents(burst) if options is None else [{}] * burst.count
    for position, attributes in enumerate(contents):
        single = burst.part(position, position + 1)
        chosen = options or session.options_of(attributes, own, _is_shared(burst))
        expired = is_expired(single, endpoint.now)
        if decision.conditions and not decision.of(attributes):
            _withhold(endpoint, connection, session, single, sequence)
        elif expired or _is_too_large(endpoint, connection, single, chosen, limit):
            left_out += 1
            if sequence:
                endpoint.left_out(connection.client, single, "expired" if expired else "too large")
            _pass_over(endpoint, connection, session, single, sequence)
        else:
            plan, _ = _plan(endpoint, connection, single, chosen)
            _send(endpoint, connection, session, single, sequence, plan)
        sequence += 1 if sequence else 0
    return left_out


def is_expired(burst: Burst, now: float) -> bool:
    """True if the message expiry of a burst has passed."""
    expiry_s = message_expiry(burst.marks)
    return expiry_s is not None and now - burst.published_at >= expiry_s


def _is_too_large(
    endpoint: Sender, connection: MqttConnection, burst: Burst, options: Options, limit: int | None
) -> bool:
    if limit is None:
        return False
    qos = max(0, min(burst.marks[0] & QOS, options.qos))
    frame = endpoint.encoder.again(burst, connection.version, qos, options, 1, endpoint.now)
    return len(frame) > limit


def _send_again(
    endpoint: Sender, connection: MqttConnection, session: MqttSession, burst: Burst, sequence: int
) -> tuple[Burst, int]:
    """Send again what was in flight when the last connection ended, with its packet ids; returns the rest."""
    in_flight, encoder, out = session.in_flight, endpoint.encoder, connection.out
    sent, limit = 0, connection.connect.maximum_packet_size
    while sent < burst.count and in_flight.resend:
        single = burst.part(sent, sent + 1)
        known = in_flight.send_again(single, sequence + sent)
        if known is None:
            break
        packet_id, qos, has_it = known
        if not has_it and not _may_receive(endpoint, connection, single):
            endpoint.traffic.denied["receive"] += 1
            connection.acknowledged(endpoint, in_flight.acknowledge(packet_id, qos))
        elif not has_it:
            own, shared = single.publisher in connection.own_names, _is_shared(single)
            options = session.options(single.attributes, own, shared)
            options = options or session.options_of(endpoint.contents(single)[0], own, shared)
            frame = encoder.again(single, connection.version, qos, options, packet_id, endpoint.now)
            if limit is None or len(frame) <= limit:
                out.append(frame)
                endpoint.traffic.repeated += 1
            else:
                connection.acknowledged(endpoint, in_flight.acknowledge(packet_id, qos))
        elif in_flight.is_released(packet_id):
            out.append(PUBREL + packet_id.to_bytes(2, "big"))
        sent += 1
    connection.acknowledged(endpoint, in_flight.settle_early())
    return burst.part(sent, burst.count), sequence + sent
