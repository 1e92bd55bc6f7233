"""Copies ahead of the client: pro-active proxies (Gaddah 2008, chapter 3 and section 4.3.1). Pure.

At a move-out the proxy tells its neighbours, the sites where clients often go next. They listen and buffer as
well, before the client arrives. At a neighbour the client then downloads from the proxy of its own site, and
no messages cross the network between sites. Case by case, as in the thesis's figure 3.1:

    2  disconnects        `surround`: Surround to every neighbour, which opens a copy and listens
    4  moves out          `on_taken`: Forget to the proxy of the move-out, which forgets its other copies
    5  moves in           the client downloads the copy; elsewhere the handler, as without copies
    8  times out          leases, and Forget to the copies

In the thesis the proxy forwards what it stores until the activation is acknowledged (4.3.1, steps 7A to 10).
Here the copy pings the handler through the brokers, as a move-in does (Caporuscio et al. 3.3), and asks for
the handler's messages before the ping (`Prefix`); messages after the ping reached the copy as well. Until it
has them a copy is not served.

The neighbours are configured, or learned from moves (`mobility.neighbour_graph`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from roamcast.mobility.neighbour_graph import NeighbourGraph
from roamcast.proxy import messages
from roamcast.proxy.buffers import Handler, Opened
from roamcast.proxy.errands import AGAIN_S, BATCH_BYTES, BATCH_MESSAGES
from roamcast.proxy.messages import ahead_ticket
from roamcast.proxy.steps import Joined

if TYPE_CHECKING:
    from roamcast.proxy.service import Service

PINGS_KEPT_MAX = 16
"""Number of remembered pings of copies to one handler; an older one has to be repeated."""
TRIES_MAX = 5
"""Number of attempts to reach a proxy; after that its handlers end by their leases."""


class Telling:
    """One message to the proxy of a site, repeated while that proxy cannot be reached."""

    def __init__(
        self, service: Service, site: str, message: messages.Message, is_wanted: Callable[[], bool]
    ) -> None:
        self._service, self._site, self._message, self._is_wanted = service, site, message, is_wanted
        self._tries = 0
        self._try()

    def _try(self) -> None:
        if self._is_wanted():
            self._tries += 1
            self._service.dial(self._site, self)

    def on_joined(self, link: int) -> None:
        self._service.send(link, self._message)

    def on_answer(self, link: int, message: messages.Message) -> None:
        self._service.hang_up(link)

    def on_left(self, link: int, why: str) -> None:
        if self._tries < TRIES_MAX:
            self._service.after(AGAIN_S, self._try)


class Copying(msgspec.Struct):
    """Sends a copy at another site the messages that the handler here had before the ping."""

    handler: Handler
    until: int
    sent: int


class Ahead:
    """The part of the service that creates copies ahead of clients."""

    def __init__(self, service: Service) -> None:
        self._service = service
        settings = service.config.proactive
        self.graph = NeighbourGraph(settings.neighbours_max, settings.neighbour_timeout_s)
        self._pings: dict[int, dict[bytes, int]] = {}
        """Pings of the copies of each handler, each with the number of the last message before it."""
        self._copying: dict[tuple[int, int], Copying] = {}
        """Transfers to copies, by connection and request."""
        self._copies: dict[int, dict[str, None]] = {}
        """Sites that were told to have copies, by handler."""

    def neighbours(self) -> list[str]:
        settings, sites = self._service.config.proactive, self._service.config.sites
        chosen = settings.sites or self.graph.neighbours(self._service.now)
        return [site for site in chosen if site in sites] if settings.enabled else []

    # --- at the site of the move-out ---

    def surround(self, handler: Handler) -> None:
        """Request copies at the neighbours. After a restart the request is repeated, which changes
        nothing."""
        opened = handler.opened
        if opened.is_resident or opened.copy_of is not None or handler.is_frozen:
            return
        for site in self.neighbours():
            if site in self._copies.setdefault(handler.id, {}):
                continue
            self._copies[handler.id][site] = None
            surround = messages.Surround(
                1, opened.client, opened.ticket, opened.owner, tuple(handler.filters), opened.lease_s,
                opened.bytes_max, opened.is_unique,
            )  # fmt: skip
            Telling(self._service, site, surround, lambda: handler.id in self._copies)

    def on_ping(self, handler: Handler, body: bytes) -> None:
        pings = self._pings.setdefault(handler.id, {})
        pings.setdefault(body, handler.last)
        if len(pings) > PINGS_KEPT_MAX:
            del pings[next(iter(pings))]

    def on_prefix(self, connection: int, prefix: messages.Prefix) -> None:
        service = self._service
        handler = service.buffers.by_key.get((prefix.client, prefix.ticket))
        if handler is None or handler.is_frozen or handler.opened.owner != prefix.user:
            service.refuse(connection, prefix.request, "unknown", f"no handler of {prefix.client!r} listens")
            return
        until = self._pings.get(handler.id, {}).get(prefix.ping)
        if until is None:
            service.refuse(connection, prefix.request, "busy", "unknown ping: ping again")
            return
        self._copying[connection, prefix.request] = Copying(handler, until, handler.first - 1)
        self._send_next(connection, prefix.request)

    def on_taken(self, connection: int, request: int, number: int) -> bool:
        """Handle the acknowledgement of a copy, if it is one; then send more."""
        copying = self._copying.get((connection, request))
        if copying is not None and number == copying.sent:
            self._send_next(connection, request)
        return copying is not None

    def _send_next(self, connection: int, request: int) -> None:
        copying = self._copying[connection, request]
        handler, first = copying.handler, max(copying.sent + 1, copying.handler.first)
        if handler.is_frozen or handler.id not in self._service.buffers.by_id:
            del self._copying[connection, request]
            self._service.refuse(connection, request, "unknown", f"no handler of {handler.client!r} listens")
            return
        batch = handler.slice(first, BATCH_BYTES, min(BATCH_MESSAGES, max(0, copying.until - first + 1)))
        if batch:
            copying.sent = first + len(batch) - 1
            self._service.send(connection, messages.Batch(request, first, tuple(batch)))
        else:
            del self._copying[connection, request]
            self._service.send(connection, messages.Downloaded(request, handler.dropped))

    def on_fetched(self, handler: Handler, by_site: str) -> None:
        """Delete the copies: the client downloads the handler itself."""
        if by_site:
            self.graph.on_context_request(by_site, self._service.now)
        self._forget_copies(handler)

    def _forget_copies(self, handler: Handler, but: str = "") -> None:
        self._pings.pop(handler.id, None)
        for site in self._copies.pop(handler.id, {}):
            if site != but:
                ticket = ahead_ticket(handler.opened.ticket, site)
                self._tell(site, messages.Forget(1, handler.client, ticket, handler.opened.owner))

    def _tell(self, site: str, message: messages.Forget) -> None:
        if site in self._service.config.sites:
            Telling(self._service, site, message, lambda: True)

    # --- at a neighbour ---

    def on_surround(self, joined: Joined, asked: messages.Surround) -> None:
        service = self._service
        ticket = ahead_ticket(asked.ticket, service.site)
        obstacle = self._obstacle(asked, ticket)
        if obstacle:
            service.refuse(joined.connection, asked.request, "quota", obstacle)
            return
        if (asked.client, ticket) not in service.buffers.by_key:
            limits = service.limits
            lease_s = min(asked.lease_s, limits.lease_max_s)
            opened = Opened(
                service.buffers.next_id, asked.client, asked.user, ticket, dict.fromkeys(asked.filters, ""),
                lease_s, service.now + lease_s, min(asked.bytes_max, limits.bytes_max), asked.is_unique,
                is_resident=False, copy_of=(joined.who, asked.ticket),
            )  # fmt: skip
            handler = service.open(opened)
            if not service.down:
                service.listen(handler)
        service.send(joined.connection, messages.MovedOut(asked.request, asked.lease_s, asked.bytes_max))

    def _obstacle(self, asked: messages.Surround, ticket: str) -> str:
        service = self._service
        limits, others = service.limits, service.buffers.by_client.get(asked.client, {}).values()
        if not service.config.proactive.enabled:
            return f"site {service.site} keeps no copies: proactive.enabled is false"
        if (asked.client, ticket) in service.buffers.gone or any(
            one.opened.owner != asked.user for one in others
        ):
            return f"site {service.site} keeps no copy of this stay of {asked.client!r}"
        if (
            len(service.buffers.by_id) >= limits.clients_max
            or service.buffers.bytes >= limits.bytes_total_max
        ):
            return f"site {service.site} has no room for copies"
        return f"{len(asked.filters)} filters are too many" if len(asked.filters) > limits.filters_max else ""

    def serve(self, handler: Handler) -> None:
        """Serve the download of a copy, which is the client's only source from now on."""
        source = handler.opened.copy_of
        assert source is not None
        self.graph.on_reconnect(source[0], self._service.now)
        self._service.change(handler, source=None, is_promised=True)

    def on_closed(self, handler: Handler, why: str) -> None:
        """Note that a handler has ended. If it was a copy and its client has received everything, the
        original handler is no longer needed."""
        source = handler.opened.copy_of
        if source is None:
            self._forget_copies(handler)
        elif why == "taken" and handler.is_promised:
            site, ticket = source
            self._tell(site, messages.Forget(1, handler.client, ticket, handler.opened.owner))

    def on_foreign_back(self) -> None:
        """Delete copies whose foreign broker kept nothing meanwhile, since they have a gap: the client
        uses the handler."""
        for handler in list(self._service.buffers.by_id.values()):
            if handler.opened.copy_of is not None and not handler.is_promised:
                self._service.end(handler, "ended")

    # --- both ---

    def on_forget(self, joined: Joined, forget: messages.Forget) -> None:
        """Handle Forget. From the site of a copy: the client has everything. From that of the handler: no
        copy is needed."""
        service = self._service
        handler = service.buffers.by_key.get((forget.client, forget.ticket))
        is_wanted = handler is not None and (handler.is_promised or service.is_fetched(handler))
        if handler is not None and handler.opened.owner == forget.user and not is_wanted:
            if handler.opened.copy_of is None:
                self.graph.on_context_request(joined.who, service.now)
                self._forget_copies(handler, but=joined.who)
            service.end(handler, "taken")
        service.send(joined.connection, messages.Downloaded(forget.request))

    def on_left(self, connection: int) -> None:
        for key in [key for key in self._copying if key[0] == connection]:
            del self._copying[key]
