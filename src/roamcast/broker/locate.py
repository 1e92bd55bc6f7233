"""Finding the holder of a client's session, and moving the session to where the client is.

A client has one session, and one broker holds it. An attach asks the holder for it: the broker that the
client names as its last or that the directory knows, or, if that is missing or outdated, all brokers over the
tree. Only the holder decides, so races between two attaches are decided in one place, and gives the session
the next attach number. If nobody holds one, the asking broker makes it; of several brokers that ask everyone
at once, the one with the lowest id makes it, and the others ask that broker.

A former holder remembers where the session went until its arrival is confirmed. That is long enough: messages
do not overtake each other on a link, so a question that passed the new holder before the session arrived
there reaches the former holder before the confirmation does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.broker.session import ClientHere, Departed, Event, Search
from roamcast.protocol.messages import (
    NOT_THE_OWNER,
    AttachRefused,
    AttachRequest,
    Grant,
    GrantReceived,
    GrantSought,
    Hello,
    HolderUnknown,
    Locate,
    Located,
    Message,
    PeersExpected,
    TakenBack,
)
from roamcast.protocol.owners import vouches
from roamcast.protocol.session import Session
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore

Key = tuple[str, str, int, int]
"""A question on its way: client, asking broker, number of the attach there, and round of asking."""


DETOURS_MAX = 3
"""How often a request is forwarded along trails before everyone is asked."""


def _ask_all(fields: dict[str, Any]) -> None:
    fields |= {"may_leave_out": False, "told": 0, "left_out": {}, "is_brief": False, "may_hold": {}}


class Gathering:
    """Answers to a question, on their way back to where it came from."""

    __slots__ = (
        "asker", "claim", "incarnation", "is_brief", "left_out", "may_hold", "may_leave_out", "request",
        "told", "waiting",
    )  # fmt: skip

    __state__ = State("gathering", 2, lifts={1: _ask_all})

    def __init__(
        self,
        asker: str | None,
        peers: Iterable[str],
        question: Locate,
        incarnation: int,
        claim: str = "",
        may_hold: Iterable[str] = (),
    ) -> None:
        self.asker = asker
        self.request = question.request
        self.waiting = dict.fromkeys(peers)
        """Peers that have not answered."""
        self.claim = claim
        """Lowest broker so far that also asks everyone."""
        self.incarnation = incarnation
        """Minimum incarnation of a new session of the client."""
        self.may_leave_out, self.told = question.may_leave_out, question.told
        self.left_out: dict[str, None] = {}
        """Brokers left out because they cannot be asked and need not be."""
        self.is_brief = False
        """True if a broker left out may hold a session that ends with its client's connection."""
        self.may_hold = dict.fromkeys(may_hold)
        """Brokers that may hold the session, according to the answers so far."""

    @property
    def is_known_away(self) -> bool:
        """True if a broker that was left out may hold the session, according to an answer."""
        return any(broker in self.may_hold for broker in self.left_out)

    def leave_out(self, brokers: Iterable[str], is_brief: bool) -> None:
        self.left_out |= dict.fromkeys(brokers)
        self.is_brief = self.is_brief or is_brief


