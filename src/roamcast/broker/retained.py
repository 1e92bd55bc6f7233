"""Retained messages: replicated to every broker; the last writer wins.

Writers are ordered by a hybrid of clock and counter, then by the id of their broker, so all brokers make the
same choice. A deletion leaves a tombstone until no older message can be under way.

Work that grows with the number of messages is done in slices, so that no other client has to wait: a new
subscription starts a recall with a cursor, and each peer has a list of topics still to be sent. The first
slice is taken at once, and the driver asks for the next ones (`Tick`). A recall skips topics that were
written meanwhile, because the client gets the new message as an ordinary delivery. A peer that cannot be
reached, or takes too little, is told the last value of each topic and none of those in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from roamcast.broker.topic_order import Found, TopicOrder, key_of
from roamcast.filters.expression import And, Compare, Expression, Matches, names_of
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mqtt.server.delivering import is_expired
from roamcast.mqtt.server.marks import EXPIRY, QOS, RETAIN, RETAINED, TOPIC
from roamcast.mqtt.server.outgoing import identified
from roamcast.mqtt.server.sessions import Recall, client_of
from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Area, Burst, Command, Message, encode_attributes
from roamcast.protocol.sizes import text_bytes
from roamcast.routing.router import Owner
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore

TOMBSTONE_S = 24 * 3600.0
SLICE_VISITS = 256
"""Topics examined per slice: about 3 ms of work."""
CLIENTS_PER_SLICE = 4
SLICE_BYTES = 256 * 1024
"""Bytes sent after which a slice ends."""
MESSAGE_BYTES = 600
"""Memory of a retained message without its topic (held twice), body, properties and publisher."""
EVERYTHING = ("#",)
ABOUT_TOPIC = frozenset({TOPIC})


class Retain(Message, frozen=True, gc=False):
    """The retained message of a topic; without a body, its deletion."""

    topic: str
    time: float
    count: int
    """Number that orders writes at the same time, and keeps later ones later when a clock steps back."""
    broker: str
    published_at: float
    marks: bytes
    body: bytes | None
    publisher: str = ""
    """The publishing client: its subscription may exclude its own messages."""
    cause: ClassVar[Cause] = "publish"
    area: ClassVar[Area] = "data"

    @property
    def stamp(self) -> tuple[float, int, str]:
        return self.time, self.count, self.broker


class KeepThis(Command, frozen=True):
    """Retain a message published by a client of this broker."""

    topic: str
    marks: bytes
    body: bytes
    publisher: str = ""


class BeginRecall(Command, frozen=True):
    """Begin a recall for new subscriptions of a client of this broker."""

    client: str
    recalls: tuple[Recall, ...]


class EndRecall(Command, frozen=True):
    """End the recall for a subscription that a client has withdrawn."""

    client: str
    name: str


class TellRetained(Command, frozen=True):
    """Send all retained messages over new links after a change of the overlay."""

    new: tuple[str, ...]
    peers: tuple[str, ...]
    """All peers."""


class PeerListens(Command, frozen=True):
    """Whether a peer accepts messages: its link is up, and not too much is buffered for it."""

    peer: str
    listens: bool


class GoOn(Command, frozen=True):
    """Take the next slice of these recalls, and of the topics that these peers lack."""

    clients: tuple[str, ...]
    peers: tuple[str, ...]


class RetainedMessages:
    __state__ = State(
        "retained-messages",
        saved=(
            "refused", "_broker", "_messages_max", "_bytes_max", "_kept", "_clock", "_recalled", "_changes",
            "recalls", "_changed", "untold", "_deaf",
        ),
        derived=("_bytes", "_count", "_tombstones", "_topics"),
    )  # fmt: skip

    def __init__(self, broker: BrokerCore) -> None:
        self.refused = 0
        """Number of messages refused for lack of room."""
        self._broker = broker
        self._messages_max = 0
        self._bytes_max = 0
        self._kept: dict[str, Retain] = {}
        """Messages and tombstones by topic, the last written at the end."""
        self._clock = (0.0, 0)
        self._recalled = 0
        self._changes = 0
        self.recalls: dict[str, list[Recall]] = {}
        """Recalls by client, in the order of its subscriptions; the first one is under way."""
        self._changed: dict[str, int] = {}
        """Topics written while recalls are under way, with the number of the change."""
        self.untold: dict[str, dict[str, None]] = {}
        """Peer to the topics whose last value it has not been sent."""
        self._deaf: dict[str, None] = {}
        """Peers that are sent nothing for now."""
        self._restore()

    def register_handlers(self) -> None:
        for kind, handler in (
            (KeepThis, self.on_keep_this),
            (BeginRecall, self.on_begin_recall),
            (EndRecall, self.on_end_recall),
            (TellRetained, self.on_tell),
            (PeerListens, self.on_peer_listens),
            (GoOn, self.on_go_on),
        ):
            self._broker.obey(kind, handler)
        self._broker.serve(Retain, self.on_retain)

    def _restore(self) -> None:
        self._count = self._bytes = 0
        """Number of messages, and the memory of messages and tombstones."""
        self._topics = TopicOrder()
        """Topics of messages, without tombstones."""
        self._tombstones: dict[str, None] = {}
        """Tombstones, the oldest first."""
        for one in self._kept.values():
            self._enter(one)

    def configure(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return self._count

    def counters(self) -> tuple[int, ...]:
        return self._count, self._bytes, self._changes

    # --- writing ---

    def on_keep_this(self, command: KeepThis) -> None:
        broker = self._broker
        time, count = self._clock
        self._clock = (broker.now, 0) if broker.now > time else (time, count + 1)
        stamp, body = (*self._clock, broker.id), command.body or None
        kept = Retain(command.topic, *stamp, broker.now, command.marks, body, command.publisher)
        self.on_retain(broker.id, kept)

    def on_retain(self, sender: str, message: Retain) -> None:
        """Keep the message if it is newer, and send it to all other peers."""
        topic = message.topic
        known = self._kept.get(topic)
        if known is not None and known.stamp >= message.stamp:
            return
        self._clock = max(self._clock, (message.time, message.count))
        self._changes += 1
        if known is not None:
            del self._kept[topic]
            self._leave(known)
        kept = message
        if message.body is not None and not self._make_room(_size(message)):
            self.refused += 1
            kept = replace(message, body=None)  # The former message is no longer valid.
        self._kept[topic] = kept
        self._enter(kept)
        self._bury()
        if self.recalls:
            self._changed[topic] = self._changes
        for peer in self._broker.peers:
            if peer != sender:
                self._tell(peer, message)

    def _enter(self, message: Retain) -> None:
        self._bytes += _size(message)
        if message.body is not None:
            self._count += 1
            self._topics.add(message.topic)
        else:
            self._tombstones[message.topic] = None

    def _leave(self, message: Retain) -> None:
        self._bytes -= _size(message)
        if message.body is not None:
            self._count -= 1
            self._topics.discard(message.topic)
        else:
            del self._tombstones[message.topic]

    def _make_room(self, size: int) -> bool:
        """Make room for a message by removing tombstones; returns whether it fits."""
        while self._bytes + size > self._bytes_max and self._tombstones:
            self._forget(next(iter(self._tombstones)))
        return self._count < self._messages_max and self._bytes + size <= self._bytes_max

    def _bury(self) -> None:
        """Forget expired tombstones, and the oldest ones if there are too many.

        While a peer has not heard everything, their number is not limited, only their memory: the peer may
        have heard of none of them.
        """
        old = self._broker.now - TOMBSTONE_S
        while self._tombstones:
            oldest = next(iter(self._tombstones))
            is_over = self._bytes > self._bytes_max or (
                len(self._tombstones) > self._messages_max and not self.untold
            )
            if not is_over and self._kept[oldest].time >= old:
                return
            self._forget(oldest)

    def _forget(self, topic: str) -> None:
        self._leave(self._kept.pop(topic))

    # --- telling peers ---

    def _tell(self, peer: str, message: Retain) -> None:
        if peer in self._deaf or peer in self.untold:
            self.untold.setdefault(peer, {})[message.topic] = None
        else:
            self._broker.send(peer, message)

    def on_tell(self, command: TellRetained) -> None:
        for gone in [peer for peer in (*self.untold, *self._deaf) if peer not in command.peers]:
            self.untold.pop(gone, None)
            self._deaf.pop(gone, None)
        for peer in command.new if self._kept else ():
            self.untold[peer] = dict.fromkeys(self._kept)
            self._tell_more(peer)

    def on_peer_listens(self, command: PeerListens) -> None:
        if not command.listens:
            self._deaf[command.peer] = None
        elif self._deaf.pop(command.peer, self) is None:
            self._tell_more(command.peer)

    def _tell_more(self, peer: str) -> None:
        """Send a peer some of the topics it lacks."""
        untold = self.untold.get(peer)
        if untold is None or peer in self._deaf:
            return
        left = SLICE_BYTES
        for topic in list(islice(untold, SLICE_VISITS)):
            del untold[topic]
            message = self._kept.get(topic)
            if message is not None:
                self._broker.send(peer, message)
                left -= _size(message)
                if left < 0:
                    break
        if not untold:
            del self.untold[peer]

    # --- recalling ---

    def on_begin_recall(self, command: BeginRecall) -> None:
        waiting = self.recalls.get(command.client, [])
        is_first = not waiting
        # Of recalls not begun, one per subscription is enough.
        named = {one.name for one in command.recalls}
        waiting = [one for place, one in enumerate(waiting) if not place or one.name not in named]
        waiting += [replace(one, since=self._changes, clock=self._clock) for one in command.recalls]
        self.recalls[command.client] = waiting
        if is_first:
            self._recall_more(command.client)

    def on_end_recall(self, command: EndRecall) -> None:
        waiting = self.recalls.get(command.client, [])
        waiting[:] = [one for one in waiting if one.name != command.name]
        if not waiting:
            self.take_recalls(command.client)

    def take_recalls(self, client: str) -> list[Recall]:
        """Remove and return the remaining recalls of a client whose session departs or ends."""
        taken = self.recalls.pop(client, [])
        if not self.recalls:
            self._changed.clear()
        return taken

    def resume_recalls(self, client: str, recalls: Sequence[Recall]) -> None:
        """Resume recalls that another broker, or another session of the client, had begun."""
        if recalls:
            since = self._changes
            begun = [replace(one, since=since) for one in recalls]
            self.recalls[client] = [*self.recalls.get(client, ()), *begun]

    def due(self, is_slow: Callable[[int], bool], is_full: Callable[[str], bool]) -> GoOn | None:
        """Return the recalls and peers that continue; None if none accepts more for now.

        The driver knows the slow connections, and the peers with enough under way.
        """
        ready = (client for client in self.recalls if self._may_recall(client))
        clients = (one for one in ready if not is_slow(self._broker.attachments[one].connection))
        peers = (peer for peer in self.untold if peer not in self._deaf and not is_full(peer))
        command = GoOn(tuple(islice(clients, CLIENTS_PER_SLICE)), tuple(islice(peers, 1)))
        return command if command.clients or command.peers else None

    def on_go_on(self, command: GoOn) -> None:
        for client in command.clients:
            self._recall_more(client)
        for peer in command.peers:
            self._tell_more(peer)

    def _may_recall(self, client: str) -> bool:
        """True if the client is here and has received what was sent, so its queue does not grow."""
        attachment = self._broker.attachments.get(client)
        if attachment is None or not attachment.connection or attachment.queue is None:
            return False
        return not attachment.queue.waiting and self._broker.owner_of(client) is not None

    def _recall_more(self, client: str) -> None:
        waiting, visits, room = self.recalls.get(client), SLICE_VISITS, SLICE_BYTES
        while waiting and visits > 0 and room > 0 and self._may_recall(client):
            one, is_over, visits, room = self._recall_slice(client, waiting[0], visits, room)
            waiting[:1] = () if is_over else (one,)
        if waiting:
            # Round robin: the client whose turn is over comes last.
            self.recalls[client] = self.recalls.pop(client)
        else:
            self.take_recalls(client)

    def _recall_slice(
        self, client: str, recall: Recall, visits: int, room: int
    ) -> tuple[Recall, bool, int, int]:
        """Send a slice of a recall; returns the rest, whether it is finished, and the remaining size of the
        slice."""
        filter = self._broker.as_it_is(parse(recall.filter), client)
        owner = self._broker.owner_of(client)
        assert owner is not None
        topics, onward, visits = self._candidates(filter.expression, recall.onward, visits)
        tests = None if isinstance(filter.expression, Matches) else filter
        for place, topic in enumerate(topics):
            one = self._kept[topic]
            if self._is_for(client, recall, one):
                self._send(owner, recall, one, tests)
                room -= _size(one)
                if room < 0 and place + 1 < len(topics):
                    onward = key_of(topics[place + 1])
                    break
        return replace(recall, onward=onward or ""), onward is None, visits, room

    def _candidates(self, expression: Expression, onward: str, visits: int) -> Found:
        """Return some topics that may match."""
        for part in expression.children if isinstance(expression, And) else (expression,):
            if isinstance(part, Compare) and part.name == TOPIC and part.operator == "=":
                known = self._kept.get(str(part.value))
                is_there = known is not None and known.body is not None
                return Found([str(part.value)] if is_there else [], None, visits - 1)
            if isinstance(part, Matches) and part.name == TOPIC and not part.negative:
                return self._topics.search(part.pattern.levels, onward, visits)
        return self._topics.search(EVERYTHING, onward, visits)

    def _is_for(self, client: str, recall: Recall, message: Retain) -> bool:
        """False for messages that the client published and excludes, or receives without a recall."""
        if recall.no_local and message.publisher == client_of(client):
            return False
        if (message.time, message.count) > recall.clock:
            return False
        return not self._changed or self._changed.get(message.topic, 0) <= recall.since

    def _send(self, owner: Owner, recall: Recall, message: Retain, tests: Filter | None) -> None:
        broker, topic, marks = self._broker, message.topic, message.marks
        assert message.body is not None
        self._recalled += 1
        named = identified(recall.identifier) if recall.identifier is not None else b""
        burst = Burst(
            f"$retained/{broker.id}", 0, self._recalled, encode_attributes({TOPIC: topic}),
            message.published_at, (message.body,), 1, _marks(marks[0], recall.qos) + marks[1:] + named,
        )  # fmt: skip
        if marks[0] & EXPIRY and is_expired(burst, broker.now):
            return
        if tests is not None:
            wanted = {TOPIC: topic}
            if not names_of(tests.expression) <= ABOUT_TOPIC and broker.front is not None:
                wanted = dict(broker.front.contents(burst)[0])  # type: ignore[arg-type]
            if not tests.matches(wanted):
                return
        broker.protocol.on_notification(owner, "", burst)


def _size(message: Retain) -> int:
    """Return the memory of a message, or of its tombstone."""
    held = 2 * text_bytes(message.topic) + len(message.marks) + text_bytes(message.publisher)
    return MESSAGE_BYTES + held + len(message.body or b"")


def _marks(published: int, qos_max: int) -> bytes:
    """Return the flags for sending a retained message, from those of its publish."""
    return bytes((published & ~(RETAIN | QOS) | min(published & QOS, qos_max) | RETAINED,))
