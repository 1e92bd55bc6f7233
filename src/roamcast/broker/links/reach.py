"""Which brokers exist, the peer towards each, and how a new link joins two trees.

Every broker knows all others and the peer towards each. Peers tell each other
over the link itself which brokers they bring within reach, so no message of a
broker overtakes the news of it. A link that is down changes nothing: the brokers
behind it are still members, with their state. A link that is given up cuts them
off; they stay known until they join again or are forgotten on an operator's
order.

The overlay must never have a cycle, not even for a moment: a notification would go round forever. In a
handshake, both ends compare the brokers they reach; if they have one in common, the link is refused. Two new
links, made at once in different places, could still close a cycle that neither end can see. Hence a tree
joins others one at a time. Its broker with the lowest id is its coordinator. Of two trees that a new link
would join, the one with the higher coordinator asks it for permission, and the coordinator gives the next
permission only after the link has joined or failed. So at any moment every tree is about to join at most one
other tree, whose coordinator is lower, and joining never makes a coordinator higher. Links of this kind can
therefore never form a cycle. Of two links that race, the one whose permission comes second finds the other
end within reach, and is closed.

A new link waits while its coordinator cannot be reached. If the coordinator is
gone for good and forgotten, the next one hears from every member of its tree
which link it was about to join by, before it gives any permission itself.

The sessions of two trees that join stay where they are. Router.add_peer tells
each side the other's subscriptions, and settles as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Area, Message
from roamcast.state import State


class Join(Message, frozen=True):
    """Begins the link: the sender brings these brokers, including itself. Answered with a `Join`."""

    brokers: tuple[str, ...]
    guests: tuple[str, ...] = ()
    """Members of `brokers` that are of another organisation."""
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "overlay"


class BeginJoin(Message, frozen=True):
    """Asks the receiver to ask for permission: the sender's tree has a lower coordinator now."""

    coordinator: str
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "overlay"


