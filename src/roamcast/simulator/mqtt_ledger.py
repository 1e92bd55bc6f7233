"""Records what MQTT clients of a simulation did and received: the evidence for `mqtt_checks`.

Only the clients' side (`mqtt_access`) writes it; the brokers' tables are not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from roamcast.filters.filter import Attributes, Filter
from roamcast.mqtt.codec.packets import Publish, Will
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.topics import split_shared, subscription_filter
from roamcast.protocol.records import Row
from roamcast.simulator.mqtt_story import PLACE, SubscribeFilter

IN_PLACE = f"{PLACE} IN myloc"
"""Condition of subscriptions in stories: wants what is published with the place where the client is."""


@dataclass(eq=False)
class Sending:
    """One PUBLISH of a message on one connection."""

    at: float
    connection: int
    broker: str
    life: int
    """The session of the publisher at that time."""


@dataclass(eq=False)
class Message:
    """A message published by a client, or as its will."""

    key: str
    """Prefix of its payload."""
    publisher: str
    number: int
    """Order of publishing."""
    topic: str
    attributes: Attributes
    qos: int
    retain: bool
    asked_at: float
    expiry_s: int | None = None
    is_clear: bool = False
    sendings: list[Sending] = field(default_factory=list)
    acknowledged_at: float | None = None
    reason: Reason = Reason.SUCCESS
    is_abandoned: bool = False
    """True if the publisher gave up before the acknowledgement: the message may be published or not."""
    is_will: bool = False
    is_due: bool = True
    """True if the will must be published."""
    is_void: bool = False
    """True if the will must not be published."""

    @property
    def first_at(self) -> float:
        """Return the earliest time at which a subscriber can receive it."""
        return self.sendings[0].at if self.sendings else inf

    @property
    def is_accepted(self) -> bool:
        """Return whether a broker acknowledged it."""
        if self.is_will:
            return self.is_due
        return self.qos > 0 and self.acknowledged_at is not None and not self.reason.failed

    @property
    def taken_by(self) -> float:
        """Return the latest time at which its broker accepted it, if it did."""
        return inf if self.acknowledged_at is None else self.acknowledged_at


@dataclass(eq=False)
class Subscription:
    """One SUBSCRIBE to one topic filter, from its request until it is replaced, withdrawn, or its session
    ends.
    """

    asked: SubscribeFilter
    filter: Filter
    group: str
    asked_at: float
    sent_at: float
    """Time of the last request, which is repeated after a lost connection."""
    replaces: Subscription | None = None
    """The subscription that it replaces if it is granted; if it is refused, that one stays."""
    unanswered: int = 1
    """Number of requests without a SUBACK."""
    answered_at: float = inf
    """Time at which the last missing SUBACK arrived."""
    granted_at: float = inf
    qos: int = 0
    """Granted QoS."""
    is_refused: bool = False
    is_in_time: bool = False
    """True if SUBACK was sent in time, before the wait timed out."""
    settled_from: float | None = None
    """Time at which every broker knew of it (see `MqttLedger.settled_at`); None: not computed yet."""
    changed_at: float = inf
    """Time at which its end was requested."""
    gone_at: float = inf
    """Time at which its end was acknowledged."""

    @property
    def depends_on_place(self) -> bool:
        return IN_PLACE in self.asked.where

    def wants(self, message: Message, client: str) -> bool:
        """Return whether it matches, at any place of the client."""
        is_own = self.asked.no_local and message.publisher == client
        return not is_own and not self.is_refused and self.filter.matches(message.attributes)

    def wants_at(self, place: str, message: Message, client: str) -> bool:
        """Return whether it matches for a client at this place, if the place matters."""
        is_there = not self.depends_on_place or message.attributes.get(PLACE) == place
        return is_there and self.wants(message, client)


@dataclass(eq=False)
class Delivery:
    at: float
    message: Message
    qos: int
    is_dup: bool
    is_retained: bool
    identifiers: tuple[int, ...]
    connection: int
    expiry_s: int | None


@dataclass(eq=False)
class Life:
    """A session, as far as its client knows."""

    number: int
    asked_at: float
    """Time of the client's CONNECT."""
    began_at: float
    connection: int = 0
    """The last connection with a CONNACK in this session."""
    has_stand_in: bool = False
    """True if another session stood in for it while it could not be reached."""
    stood_for: list[Connection] = field(default_factory=list)
    """The session's own last connections while another session may stand in for it; it may expire
    unnoticed.
    """
    is_doubtful: bool = False
    """True if it may have ended and begun anew by a connection whose CONNACK the client never received."""
    over_from: float = inf
    """Earliest time at which it may have ended."""
    ended_at: float = inf
    """Time at which the client learned that it had ended."""
    subscriptions: list[Subscription] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    places: list[tuple[float, str]] = field(default_factory=list)
    """Times at which the client reported its place, with the places."""

    @property
    def may_be_over(self) -> bool:
        return self.is_doubtful or self.over_from < inf

    def current(self, name: str) -> Subscription | None:
        """Return the last subscription to a topic filter, unless its end has been requested."""
        for one in reversed(self.subscriptions):
            if one.asked.filter == name and not one.is_refused:
                return one if one.changed_at == inf else None
        return None


