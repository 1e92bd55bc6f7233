"""AODV: routes are requested when they are needed (Amozarrain 2021, section 4.5.1; RFC 3561).

A pure machine that acts through its `Host`. The thesis gives an outline: every node sends hellos; a node that
needs a route broadcasts an RREQ; a node that knows one, or is the destination, answers with an RREP; unused
routes time out, and a RERR goes back when a route times out or a link breaks. All else follows the RFC, whose
sections the methods name. Of the RFC's options, expanding rings (6.4) are a setting that is off by default,
because the thesis floods the whole network; local repair (6.12) and gratuitous RREPs (6.6.3) are not
implemented, because the thesis has neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from roamcast.simulator.radio.aodv_messages import AodvHello, AodvMessage, Data, Rerr, Rrep, Rreq


@dataclass(frozen=True)
class AodvSettings:
    """Settings of AODV, with the defaults of RFC 3561, section 10, unless stated otherwise."""

    active_route_timeout_s: float = 3.0
    allowed_hello_loss: int = 2
    hello_interval_s: float = 1.0
    net_diameter: int = 35
    node_traversal_s: float = 0.040
    rreq_retries: int = 2
    rreq_per_s_max: int = 10
    rerr_per_s_max: int = 10
    expanding_ring: bool = False
    """True to search in expanding rings; the thesis does not."""
    ttl_start: int = 1
    ttl_increment: int = 2
    ttl_threshold: int = 7
    timeout_buffer: int = 2
    jitter_s: float = 0.010
    """Our choice: random delay, so that neighbours that received the same broadcast do not repeat
    it at once.
    """
    buffered_max: int = 64
    """Our choice: maximum number of packets that wait for one route; the oldest is dropped."""
    link_feedback: bool = True
    """True if an unacknowledged frame counts as a broken link (6.10); otherwise only silence does."""

    @property
    def net_traversal_s(self) -> float:
        return 2 * self.node_traversal_s * self.net_diameter

    @property
    def my_route_timeout_s(self) -> float:
        return 2 * self.active_route_timeout_s

    @property
    def path_discovery_s(self) -> float:
        return 2 * self.net_traversal_s

    @property
    def delete_period_s(self) -> float:
        return 5 * max(self.active_route_timeout_s, self.hello_interval_s)

    @property
    def neighbour_timeout_s(self) -> float:
        return self.allowed_hello_loss * self.hello_interval_s


class Host(Protocol):
    """Interface of a station for its AODV machine."""

    @property
    def now(self) -> float: ...

    def broadcast(self, message: AodvMessage) -> None: ...

    def unicast(self, neighbour: int, message: AodvMessage) -> None: ...

    def set_timer(self, at: float, then: Callable[..., Any], *about: Any) -> None:
        """Call `then(*about)` at that time."""

    def jitter(self, up_to_s: float) -> float: ...

    def deliver(self, data: Data) -> None:
        """Deliver a packet to this node."""

    def given_up(self, data: Data, reason: str) -> None:
        """Note that the packet is dropped here."""


@dataclass(slots=True)
class Route:
    """Route to a destination (section 2 and 6.2)."""

    next_hop: int
    hops: int
    sequence: int | None
    """The destination's last known sequence number, or None."""
    expires_at: float
    valid: bool = True
    precursors: dict[int, None] = field(default_factory=dict)
    """Neighbours that use this route through this node, in order of first use."""


@dataclass(slots=True)
class Discovery:
    """A route discovery in progress."""

    waiting: deque[Data]
    attempt: int = 0
    ttl: int = 0
    number: int = 0
    """Number of its latest RREQ."""


