"""The clients' own state: their moves, and telling those brokers whose filters depend on them.

(Fiege et al., appendix B.1, figure 12; figure 13 is `routing/dependents.py`.) A step that the movement graph
allows takes effect at once. Any other move is a jump: first everyone is told that the client may be at
either place, and only when all know does the client count as moved. So a jump takes longer than a step, but
nothing is missed.

A client can request a move, or report its location in its publishes, if the settings name attributes for
that; then it is not told when the move has taken effect. For a client that has never reported a location, the
location of its broker may be assumed.

After a handoff, other brokers see the client at the distance of its new broker. Until all have heard of
that, the client's moves wait, as they do during a handoff: its location does not change while its
subscriptions move.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from roamcast.broker.fences import Dwelling, Fences
from roamcast.broker.session import ClientHere, Handoff, Waiting
from roamcast.errors import InputError
from roamcast.filters.expression import Own
from roamcast.filters.filter import Filter, Value
from roamcast.filters.geography import LATITUDES, LONGITUDES, read_geojson
from roamcast.filters.own import bind, owner_of
from roamcast.filters.selector import parse
from roamcast.filters.zones import with_zones
from roamcast.protocol.messages import (
    About,
    ClientPublish,
    Message,
    Probe,
    RequestRefused,
    SubscriptionSettled,
    client_of,
)
from roamcast.protocol.notification import Burst, decode_attributes, encode_attributes
from roamcast.protocol.session import Session
from roamcast.protocol.whereabouts import Place, Whereabouts
from roamcast.routing.location import pace
from roamcast.routing.location.settings import LocationSettings
from roamcast.routing.location.told import Telling
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore

ROUND_TRIPS_KEPT = 8
"""Number of last measurements; the longest of them counts."""
MEASURED_CHANGE_MIN = 0.1
"""Relative change below which a round trip counts as unchanged: changes are told to every broker."""

LOCATION = "location"
TOLD = 0
"""Request number of a move that a client reported in a published message: needs no answer."""
LENT = -1
"""Request number of a move to the broker's place, of a client that never reported its location."""
NO_POSITION = 'a position: valid are numbers, as {"lat": 43.263, "lon": -2.935}; lat from -90 to 90 degrees'


class Announced(NamedTuple):
    """Token of an announcement of a client's location."""

    client: str
    number: int


class RoundTrip:
    """Measured round trips of the link to a peer."""

    __state__ = State("round-trip", saved=("asked_at", "measured_s", "used_s"))

    def __init__(self) -> None:
        self.asked_at = float("-inf")
        self.measured_s: list[float] = []
        self.used_s = float("inf")


