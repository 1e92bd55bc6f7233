"""Finding the holder of a client's session, and moving the session to where the client is.

A client has one session, and one broker holds it. An attach asks the holder for
it: the broker that the client names as its last, or, where that is not given or
not true any more, all brokers over the tree. The holder decides alone, so races
between two attaches are decided in one place, and gives the session the next
attach number. If nobody holds one, the asking broker makes it; of several that
ask everyone at once, the one with the lowest id, and the others ask it.

A former holder remembers where the session went until its arrival is confirmed.
That is long enough: links do not overtake, so a question that passed the new
holder before the session arrived there reaches the former holder before the
confirmation does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from roamcast.protocol.messages import (
    AttachRefused,
    AttachRequest,
    Command,
    Grant,
    GrantReceived,
    GrantSought,
    Hello,
    HolderUnknown,
    Locate,
    Located,
    Message,
    TakenBack,
)
from roamcast.protocol.session import Session
from roamcast.state import State

Key = tuple[str, str, int, int]
"""A question on its way: client, asking broker, which attach there, and which round of asking."""


class Departed(msgspec.Struct, frozen=True):
    """What a former holder remembers of a session on its way."""

    destination: str
    number: int
    """The attach number under which it left."""
    begun: tuple[float, str]
    incarnation: int


DETOURS_MAX = 3
"""How often a request may follow the client's own word before everyone is asked."""


class LocatorHost(Protocol):
    """The broker, as far as locating concerns it."""

    id: str
    now: float
    sessions: dict[str, Session]
    next_incarnation: int
    """Above those of all sessions that ended here."""

    @property
    def peers(self) -> list[str]: ...
    def is_reachable(self, broker: str) -> bool: ...
    def send(self, broker: str, message: Message) -> None: ...
    def tell_self(self, command: Command) -> None: ...
    def session_requested(self, request: AttachRequest) -> None:
        """Another broker asks for a session held here."""

    def session_arrived(self, session: Session, came_from: str, received: dict[str, int]) -> None: ...
    def attach_refused(self, request: AttachRequest, reason: str) -> None: ...


class Gathering:
    """Answers to a question, on their way back to where it came from."""

    __slots__ = ("asker", "claim", "incarnation", "request", "waiting")

    __state__ = State("gathering")

    def __init__(
        self,
        asker: str | None,
        peers: Iterable[str],
        request: AttachRequest,
        incarnation: int,
        claim: str = "",
    ) -> None:
        self.asker = asker
        self.request = request
        self.waiting = dict.fromkeys(peers)
        """Those who have not answered."""
        self.claim = claim
        """The lowest broker so far that asks everyone too."""
        self.incarnation = incarnation
        """What a new session of the client has at least."""


