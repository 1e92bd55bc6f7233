"""What clients ask for: publishes, and changes of what they subscribe to or advertise.

A client numbers its requests and repeats those that were not accepted; each request
takes effect once, wherever the session is. A change waits for a handoff, and for an
earlier change of the same filter; while one is not settled the session stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roamcast.broker.places import TOLD, decoded_values, encoded_values, merged_values
from roamcast.broker.session import ClientHere, Event, Handoff, Settling
from roamcast.filters.expression import Value
from roamcast.filters.selector import parse
from roamcast.protocol.messages import (
    Accepted,
    ClientPublish,
    Move,
    Request,
    SubscriptionSettled,
    TellHeld,
)
from roamcast.protocol.notification import decode_attributes
from roamcast.protocol.records import HELD
from roamcast.protocol.session import Session
from roamcast.routing.router import Token
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore

KIND_OF_CHANGE = {
    "Subscribe": "subscribed",
    "Unsubscribe": "unsubscribed",
    "Advertise": "advertised",
    "Unadvertise": "unadvertised",
}
"""Request to the kind of record that reports it."""


class Requests:
    __state__ = State("requests", saved=("_broker", "_clients"))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._clients = broker.clients

    # --- taking requests ---

    def on_request(self, client: str, request: Request) -> None:
        session = self._broker.sessions.get(client)
        if session is None:
            self.hold(client, request)
        else:
            self._accept(session, request)

    def hold(self, client: str, request: Request) -> None:
        """Hold a request until the client's session arrives."""
        here = self._clients.of(client)
        if here.held is None:
            here.held = []
        if len(here.held) < self._broker.settings.held_requests_max:
            here.held.append(request)

    def take_held(self, here: ClientHere, session: Session) -> None:
        """Handle the requests that were held until the session arrived."""
        held, here.held = here.held, None
        for request in held or ():
            self._accept(session, request)

    def _accept(self, session: Session, request: Request) -> None:
        """Accept a request once; a duplicate is only acknowledged again."""
        if isinstance(request, ClientPublish):
            self.publish(session, request)
            return
        if request.request == session.accepted + 1:
            session.accepted += 1
            if isinstance(request, Move):
                values = encoded_values(request.values)
                self._change(session, request.request, request.kind, values, request.late)
            else:
                self._change(session, request.request, request.kind, request.filter.text, is_late=False)
        self._tell_accepted(session)

    def publish(self, session: Session, request: ClientPublish) -> None:
        broker, bodies, varied = self._broker, request.bodies, request.varied
        skip = session.accepted + 1 - request.request
        if 0 <= skip < len(bodies):
            session.accepted += len(bodies) - skip
            if skip:
                bodies, varied = bodies[skip:], varied[skip:]
            if broker.places.telling is not None:
                broker.places.hear(session, request)
            if not broker.router.uses_advertisements:
                broker.publish(session, request.attributes, bodies, request.marks, varied)
            elif varied:
                for attributes, body in zip(varied, bodies, strict=True):
                    self._publish_advertised(session, attributes, (body,), request.marks)
            else:
                self._publish_advertised(session, request.attributes, bodies, request.marks)
        if broker.front is None:
            self._tell_accepted(session)

    def _tell_accepted(self, session: Session) -> None:
        if self._broker.front is None:
            # An access front numbers the requests itself, and needs no answer.
            self._broker.tell(session.client, Accepted(session.accepted))

    # --- publishing ---

    def _publish_advertised(
        self, session: Session, attributes: bytes, bodies: tuple[bytes, ...], marks: bytes
    ) -> None:
        """With advertisements, publish only what is advertised, and only once all brokers know the
        advertisement."""
        here = self._clients.here[session.client]
        if here.settling is Settling.SETTLING:
            here.gated = here.gated if here.gated is not None else []
            here.gated.append((attributes, bodies, marks))
        elif self._is_advertised(session, attributes):
            self._broker.publish(session, attributes, bodies, marks)
        else:
            self._broker.record(
                "dropped", client=session.client, broker=self._broker.id, publisher=session.client,
                notifications=len(bodies), attributes=attributes, reason="not advertised",
            )  # fmt: skip

    def _is_advertised(self, session: Session, encoded: bytes) -> bool:
        attributes = decode_attributes(encoded)
        return any(parse(text).matches(attributes) for text in session.advertisements)

    # --- changes ---

    def move(self, session: Session, values: dict[str, Value], is_late: bool) -> None:
        """Apply a move that the client reported in a publish instead of requesting it."""
        self._change(session, TOLD, "Move", encoded_values(values), is_late)

    def _change(self, session: Session, request: int, kind: str, text: str, is_late: bool) -> None:
        """Carry out a change: now, or after the handoff and the last change of this filter."""
        broker, client = self._broker, session.client
        here = self._clients.here[client]
        if self._is_refused(client, request, kind, text):
            return
        if self._must_wait(here, kind, text):
            self._defer(session, request, kind, text)
            return
        if kind == "Move":
            broker.places.move(here, session, request, text, is_late)
            return
        filter = parse(text)
        held = session.subscriptions if kind in ("Subscribe", "Unsubscribe") else session.advertisements
        if (text in held) == (kind in ("Subscribe", "Advertise")):
            broker.tell(client, SubscriptionSettled(request))
            return
        broker.record(KIND_OF_CHANGE[kind], client=client, broker=broker.id, filter=text, reason="issued")
        if kind == "Unadvertise":
            del session.advertisements[text]
            broker.router.unadvertise(filter)
            self._tell_settled(client, request, kind, text)
            return
        if kind == "Unsubscribe":
            del session.subscriptions[text]
        else:
            held[text] = broker.now
        self.begin_settling(here, text)
        token = (client, request, kind, text)
        if kind == "Subscribe":
            broker.protocol.on_subscribe(session, filter, token)
        elif kind == "Unsubscribe":
            broker.protocol.on_unsubscribe(session, filter, token)
        else:
            broker.router.advertise(filter, token)

    def _is_refused(self, client: str, request: int, kind: str, text: str) -> bool:
        """Refuse filters on the client's own state, or moves, where these are not supported; True if
        refused."""
        places = self._broker.places
        if kind == "Move":
            reason = places.refusal_of_move(decoded_values(text))
            if reason:
                places.refuse_move(client, request, reason)
        else:
            reason = ""
            if kind == "Subscribe":
                reason = places.refusal_of_filter(parse(text), client)
            elif kind == "Advertise" and parse(text).own:
                reason = f"advertisement {text!r} depends on the publisher's own state: that is not known"
            if reason:
                places.refuse(client, request, reason)
        return bool(reason)

    def _must_wait(self, here: ClientHere, kind: str, text: str) -> bool:
        if kind == "Move":
            return here.announced is not None or not self._broker.places.may_move(here)
        return here.handoff is Handoff.UNDER_WAY or text in (here.unsettled or ())

    def _defer(self, session: Session, request: int, kind: str, text: str) -> None:
        """Defer a change. Of several deferred moves only the last one counts, so at most one waits."""
        if kind == "Move":
            for earlier in [one for one in session.deferred if one[1] == "Move"]:
                session.deferred.remove(earlier)
                self._broker.places.tell_taken(session.client, earlier[0])
                text = merged_values(earlier[2], text)
        session.deferred.append((request, kind, text))

    def subscribe_too(self, session: Session, text: str) -> None:
        """Add a subscription that the client made elsewhere, and did not request here."""
        self._change(session, 0, "Subscribe", text, is_late=True)

    def advertise_again(self, here: ClientHere, session: Session) -> None:
        """Make the advertisements of a session that arrived here known from here."""
        for text in session.advertisements:
            self.begin_settling(here, text)
            self._broker.router.advertise(parse(text), (session.client, 0, "Advertise", text))

    # --- settling ---

    def begin_settling(self, here: ClientHere, text: str) -> None:
        here.on(Event.CHANGED)
        unsettled = here.unsettled = here.unsettled if here.unsettled is not None else {}
        unsettled[text] = unsettled.get(text, 0) + 1

    def on_settled(self, token: Token) -> None:
        client, request, kind, text = token
        here = self._clients.here[client]
        self.end_settling(here, text)
        self._tell_settled(client, request, kind, text)
        self.carry_on(here)

    def end_settling(self, here: ClientHere, text: str) -> None:
        unsettled = here.unsettled
        assert unsettled is not None
        unsettled[text] -= 1
        if not unsettled[text]:
            del unsettled[text]
        if not unsettled:
            here.on(Event.SETTLED)
            here.unsettled = None

    def _tell_settled(self, client: str, request: int, kind: str, text: str) -> None:
        """Tell the client that its change has settled; changes caused by a handoff (request 0) are not
        reported."""
        if request:
            broker, told = self._broker, KIND_OF_CHANGE[kind]
            broker.record(told, client=client, broker=broker.id, filter=text, reason="settled")
            broker.tell(client, SubscriptionSettled(request))

    def on_tell_held(self, command: TellHeld) -> None:
        broker = self._broker
        if broker.settings.records == "none":
            return
        for client in self._clients.held:
            here = self._clients.glance(client)
            for text in here.session.subscriptions if here.session is not None else ():
                if text not in (here.unsettled or ()):
                    broker.record("subscribed", client=client, broker=broker.id, filter=text, reason=HELD)

    def carry_on(self, here: ClientHere) -> None:
        """Carry out what waited for a handoff or for a change to settle; finally, let the session depart."""
        session = here.session
        if here.is_carrying_on or session is None:
            return
        # These may settle at once and call this method again.
        here.is_carrying_on = True
        deferred, session.deferred = session.deferred, []
        for request, kind, text in deferred:
            self._change(session, request, kind, text, is_late=True)
        self._broker.places.lend(here, session)
        here.is_carrying_on = False
        if here.settling is Settling.SETTLING:
            return
        gated, here.gated = here.gated, None
        for attributes, bodies, marks in gated or ():
            self._publish_advertised(session, attributes, bodies, marks)
        self._broker.handoffs.let_go(here)
