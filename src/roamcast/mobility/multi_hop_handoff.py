"""Multi-hop handoff (Wang et al., section 4), completed for every interruption.

When a client reattaches, its subscriptions migrate hop by hop along the path from the old broker to the new:
`SubMigration`. The next broker may already have sent notifications back towards the old place. Each broker on
the path collects these in a temporary queue, until `SubMigrationAck` confirms that no more will come. The
temporary queues are then collected along the path by `DeliverTQ`. Meanwhile the new broker pulls what was
stored at the old one. Only the path is touched, and the first stored notification arrives after one round
trip.

| Wang et al., section 4 | here |
| --- | --- |
| 4.1, B_o: steps 1 to 3 at the filter table, sub_migration | `on_depart`, `begin_pass` |
| 4.1, B_i: steps 1 to 5 | `on_sub_migration`, `begin_pass` |
| 4.1: events from B_i+1 go to the temporary queue | `on_notification` |
| 4.1: sub_migration_ack has come, the entry (C_1, f_1) goes | `on_sub_migration_ack`, `unlisten` |
| 4.1: deliver_TQ | `try_deliver_tq`, `on_deliver_tq` |
| 4.1, B_n: the persistent queues | `receive_token` |
| 4.2: handoff_request | the host's attach request, which calls `on_depart` |
| 4.2: PQ1 is delivered to B_n, and buffered there in PQ3 | `pull`, `serve`, `on_events` |
| 4.2: PQ2 follows PQ3 | `go_on` |
| 4.3: stop_event_migration, PQlist | `leave_behind`, `read_on`; the credit of `go_on` stops it |
| not in the paper: peers that do not follow the protocol | `expects` |
| not in the paper: brokers that are gone for good | `on_undeliverable`, `on_lost`, `look_after` |

The paper leaves out what happens when the client leaves again at various stages. Here the session
is a token, and the broker that has it is the holder. A stay of the token at a broker has two
queues: IN, what is fetched from earlier stays (the paper's PQ3), and OWN, what arrived here during
the stay (PQ2), which comes after it. If the client leaves before IN is complete, IN and OWN stay
behind as segments, and the list of segments that remain to be read, in order, goes with the token
(the paper's PQlist). The holder of the token pulls the first segment of the list, with credit for
a number of notifications; the answer ends when the credit or the segment is used up, and then
names the next segments. There is no `stop_event_migration`: without acknowledgements of the client
there is no new credit, and pulling stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from roamcast.filters.selector import parse
from roamcast.mobility.base import STREAM, Host, MobilityProtocol, Promise, Settings, queue_of, register
from roamcast.protocol.messages import Cause, Grant, Message, Update
from roamcast.protocol.notification import Burst, count_of
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner
from roamcast.state import State

FIRST_CREDIT = 8
"""Notifications fetched for a client that has not acknowledged anything since it attached."""

CREDIT = 64
"""Notifications fetched ahead for a client that acknowledges; doubles each time, up to `fetch_max`."""

FETCH_BYTES_MAX = 1 << 20
"""Bytes fetched ahead, at most."""

CREDIT_MAX = 1 << 32
"""Upper bound of the credit that is accepted from others."""

EVENTS_BYTES = 64 << 10
"""Approximate size of a message with fetched notifications."""

Reference = tuple[str, int, str]
"""A segment left behind: the broker, the attach number of the stay, and "in" or "own"."""


class SubMigration(Message, frozen=True):
    """The token and the subscriptions, on their way to the destination, one hop.

    `base` is the last sequence that the client has acknowledged, `segments` the list of segments still to be
    read (PQlist), `granted` the credit already given to the first segment. `update` holds the subscriptions
    that the sender withdraws and, where filters cover others, issues instead.
    """

    session: Session
    destination: str
    base: int
    segments: tuple[Reference, ...]
    granted: int
    update: Update
    cause: ClassVar[Cause] = "handoff"


class SubMigrationAck(Message, frozen=True):
    """Confirms that no notification sent before the migration is still on its way to the receiver."""

    client: str
    number: int
    cause: ClassVar[Cause] = "handoff"


class DeliverTQ(Message, frozen=True):
    """The temporary queues of the path so far, collected in order."""

    client: str
    number: int
    bursts: tuple[Burst, ...]
    cause: ClassVar[Cause] = "transfer"


class Pull(Message, frozen=True):
    """Asks for notifications of a segment, on behalf of the stay at the destination."""

    client: str
    segment: Reference
    want: int
    destination: str
    number: int
    is_first: bool
    """True for the first request of this stay: it may arrive twice, from two brokers (see `look_after`)."""
    cause: ClassVar[Cause] = "handoff"


class Events(Message, frozen=True):
    """Notifications of the segment that was pulled.

    `end` marks the end of the segment; the segments that it still had to read itself come next (`then`), and
    the remaining credit has been given to the first of these (`granted`).
    """

    client: str
    number: int
    segment: Reference
    bursts: tuple[Burst, ...]
    end: bool
    then: tuple[Reference, ...]
    granted: int
    cause: ClassVar[Cause] = "transfer"


class SegmentGone(Message, frozen=True):
    """The broker of the pulled segment is gone, and all that it had sent has passed here."""

    client: str
    number: int
    segment: Reference
    cause: ClassVar[Cause] = "transfer"


def _lift_hold_1(fields: dict[str, Any]) -> None:
    fields["received"] = 0


class Hold:
    """A session at this broker: the token is here."""

    __state__ = State(
        "handoff-hold",
        2,
        saved=(
            "previous_hop", "stay", "queue", "segments", "granted", "asked_by", "own", "swept", "credit",
            "hurries", "received",
        ),
        lifts={1: _lift_hold_1},
    )  # fmt: skip

    def __init__(self, stay: int, queue: DeliveryQueue, previous_hop: str = "") -> None:
        self.previous_hop = previous_hop
        """Peer from which the token came."""
        self.stay = stay
        """Attach number with which the token came."""
        self.queue = queue
        """IN, from which the client reads."""
        self.segments: list[Reference] = []
        self.granted = 0
        """Credit given to the first segment and not yet answered."""
        self.asked_by = ""
        """Broker that pulled on behalf of this stay, until an answer arrives."""
        self.own: list[Burst] | None = None
        """OWN; None when everything before it has been read: then arrivals go to IN (live)."""
        self.swept = False
        """True if the temporary queues of the path have come."""
        self.credit = FIRST_CREDIT
        self.hurries = False
        """True to fetch everything, even while the client does not read."""
        self.received = 0
        """Last sequence that the attached client reported as received; notifications fetched afterwards may
        begin before it."""


class Pass:
    """A passage of the token through this broker, or from it, under one attach number."""

    __state__ = State(
        "handoff-pass",
        saved=(
            "previous_hop", "next_hop", "subscriptions", "temporary_queue", "acknowledged", "swept",
            "delivered",
        ),
    )  # fmt: skip

    def __init__(
        self, next_hop: str, subscriptions: dict[str, float], swept: tuple[Burst, ...] | None
    ) -> None:
        self.previous_hop = ""
        """Peer from which the earlier part of the path is collected; "" where the path begins."""
        self.next_hop = next_hop
        self.subscriptions = subscriptions
        self.temporary_queue: list[Burst] = []
        self.acknowledged = False
        self.swept = swept
        """Notifications collected on the earlier part of the path; None until they have come."""
        self.delivered = False
        """True if the temporary queue has been sent already (published variant only)."""


class Segment:
    """IN or OWN of a stay that the token has left."""

    __state__ = State(
        "handoff-segment",
        saved=(
            "bursts", "segments", "granted", "asked_by", "complete", "previous_hop", "want", "destination",
            "number",
        ),
    )  # fmt: skip

    def __init__(
        self,
        bursts: Iterable[Burst],
        segments: list[Reference],
        granted: int,
        complete: bool,
        previous_hop: str = "",
    ) -> None:
        self.bursts = deque(bursts)
        self.segments = segments
        self.granted = granted
        self.asked_by = ""
        self.complete = complete
        """For OWN: True if it includes the temporary queues, which come before it."""
        self.previous_hop = previous_hop
        """Peer from which missing temporary queues come."""
        self.want = 0
        self.destination = ""
        self.number = 0


class MultiHopHandoff(MobilityProtocol):
    name = "multi_hop_handoff"
    takes_back = True
    summary = "exactly once and in order; subscriptions migrate hop by hop, stored notifications are pulled"
    promise = Promise(lost=frozenset({"overflow"}))
    keeps_sessions = False

    __state__ = State("multi-hop-handoff", saved=("holds", "passes", "segments"))

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.holds: dict[str, Hold] = {}
        self.passes: dict[tuple[str, int], Pass] = {}
        self.segments: dict[tuple[str, int, str], Segment] = {}
        """Segments by client, stay, and "in" or "own"."""

    # --- 4.1, 4.2: the client leaves, or is attached elsewhere (handoff_request) ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client = session.client
        if came_from == "":
            self.holds[client] = Hold(session.number, DeliveryQueue(STREAM, buffer=self.host.buffer))
        hold = self.holds[client]
        if not self.host.is_read(client, hold.queue):
            hold.received = received.get(STREAM, 0)
            hold.queue.rewind(hold.received)
            self.host.deliver_from(client, hold.queue)
        hold.credit = FIRST_CREDIT
        self.go_on(client, hold)

    def on_detach(self, session: Session) -> None:
        """Nothing to do: the stay goes on, and without acknowledgements nothing more is pulled."""

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        client, number = session.client, session.number
        hold = self.holds.pop(client)
        hold.queue.rewind(received.get(STREAM, 0))
        base = hold.queue.base
        segments = self.to_be_read(client, hold, destination)
        is_pulled = bool(segments) and segments[0][2] in ("in", "own")
        granted = FIRST_CREDIT if is_pulled else 0
        # B_o, step 1: the entry (B_1, f_1) is added. As (C_1, f_1) goes, `update` tells B_1 what B_o takes
        # back and which covered filters it wants instead (4.1, "multiple clients", "covering").
        next_hop = self.host.next_hop(destination)
        update = self.host.relocate(session.subscriptions, client, (client, hold.stay), next_hop)
        # Step 2: (C_1, f_1) with the label B_1: only what comes from B_1 is for the client.
        self.begin_pass(session, next_hop, swept=())
        # Step 3: sub_migration.
        self.host.release(session, destination)
        migration = SubMigration(session, destination, base, tuple(segments), granted, update or Update())
        self.host.send(next_hop, migration)
        if is_pulled:
            self.pull(client, segments[0], granted, destination, number, is_first=True)

    def on_end(self, session: Session) -> None:
        super().on_end(session)
        del self.holds[session.client]

    def to_be_read(self, client: str, hold: Hold, destination: str) -> list[Reference]:
        """Return the list of segments that the client has still to read, in order."""
        return self.leave_behind(client, hold)

    def leave_behind(self, client: str, hold: Hold) -> list[Reference]:
        """Leave IN and OWN here as segments, at the front of the list of what is to be read."""
        remaining = hold.segments
        if hold.queue or hold.granted:
            bursts = hold.queue.drain()
            left = Segment(bursts, hold.segments, hold.granted, complete=True)
            left.asked_by = hold.asked_by
            self.segments[client, hold.stay, "in"] = left
            remaining = [(self.host.id, hold.stay, "in")]
        if hold.own is not None and (hold.own or not hold.swept):
            self.segments[client, hold.stay, "own"] = Segment(
                hold.own, [], 0, complete=hold.swept, previous_hop=hold.previous_hop
            )
            remaining = [*remaining, (self.host.id, hold.stay, "own")]
        return remaining

    def begin_pass(self, session: Session, next_hop: str, swept: tuple[Burst, ...] | None) -> None:
        """From now on, put what the next hop sends back for the client into the temporary queue."""
        client, number = session.client, session.number
        self.passes[client, number] = Pass(next_hop, dict(session.subscriptions), swept)
        for text, issued_at in session.subscriptions.items():
            self.host.listen((client, number, "pass"), parse(text), issued_at)

    def expects(self, sender: str, message: Message) -> bool:
        """Accept each message only from a peer and in a state in which the protocol sends it."""
        match message:
            case SubMigration(session=session):
                key, hop = (session.client, session.number), self.host.next_hop(message.destination)
                is_here = message.destination == self.host.id
                is_neighbour = self.host.next_hop(sender) == sender
                if key in self.passes or session.client in self.holds or hop == sender or not is_neighbour:
                    return False
                return (is_here or hop != self.host.id) and _is_counted(message.base, message.granted)
            case SubMigrationAck(client, number):
                passed = self.passes.get((client, number))
                return passed is not None and not passed.acknowledged and passed.next_hop == sender
            case DeliverTQ(client, number):
                return self._awaits_sweep(sender, client, number)
            case Grant():
                return False  # Sessions come hop by hop.
            case Pull():
                return 0 < message.want < CREDIT_MAX and self.host.is_reachable(message.destination)
            case Events(client, number):
                reader = self.reader_of(client, number, message.segment)
                count = count_of(message.bursts)
                return reader is not None and count <= reader.granted and _is_counted(message.granted)
            case _:
                return True

    def _awaits_sweep(self, sender: str, client: str, number: int) -> bool:
        passed = self.passes.get((client, number))
        if passed is not None:
            return passed.swept is None and passed.previous_hop == sender
        hold, segment = self.holds.get(client), self.segments.get((client, number, "own"))
        if hold is not None and hold.stay == number:
            return hold.own is not None and not hold.swept and hold.previous_hop == sender
        return segment is None or (not segment.complete and segment.previous_hop == sender)

    # --- 4.1: the subscriptions migrate ---

    def on_sub_migration(self, sender: str, message: SubMigration) -> None:
        session = message.session
        client, number = session.client, session.number
        # B_i, step 4: notifications sent to B_i-1 before are ahead of the acknowledgement.
        self.host.send(sender, SubMigrationAck(client, number))
        next_hop = self.host.next_hop(message.destination)
        if next_hop != self.host.id:
            # Steps 1 and 2: the entry (B_i+1, f_1) is added, and (B_i-1, f_1) is deleted.
            update = self.host.relocate(session.subscriptions, client, sender, next_hop, message.update)
            # Step 3: (C_1, f_1) with the label B_i+1, and a temporary queue.
            self.begin_pass(session, next_hop, swept=None)
            self.passes[client, number].previous_hop = sender
            # Step 5: sub_migration goes on.
            self.host.send(
                next_hop,
                SubMigration(
                    session,
                    message.destination,
                    message.base,
                    message.segments,
                    message.granted,
                    update or Update(),
                ),
            )
            return
        # B_n: the client is a local one, and arrivals from now on go to its persistent queue.
        reads_on = self.receive_token(message, sender)
        self.host.relocate(session.subscriptions, client, sender, (client, number), message.update)
        if message.destination == self.host.id:
            self.host.adopt(session, reads_on)
        else:
            self.host.take_back(session)

    def receive_token(self, message: SubMigration, sender: str) -> bool:
        """Take over the token; returns whether the client reads on from an earlier queue, which it never does
        here."""
        number, queue = message.session.number, DeliveryQueue(STREAM, message.base, self.host.buffer)
        hold = self.holds[message.session.client] = Hold(number, queue, sender)
        hold.segments, hold.granted, hold.own = list(message.segments), message.granted, []
        hold.asked_by = message.session.last_broker
        self.look_after(message.session.client, number, hold)
        return False

    def on_sub_migration_ack(self, sender: str, message: SubMigrationAck) -> None:
        passed = self.passes[message.client, message.number]
        passed.acknowledged = True
        self.unlisten(message.client, message.number, passed)
        self.try_deliver_tq(message.client, message.number, passed)

    def unlisten(self, client: str, number: int, passed: Pass) -> None:
        for text in passed.subscriptions:
            self.host.unlisten((client, number, "pass"), parse(text))

    # --- 4.1: the temporary queues are collected ---

    def try_deliver_tq(self, client: str, number: int, passed: Pass) -> None:
        """Send the temporary queues on when this one is complete and those before it have come."""
        if passed.acknowledged and passed.swept is not None:
            del self.passes[client, number]
            bursts = (*passed.swept, *passed.temporary_queue)
            self.host.send(passed.next_hop, DeliverTQ(client, number, bursts))

    def on_deliver_tq(self, sender: str, message: DeliverTQ) -> None:
        client, number = message.client, message.number
        passed = self.passes.get((client, number))
        if passed is not None:
            passed.swept = message.bursts
            self.try_deliver_tq(client, number, passed)
            return
        hold = self.holds.get(client)
        if hold is not None and hold.stay == number and hold.own is not None:
            hold.own[:0] = message.bursts
            hold.swept = True
            self.go_on(client, hold)
            return
        segment = self.segments.get((client, number, "own"))
        if segment is None:
            # The token passed here to a broker that is gone since.
            self.give_up(client, message.bursts, "broker is gone")
            return
        segment.bursts.extendleft(reversed(message.bursts))
        segment.complete = True
        self.serve(client, (self.host.id, number, "own"), segment)

    # --- 4.2, 4.3: stored notifications are pulled, segment by segment ---

    def pull(
        self, client: str, segment: Reference, want: int, destination: str, number: int, is_first: bool
    ) -> None:
        self.host.send(segment[0], Pull(client, segment, want, destination, number, is_first))

    def on_pull(self, sender: str, message: Pull) -> None:
        segment, number = self.segments.get((message.client, *message.segment[1:])), message.number
        if segment is None or number < segment.number or (message.is_first and number == segment.number):
            return  # The request arrived before, from another broker.
        segment.want, segment.destination, segment.number = message.want, message.destination, message.number
        self.serve(message.client, message.segment, segment)

    def serve(self, client: str, reference: Reference, segment: Segment) -> None:
        """Answer the reader of this segment, as far as its credit and the notifications here allow."""
        if segment.want <= 0 or not segment.complete:
            return
        end = False
        while segment.want > 0 and not end:
            bursts = _take(segment.bursts, segment.want)
            segment.want -= count_of(bursts)
            end = not segment.bursts and segment.granted == 0
            if not bursts and not end:
                return
            then = tuple(segment.segments) if end else ()
            granted = segment.want if then else 0
            events = Events(client, segment.number, reference, bursts, end, then, granted)
            self.host.send(segment.destination, events)
        if end:
            del self.segments[client, reference[1], reference[2]]
            if granted:
                # Pulled on the reader's behalf, which saves it a request.
                self.pull(client, then[0], granted, segment.destination, segment.number, is_first=True)

    def on_events(self, sender: str, message: Events) -> None:
        client, number = message.client, message.number
        reader = self.reader_of(client, number, message.segment)
        if reader is None:
            self.give_up(client, message.bursts, "broker is gone")
            return
        if isinstance(reader, Hold):
            for burst in message.bursts:
                self.keep(reader.queue, client, burst)
        else:
            reader.bursts.extend(message.bursts)
        reader.granted -= count_of(message.bursts)
        reader.asked_by = ""
        if message.end:
            reader.segments = [*message.then, *reader.segments[1:]]
            reader.granted, reader.asked_by = message.granted, sender
            self.look_after(client, number, reader)
        if isinstance(reader, Hold):
            self.drop_received(reader)
            if reader.granted == 0 and reader.credit >= CREDIT:
                self.adapt(reader)
            self.host.pump(client)
        self.read_on(client, number, reader)

    def drop_received(self, hold: Hold) -> None:
        """Drop what the client said it has: it may have read that from a copy before this came."""
        if hold.received > hold.queue.base:
            hold.queue.acknowledge(hold.received)

    def reader_of(self, client: str, number: int, segment: Reference) -> Hold | Segment | None:
        """Return the stay with this number, if it reads this segment now."""
        hold = self.holds.get(client)
        reader = (
            hold if hold is not None and hold.stay == number else self.segments.get((client, number, "in"))
        )
        return reader if reader is not None and reader.segments[:1] == [segment] else None

    def read_on(self, client: str, number: int, reader: Hold | Segment) -> None:
        if isinstance(reader, Hold):
            self.go_on(client, reader)
        else:
            self.serve(client, (self.host.id, number, "in"), reader)

    def adapt(self, hold: Hold) -> None:
        """Double the next credit, unless that were too many bytes, so that a fast reader need not wait."""
        if self.settings.fetch_max <= CREDIT:
            return
        size = sum(burst.size for burst in hold.queue.bursts())
        wanted = min(2 * hold.credit, self.settings.fetch_max) if 2 * size <= FETCH_BYTES_MAX else 0
        hold.credit = max(wanted, CREDIT)

    def go_on(self, client: str, hold: Hold) -> None:
        """Become live when everything before OWN has come; otherwise pull while the client reads."""
        if hold.own is not None and hold.swept and not hold.segments and hold.granted == 0:
            own, hold.own = hold.own, None
            for burst in own:
                self.keep(hold.queue, client, burst)
            self.drop_received(hold)
            self.host.pump(client)
        if hold.own is None:
            self.host.handoff_finished(client)
        elif hold.segments and hold.granted == 0:
            wanted = hold.credit - len(hold.queue)
            if hold.hurries:
                hold.granted = max(wanted, CREDIT)
            elif self.host.is_attached(client) and 2 * wanted >= hold.credit:
                hold.granted = wanted
            if hold.granted:
                self.pull(client, hold.segments[0], hold.granted, self.host.id, hold.stay, is_first=False)

    def on_drain(self) -> None:
        for client, hold in list(self.holds.items()):
            if hold.own is not None:
                hold.hurries = True
                self.go_on(client, hold)

    def on_acknowledged(self, client: str) -> None:
        hold = self.holds.get(client)
        if hold is not None and hold.own is not None:
            hold.credit = max(hold.credit, CREDIT)
            self.go_on(client, hold)

    def awaits_acknowledgement(self, client: str) -> bool:
        hold = self.holds.get(client)
        return hold is not None and hold.own is not None

    # --- when brokers are gone for good ---

    def on_undeliverable(self, message: Message) -> bool:
        """At the last broker before one that is gone: keep an undeliverable token here, with what follows
        it."""
        if isinstance(message, SubMigration):
            passed = self.passes.get((message.session.client, message.session.number))
            if passed is None or passed.acknowledged:
                return False  # The token had arrived, though the link had no acknowledgement of it.
            self.take_back(message, passed)
            return True
        if isinstance(message, Pull):
            gone = SegmentGone(message.client, message.number, message.segment)
            self.host.send(message.destination, gone)
            return True
        if not isinstance(message, Events | SegmentGone | DeliverTQ):
            return False
        client, stay = message.client, message.number
        hold = self.holds.get(client)
        kind = "own" if isinstance(message, DeliverTQ) else "in"
        if (hold is None or hold.stay != stay) and (client, stay, kind) not in self.segments:
            return False
        self.on_message(self.host.id, message)
        return True

    def take_back(self, message: SubMigration, passed: Pass) -> None:
        """Treat this broker as the destination. Notifications that come back behind the token are for OWN."""
        session = message.session
        client, number = session.client, session.number
        self.receive_token(message, self.host.id)
        self.subscribe_all((client, number), session.subscriptions)
        self.taken_back[client, number] = None
        # Nothing more comes from the next hop, and the temporary queue is for this broker.
        passed.next_hop = self.host.id
        self.on_sub_migration_ack(self.host.id, SubMigrationAck(client, number))
        self.host.take_back(session)

    def on_lost(self, peers: Collection[str], brokers: Collection[str]) -> None:
        self.taken_back = {}
        for (client, number), passed in list(self.passes.items()):
            if passed.previous_hop in peers and passed.swept is None:
                passed.swept = ()
            if passed.next_hop in peers:
                # Otherwise the token had arrived at the next hop.
                if not passed.acknowledged:
                    self.unlisten(client, number, passed)
                del self.passes[client, number]
            else:
                self.try_deliver_tq(client, number, passed)
        for (client, stay, kind), segment in list(self.segments.items()):
            segment.complete = segment.complete or segment.previous_hop in peers
            self.look_after(client, stay, segment)
            self.serve(client, (self.host.id, stay, kind), segment)
        for client, hold in list(self.holds.items()):
            hold.swept = hold.swept or hold.previous_hop in peers
            self.look_after(client, hold.stay, hold)
            self.go_on(client, hold)

    def look_after(self, client: str, number: int, reader: Hold | Segment) -> None:
        """Ask again for segments at brokers that are gone; what these brokers sent may still be under way.

        The segments themselves are lost. The repeated request takes the way that all messages took, and is
        answered where that way ends. It also replaces a request that a lost broker may have made on behalf of
        this reader.
        """
        waits = reader.granted > 0
        if not reader.segments:
            return
        reader.segments = [
            one for place, one in enumerate(reader.segments)
            if self.host.is_reachable(one[0]) or (waits and place == 0)
        ]  # fmt: skip
        if not (waits and reader.segments):
            return
        first = reader.segments[0]
        if not (self.host.is_reachable(first[0]) and self.host.is_reachable(reader.asked_by or self.host.id)):
            self.pull(client, first, reader.granted, self.host.id, number, is_first=True)

    def on_segment_gone(self, sender: str, message: SegmentGone) -> None:
        client, number = message.client, message.number
        reader = self.reader_of(client, number, message.segment)
        if reader is not None:
            reader.segments, reader.granted = reader.segments[1:], 0
            self.look_after(client, number, reader)
            self.read_on(client, number, reader)

    # --- notifications ---

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        client = owner[0]
        if len(owner) == 3:
            passed = self.passes[client, owner[1]]
            if source == passed.next_hop:
                passed.temporary_queue.append(burst)
            return
        hold = self.holds[client]
        if hold.own is not None:
            limits = self.host.buffer.limits
            if limits is not None and len(hold.own) >= limits.notifications_max:
                self.host.dropped(client, burst, "overflow")
            else:
                hold.own.append(burst)
        else:
            self.host.pass_to(client, hold.queue, burst)

    # --- the client's own requests ---

    def owner_of(self, session: Session) -> Owner:
        return (session.client, self.holds[session.client].stay)

    # --- the rest ---

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        for client, hold in self.holds.items():
            yield client, hold.queue
            if hold.own:
                yield client, queue_of(hold.own)
        for (client, _), passed in self.passes.items():
            yield client, queue_of(passed.temporary_queue)
        for (client, _, _), segment in self.segments.items():
            yield client, queue_of(segment.bursts)


def _take(bursts: deque[Burst], want: int) -> tuple[Burst, ...]:
    """Take up to `want` notifications from the front, and about as many bytes as one message may have."""
    taken: list[Burst] = []
    room = EVENTS_BYTES
    while bursts and want > 0:
        first = bursts[0]
        burst = first.head(min(want, first.count))
        size = burst.size
        if size > room:
            fitting = burst.count * room // size
            if taken and not fitting:
                break
            burst = first.head(max(fitting, 1))
            size = burst.size
        bursts.popleft()
        if burst is not first:
            bursts.appendleft(first.tail(burst.count))
        taken.append(burst)
        want -= burst.count
        room -= size
    return tuple(taken)


def _is_counted(*counts: int) -> bool:
    """True if all are numbers of notifications."""
    return min(counts) >= 0 and max(counts) < 1 << 62


class MultiHopHandoffUnacknowledged(MultiHopHandoff):
    """Variant with two rules as the paper states them; section 4.3 leaves too much open to run it as it is.

    Only the old broker waits for its acknowledgement before it asks for the temporary queues (4.1), so those
    on the path may be delivered before they are complete. And notifications sent to the client count as
    delivered (the paper has no acknowledgements on the wireless link), though they may have been on the air
    when the client went away.
    """

    name = "multi_hop_handoff:unacknowledged"
    is_as_published = True
    summary = (
        "waits for no acknowledgement: loses messages in transit to the client, and late arrivals for a "
        "temporary queue"
    )

    __state__ = State("multi-hop-handoff-published")

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        super().on_depart(session, destination, {STREAM: self.holds[session.client].queue.sent})

    def on_deliver_tq(self, sender: str, message: DeliverTQ) -> None:
        passed = self.passes.get((message.client, message.number))
        if passed is None:
            super().on_deliver_tq(sender, message)
            return
        bursts = (*message.bursts, *passed.temporary_queue)
        passed.temporary_queue = []
        self.host.send(passed.next_hop, DeliverTQ(message.client, message.number, bursts))
        if passed.acknowledged:
            del self.passes[message.client, message.number]
        passed.delivered = True

    def try_deliver_tq(self, client: str, number: int, passed: Pass) -> None:
        if not passed.delivered:
            super().try_deliver_tq(client, number, passed)
            return
        self.give_up(client, passed.temporary_queue, "temporary queue already delivered")
        del self.passes[client, number]


register(MultiHopHandoff)
register(MultiHopHandoffUnacknowledged)