@dataclass(eq=False)
class Connection:
    """One connection of one client, from CONNECT until it breaks."""

    number: int
    broker: str
    asked_at: float
    is_clean: bool
    expiry_s: float
    welcome_at: float = inf
    left_at: float = inf
    """Time at which the client lost the connection."""
    noticed_at: float = inf
    """Latest time at which the broker noticed that."""
    will: Message | None = None
    will_delay_s: int = 0
    has_small_window: bool = False
    """True if the broker may send only a few messages before their acknowledgements."""
    has_said_goodbye: bool = False
    """True if the client sent DISCONNECT without its will."""
    is_goodbye_heard: bool = False
    """True if the broker received it and continued to run."""
    is_closed_by_broker: bool = False
    stands_in: bool = False
    """True if its session may be a stand-in for one that cannot be reached."""
    life: int = -1


class ClientLedger:
    """Records of one client."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.lives: list[Life] = []
        self.connections: list[Connection] = []
        self.published = 0
        self.moved_at: list[float] = []
        """Time of its last attach at a different broker."""

    @property
    def life(self) -> Life | None:
        """Return the session that the client believes to have."""
        return self.lives[-1] if self.lives and self.lives[-1].ended_at == inf else None

    def welcomed(self, noted: Connection, is_present: bool, ledger: Ledger, now: float) -> None:
        """Record a CONNACK, for the existing session or for a new one."""
        life = self.life
        since = [one for one in self.connections if life is not None and one.number >= life.connection]
        noted.welcome_at = now
        if is_present:
            if noted.is_clean:
                ledger.wrong(
                    "session present", f"{self.id} asked {noted.broker} for a clean start at {now:.6f}"
                )
            if life is None:
                # The CONNACK with which it began was lost.
                last = self.lives[-1].ended_at if self.lives else -inf
                asked_at = min(one.asked_at for one in self.connections if one.left_at >= last)
                life = self._begin(asked_at, now)
            elif ledger.has_surely_expired(since, noted):
                ledger.wrong("session not ended", f"{self.id} got an expired one at {now:.6f}")
            else:
                unseen = [*life.stood_for, *(since if any(one.welcome_at == inf for one in since) else ())]
                life.is_doubtful = life.is_doubtful or may_have_ended(unseen, noted, now)
        elif life is not None and (ledger.serves or noted.stands_in):
            # Another session stands in, until the one that was may come back, even after a clean start.
            life.has_stand_in = True
            life.stood_for = life.stood_for or [one for one in since if one is not noted]
            if noted.is_clean or may_have_ended(since, noted, now):
                life.is_doubtful = True
        elif life is not None and self._has_only_stand_ins(life, noted, ledger):
            # The session of its own that it got now and the stand-in become one when everything is up.
            life.has_stand_in = True
            if noted.is_clean or may_have_ended(since, noted, ledger.up_again_at(now)):
                life.is_doubtful = True
        elif not (
            life is None or noted.is_clean or may_have_ended(since, noted, now) or self._comes_late(life)
        ):
            ledger.lost_sessions.append((self.id, now))
            life = self._begin_after(life, noted, now, ledger)
        else:
            life = self._begin_after(life, noted, now, ledger)
        assert life is not None
        life.has_stand_in = life.has_stand_in or noted.stands_in
        life.connection, noted.life = noted.number, life.number

    def session_is_back(self, now: float) -> None:
        """Record that a broker asks the client to connect again, to the session that another one stood in
        for.
        """
        life = self.life
        if life is not None:
            life.is_doubtful = life.is_doubtful or may_have_ended(life.stood_for, None, now)
            life.stood_for = []

    def _has_only_stand_ins(self, life: Life, noted: Connection, ledger: Ledger) -> bool:
        """Return whether only stand-in sessions exist, at other brokers than that of `noted`.

        Once nothing was down for a moment, one of them has become the session.
        """
        now, here = noted.welcome_at, [one for one in self.connections if one.life == life.number]
        ended = list(life.stood_for) if may_have_ended(life.stood_for, None, now) else []
        ended += [one for one in here if not one.stands_in and may_have_ended([one], None, now)]
        over = max((one.number for one in ended), default=0)
        served = [one for one in here if one.number > over]
        return all(one.stands_in and one.broker != noted.broker for one in served) and not any(
            ledger.was_calm_between(one.welcome_at, now) for one in served
        )

    def _comes_late(self, life: Life) -> bool:
        """Return whether a clean start without CONNACK may have ended a session that began after it.

        Its CONNECT waited for a broker behind a link that was down. A standard client does not number its
        attaches, so no broker can tell that this one is older, until its broker notices that the client left.
        """
        return any(
            one.is_clean and one.welcome_at == inf and one.noticed_at > life.asked_at
            for one in self.connections
            if one.number < life.connection
        )

    def _begin_after(self, life: Life | None, noted: Connection, now: float, ledger: Ledger) -> Life:
        begun = self._begin(noted.asked_at, now)
        if life is not None:
            life.ended_at = now
            # It was over with the first CONNECT that may have ended it.
            life.over_from = min(one.asked_at for one in self.connections if one.number > life.connection)
            # A stand-in that its client left behind elsewhere becomes part of the next session.
            begun.has_stand_in = any(
                one.life == life.number
                and one.stands_in
                and one.broker != noted.broker
                and not ledger.was_calm_between(one.welcome_at, now)
                for one in self.connections
            )
        return begun

    def _begin(self, asked_at: float, now: float) -> Life:
        self.lives.append(Life(len(self.lives), asked_at, now))
        return self.lives[-1]

    def delivered(self, ledger: Ledger, publish: Publish, connection: int, now: float) -> None:
        if not publish.payload:
            return  # That a topic is cleared; which publish it was cannot be seen.
        if ledger.hostile and publish.topic.startswith(f"{ledger.hostile}/"):
            return  # The hostile broker may publish there.
        message = ledger.message_of(publish.payload)
        if message is None or self.life is None:
            ledger.wrong("invented", f"{self.id} got {publish.payload[:40]!r}, which nobody published")
            return
        told = publish.properties
        self.life.deliveries.append(
            Delivery(
                now, message, publish.qos, publish.dup, publish.retain,
                told.subscription_identifiers if told is not None else (), connection,
                told.message_expiry if told is not None else None,
            )
        )  # fmt: skip

    def is_there(self, start: float, end: float) -> bool:
        """Return whether one connection lasted from `start` to `end`."""
        return any(one.welcome_at <= start and one.left_at >= end for one in self.connections)


def may_have_ended(since: list[Connection], noted: Connection | None, now: float) -> bool:
    """Return whether the session of these connections may be over for a reason that its client knows.

    `noted` is not counted, because it requests the session.
    """
    earlier = [one for one in since if one is not noted]
    return any(one.is_clean for one in earlier[1:]) or any(
        one.left_at + one.expiry_s <= now for one in earlier
    )


class Ledger:
    def __init__(self, disturbances: Sequence[tuple[float, float]] = (), slack_s: float = 1.0) -> None:
        """`disturbances` are times at which brokers or links were down; `slack_s` is the longest delay."""
        self.disturbances = disturbances
        self.slack_s = slack_s
        self.hostile = ""
        """The hostile broker, which may publish topics with its name before them."""
        self.serves = False
        """True if clients are served while their sessions cannot be reached."""
        self.lost_sessions: list[tuple[str, float]] = []
        """Clients whose session was missing without a reason, with the time at which they learned it."""
        self.refused: list[tuple[float, str, str, Reason]] = []
        self.clients: dict[str, ClientLedger] = {}
        self.messages: dict[str, Message] = {}
        self.wrongs: list[tuple[str, str]] = []
        """Violations found immediately: kind and text."""
        self.dropped: Counter[str] = Counter()
        """Number of dropped messages that brokers reported, by client."""
        self.crashes = self.links_down = 0

    def client(self, id: str) -> ClientLedger:
        return self.clients.setdefault(id, ClientLedger(id))

    def wrong(self, kind: str, text: str) -> None:
        self.wrongs.append((kind, text))

    def is_calm(self, start: float, end: float) -> bool:
        """Return whether nothing was down during this time, and some time before and after."""
        start, end = start - self.slack_s, end + self.slack_s
        return all(until < start or since > end for since, until in self.disturbances)

    def was_calm_between(self, start: float, end: float) -> bool:
        """Return whether everything was up at some moment in between, including some time before and after
        it.
        """
        ends = (until + self.slack_s + 1e-6 for _, until in self.disturbances)
        return any(start <= at <= end and self.is_calm(at, at) for at in (start, *ends))

    def up_again_at(self, at: float) -> float:
        """Return the time after `at` when everything had been up for a while."""
        for since, until in sorted(self.disturbances):
            if since <= at + 3 * self.slack_s:
                at = max(at, until)
        return at + 3 * self.slack_s

    def settled_at(self, one: Subscription) -> float:
        """Return the latest time at which every broker knew of a subscription.

        That is when it was granted, or, if some broker could not be reached then, when all had been up for a
        while.
        """
        if one.settled_from is None:
            at = one.granted_at if one.is_in_time else inf
            is_known = at == inf or self.is_calm(one.sent_at, at)
            one.settled_from = at if is_known else self.up_again_at(at)
        return one.settled_from

    def has_surely_expired(self, since: list[Connection], noted: Connection) -> bool:
        """Return whether the session had expired long before this connection was requested."""
        earlier = [one for one in since if one is not noted]
        if len(earlier) != 1 or earlier[0].noticed_at == inf:
            return False
        (last,) = earlier
        over_at = last.noticed_at + last.expiry_s
        return over_at + self.slack_s < noted.asked_at and self.is_calm(last.left_at, noted.welcome_at)

    def observe(self, rows: list[Row]) -> None:
        """Record rows of brokers: only drops that they report count."""
        for row in rows:
            if row.kind == "dropped":
                self.dropped[row.client or ""] += row.notifications or 1
            elif row.kind == "crashed":
                self.crashes += 1
            elif row.kind == "link_down":
                self.links_down += 1

    # --- publishing ---

    def message_of(self, payload: bytes) -> Message | None:
        return self.messages.get(payload.partition(b" ")[0].decode("utf-8", "replace"))

    def publish(self, client: str, publish: Publish, attributes: Attributes, at: float) -> Message:
        """Record a publish of a client's application; the payload begins with the key."""
        mine = self.client(client)
        mine.published += 1
        expiry_s = publish.properties.message_expiry if publish.properties is not None else None
        message = Message(
            f"{client}/{mine.published}", client, mine.published, publish.topic, attributes, publish.qos,
            publish.retain, at, expiry_s,
        )  # fmt: skip
        self.messages[message.key] = message
        return message

    def will(self, client: str, will: Will, number: int, at: float) -> Message:
        key = f"{client}~{number}"
        message = Message(
            key, f"{client}~", number, will.topic, {"topic": will.topic}, will.qos, will.retain, at,
            is_will=True, is_due=False,
        )  # fmt: skip
        self.messages[key] = message
        return message

    # --- subscribing ---

    def subscribe(self, client: str, asked: SubscribeFilter, at: float) -> None:
        """Record a SUBSCRIBE that leaves the client."""
        life = self.client(client).life
        assert life is not None
        former = life.current(asked.filter)
        if former is not None and former.asked == asked:
            former.sent_at, former.answered_at = at, inf  # The same again interrupts nothing.
            former.unanswered += 1
            return
        if former is not None:
            former.changed_at = at
        shared = split_shared(asked.filter)
        group, text = shared or ("", asked.filter)
        filter = subscription_filter(text, asked.where.replace(IN_PLACE, "") or None)
        life.subscriptions.append(Subscription(asked, filter, group, at, at, former))

    def granted(
        self, client: str, asked: SubscribeFilter, reason: Reason, at: float, settle_timeout_s: float
    ) -> None:
        life = self.client(client).life
        of_name = [one for one in life.subscriptions if one.asked.filter == asked.filter] if life else []
        current = life.current(asked.filter) if life else None
        if current is not None and current.asked == asked:
            current.unanswered -= 1
            current.answered_at = inf if current.unanswered else at
        waiting = [one for one in of_name if one.granted_at == inf and one.asked == asked]
        if not waiting:
            return
        one = waiting[-1]
        if reason.failed:
            # What was asked for twice may have been granted with an answer that was lost.
            if one.sent_at == one.asked_at:
                one.is_refused = True
                if one.replaces is not None:
                    one.replaces.changed_at = one.changed_at
            return
        one.granted_at, one.qos = at, int(reason)
        one.is_in_time = at - one.sent_at < settle_timeout_s
        for former in of_name[: of_name.index(one)]:
            former.gone_at = min(former.gone_at, at)

    def unsubscribe(self, client: str, name: str, at: float) -> None:
        life = self.client(client).life
        for one in life.subscriptions if life is not None else ():
            if one.asked.filter == name:
                one.changed_at = min(one.changed_at, at)

    def unsubscribed(self, client: str, name: str, at: float) -> None:
        life = self.client(client).life
        for one in life.subscriptions if life is not None else ():
            if one.asked.filter == name and one.changed_at <= at:
                one.gone_at = min(one.gone_at, at)