class Locator:
    __state__ = State(
        "locator",
        saved=("host", "pending", "asked", "queued", "moved_to", "gathering", "rounds", "rivals"),
        derived=("handlers",),
    )  # fmt: skip

    def __init__(self, host: LocatorHost) -> None:
        self.host = host
        self.pending: dict[str, AttachRequest] = {}
        """Sessions this broker has asked for."""
        self.asked: dict[str, str] = {}
        """Where it asked, while only the client's word says that the session is there."""
        self.queued: dict[str, list[AttachRequest]] = {}
        """Requests of others for sessions that are expected here."""
        self.moved_to: dict[str, Departed] = {}
        """Sessions on their way."""
        self.gathering: dict[Key, Gathering] = {}
        self.rounds = 0
        """How often this broker has asked everyone."""
        self.rivals: dict[str, str] = {}
        """While this broker asks everyone: the lowest other broker that does so too, or ""."""
        self._restore()

    def _restore(self) -> None:
        self.handlers: dict[type[Message], Callable[[str, Message], None]] = {
            AttachRequest: self.on_request,  # type: ignore[dict-item]
            HolderUnknown: self.on_holder_unknown,  # type: ignore[dict-item]
            Locate: self.on_locate,  # type: ignore[dict-item]
            Located: self.on_located,  # type: ignore[dict-item]
            Grant: self.on_grant,  # type: ignore[dict-item]
            GrantReceived: self.on_grant_received,  # type: ignore[dict-item]
            AttachRefused: self.on_refused,  # type: ignore[dict-item]
        }

    # --- at the broker where the client is ---

    def ask(self, connection: int, hello: Hello) -> None:
        """Get the session here, for a client that has attached."""
        client, last_broker = hello.client, hello.last_broker
        request = AttachRequest(
            client, self.host.id, connection, hello.moves, hello.received, owner=hello.owner
        )
        self.pending[client] = request
        if client in self.moved_to:
            self.host.send(self.moved_to[client].destination, request)
        elif last_broker and last_broker != self.host.id:
            self.asked[client] = last_broker
            self.host.send(last_broker, request)
        else:
            self.ask_everyone(request)

    def ask_everyone(self, request: AttachRequest) -> None:
        self.asked.pop(request.client, None)
        self.rivals[request.client] = ""
        # Answers to an earlier round say nothing about where the session is now.
        for key in [key for key, one in self.gathering.items() if one.asker is None]:
            if key[0] == request.client:
                del self.gathering[key]
        self.rounds += 1
        question = Locate(request, self.rounds)
        gathering = self.gathering[_key(question)] = Gathering(
            None, self.host.peers, request, self.host.next_incarnation
        )
        for peer in self.host.peers:
            self.host.send(peer, question)
        self.answer_if_complete(_key(question), gathering)

    def ask_again(self) -> None:
        """More brokers can be asked than could when they were."""
        for client in list(self.rivals):
            self.ask_everyone(self.pending[client])

    def note_rival(self, client: str, broker: str) -> None:
        """Another broker asks everyone for the same session."""
        if client in self.rivals and broker < (self.rivals[client] or self.host.id):
            self.rivals[client] = broker

    def nobody_holds(self, request: AttachRequest, incarnation: int) -> None:
        """Everyone was asked: make the session, or leave that to the lowest of those who ask."""
        rival = self.rivals.pop(request.client)
        if rival:
            self.host.send(rival, msgspec.structs.replace(request, deferred=True))
        else:
            self.arrived(Session(request.client, incarnation=incarnation, owner=request.owner), "")

    def on_holder_unknown(self, sender: str, message: HolderUnknown) -> None:
        request = self.pending.get(message.client)
        if request is not None and request.connection == message.connection:
            self.ask_everyone(request)

    def on_grant(self, sender: str, message: Grant) -> None:
        self.adopt(message.session)

    def adopt(self, session: Session) -> None:
        """A session has come from its former holder."""
        session = session.copy()
        self.host.send(session.last_broker, GrantReceived(session.client, session.number))
        self.arrived(session, session.last_broker)

    def take_back(self, session: Session) -> None:
        """A session that was on its way to a broker which is gone stays here."""
        session = session.copy()
        # If it has arrived beyond after all, and is ever met again, this is another one.
        session.begun = (self.host.now, self.host.id)
        queued = self.queued.pop(session.client, [])
        self.adopt(session)
        if queued:
            self.queued[session.client] = queued
        # Not before everything has come back that belongs to it.
        self.host.tell_self(TakenBack(session.client))

    def on_taken_back(self, command: TakenBack) -> None:
        """Those who wait for it, and those whose questions have gone past here, need not look any longer."""
        for waiting in self.queued.pop(command.client, []):
            self.on_request(waiting.broker, msgspec.structs.replace(waiting, detours=DETOURS_MAX))
        is_known = command.client in self.host.sessions or command.client in self.moved_to
        for key, gathering in list(self.gathering.items()):
            if is_known and key[0] == command.client and gathering.asker is not None:
                self.gathering.pop(key, None)
                self.host.send(gathering.asker, Located(*key, found=True))
                self.on_request(gathering.request.broker, gathering.request)

    def arrived(self, session: Session, came_from: str) -> None:
        """The session is here; those who asked for it meanwhile come next, in order."""
        request = self.pending.pop(session.client, None)
        self.asked.pop(session.client, None)
        self.rivals.pop(session.client, None)
        self.moved_to.pop(session.client, None)
        self.host.sessions[session.client] = session
        self.host.session_arrived(session, came_from, request.received if request is not None else {})
        for waiting in self.queued.pop(session.client, []):
            self.on_request(waiting.broker, waiting)

    def on_refused(self, sender: str, message: AttachRefused) -> None:
        request = self.pending.get(message.client)
        if request is None or request.connection != message.connection:
            return
        del self.pending[message.client]
        self.asked.pop(message.client, None)
        self.rivals.pop(message.client, None)
        for waiting in self.queued.pop(message.client, []):
            self.host.send(waiting.broker, HolderUnknown(waiting.client, waiting.connection))
        self.host.attach_refused(request, message.reason)

    # --- at the brokers that are asked ---

    def on_request(self, sender: str, request: AttachRequest) -> None:
        """Serve a request, or pass it on, or say that the session is not here.

        A request waits here only if its broker gave way to this one when both were
        asking everyone. Others who wait for each other might wait for ever.
        """
        client = request.client
        if not self.host.is_reachable(request.broker):
            return  # It was forgotten: a session that went there would be lost.
        if request.broker == self.host.id:
            self.on_holder_unknown(sender, HolderUnknown(client, request.connection))
        elif self.take(request):
            return
        elif client in self.asked and request.detours < DETOURS_MAX:
            # The client left before its session came: that may be where this broker asked for it.
            self.host.send(self.asked[client], msgspec.structs.replace(request, detours=request.detours + 1))
        elif client in self.pending and client not in self.asked and request.deferred:
            self.queued.setdefault(client, []).append(request)
        else:
            self.host.send(request.broker, HolderUnknown(client, request.connection))

    def take(self, request: AttachRequest) -> bool:
        """Serve the request if the session is here, or send it after the session if it was."""
        client = request.client
        if client in self.host.sessions:
            self.host.session_requested(request)
        elif client in self.moved_to:
            onward = msgspec.structs.replace(request, detours=DETOURS_MAX)
            self.host.send(self.moved_to[client].destination, onward)
        else:
            return False
        return True

    def on_locate(self, sender: str, message: Locate) -> None:
        request = message.request
        if not self.host.is_reachable(request.broker):
            return
        if self.take(request):
            self.host.send(sender, Located(*_key(message), found=True))
            return
        # A broker that waits for the session itself lets the question pass: the holder may be
        # behind it. If both ask everyone, each learns of the other and the lower one prevails.
        claim = self.host.id if request.client in self.rivals else ""
        self.note_rival(request.client, request.broker)
        others = [peer for peer in self.host.peers if peer != sender]
        gathering = self.gathering[_key(message)] = Gathering(
            sender, others, request, self.host.next_incarnation, claim
        )
        for peer in others:
            self.host.send(peer, message)
        self.answer_if_complete(_key(message), gathering)

    def on_located(self, sender: str, message: Located) -> None:
        key = (message.client, message.broker, message.connection, message.round)
        gathering = self.gathering.get(key)
        if gathering is None:
            return
        if message.found:
            del self.gathering[key]
            if gathering.asker is not None:
                self.host.send(gathering.asker, message)
            else:
                self.rivals.pop(message.client, None)
            return
        gathering.waiting.pop(sender, None)
        gathering.incarnation = max(gathering.incarnation, message.incarnation)
        gathering.claim = min(filter(None, (gathering.claim, message.claim)), default="")
        self.answer_if_complete(key, gathering)

    def answer_if_complete(self, key: Key, gathering: Gathering) -> None:
        if gathering.waiting:
            return
        del self.gathering[key]
        if gathering.asker is not None:
            answer = Located(*key, found=False, claim=gathering.claim, incarnation=gathering.incarnation)
            self.host.send(gathering.asker, answer)
            return
        request = self.pending.get(key[0])
        if request is not None and request.connection == key[2]:
            if gathering.claim:
                self.note_rival(key[0], gathering.claim)
            self.nobody_holds(request, gathering.incarnation)

    # --- when brokers are gone for good ---

    def lost(self, peers: Iterable[str], brokers: Iterable[str]) -> None:
        """Nobody waits for their answers, serves their requests or follows a session that went there."""
        peers, brokers = dict.fromkeys(peers), dict.fromkeys(brokers)
        for key, gathering in list(self.gathering.items()):
            if gathering.asker in peers or key[1] in brokers:
                del self.gathering[key]
        for client, departed in list(self.moved_to.items()):
            if departed.destination in brokers:
                # It may not have come to a stop yet. Until it has, questions must not get past here.
                sought = GrantSought(client, departed.number, self.host.id)
                self.host.send(departed.destination, sought)
        for client, requests in list(self.queued.items()):
            self.queued[client] = [request for request in requests if request.broker not in brokers]
            if not self.queued[client]:
                del self.queued[client]
        # Whoever took a request may be among them, and so may be a lower broker that asked too.
        for request in list(self.pending.values()):
            self.ask_everyone(request)
        for key, gathering in list(self.gathering.items()):
            gathering.waiting = {peer: None for peer in gathering.waiting if peer not in peers}
            if self.gathering.get(key) is gathering:
                self.answer_if_complete(key, gathering)

    # --- at the holder ---

    def release(self, session: Session, destination: str) -> None:
        """The session leaves; whoever asks for it here is sent on after it."""
        session.last_broker = self.host.id
        del self.host.sessions[session.client]
        departed = Departed(destination, session.number, session.begun, session.incarnation)
        self.moved_to[session.client] = departed

    def hand_over(self, session: Session, destination: str) -> None:
        self.release(session, destination)
        self.host.send(destination, Grant(session))

    def on_grant_received(self, sender: str, message: GrantReceived) -> None:
        """Most often from where it was sent; from another broker if that one is gone."""
        departed = self.moved_to.get(message.client)
        if departed is not None and departed.number == message.number:
            del self.moved_to[message.client]

    # --- at the end of the way to a broker that is gone ---

    def came_back(self, message: Message) -> bool:
        """A message about a session cannot reach its destination; whether it was dealt with here."""
        if isinstance(message, GrantSought):
            self.host.send(message.broker, GrantReceived(message.client, message.number))
        elif isinstance(message, AttachRequest):
            self.queued.setdefault(message.client, []).append(message)
            self.host.tell_self(TakenBack(message.client))
        else:
            return False
        return True


def _key(question: Locate) -> Key:
    request = question.request
    return (request.client, request.broker, request.connection, question.round)