class Locator:
    __state__ = State(
        "locator",
        saved=("_broker", "_clients", "_gathering", "_rounds", "unmet", "is_complete"),
        derived=("handlers", "_own"),
    )

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._clients = broker.clients
        self._gathering: dict[Key, Gathering] = {}
        self._rounds = 0
        """How often this broker has asked everyone."""
        self.unmet: dict[str, None] = {}
        """Configured peers that were never met. They may hold the session, so questions wait for them."""
        self.is_complete = False
        """True once no peer was unmet: all had been met, or none was configured."""
        self._restore()

    def _restore(self) -> None:
        self._own = {key[0]: key for key, one in self._gathering.items() if one.asker is None}
        """This broker's last question for each client: thousands may be under way."""
        self.handlers: dict[type[Message], Callable[[str, Message], None]] = {
            AttachRequest: self.on_request,  # type: ignore[dict-item]
            HolderUnknown: self.on_holder_unknown,  # type: ignore[dict-item]
            Locate: self.on_locate,  # type: ignore[dict-item]
            Located: self.on_located,  # type: ignore[dict-item]
            Grant: self.on_grant,  # type: ignore[dict-item]
            GrantReceived: self.on_grant_received,  # type: ignore[dict-item]
            AttachRefused: self.on_refused,  # type: ignore[dict-item]
        }

    def unfinished(self) -> dict[str, object]:
        return {"questions on their way": self._gathering}

    # --- at the broker where the client is ---

    def ask(
        self, here: ClientHere, connection: int, hello: Hello, received: Mapping[str, int] | None = None
    ) -> None:
        """Fetch the session for a client that has attached; `received` overrides that of `hello`."""
        broker = self._broker
        had = hello.received if received is None else dict(received)
        here.request = AttachRequest(hello.client, broker.id, connection, hello.moves, had, owner=hello.owner)
        if here.departed is not None:
            here.on(Event.FOLLOWED)
            broker.send(here.departed.destination, here.request)
            return
        trail = broker.protocol.trail_of(hello.client) if broker.protocol.follows_routes else ""
        client = hello.client
        asked = trail or hello.last_broker or broker.protocol.holder_of(client)
        asked = asked or broker.directory.holder_of(client)
        if asked and asked != broker.id:
            here.on(Event.ASKED_ONE)
            here.asked = asked
            broker.send(asked, here.request)
        else:
            self.ask_everyone(here)

    def fetch_for_stand_in(self, client: str) -> None:
        """Fetch a session that has been found elsewhere, though its client is not here: what a stand-in has
        promised belongs to it."""
        front = self._broker.front
        owner = front.stand_in_of(client) if front is not None else None
        if owner is not None:
            here = self._clients.of(client)
            if here.session is None and here.search is Search.IDLE and here.attachment is None:
                self.ask(here, 0, Hello(client, owner=owner))

    def ask_everyone(self, here: ClientHere) -> None:
        request = here.request
        assert request is not None
        here.on(Event.ASKED_EVERYONE)
        here.asked = here.rival = ""
        # Answers to an earlier round may be outdated.
        if here.client in self._own:
            self._forget(self._own[here.client])
        self._broker.directory.changed(here.client)
        if self._broker.peers or self.unmet:
            self._spread_anew(request, may_leave_out=True)
        else:
            self._rounds += 1
            self._make(request, self._broker.next_incarnation)

    def _spread_anew(self, request: AttachRequest, may_leave_out: bool) -> None:
        self._rounds += 1
        question = Locate(request, self._rounds, may_leave_out, self._broker.directory.told)
        self._spread(question, None, "")

    def _spread(self, question: Locate, sender: str | None, claim: str) -> None:
        """Ask every peer except the sender, and gather their answers."""
        broker, request = self._broker, question.request
        key = (request.client, request.broker, request.connection, question.round)
        others = [peer for peer in broker.peers if peer != sender]
        known = [one for one in broker.directory.may_hold(request.client) if one != request.broker]
        gathering = Gathering(sender, (*others, *self.unmet), question, broker.next_incarnation, claim, known)
        self._gathering[key] = gathering
        if sender is None:
            self._own[request.client] = key
        for peer in others:
            if not self._leave_out(gathering, peer):
                broker.send(peer, question)
        if not gathering.waiting:
            self._answer(key)

    def _forget(self, key: Key) -> None:
        """Forget a question that is answered or obsolete."""
        self._gathering.pop(key, None)
        if self._own.get(key[0]) == key:
            del self._own[key[0]]

    # --- peers whose links are down ---

    def _leave_out(self, gathering: Gathering, peer: str) -> bool:
        """Skip a peer that cannot be asked if no broker behind it may hold the session; returns whether
        skipped."""
        directory, client = self._broker.directory, gathering.request.client
        left_out = directory.left_out(client, peer) if gathering.may_leave_out else ()
        if left_out:
            gathering.leave_out(left_out, directory.is_brief(client, left_out))
            del gathering.waiting[peer]
        return bool(left_out)

    def leave_out(self, peer: str) -> None:
        """Stop waiting for a peer whose link is down, where that is safe."""
        # Another broker than the one that was asked alone may hold the session by now.
        for here in self._clients.here.awake() if self._broker.front is not None else ():
            if here.search is Search.ASKS_ONE and self._broker.hop_of(here.asked) == peer:
                self.ask_everyone(here)
        for key, gathering in list(self._gathering.items()):
            is_left_out = peer in gathering.waiting and self._leave_out(gathering, peer)
            if is_left_out and not gathering.waiting and self._gathering.get(key) is gathering:
                self._answer(key)

    # --- peers that were never met ---

    def on_peers_expected(self, command: PeersExpected) -> None:
        """Stop waiting for peers that are not in the command."""
        unmet = dict.fromkeys(command.peers)
        given_up = [peer for peer in self.unmet if peer not in unmet]
        self.unmet = unmet
        self.is_complete = self.is_complete or not unmet
        if given_up:
            self._wait_no_more(given_up)

    def met(self, peers: Iterable[str]) -> None:
        """Ask peers whose links have come up the questions that wait for them."""
        for peer in [peer for peer in peers if peer in self.unmet]:
            del self.unmet[peer]
            self.is_complete = self.is_complete or not self.unmet
            for key, gathering in self._gathering.items():
                if peer in gathering.waiting:
                    question = Locate(gathering.request, key[3], gathering.may_leave_out, gathering.told)
                    self._broker.send(peer, question)

    def _wait_no_more(self, peers: Iterable[str]) -> None:
        for key, gathering in list(self._gathering.items()):
            gathering.waiting = {peer: None for peer in gathering.waiting if peer not in peers}
            if not gathering.waiting and self._gathering.get(key) is gathering:
                self._answer(key)

    def unanswered(self, client: str) -> list[str]:
        """Return the brokers that were asked for the client's session and have not answered; a peer stands
        for those behind it."""
        here = self._clients.here.get(client)
        if here is not None and here.asked:
            return [here.asked]
        if holders := self._broker.directory.holders_of(client):
            return list(holders)
        if here is not None and here.departed is not None:
            return [here.departed.destination]
        own = self._own.get(client)
        waiting = self._gathering[own].waiting if own in self._gathering else {}
        return [f"{peer} (never met)" if peer in self.unmet else peer for peer in waiting]

    def attached_again(self, here: ClientHere) -> None:
        """Ask again for a client that attached again during the search; a session may have to stand in.

        A question that may leave brokers out is answered soon. A client that tries again sooner must not
        begin it anew each time.
        """
        question = self._gathering.get(self._own[here.client]) if here.client in self._own else None
        if here.search is Search.ASKS_EVERYONE and (question is None or not question.may_leave_out):
            self.ask_everyone(here)

    def ask_again(self) -> None:
        """Repeat open questions, because more brokers can be asked now."""
        for here in self._clients.here.awake():
            if here.search is Search.ASKS_EVERYONE:
                self.ask_everyone(here)

    def _note_rival(self, here: ClientHere, broker: str) -> None:
        """Note another broker that asks everyone for the same session."""
        if broker < (here.rival or self._broker.id):
            here.rival = broker

    def on_holder_unknown(self, sender: str, message: HolderUnknown) -> None:
        here = self._asking(message.client, message.connection)
        if here is not None:
            self.ask_everyone(here)

    def _asking(self, client: str, connection: int) -> ClientHere | None:
        """Return the client, if this broker seeks its session for this connection."""
        here = self._clients.here.get(client)
        if here is None or here.request is None or here.request.connection != connection:
            return None
        return here

    def on_grant(self, sender: str, message: Grant) -> None:
        self.adopt(message.session)

    def adopt(self, session: Session, reads_on: bool = False) -> None:
        """Adopt a session that came from its former holder."""
        session = session.copy()
        received = GrantReceived(session.client, session.number, self._broker.directory.told)
        self._broker.send(session.last_broker, received)
        self.arrived(session, session.last_broker, reads_on)

    def take_back(self, session: Session) -> None:
        """Keep a session that was on its way to a broker which is gone."""
        broker, session = self._broker, session.copy()
        # If the session did arrive there and the two meet again, they count as different sessions.
        session.begun = (broker.now, broker.id)
        waiting = self._clients.of(session.client).take_waiting()
        self.adopt(session)
        for request in waiting:
            self._clients.of(session.client).wait(request)
        # Only after everything that belongs to the session has come back.
        broker.tell_self(TakenBack(session.client))

    def on_taken_back(self, command: TakenBack) -> None:
        """Stop the search of waiting requests, and of brokers whose questions have passed here."""
        here, client = self._clients.of(command.client), command.client
        for waiting in here.take_waiting():
            self.on_request(waiting.broker, msgspec.structs.replace(waiting, detours=DETOURS_MAX))
        is_known = here.session is not None or here.departed is not None
        for key, gathering in list(self._gathering.items()):
            if is_known and key[0] == client and gathering.asker is not None:
                self._forget(key)
                self._broker.send(gathering.asker, Located(*key, found=True))
                self.on_request(gathering.request.broker, gathering.request)
        self._clients.forget_unused(here)

    def arrived(self, session: Session, came_from: str, reads_on: bool = False) -> None:
        """Take an arrived session, then serve the requests for it that came meanwhile, in order."""
        here = self._clients.of(session.client)
        request = here.request
        self._clients.arrive(here, session, came_from)
        self._broker.directory.changed(here.client)
        received = request.received if request is not None else {}
        is_merging = self._broker.handoffs.session_arrived(here, session, received, reads_on)
        if here.waiting and not is_merging:
            self.serve_waiting(session.client)

    def serve_waiting(self, client: str) -> None:
        """Serve the requests that waited for the session, in order. It may go now: what a stand-in held for
        its client has been merged into it."""
        here = self._clients.here.get(client)
        for waiting in here.take_waiting() if here is not None else ():
            self.on_request(waiting.broker, waiting)

    def on_refused(self, sender: str, message: AttachRefused) -> None:
        here = self._asking(message.client, message.connection)
        if here is None:
            return
        here.on(Event.REFUSED)
        self._broker.directory.changed(here.client)
        request, here.request, here.asked, here.rival = here.request, None, "", ""
        assert request is not None
        for waiting in here.take_waiting():
            self._broker.send(waiting.broker, HolderUnknown(waiting.client, waiting.connection))
        self._broker.handoffs.attach_refused(here, request, message.reason)
        self._clients.forget_unused(here)

    # --- at the brokers that are asked ---

    def on_request(self, sender: str, request: AttachRequest) -> None:
        """Serve a request, forward it, or answer that the session is not here.

        A request waits here only if its broker gave way to this one when both were asking everyone. Otherwise
        brokers might wait for each other forever.
        """
        broker, here = self._broker, self._clients.here.get(request.client)
        if not broker.is_reachable(request.broker):
            return  # The requesting broker was forgotten: a session sent there would be lost.
        if request.broker == broker.id:
            self.on_holder_unknown(sender, HolderUnknown(request.client, request.connection))
        elif here is not None and self._take(here, request):
            return
        elif here is not None and here.asked and request.detours < DETOURS_MAX:
            # The client left before its session came, maybe to the broker that this one asked.
            broker.send(here.asked, msgspec.structs.replace(request, detours=request.detours + 1))
        elif here is not None and here.request is not None and not here.asked and request.deferred:
            here.wait(request)
        else:
            self._follow_trail(sender, request)

    def _follow_trail(self, sender: str, request: AttachRequest) -> None:
        """Forward a request along the protocol's trail of the session."""
        broker = self._broker
        trail = broker.protocol.trail_of(request.client)
        if trail not in ("", sender, request.broker) and request.detours < DETOURS_MAX:
            if broker.hop_of(request.broker) == trail:
                # The session went back to where the question came from.
                request = msgspec.structs.replace(request, detours=request.detours + 1)
            broker.send(trail, request)
        else:
            broker.send(request.broker, HolderUnknown(request.client, request.connection))

    def _take(self, here: ClientHere, request: AttachRequest) -> bool:
        """Serve the request if the session is here, or send it after the session if it was."""
        settings = self._broker.settings
        if here.session is not None:
            # A broker may vouch for its own users, and for those of a realm that it is trusted with.
            if vouches(request.broker, request.owner, settings.realm, settings.realm_brokers):
                self._broker.handoffs.session_requested(request)
            else:
                self._broker.handoffs.refuse(request, NOT_THE_OWNER)
        elif here.departed is not None:
            onward = msgspec.structs.replace(request, detours=DETOURS_MAX)
            self._broker.send(here.departed.destination, onward)
        else:
            return False
        return True

    def on_locate(self, sender: str, message: Locate) -> None:
        request, broker = message.request, self._broker
        if not broker.is_reachable(request.broker):
            return
        here = self._clients.here.get(request.client)
        claim = ""
        if here is not None:
            if self._take(here, request):
                key = (request.client, request.broker, request.connection, message.round)
                broker.send(sender, Located(*key, found=True))
                return
            # A broker that waits for the session itself lets the question pass: the holder may be behind it.
            # If both ask everyone, each learns of the other and the lower one prevails.
            if here.search is Search.ASKS_EVERYONE:
                claim = broker.id
                self._note_rival(here, request.broker)
        broker.directory.asked(request.client, request.broker, message.told)
        self._spread(message, sender, claim)

    def on_located(self, sender: str, message: Located) -> None:
        key = (message.client, message.broker, message.connection, message.round)
        gathering = self._gathering.get(key)
        if gathering is None:
            return
        if message.found:
            self._forget(key)
            here = self._clients.here.get(message.client)
            if gathering.asker is not None:
                self._broker.send(gathering.asker, message)
            elif here is not None and here.search is Search.ASKS_EVERYONE:
                here.on(Event.FOUND)
                here.rival = ""
            return
        gathering.waiting.pop(sender, None)
        gathering.incarnation = max(gathering.incarnation, message.incarnation)
        gathering.claim = min(filter(None, (gathering.claim, message.claim)), default="")
        gathering.leave_out(message.left_out, message.is_brief)
        gathering.may_hold |= dict.fromkeys(message.may_hold)
        if not gathering.waiting:
            self._answer(key)

    def _answer(self, key: Key) -> None:
        """Finish a question that all peers have answered without finding a holder.

        The asking broker makes the session, or leaves that to the lowest of those who ask everyone.
        """
        gathering = self._gathering[key]
        self._forget(key)
        if gathering.asker is not None:
            answer = Located(
                *key, found=False, claim=gathering.claim, incarnation=gathering.incarnation,
                left_out=tuple(gathering.left_out), is_brief=gathering.is_brief,
                may_hold=tuple(gathering.may_hold),
            )  # fmt: skip
            self._broker.send(gathering.asker, answer)
            return
        here = self._asking(key[0], key[2])
        if here is None or here.request is None:
            return
        if gathering.claim:
            self._note_rival(here, gathering.claim)
        if here.rival:
            here.on(Event.FOUND)
            rival, here.rival = here.rival, ""
            self._broker.send(rival, msgspec.structs.replace(here.request, deferred=True))
        elif gathering.left_out and not self._may_make(gathering):
            self._spread_anew(here.request, may_leave_out=False)
            if self._broker.front is not None and not gathering.is_known_away:
                self._broker.front.not_located(here.client)
        else:
            self._make(here.request, gathering.incarnation)

    def _make(self, request: AttachRequest, incarnation: int) -> None:
        self.arrived(Session(request.client, incarnation=incarnation, owner=request.owner), "")

    def _may_make(self, gathering: Gathering) -> bool:
        is_open = gathering.is_brief or gathering.is_known_away
        return not is_open and self._broker.directory.may_make_without(gathering.left_out)

    # --- when brokers are gone for good ---

    def lost(self, peers: Iterable[str], brokers: Iterable[str]) -> None:
        """Forget answers, requests and departed sessions of brokers that are gone for good."""
        peers, brokers = dict.fromkeys(peers), dict.fromkeys(brokers)
        for key, gathering in list(self._gathering.items()):
            if gathering.asker in peers or key[1] in brokers:
                self._forget(key)
        known = self._clients.here.awake()
        for here in known:
            if here.departed is not None and here.departed.destination in brokers:
                # The session may still be on its way. Until it stops, questions must not pass here.
                sought = GrantSought(here.client, here.departed.number, self._broker.id)
                self._broker.send(here.departed.destination, sought)
            if here.waiting:
                here.waiting = [request for request in here.waiting if request.broker not in brokers] or None
        # The broker that took a request, or a lower rival, may be among them.
        for here in known:
            if here.request is not None:
                self.ask_everyone(here)
        self._wait_no_more(peers)

    # --- at the holder ---

    def release(self, session: Session, destination: str) -> None:
        """Release the session; later requests for it are sent after it."""
        session.leave(self._broker.id)
        departed = Departed(destination, session.number, session.begun, session.incarnation)
        self._clients.depart(self._clients.here[session.client], departed)

    def hand_over(self, session: Session, destination: str) -> None:
        self.release(session, destination)
        self._broker.send(destination, Grant(session))

    def on_grant_received(self, sender: str, message: GrantReceived) -> None:
        """Confirm a session's arrival; the message comes from another broker if the destination is gone."""
        here = self._clients.here.get(message.client)
        if here is not None and here.departed is not None and here.departed.number == message.number:
            here.on(Event.CONFIRMED)
            destination, here.departed = here.departed.destination, None
            arrived_at = destination if self._broker.is_reachable(destination) else sender
            self._broker.directory.went(here.client, arrived_at, message.told)
            self._clients.forget_unused(here)

    # --- at the end of the way to a broker that is gone ---

    def came_back(self, message: Message) -> bool:
        """Handle a session message that cannot reach its destination; returns whether it was handled."""
        if isinstance(message, GrantSought):
            self._broker.send(message.broker, GrantReceived(message.client, message.number))
        elif isinstance(message, AttachRequest):
            self._clients.of(message.client).wait(message)
            self._broker.tell_self(TakenBack(message.client))
        else:
            return False
        return True