class Reaches(Message, frozen=True):
    """Changes behind the sender: removed brokers stay known, forgotten ones do not."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    guests: tuple[str, ...] = ()
    """Members of the added brokers that are of another organisation."""
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "overlay"


class AskToJoin(Message, frozen=True):
    """Asks the coordinator whether `broker` may join its tree to another by the link to `peer`."""

    destination: str
    broker: str
    peer: str
    attempt: int
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "overlay"


class MayJoin(Message, frozen=True):
    destination: str
    peer: str
    attempt: int
    coordinator: str
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "overlay"


class JoinEnded(Message, frozen=True):
    """Tells the coordinator that the link joined, or that this attempt ended."""

    destination: str
    broker: str
    peer: str
    attempt: int
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "overlay"


class JoinsBegun(Message, frozen=True):
    """Tells a new coordinator the links by which the sender began to join (peer, attempt)."""

    destination: str
    broker: str
    begun: tuple[tuple[str, int], ...]
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "overlay"


Addressed = AskToJoin | MayJoin | JoinEnded | JoinsBegun
"""Messages that travel along the overlay to their destination."""

Phase = Literal["waits", "asks", "begun"]
"""State of a new link: the peer will begin; permission was asked for; our `Join` was sent."""

Question = tuple[str, str, int]
"""A request to join: the asking broker, the peer of the link, and the number of the attempt."""


class Joining(msgspec.Struct):
    """A link that does not carry messages yet."""

    __state__ = State("link-joining")

    phase: Phase
    coordinator: str
    """Coordinator of the tree behind the peer, as last reported; it can only have become lower."""
    attempt: int = 0
    asked: str = ""
    """Coordinator that was asked."""


class Outcome(msgspec.Struct):
    """Actions to perform, in this order."""

    __state__ = State("reach-outcome")

    sends: list[tuple[str, Message]] = []
    """Messages for the numbered lane of the links."""
    is_changed: bool = False
    """True if `peers` or `next_hops` have changed: then the broker must be told (`Configured`)."""
    joined: list[str] = []
    """Brokers that can be reached now and could not before."""
    closes: list[tuple[str, str]] = []
    """Links to be given up: (peer, reason)."""
    forgotten: list[str] = []
    """Brokers that are gone for good."""


class Reach:
    """One broker's knowledge of the overlay. Every call that changes it returns the consequences."""

    __state__ = State(
        "reach",
        saved=(
            "id",
            "_behind",
            "_cut_off",
            "_joining",
            "_attempts",
            "_questions",
            "_unheard",
            "_guest_peers",
            "_told_guests",
        ),
        derived=("_out", "_handlers", "_hops", "messages"),
    )

    def __init__(self, id: str) -> None:
        self.id = id
        self._behind: dict[str, dict[str, None]] = {}
        """Peer to the brokers behind it, including the peer."""
        self._cut_off: dict[str, None] = {}
        self._joining: dict[str, Joining] = {}
        self._attempts = 0
        self._questions: list[Question] = []
        """Requests to join, while this broker coordinates. The first one has permission."""
        self._unheard: dict[str, None] = {}
        """Brokers that have not reported the last coordinator's permissions yet; this broker permits nothing
        before."""
        self._guest_peers: dict[str, None] = {}
        """Peers of another organisation: they and the brokers behind them do not take part in this tree's
        decisions."""
        self._told_guests: dict[str, None] = {}
        """Brokers that other brokers of this organisation report as guests."""
        self._restore()

    def _restore(self) -> None:
        self._out = Outcome()
        self._hops: dict[str, str] | None = None
        """Cache of `next_hops`, made from `_behind`."""
        self._handlers: dict[type[Message], Callable[[str, Any], None]] = {
            Join: self._on_join,
            BeginJoin: self._on_begin_join,
            Reaches: self._on_reaches,
            AskToJoin: self._on_ask,
            MayJoin: self._on_may_join,
            JoinEnded: self._on_ended,
            JoinsBegun: self._on_begun,
        }
        self.messages = tuple(self._handlers)
        """Types of messages that `receive` handles."""

    def establish(self, behind: Mapping[str, Collection[str]], guests: Collection[str] = ()) -> None:
        """Set an overlay that exists already: these brokers are behind these peers."""
        self._told_guests = dict.fromkeys(guests)
        self._behind = {peer: dict.fromkeys(brokers) for peer, brokers in behind.items()}
        self._hops = None

    # --- queries ---

    @property
    def peers(self) -> list[str]:
        """Peers whose links carry messages."""
        return list(self._behind)

    @property
    def next_hops(self) -> dict[str, str]:
        """The peer towards every other broker that can be reached."""
        if self._hops is None:
            self._hops = {broker: peer for peer, brokers in self._behind.items() for broker in brokers}
        return self._hops

    @property
    def joined(self) -> Mapping[str, Collection[str]]:
        """Peers whose links carry messages, with the brokers behind each."""
        return self._behind

    def hop_of(self, broker: str) -> str | None:
        """Return the peer towards a broker; None for this one, and for any that cannot be reached."""
        return (self._hops or self.next_hops).get(broker)

    def count_behind(self, peer: str) -> int:
        return len(self._behind.get(peer, ()))

    @property
    def guests(self) -> list[str]:
        """Brokers of other organisations."""
        own = self._told_guests
        return [one for one, hop in self.next_hops.items() if hop in self._guest_peers or one in own]

    @property
    def cut_off(self) -> list[str]:
        """Members without a link to them, until they join again or are forgotten."""
        return list(self._cut_off)

    @property
    def members(self) -> list[str]:
        """Every broker known here."""
        return sorted([self.id, *self.next_hops, *self._cut_off])

    @property
    def coordinator(self) -> str:
        guests = dict.fromkeys(self.guests)
        return min([self.id, *(one for one in self.next_hops if one not in guests)])

    def unfinished(self) -> list[str]:
        """Links that have not joined yet, each with the reason."""
        waits_for = {"waits": "{peer} to begin", "asks": "the permission of {asked}", "begun": "the answer"}
        return [
            f"the link to {peer} waits for " + waits_for[one.phase].format(peer=peer, asked=one.asked)
            for peer, one in self._joining.items()
        ]

    # --- the handshake ---

    def offer(self, peer: str) -> tuple[str, ...]:
        """Return the brokers that the peer reaches, or would reach, through this one, for the handshake."""
        others = [broker for broker, hop in self.next_hops.items() if hop != peer]
        return tuple(sorted([self.id, *others]))

    def objection(self, peer: str, offered: Collection[str]) -> str:
        """Return why a link unknown to one of the ends must not be made; "" if it may be."""
        hops = self.next_hops
        what = f"the link between {self.id} and {peer} would close a cycle"
        for broker in (peer, *offered):
            if hops.get(broker, peer) != peer:
                return f"{what}: {self.id} reaches {broker} through {hops[broker]} already"
        return f"{what}: {peer} reaches {self.id} already" if self.id in offered else ""

    def set_guests(self, peers: Collection[str]) -> Outcome:
        """Set the peers of other organisations; brokers of this organisation are told."""
        self._out = Outcome()
        before = dict.fromkeys(self.guests)
        self._guest_peers = dict.fromkeys(peers)
        changed = tuple(one for one in self.next_hops if (one in before) != (one in self.guests))
        if changed:
            self._out.is_changed = True
            guests = dict.fromkeys(self.guests)
            for peer in self._listening():
                behind = self._behind.get(peer, {})
                told = tuple(one for one in changed if one not in behind)
                if told and peer not in self._guest_peers:
                    is_guest = tuple(one for one in told if one in guests)
                    self._out.sends.append((peer, Reaches(told, guests=is_guest)))
        return self._out

    def _offered_guests(self, offered: Collection[str]) -> tuple[str, ...]:
        guests = dict.fromkeys(self.guests)
        return tuple(one for one in offered if one in guests)

    def join(self, peer: str, offered: Collection[str]) -> Outcome:
        """Join after a handshake without objections. Does nothing for a link that has joined.

        `offered` are the brokers of the peer's organisation. Two organisations join without permission, so
        that neither waits for the other's decisions. If such links close a cycle, one of them is given up
        when the cycle is noticed.
        """
        self._out = Outcome()
        joining = self._joining.get(peer)
        if peer in self._guest_peers:
            if peer not in self._behind and joining is None:
                self._joining[peer] = Joining("begun", "")
                self._out.sends.append((peer, self._join_of(peer)))
            return self._out
        if peer not in self._behind and (joining is None or joining.phase != "begun"):
            if joining is None:
                joining = self._joining[peer] = Joining("waits", "")
            joining.coordinator = min(offered, default=peer)
            self._review()
        return self._out

    def _join_of(self, peer: str) -> Join:
        offered = self.offer(peer)
        return Join(offered, self._offered_guests(offered))

    def abandon(self, peer: str, why: str) -> Outcome:
        """Give up a link that has not joined, because one of the ends objects."""
        self._out = Outcome()
        self._abandon(peer, why)
        return self._out

    def _abandon(self, peer: str, why: str) -> None:
        joining = self._joining.pop(peer, None)
        if joining is not None:
            if peer not in self._guest_peers:
                self._end(peer, joining)
            self._out.closes.append((peer, why))

    # --- changes of what can be reached ---

    def drop(self, peer: str, why: str) -> Outcome:
        """Give up a link for good; the brokers behind it are cut off."""
        self._out = Outcome()
        self._abandon(peer, why)
        self._give_up(peer, why)
        return self._out

    def _give_up(self, peer: str, why: str) -> None:
        if peer in self._behind:
            self._out.closes.append((peer, why))
            self._change({**self._behind, peer: {}})

    def forget(self, broker: str) -> Outcome:
        """Forget a broker that is gone for good, and tell all others."""
        self._out = Outcome()
        if broker != self.id:
            self._forget(None, (broker,))
        return self._out

    def receive(self, peer: str, message: Message) -> Outcome:
        """Handle a message of one of the types in `messages` from the peer."""
        self._out = Outcome()
        if isinstance(message, Addressed) and message.destination != self.id:
            self._send(message)
        else:
            self._handlers[type(message)](peer, message)
        return self._out

    def _on_reaches(self, peer: str, message: Reaches) -> None:
        if peer not in self._behind:
            return
        objection = self.objection(peer, message.added)
        if objection:  # No way is known that leads here; but a cycle is worse than a missing link.
            self._give_up(peer, objection)
            return
        is_other = self._note_guests(peer, message.added, message.guests)
        behind = {**self._behind[peer], **dict.fromkeys(message.added)}
        for broker in message.removed:
            behind.pop(broker, None)
        self._change({**self._behind, peer: behind})
        if is_other and not self._out.is_changed:
            self._pass_on_guests(peer, message)
        if message.forgotten:
            self._forget(peer, message.forgotten)

    def _note_guests(self, peer: str, added: Collection[str], guests: Collection[str]) -> bool:
        """Note guests reported by a peer of this organisation; returns whether any is new."""
        before = self._told_guests
        if peer not in self._guest_peers:
            left = {one: None for one in before if one not in added}
            self._told_guests = {**left, **{one: None for one in guests if one in added}}
        return self._told_guests != before

    def _pass_on_guests(self, source: str, message: Reaches) -> None:
        self._out.is_changed = True
        told = Reaches(message.added, guests=message.guests)
        self._out.sends += [
            (peer, told) for peer in self._listening() if peer != source and peer not in self._guest_peers
        ]

    def _forget(self, source: str | None, forgotten: tuple[str, ...]) -> None:
        """Forget brokers, and pass that on, because others may be about to join a broker unknown here."""
        self._out.forgotten += forgotten
        for broker in forgotten:
            self._abandon(broker, f"{broker} was forgotten")
            if broker in self._behind:
                self._out.closes.append((broker, f"{broker} was forgotten"))
        others = [peer for peer in self._listening() if peer != source and peer not in forgotten]
        self._out.sends += [(peer, Reaches(forgotten=forgotten)) for peer in others]
        self._change(
            {
                peer: {} if peer in forgotten else {one: None for one in brokers if one not in forgotten}
                for peer, brokers in self._behind.items()
            }
        )
        for broker in forgotten:
            self._cut_off.pop(broker, None)

    def _listening(self) -> list[str]:
        """Return the peers that have been told which brokers this one reaches."""
        return [*self._behind, *(peer for peer, one in self._joining.items() if one.phase == "begun")]

    def _change(self, behind: dict[str, dict[str, None]]) -> None:
        """Set the brokers behind each peer; tell each peer what is new to it."""
        coordinator, before = self.coordinator, self.next_hops
        told = {peer: self.offer(peer) for peer in self._listening()}
        self._behind = {peer: brokers for peer, brokers in behind.items() if brokers}
        self._hops = None
        after = self.next_hops
        self._told_guests = {one: None for one in self._told_guests if one in after}
        if after == before:
            return
        self._out.is_changed = True
        self._out.joined += [broker for broker in after if broker not in before]
        for broker in after:
            self._cut_off.pop(broker, None)
        lost = [broker for broker in before if broker not in after]
        self._cut_off.update(dict.fromkeys(lost))
        for joining in self._joining.values():
            if lost and joining.phase == "asks":
                joining.phase = "waits"  # The request may be lost too: `_review` asks again.
        for peer in self._listening():
            was, now = dict.fromkeys(told.get(peer, ())), dict.fromkeys(self.offer(peer))
            added = tuple(broker for broker in now if broker not in was)
            removed = tuple(broker for broker in was if broker not in now)
            if peer in told and (added or removed):
                self._out.sends.append((peer, Reaches(added, removed, (), self._offered_guests(added))))
        self._coordinate(coordinator)
        self._review()

    # --- a new link ---

    def _review(self) -> None:
        """Review links that have not begun to join after a change."""
        for peer, joining in list(self._joining.items()):
            if joining.phase == "begun":
                continue
            objection = self.objection(peer, (peer,))
            if objection:
                self._abandon(peer, objection)
            elif self.coordinator > joining.coordinator:
                if joining.phase == "waits":
                    self._ask(peer, joining)
            elif joining.phase == "asks":
                self._end(peer, joining)
                joining.phase = "waits"
                self._out.sends.append((peer, BeginJoin(self.coordinator)))

    def _ask(self, peer: str, joining: Joining) -> None:
        self._attempts += 1
        joining.phase, joining.asked, joining.attempt = "asks", self.coordinator, self._attempts
        self._send(AskToJoin(joining.asked, self.id, peer, joining.attempt))

    def _on_begin_join(self, peer: str, message: BeginJoin) -> None:
        joining = self._joining.get(peer)
        if joining is None or joining.phase == "begun":
            return
        joining.coordinator = message.coordinator
        if joining.phase == "waits" and self.coordinator < joining.coordinator:
            # Both trees have changed, so the peer has to ask now.
            self._out.sends.append((peer, BeginJoin(self.coordinator)))
        self._review()

    def _on_may_join(self, peer: str, message: MayJoin) -> None:
        joining = self._joining.get(message.peer)
        if joining is None or joining.attempt != message.attempt or joining.phase == "waits":
            # The request was withdrawn, but the withdrawal has not arrived yet.
            self._send(JoinEnded(message.coordinator, self.id, message.peer, message.attempt))
        elif joining.phase == "asks":
            joining.phase, joining.asked = "begun", message.coordinator
            self._out.sends.append((message.peer, self._join_of(message.peer)))

    def _on_join(self, peer: str, message: Join) -> None:
        joining = self._joining.get(peer)
        if joining is None:
            return
        objection = self.objection(peer, message.brokers)
        if objection:
            self._abandon(peer, objection)
            return
        if joining.phase != "begun":
            self._out.sends.append((peer, self._join_of(peer)))
        del self._joining[peer]
        self._note_guests(peer, message.brokers, message.guests)
        self._change({**self._behind, peer: dict.fromkeys(message.brokers)})
        if peer not in self._guest_peers:
            self._end(peer, joining)

    def _end(self, peer: str, joining: Joining) -> None:
        """Tell the coordinator that it need not wait for this link."""
        if joining.phase != "waits":
            self._send(JoinEnded(joining.asked, self.id, peer, joining.attempt))

    # --- at the coordinator ---

    def _send(self, message: Addressed) -> None:
        """Send along the overlay. A message to an unreachable broker is dropped: it cannot answer."""
        hop = self.next_hops.get(message.destination)
        if message.destination == self.id:
            self._handlers[type(message)](self.id, message)
        elif hop is not None:
            self._out.sends.append((hop, message))

    def _on_ask(self, peer: str, message: AskToJoin) -> None:
        if self.coordinator != self.id:
            self._send(msgspec.structs.replace(message, destination=self.coordinator))
            return
        self._questions.append((message.broker, message.peer, message.attempt))
        if len(self._questions) == 1:
            self._permit()

    def _on_ended(self, peer: str, message: JoinEnded) -> None:
        question = (message.broker, message.peer, message.attempt)
        is_first = question in self._questions[:1]
        self._questions = [one for one in self._questions if one != question]
        if is_first:
            self._permit()

    def _permit(self) -> None:
        """Give permission to the first request; if another broker coordinates by now, that one decides."""
        if self.coordinator != self.id:
            questions, self._questions = self._questions, []
            for broker, peer, attempt in questions:
                self._send(AskToJoin(self.coordinator, broker, peer, attempt))
        elif self._questions and not self._unheard:
            broker, peer, attempt = self._questions[0]
            self._send(MayJoin(broker, peer, attempt, self.id))

    def _coordinate(self, before: str) -> None:
        """Drop requests of brokers that are gone; handle the loss of the coordinator itself."""
        reachable = self.next_hops
        first = self._questions[:1]
        self._questions = [one for one in self._questions if one[0] == self.id or one[0] in reachable]
        was_waiting = bool(self._unheard)
        self._unheard = {broker: None for broker in self._unheard if broker in reachable}
        if self.coordinator > before:
            if self.coordinator == self.id:
                guests = dict.fromkeys(self.guests)
                self._unheard = {one: None for one in reachable if one not in guests}
            begun = tuple(
                (peer, one.attempt)
                for peer, one in self._joining.items()
                if one.phase == "begun" and peer not in self._guest_peers
            )
            for peer, _ in begun:
                self._joining[peer].asked = self.coordinator
            self._send(JoinsBegun(self.coordinator, self.id, begun))
        elif self._questions[:1] != first or (was_waiting and not self._unheard):
            self._permit()

    def _on_begun(self, peer: str, message: JoinsBegun) -> None:
        """Note links that have begun to join; the brokers of all others ask this broker again."""
        if self.coordinator != self.id:
            self._send(msgspec.structs.replace(message, destination=self.coordinator))
            return
        begun = [(message.broker, peer, attempt) for peer, attempt in message.begun]
        self._questions = [*begun, *(one for one in self._questions if one not in begun)]
        self._unheard.pop(message.broker, None)
        self._permit()
