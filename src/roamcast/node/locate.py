"""Finding the holder of a client's session, and moving the session to where the client is.

A client has one session, and one broker holds it. An attach asks the holder for
it: the broker that the client names as its last, or, where that is not given or
not true any more, all brokers over the tree. The holder decides alone, so races
between two attaches are decided in one place, and gives the session the next
attach number. If nobody holds one, the asking broker makes it; of several that
ask at once, the one with the lowest id.

A former holder remembers where the session went until its arrival is confirmed.
That is long enough: links do not overtake, so a question that passed the new
holder before the session arrived there reaches the former holder before the
confirmation does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from roamcast.core.messages import (
    AttachRefused,
    AttachRequest,
    Grant,
    GrantReceived,
    HolderUnknown,
    Locate,
    Located,
    Message,
)
from roamcast.core.session import Session

Key = tuple[str, str, int]
"""A question on its way: client, asking broker, the client's count of attaches."""


class LocatorHost(Protocol):
    """The broker, as far as locating concerns it."""

    id: str
    sessions: dict[str, Session]

    @property
    def peers(self) -> list[str]: ...
    def send(self, broker: str, message: Message) -> None: ...
    def session_requested(self, request: AttachRequest) -> None:
        """Another broker asks for a session held here."""

    def session_arrived(self, session: Session, came_from: str, received: dict[str, int]) -> None: ...
    def attach_refused(self, client: str, moves: int) -> None: ...


class Gathering:
    """Answers to a question, on their way back to where it came from."""

    __slots__ = ("asker", "waiting")

    def __init__(self, asker: str | None, waiting: int) -> None:
        self.asker = asker
        self.waiting = waiting


class Locator:
    def __init__(self, host: LocatorHost) -> None:
        self.host = host
        self.pending: dict[str, AttachRequest] = {}
        """Sessions this broker has asked for."""
        self.queued: dict[str, list[AttachRequest]] = {}
        """Requests of others for sessions that are expected here."""
        self.moved_to: dict[str, tuple[str, int]] = {}
        """Sessions on their way: to which broker, under which attach number."""
        self.gathering: dict[Key, Gathering] = {}
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

    def ask(self, client: str, moves: int, received: dict[str, int], last_broker: str) -> None:
        """Get the session here."""
        request = AttachRequest(client, self.host.id, moves, received)
        self.pending[client] = request
        if client in self.moved_to:
            self.host.send(self.moved_to[client][0], request)
        elif last_broker and last_broker != self.host.id:
            self.host.send(last_broker, request)
        else:
            self.ask_everyone(request)

    def ask_everyone(self, request: AttachRequest) -> None:
        self.gathering[_key(request)] = Gathering(None, len(self.host.peers))
        for peer in self.host.peers:
            self.host.send(peer, Locate(request))
        self.answer_if_complete(request.client, _key(request), self.gathering[_key(request)])

    def on_holder_unknown(self, sender: str, message: HolderUnknown) -> None:
        request = self.pending.get(message.client)
        if request is not None and request.moves == message.moves:
            self.ask_everyone(request)

    def on_grant(self, sender: str, message: Grant) -> None:
        session = message.session
        self.host.send(session.last_broker, GrantReceived(session.client, session.number))
        self.arrived(session, session.last_broker)

    def arrived(self, session: Session, came_from: str) -> None:
        """The session is here; those who asked for it meanwhile come next, in order."""
        request = self.pending.pop(session.client, None)
        self.moved_to.pop(session.client, None)
        self.host.sessions[session.client] = session
        self.host.session_arrived(session, came_from, request.received if request is not None else {})
        for waiting in self.queued.pop(session.client, []):
            self.on_request(waiting.broker, waiting)

    def on_refused(self, sender: str, message: AttachRefused) -> None:
        request = self.pending.get(message.client)
        if request is None or request.moves != message.moves:
            return
        del self.pending[message.client]
        for waiting in self.queued.pop(message.client, []):
            self.host.send(waiting.broker, HolderUnknown(waiting.client, waiting.moves))
        self.host.attach_refused(message.client, message.moves)

    # --- at the brokers that are asked ---

    def on_request(self, sender: str, request: AttachRequest) -> None:
        if not self.take(request):
            self.host.send(request.broker, HolderUnknown(request.client, request.moves))

    def take(self, request: AttachRequest) -> bool:
        """Serve the request if the session is here, was here or will be here."""
        client = request.client
        if client in self.host.sessions:
            self.host.session_requested(request)
        elif client in self.moved_to:
            self.host.send(self.moved_to[client][0], request)
        elif client in self.pending:
            if request.broker != self.host.id:
                self.queued.setdefault(client, []).append(request)
        else:
            return False
        return True

    def on_locate(self, sender: str, message: Locate) -> None:
        request = message.request
        # Of two brokers that ask at once, the lower one waits for nobody: else, with no
        # holder anywhere, each would wait for the other.
        higher_asks_too = request.client in self.pending and self.host.id > request.broker
        if not higher_asks_too and self.take(request):
            self.host.send(sender, Located(*_key(request), found=True))
            return
        others = [peer for peer in self.host.peers if peer != sender]
        gathering = self.gathering[_key(request)] = Gathering(sender, len(others))
        for peer in others:
            self.host.send(peer, message)
        self.answer_if_complete(request.client, _key(request), gathering)

    def on_located(self, sender: str, message: Located) -> None:
        key = (message.client, message.broker, message.moves)
        gathering = self.gathering.get(key)
        if gathering is None:
            return
        if message.found:
            del self.gathering[key]
            if gathering.asker is not None:
                self.host.send(gathering.asker, message)
            return
        gathering.waiting -= 1
        self.answer_if_complete(message.client, key, gathering)

    def answer_if_complete(self, client: str, key: Key, gathering: Gathering) -> None:
        if gathering.waiting:
            return
        del self.gathering[key]
        if gathering.asker is not None:
            self.host.send(gathering.asker, Located(*key, found=False))
        elif client in self.pending and client not in self.host.sessions:
            self.arrived(Session(client), "")

    # --- at the holder ---

    def hand_over(self, session: Session, destination: str) -> None:
        session.last_broker = self.host.id
        del self.host.sessions[session.client]
        self.moved_to[session.client] = (destination, session.number)
        self.host.send(destination, Grant(session))

    def on_grant_received(self, sender: str, message: GrantReceived) -> None:
        if self.moved_to.get(message.client) == (sender, message.number):
            del self.moved_to[message.client]


def _key(request: AttachRequest) -> Key:
    return (request.client, request.broker, request.moves)