class Places:
    __state__ = State(
        "places", saved=("_broker", "_settings", "_round_trips"), derived=("_zones", "_fences", "telling")
    )

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._settings = broker.settings.location
        self._settings.check()
        self._round_trips: dict[str, RoundTrip] = {}
        self._restore()

    def _restore(self) -> None:
        settings = self._settings
        self._zones = {name: read_geojson(shape) for name, shape in settings.zones.items()}
        self._fences = Fences(self._broker, self._zones, settings.dwell_s, settings.hysteresis_m)
        self.telling = Telling(settings.told_in, settings.told_topics) if settings.told_in else None

    def configure(self, location: LocationSettings) -> None:
        """Apply new zones. Existing subscriptions keep the zones they were made with."""
        settings = self._settings
        changed = msgspec.structs.replace(
            settings, zones=location.zones, dwell_s=location.dwell_s, hysteresis_m=location.hysteresis_m,
            told_in=location.told_in, told_topics=location.told_topics, lent=location.lent,
        )  # fmt: skip
        if changed != settings:
            self._settings = changed
            self._restore()

    def dwelt(self, token: Dwelling) -> None:
        here = self._broker.clients.here.get(token.client)
        if here is not None and here.session is not None:
            self._fences.dwelt(here.session, token, _value(here.session, LOCATION))

    # --- refusals ---

    def with_zones(self, filter: Filter) -> Filter:
        """Return the filter with zone names replaced by the zones; InputError for an unknown zone."""
        return with_zones(filter, self._zones)

    def refusal_of_filter(self, filter: Filter, client: str) -> str:
        """Return why a client may not subscribe to a filter on its own state; "" if it may."""
        try:
            with_zones(filter, {})  # Known zones have been replaced already.
        except InputError as error:
            return str(error)
        if not filter.own:
            return ""
        if owner_of(filter):
            return f"filter {filter.text!r} uses the state of another client; valid are myloc and my.NAME"
        protocol = self._broker.protocol
        if not protocol.own_state:
            return f"protocol {protocol.name} does not work with filters on the client's own state"
        for condition in filter.own:
            if condition.variable not in self._settings.variables:
                return self._unknown(condition.variable)
            if condition.is_metric is not self._settings.variables[condition.variable].is_metric:
                return self._wrong_distance(condition)
        try:
            bind(filter, client)
        except InputError as error:
            return f"with the client id added, the {error}"
        return ""

    def refusal_of_move(self, values: Mapping[str, Value]) -> str:
        """Return why the client cannot be at that location; "" if it can."""
        for name, value in values.items():
            variable = self._settings.variables.get(name)
            if variable is None:
                return NO_POSITION if name in LATITUDES + LONGITUDES else self._unknown(name)
            try:
                variable.check(value)
            except InputError as error:
                return str(error)
        return ""

    @staticmethod
    def _wrong_distance(condition: Own) -> str:
        if condition.is_metric:
            return f"{condition.text()}: locations have names here; valid is a number of steps, without unit"
        return f"{condition.text()}: locations are positions here; valid is a distance, as WITHIN 500 M OF"

    def _unknown(self, variable: str) -> str:
        known = ", ".join(sorted(self._settings.variables)) or "none"
        return f"my.{variable}: this broker does not know how it may change; known are {known}"

    # --- moves ---

    def move(self, here: ClientHere, session: Session, request: int, values: str, is_late: bool) -> None:
        """Handle a client's move; after a delay, more than one step may have happened."""
        said = decoded_values(values)
        if LOCATION in said:
            session.is_lent = request == LENT
        steps = {name: one for name, one in said.items() if _value(session, name) != one}
        if steps and (is_late or not self._are_steps(session, steps)):
            self._announce(here, session, Waiting(_next_number(session), request, values))
            return
        if steps:
            self._take(session, steps, is_late=False)
        self.tell_taken(session.client, request)

    def tell_taken(self, client: str, request: int) -> None:
        """Answer a move, if the client requested it."""
        if request > 0:
            self._broker.tell(client, SubscriptionSettled(request))

    def hear(self, session: Session, publish: ClientPublish) -> None:
        """Take the last location reported in what the client publishes, before that is routed."""
        telling, front, bodies, varied = self.telling, self._broker.front, publish.bodies, publish.varied
        assert telling is not None
        burst = Burst("", 0, 0, publish.attributes, 0.0, bodies, len(bodies), publish.marks, varied)
        place = None
        for part in burst.uniform():
            contents = [decode_attributes(part.attributes)] if front is None else front.contents(part)
            for attributes in contents:
                told = telling.place_in(attributes)
                place = place if told is None else told
        if place is not None:
            self._broker.requests.move(session, {LOCATION: place}, self._was_away(session))

    def _was_away(self, session: Session) -> bool:
        """True if the client was away since its last move, and may have moved more than once meanwhile."""
        attachment, known = self._broker.attachments.get(session.client), session.paces.get(LOCATION)
        return attachment is not None and known is not None and known.changed_at < attachment.at

    def lend(self, here: ClientHere, session: Session) -> None:
        """Give a client that never reported its location that of its broker, once it stays there."""
        lent = self._settings.lent.get(self._broker.id)
        if lent is None or here.announced is not None or not self.may_move(here):
            return
        is_open = session.is_lent or _value(session, LOCATION) is None
        if is_open and not any(kind == "Move" for _, kind, _ in session.deferred):
            self.move(here, session, LENT, encoded_values({LOCATION: lent}), is_late=True)

    def refuse(self, client: str, request: int, reason: str) -> None:
        if request > 0:
            self._broker.tell(client, RequestRefused(request, reason))

    def refuse_move(self, client: str, request: int, reason: str) -> None:
        self._broker.record("located", client=client, broker=self._broker.id, reason=f"refused: {reason}")
        self.refuse(client, request, reason)

    def _are_steps(self, session: Session, steps: dict[str, Value]) -> bool:
        for name, value in steps.items():
            old = _value(session, name)
            if old is None or not self._settings.variables[name].is_step(old, value):
                return False
        return True

    def _take(self, session: Session, values: dict[str, Value], is_late: bool) -> None:
        """Set the client's location from now on."""
        broker, settings = self._broker, self._settings
        for name, value in values.items():
            session.paces[name] = pace.changed(session.paces.get(name), broker.now, is_late)
            stay_s = settings.stay_s
            if stay_s is None:
                stay_s = pace.stay_s(session.paces[name], settings.stay_first_s, settings.estimate)
            session.places[name] = Place(value, None, stay_s)
        known = {name: place.value for name, place in session.places.items() if place.value is not None}
        broker.record(
            "located", client=session.client, broker=broker.id, attributes=encode_attributes(known),
            reason="late" if is_late else "step",
        )  # fmt: skip
        session.places_number = _next_number(session)
        broker.router.locate(_whereabouts(session), "subscribe")
        if LOCATION in values:
            self._fences.moved(session, values[LOCATION])

    def _announce(self, here: ClientHere, session: Session, waiting: Waiting) -> None:
        """Announce the client's next location; the move takes effect when all brokers know."""
        for name, value in decoded_values(waiting.values).items():
            old = session.places.get(name, Place(stay_s=self._settings.stay_s or self._settings.stay_first_s))
            session.places[name] = msgspec.structs.replace(old, coming=value)
        session.places_number = waiting.number
        here.announced = waiting
        token = Announced(session.client, waiting.number)
        self._broker.router.locate(_whereabouts(session), "subscribe", token)

    def on_settled(self, token: Announced) -> None:
        broker, here = self._broker, self._broker.clients.here.get(token.client)
        if here is None or here.session is None or here.announced is None:
            return
        waiting = here.announced
        if waiting.number != token.number:
            return  # The session has left since.
        if waiting.values and not self.may_move(here):
            self._put_off(here.session, waiting)
            here.announced = None
            return
        here.announced = None
        if waiting.values:
            self._take(here.session, decoded_values(waiting.values), is_late=True)
            self.tell_taken(here.client, waiting.request)
        broker.requests.carry_on(here)

    def may_move(self, here: ClientHere) -> bool:
        """True unless the client is away or in a handoff: other brokers may be storing for its present
        location."""
        return here.client in self._broker.attachments and here.handoff is Handoff.FINISHED

    def _put_off(self, session: Session, waiting: Waiting) -> None:
        """Defer a jump until the client is here, or at its next broker.

        A jump to this broker's own place is dropped: the next broker sets its own.
        """
        moves = [index for index, one in enumerate(session.deferred) if one[1] == "Move"]
        if moves and waiting.request != LENT:
            request, kind, later = session.deferred[moves[0]]
            session.deferred[moves[0]] = (request, kind, merged_values(waiting.values, later))
            self.tell_taken(session.client, waiting.request)
        elif waiting.request != LENT:
            session.deferred.insert(0, (waiting.request, "Move", waiting.values))
        for name, place in session.places.items():
            session.places[name] = msgspec.structs.replace(place, coming=None)

    # --- sessions come and go ---

    def know(self, session: Session) -> None:
        """Make the state of a client whose session is here ready for a filter that uses it."""
        session.places_number = session.places_number or session.incarnation
        self._broker.router.dependents.locate(_whereabouts(session))

    def session_came(self, here: ClientHere, session: Session) -> None:
        """Announce the client's new whereabouts before its protocol sends messages that refer to them.

        The client's moves wait until all brokers know.
        """
        if here.came_from not in ("", self._broker.id) and any(map(_is_own, session.subscriptions)):
            session.places_number = _next_number(session)
            here.announced = Waiting(session.places_number)
            self._broker.router.relocate_client(_whereabouts(session))

    def session_is_here(self, here: ClientHere) -> None:
        """Find out when all brokers know the client's whereabouts, after its session has arrived."""
        if here.session is not None and here.session.zones:
            self._fences.arrived(here.session)
        if here.announced is not None and not here.announced.values:
            self._broker.router.settle("handoff", Announced(here.client, here.announced.number))
        elif here.session is not None:
            self.lend(here, here.session)

    def before_departure(self, here: ClientHere, session: Session) -> None:
        """Defer pending moves to the broker where the session goes."""
        waiting, here.announced = here.announced, None
        if waiting is not None and waiting.values:
            self._put_off(session, waiting)

    def session_gone(self, here: ClientHere) -> None:
        here.announced = None
        self._broker.router.depart(here.client)

    # --- messages about clients ---

    def about(self, message: Message) -> Message:
        """Attach the client's whereabouts to a message about it."""
        known = self._broker.router.dependents.known(client_of(message))
        return message if known is None else About(known, message)

    # --- how long links take ---

    def measure(self, peer: str) -> None:
        """Measure the round trip to a peer, unless known well enough."""
        now = self._broker.now
        round_trip = self._round_trips.setdefault(peer, RoundTrip())
        if self._settings.variables and now >= round_trip.asked_at + self._settings.measure_every_s:
            round_trip.asked_at = now
            self._broker.send(peer, Probe(now))

    def on_probe(self, peer: str, message: Probe) -> None:
        if not message.is_echo:
            self._broker.send(peer, Probe(message.sent_at, is_echo=True))
            return
        round_trip = self._round_trips.setdefault(peer, RoundTrip())
        measured_s = round(max(self._broker.now - message.sent_at, 0.0), 6)
        round_trip.measured_s = [*round_trip.measured_s, measured_s][-ROUND_TRIPS_KEPT:]
        longest_s = max(round_trip.measured_s)
        if abs(longest_s - round_trip.used_s) > MEASURED_CHANGE_MIN * longest_s:
            round_trip.used_s = longest_s
            self._broker.router.measure(peer, longest_s)


def encoded_values(values: dict[str, Value]) -> str:
    return msgspec.json.encode(values).decode()


def merged_values(earlier: str, later: str) -> str:
    """Merge two moves into one."""
    return encoded_values({**decoded_values(earlier), **decoded_values(later)})


def decoded_values(values: str) -> dict[str, Value]:
    return msgspec.json.decode(values, type=dict[str, str | bool | int | float])


def _value(session: Session, variable: str) -> Value | None:
    place = session.places.get(variable)
    return None if place is None else place.value


def _next_number(session: Session) -> int:
    """Return the number of the client's next whereabouts: higher than in its ended sessions, whose messages
    may still be under way."""
    return max(session.places_number, session.incarnation) + 1


def _whereabouts(session: Session) -> Whereabouts:
    return Whereabouts(session.client, session.places_number, dict(session.places))


def _is_own(text: str) -> bool:
    """True if a filter depends on its client's own state."""
    return bool(parse(text).own)