class Aodv:
    def __init__(self, node: int, host: Host, settings: AodvSettings) -> None:
        self.node = node
        self.host = host
        self.settings = settings
        self.routes: dict[int, Route] = {}
        self.discoveries: dict[int, Discovery] = {}
        self.sequence = 0
        self._handlers: dict[type[AodvMessage], Callable[[int, Any], None]] = {
            AodvHello: self.on_hello,
            Rreq: self.on_rreq,
            Rrep: self.on_rrep,
            Rerr: self.on_rerr,
            Data: self.on_data,
        }
        self.rreq_number = 0
        """Number of its latest RREQ; 0 if it has never started one."""
        self._seen: dict[tuple[int, int], float] = {}
        self._heard_at: dict[int, float] = {}
        self._rreqs_at: deque[float] = deque(maxlen=settings.rreq_per_s_max)
        self._rerrs_at: deque[float] = deque(maxlen=settings.rerr_per_s_max)

    # --- what others call ---

    def start(self) -> None:
        self.host.set_timer(self.host.now + self.host.jitter(self.settings.hello_interval_s), self._say_hello)

    def send(self, destination: int, content: Any, content_bytes: int) -> None:
        """Send a packet. Only this starts an RREQ: nodes that only forward never do."""
        data = Data(self.node, destination, 0, content, content_bytes)
        if self._active(destination) is not None:
            self._forward(data)
        else:
            self._wait_for_route(data)

    def on_received(self, sender: int, message: AodvMessage) -> None:
        self._heard_at[sender] = self.host.now
        self._handlers[type(message)](sender, message)

    def on_send_failed(self, neighbour: int, message: AodvMessage) -> None:
        """Handle a unicast message that nobody acknowledged; the neighbour may be gone (6.10)."""
        if self.settings.link_feedback:
            self._link_broken(neighbour)
        if isinstance(message, Data):
            if message.origin == self.node:
                self._wait_for_route(message)
            else:
                self.host.given_up(message, "link broken")

    # --- hello (6.9) ---

    def _say_hello(self) -> None:
        now, settings = self.host.now, self.settings
        self.host.broadcast(AodvHello(self.sequence))
        self.host.set_timer(now + settings.hello_interval_s, self._say_hello)
        for neighbour, heard_at in list(self._heard_at.items()):
            if now - heard_at > settings.neighbour_timeout_s:
                del self._heard_at[neighbour]
                self._link_broken(neighbour)
        self._expire(now)

    def on_hello(self, sender: int, message: AodvHello) -> None:
        self._learn_neighbour(sender, self.host.now)
        route = self.routes[sender]
        route.sequence = _newest(route.sequence, message.sequence)

    # --- asking for a route (6.3, 6.4) ---

    def _wait_for_route(self, data: Data) -> None:
        discovery = self.discoveries.get(data.destination)
        if discovery is None:
            discovery = self.discoveries[data.destination] = Discovery(deque())
            discovery.ttl = self._first_ttl(data.destination)
            discovery.waiting.append(data)
            self._issue_rreq(data.destination)
            return
        discovery.waiting.append(data)
        if len(discovery.waiting) > self.settings.buffered_max:
            self.host.given_up(discovery.waiting.popleft(), "too many wait for the route")

    def _first_ttl(self, destination: int) -> int:
        if not self.settings.expanding_ring:
            return self.settings.net_diameter
        known = self.routes.get(destination)
        return known.hops + self.settings.ttl_increment if known is not None else self.settings.ttl_start

    def _issue_rreq(self, destination: int) -> None:
        discovery = self.discoveries.get(destination)
        if discovery is None:
            return  # A route came while this one waited its turn.
        now, settings = self.host.now, self.settings
        if len(self._rreqs_at) == settings.rreq_per_s_max and now < self._rreqs_at[0] + 1.0:
            self.host.set_timer(self._rreqs_at[0] + 1.0, self._issue_rreq, destination)
            return
        self._rreqs_at.append(now)
        self.rreq_number += 1
        self.sequence += 1
        discovery.number = self.rreq_number
        known = self.routes.get(destination)
        sequence = known.sequence if known is not None else None
        self._seen[self.node, self.rreq_number] = now + settings.path_discovery_s
        self.host.broadcast(
            Rreq(self.rreq_number, destination, sequence, self.node, self.sequence, 0, discovery.ttl)
        )
        at = now + self._discovery_wait_s(discovery)
        self.host.set_timer(at, self._discovery_timed_out, destination, self.rreq_number)

    def _discovery_wait_s(self, discovery: Discovery) -> float:
        """Return the timeout for an answer; each retry over the whole network doubles it."""
        settings = self.settings
        if discovery.ttl < settings.net_diameter:
            return 2 * settings.node_traversal_s * (discovery.ttl + settings.timeout_buffer)
        return settings.net_traversal_s * 2.0**discovery.attempt

    def _discovery_timed_out(self, destination: int, number: int) -> None:
        discovery = self.discoveries.get(destination)
        if discovery is None or discovery.number != number:
            return
        settings = self.settings
        if discovery.ttl < settings.net_diameter:
            wider = discovery.ttl + settings.ttl_increment
            discovery.ttl = wider if wider <= settings.ttl_threshold else settings.net_diameter
        elif discovery.attempt < settings.rreq_retries:
            discovery.attempt += 1
        else:
            del self.discoveries[destination]
            for data in discovery.waiting:
                self.host.given_up(data, "no route")
            return
        self._issue_rreq(destination)

    # --- RREQ (6.5, 6.6) ---

    def on_rreq(self, sender: int, message: Rreq) -> None:
        now, settings = self.host.now, self.settings
        self._learn_neighbour(sender, now)
        key = (message.origin, message.number)
        if message.origin == self.node or key in self._seen:
            return
        self._seen[key] = now + settings.path_discovery_s
        hops = message.hops + 1
        least_s = 2 * settings.net_traversal_s - 2 * hops * settings.node_traversal_s
        self._learn(message.origin, sender, hops, message.origin_sequence, now + least_s)
        if message.destination == self.node:
            self._answer_as_destination(message)
            return
        route = self._active(message.destination)
        if route is not None and _is_new_enough(route, message.destination_sequence):
            self._answer_for(route, message, now)
        elif message.ttl > 1:
            known = self.routes.get(message.destination)
            asked = _newest(message.destination_sequence, known.sequence if known is not None else None)
            onward = message._replace(destination_sequence=asked, hops=hops, ttl=message.ttl - 1)
            self.host.set_timer(now + self.host.jitter(settings.jitter_s), self.host.broadcast, onward)

    def _answer_as_destination(self, message: Rreq) -> None:
        self.sequence = max(self.sequence, message.destination_sequence or 0)
        answer = Rrep(self.node, self.sequence, message.origin, 0, self.settings.my_route_timeout_s)
        self.host.unicast(self.routes[message.origin].next_hop, answer)

    def _answer_for(self, route: Route, message: Rreq, now: float) -> None:
        """Answer a request if a route is known; the request is then not forwarded (6.6.2)."""
        back = self.routes[message.origin]
        route.precursors[back.next_hop] = None
        back.precursors[route.next_hop] = None
        answer = Rrep(
            message.destination, route.sequence or 0, message.origin, route.hops, route.expires_at - now
        )
        self.host.unicast(back.next_hop, answer)

    # --- RREP (6.7) ---

    def on_rrep(self, sender: int, message: Rrep) -> None:
        now, hops = self.host.now, message.hops + 1
        self._learn_neighbour(sender, now)
        until = now + message.lifetime_s
        self._learn(message.destination, sender, hops, message.destination_sequence, until)
        if message.origin == self.node:
            self._route_found(message.destination)
            return
        back = self._active(message.origin)
        if back is None:
            return  # The way back is gone; the origin will ask again.
        self.routes[message.destination].precursors[back.next_hop] = None
        towards = self.routes.get(sender)
        if towards is not None:
            towards.precursors[back.next_hop] = None
        back.expires_at = max(back.expires_at, now + self.settings.active_route_timeout_s)
        self.host.unicast(back.next_hop, message._replace(hops=hops))

    def _route_found(self, destination: int) -> None:
        if self._active(destination) is None:
            return
        discovery = self.discoveries.pop(destination, None)
        for data in discovery.waiting if discovery is not None else ():
            self._forward(data)

    # --- data (6.2) ---

    def on_data(self, sender: int, message: Data) -> None:
        now = self.host.now
        self._use(sender, now)
        self._use(message.origin, now)
        arrived = message._replace(hops=message.hops + 1)
        if message.destination == self.node:
            self.host.deliver(arrived)
        elif arrived.hops >= self.settings.net_diameter:
            self.host.given_up(arrived, "too many hops")
        elif self._active(message.destination) is not None:
            self._forward(arrived)
        else:
            self.host.given_up(arrived, "no route on the way")
            self._report([message.destination], {sender: None})

    def _forward(self, data: Data) -> None:
        now = self.host.now
        route = self.routes[data.destination]
        self._use(data.destination, now)
        self._use(route.next_hop, now)
        self.host.unicast(route.next_hop, data)

    def _use(self, destination: int, now: float) -> None:
        route = self.routes.get(destination)
        if route is not None and route.valid:
            route.expires_at = max(route.expires_at, now + self.settings.active_route_timeout_s)

    # --- RERR (6.11) ---

    def _link_broken(self, neighbour: int) -> None:
        self._heard_at.pop(neighbour, None)
        lost = [
            destination
            for destination, route in self.routes.items()
            if route.valid and route.next_hop == neighbour
        ]
        for destination in lost:
            route = self.routes[destination]
            self._invalidate(route, None if route.sequence is None else route.sequence + 1)
        self._report_to_precursors(lost)

    def on_rerr(self, sender: int, message: Rerr) -> None:
        lost = []
        for destination, sequence in message.unreachable:
            route = self.routes.get(destination)
            if route is not None and route.valid and route.next_hop == sender:
                self._invalidate(route, sequence)
                lost.append(destination)
        self._report_to_precursors(lost)

    def _expire(self, now: float) -> None:
        """Let unused routes time out, and tell the neighbours that used them (thesis, 4.5.1)."""
        expired = []
        for destination, route in list(self.routes.items()):
            if now < route.expires_at:
                continue
            if route.valid:
                self._invalidate(route, None if route.sequence is None else route.sequence + 1)
                expired.append(destination)
            elif destination not in self.discoveries:
                del self.routes[destination]
        self._report_to_precursors(expired)
        for key in [key for key, until in self._seen.items() if until <= now]:
            del self._seen[key]

    def _invalidate(self, route: Route, sequence: int | None) -> None:
        route.valid = False
        route.sequence = _newest(route.sequence, sequence)
        route.expires_at = self.host.now + self.settings.delete_period_s

    def _report_to_precursors(self, lost: list[int]) -> None:
        told = [destination for destination in lost if self.routes[destination].precursors]
        precursors: dict[int, None] = {}
        for destination in told:
            precursors |= self.routes[destination].precursors
            self.routes[destination].precursors = {}
        if told:
            self._report(told, precursors)

    def _report(self, lost: list[int], precursors: dict[int, None]) -> None:
        now, settings = self.host.now, self.settings
        if len(self._rerrs_at) == settings.rerr_per_s_max and now < self._rerrs_at[0] + 1.0:
            return
        self._rerrs_at.append(now)
        known = ((destination, self.routes.get(destination)) for destination in lost)
        message = Rerr(tuple((one, (route.sequence if route else None) or 0) for one, route in known))
        if len(precursors) == 1:
            self.host.unicast(next(iter(precursors)), message)
        else:
            self.host.broadcast(message)

    # --- the table (6.2) ---

    def _active(self, destination: int) -> Route | None:
        route = self.routes.get(destination)
        return route if route is not None and route.valid and self.host.now < route.expires_at else None

    def _learn_neighbour(self, sender: int, now: float) -> None:
        route = self.routes.get(sender)
        until = now + self.settings.active_route_timeout_s
        if route is None:
            self.routes[sender] = Route(sender, 1, None, until)
        elif route.next_hop == sender and route.valid:
            if route.expires_at < until:
                route.expires_at = until
        else:
            route.next_hop, route.hops, route.valid, route.expires_at = sender, 1, True, until

    def _learn(self, destination: int, next_hop: int, hops: int, sequence: int, until: float) -> None:
        """Take a route if none is known, or if it is newer, or as new and shorter."""
        route = self.routes.get(destination)
        if route is None:
            self.routes[destination] = Route(next_hop, hops, sequence, until)
            return
        known = route.sequence
        usable = route.valid and self.host.now < route.expires_at
        as_new = sequence == known
        if known is None or sequence > known or (as_new and (not usable or hops < route.hops)):
            route.next_hop, route.hops, route.sequence, route.valid = next_hop, hops, sequence, True
            route.expires_at = until if not usable else max(until, route.expires_at)
        elif usable and as_new and route.next_hop == next_hop:
            route.expires_at = max(until, route.expires_at)


def _is_new_enough(route: Route, asked: int | None) -> bool:
    return route.sequence is not None and (asked is None or route.sequence >= asked)


def _newest(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
