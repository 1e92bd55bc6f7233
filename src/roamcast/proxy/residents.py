"""Sessions of the MQTT endpoint: handlers that listen all the time, and follow their clients. Pure.

A client of the endpoint does not know about proxies. Its handler stays subscribed while the client is here
and while it is away; messages are kept until the client has acknowledged them. When it connects at another
site, that site's proxy asks all others for the session and adopts it: it creates and subscribes its own
handler, pings the old one through the foreign brokers (section 3.3), and fetches the old one's messages,
which precede messages received here meanwhile. Adopted messages are journalled before it is acknowledged to
the old site, so either proxy may be killed at any moment.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from roamcast.proxy import messages, steps
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.buffers import Adopted, Dropped, Handler, Opened, Passing, Taken
from roamcast.proxy.errands import AGAIN_S
from roamcast.proxy.messages import ping_key

if TYPE_CHECKING:
    from roamcast.proxy.service import Fetching, Service

HELD_SEEN_MAX = 1000
"""Identities that travel with a session, so that copies still on their way are recognised."""
LOCATE, ADOPT = 1, 2
"""Request numbers on a dialed connection, which has at most one request of each kind."""


class Seeking:
    """A client waits for its session: every other site is asked, each over a connection of its own."""

    def __init__(
        self, residents: Residents, joined: steps.Joined, attach: steps.Attach, here: list[messages.Held]
    ) -> None:
        service = self._service = residents.service
        self._residents, self.joined, self.attach = residents, joined, attach
        self.found = [(service.site, held) for held in here]
        """Sites and the sessions they hold: several while a session moves from one site to the next."""
        self.unreachable = ""
        self.links = {service.dial(site, self): site for site in service.config.sites}
        """Sites that have not answered."""

    def newest(self) -> list[tuple[str, messages.Held]]:
        """The sessions that no other site adopts from: where the client was last."""
        sources = {held.source for _, held in self.found}
        return [(site, held) for site, held in self.found if held.ticket not in sources]

    def on_joined(self, link: int) -> None:
        attach = self.attach
        self._service.send(link, messages.Locate(LOCATE, attach.client, attach.user, attach.is_clean))

    def on_answer(self, link: int, message: messages.Message) -> None:
        self._service.hang_up(link)
        site = self.links.pop(link)
        if isinstance(message, messages.Located):
            self.found += [(site, held) for held in message.held]
        else:
            self.unreachable = f"site {site}: {messages.refusal_in(message)}"
        self._residents.decide(self)

    def on_left(self, link: int, why: str) -> None:
        site = self.links.pop(link)
        self.unreachable = f"site {site}, which may hold the session, cannot be asked ({why})"
        self._residents.decide(self)

    def end(self) -> None:
        for link in self.links:
            self._service.hang_up(link)
        self.links.clear()


class Adopting:
    """A session moves here from another site: ping its old handler, then download its buffer."""

    def __init__(self, residents: Residents, handler: Handler, source: tuple[str, str], nonce: bytes) -> None:
        self._residents, self._service, self.handler = residents, residents.service, handler
        self._site, self._ticket = source
        self._nonce = nonce
        self._link = 0

    def begin(self) -> None:
        topic = self._service.ping_topic(ping_key(self._ticket), "in-request")
        self._service.ping(topic, self._nonce, lambda: self._is_wanted() and not self._link)
        if self.handler.opened.copy_of is not None:
            # Nobody waits for a copy: its original may be gone, and would never answer.
            self._service.after(self._service.config.ping.timeout_s, self._ask_anyway)

    def _ask_anyway(self) -> None:
        if self._residents.adopting.get(self.handler.id) is self and not self._link:
            self._link = self._service.dial(self._site, self)

    def _is_wanted(self) -> bool:
        """False if the session has ended here meanwhile."""
        if self.handler.id not in self._service.buffers.by_id:
            self.end()
        return self.handler.id in self._residents.adopting

    def on_pong(self, message: ForeignMessage) -> None:
        if not self._link and message.topic == self.answer_topic and message.body == self._nonce:
            self._link = self._service.dial(self._site, self)

    @property
    def answer_topic(self) -> str:
        return self._service.ping_topic(ping_key(self._ticket), "in-response")

    def on_joined(self, link: int) -> None:
        opened = self.handler.opened
        asked: messages.Message = messages.Download(ADOPT, opened.client, self._ticket, user=opened.owner)
        if opened.copy_of is not None:
            asked = messages.Prefix(ADOPT, opened.client, self._ticket, opened.owner, self._nonce)
        self._service.send(link, asked)

    def on_answer(self, link: int, message: messages.Message) -> None:
        service, handler = self._service, self.handler
        if not self._is_wanted():
            return
        match message:
            case messages.Batch(first=first, messages=batch):
                new = tuple(batch[max(0, handler.adopted + 1 - first) :])
                last = first + len(batch) - 1
                if new:
                    service.keep(Adopted(handler.id, last, new))
                service.send(link, messages.Taken(ADOPT, last))
                self._residents.stream(handler)
            case messages.MoveRefused(code="unknown") if handler.opened.copy_of is not None:
                self.end()
                service.end(handler, "ended")
            case messages.Downloaded(missing="", dropped=dropped) if handler.opened.copy_of is not None:
                if dropped:
                    service.keep(Dropped(handler.id, dropped))
                self.end()
                self._residents.on_adopted(handler, self.answer_topic)
            case messages.Downloaded(missing="") | messages.MoveRefused(code="unknown" | "expired"):
                self.end()
                self._residents.on_adopted(handler, self.answer_topic)
            case _:
                self.on_left(link, "")

    def on_left(self, link: int, why: str) -> None:
        self.end()
        self._service.after(AGAIN_S, lambda: self._residents.adopt_again(self.handler.id))

    def end(self) -> None:
        self._residents.adopting.pop(self.handler.id, None)
        self._service.hang_up(self._link)


class Residents:
    """The part of the service that works for the MQTT endpoint."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.adopting: dict[int, Adopting] = {}
        """Adoptions by handler."""
        self._seeking: dict[int, Seeking] = {}
        """Searches by the connection of the client."""
        self._attached: dict[int, Fetching] = {}
        """Attached clients by handler."""
        self._of_connection: dict[int, int] = {}
        self._subscribing: dict[int, tuple[int, int]] = {}
        """Connection and request of each subscription in progress, by the token of the Listen."""
        self._tokens = 0

    # --- the endpoint ---

    def on_message(self, joined: steps.Joined, message: messages.Message | steps.Local) -> None:
        handler = self.service.buffers.by_id.get(self._of_connection.get(joined.connection, 0))
        match message:
            case steps.Attach():
                self._on_attach(joined, message)
            case steps.Subscribe() if handler is not None:
                self._on_subscribe(joined.connection, handler, message)
            case messages.Taken(number=number) if handler is not None:
                stream = self._attached[handler.id]
                if handler.first <= number <= stream.sent:
                    self.service.keep(Taken(handler.id, number))
                    self.stream(handler)
            case steps.Pass() if handler is not None:
                passing = Passing(handler.id, message.packet_id, message.identity, message.is_passed)
                self.service.keep(passing)
            case steps.Recalled(messages=recalled) if handler is not None:
                for one in recalled:
                    self.service.put(handler, one)
            case steps.Detach(lease_s=lease_s) if handler is not None:
                self._detach(handler)
                if lease_s <= 0:
                    self.service.end(handler, "ended")
                else:
                    self._lease(handler, lease_s)

    def _on_attach(self, joined: steps.Joined, attach: steps.Attach) -> None:
        service = self.service
        handler = self._resident(attach.client)
        if handler is not None and handler.opened.owner != attach.user:
            text = f"client id {attach.client!r} belongs to another user at this site"
            service.refuse(joined.connection, attach.request, "identity", text)
        elif service.down:
            text = f"the broker of site {service.site} is down ({service.down})"
            service.refuse(joined.connection, attach.request, "broker", text)
        elif handler is not None and not attach.is_clean and not handler.is_promised:
            self._begin(joined, attach, handler, is_present=True)
        else:
            if attach.is_clean:
                self._end_all(attach.client)
            self._seek(joined, attach)

    def _resident(self, client: str) -> Handler | None:
        """The session at this site; of two, the newer one."""
        found = self._residents_of(client)
        return next((one for one in found if not one.is_promised), found[0] if found else None)

    def _residents_of(self, client: str) -> list[Handler]:
        handlers = self.service.buffers.by_client.get(client, {}).values()
        return [one for one in handlers if one.opened.is_resident and not one.is_frozen]

    def _end_all(self, client: str) -> None:
        for handler in self._residents_of(client):
            self._end_stream(handler, "the session was taken over")
            self.service.end(handler, "ended")

    def _begin(self, joined: steps.Joined, attach: steps.Attach, handler: Handler, is_present: bool) -> None:
        """Attach the client to its session here, and begin to deliver."""
        service, connection = self.service, joined.connection
        self._end_stream(handler, "the session was taken over")
        service.change(handler, expires=0.0, is_promised=False)
        self._of_connection[connection] = handler.id
        self._attached[handler.id] = service.new_stream(connection, attach.request, handler)
        attached = steps.Attached(attach.request, is_present, dict(handler.filters), dict(handler.passing))
        service.send(connection, attached)
        self.stream(handler)

    def _open(self, attach: steps.Attach, site: str = "", held: messages.Held | None = None) -> Handler:
        """Open a handler; if the session is at another site, the handler is filled from there."""
        service = self.service
        filters, known = (held.filters, held.seen) if held is not None else ({}, ())
        handler = service.open(Opened(
            service.buffers.next_id, attach.client, attach.user, attach.ticket, filters, attach.lease_s, 0.0,
            service.limits.bytes_max, True, True, known,
        ))  # fmt: skip
        if held is not None:
            service.change(handler, source=(site, held.ticket))
            for packet_id, (identity, is_passed) in held.passing.items():
                service.keep(Passing(handler.id, packet_id, identity, is_passed))
        service.listen(handler)
        return handler

    def _lease(self, handler: Handler, lease_s: float, is_promised: bool = False) -> None:
        service = self.service
        expires = service.now + min(lease_s, service.limits.lease_max_s)
        service.change(handler, expires=expires, is_promised=is_promised)
        service.watch_lease(handler)

    def _on_subscribe(self, connection: int, handler: Handler, message: steps.Subscribe) -> None:
        service = self.service
        filters = {**handler.filters, **message.add}
        for filter in message.remove:
            filters.pop(filter, None)
        if len(filters) > service.limits.filters_max:
            text = f"{len(filters)} subscriptions: at most {service.limits.filters_max} are kept"
            service.refuse(connection, message.request, "quota", text)
            return
        removed = tuple(filter for filter in message.remove if filter in handler.filters)
        service.change(handler, filters=filters)
        if removed:
            service.do(steps.Unlisten(handler.name, removed, is_end=False))
        if not message.add:
            service.send(connection, steps.Done(message.request))
            return
        self._tokens += 1
        self._subscribing[self._tokens] = connection, message.request
        service.do(steps.Listen(handler.name, tuple(message.add), self._tokens))

    def on_listen_failed(self, token: int, why: str) -> None:
        connection, request = self._subscribing.pop(token, (0, 0))
        self.service.refuse(connection, request, "broker", why)

    def stream(self, handler: Handler) -> None:
        """Send the ready messages to the client, if it is attached."""
        stream = self._attached.get(handler.id)
        if stream is not None:
            self.service.fill_window(handler, stream)

    def _detach(self, handler: Handler) -> None:
        stream = self._attached.pop(handler.id, None)
        if stream is not None:
            del self._of_connection[stream.connection]

    def _end_stream(self, handler: Handler, why: str) -> None:
        stream = self._attached.get(handler.id)
        if stream is not None:
            self._detach(handler)
            self.service.refuse(stream.connection, stream.request, "busy", why)

    def on_back(self) -> None:
        """Start the leases of sessions without a client: after a restart nobody is attached."""
        for handler in self.service.buffers.by_id.values():
            if handler.opened.is_resident and not handler.expires and handler.id not in self._attached:
                self._lease(handler, handler.opened.lease_s)

    def on_fetched(self, handler: Handler) -> None:
        """Detach the client: another site adopts its session."""
        self._end_stream(handler, "the client is at another site now")

    # --- where a session is ---

    def _seek(self, joined: steps.Joined, attach: steps.Attach) -> None:
        before = self._seeking.get(joined.connection)
        if before is not None:
            before.end()
        here = [self._held(one) for one in self._residents_of(attach.client)]
        seeking = self._seeking[joined.connection] = Seeking(self, joined, attach, here)
        self.decide(seeking)

    def on_locate(self, connection: int, locate: messages.Locate) -> None:
        """Answer another site that looks for a session."""
        service = self.service
        handler = self._resident(locate.client)
        if handler is None:
            service.send(connection, messages.Located(locate.request))
        elif handler.opened.owner != locate.user:
            text = f"client id {locate.client!r} belongs to another user at {service.site}"
            service.refuse(connection, locate.request, "identity", text)
        elif locate.is_clean:
            self._end_all(locate.client)
            service.send(connection, messages.Located(locate.request))
        else:
            residents = self._residents_of(locate.client)
            service.send(connection, messages.Located(locate.request, tuple(map(self._held, residents))))
            for one in residents:
                self._end_stream(one, "the client is at another site now")
                self._lease(one, one.opened.lease_s, is_promised=True)

    def _held(self, handler: Handler) -> messages.Held:
        source = handler.source[1] if handler.source is not None else ""
        seen = tuple(islice(reversed(handler.seen), HELD_SEEN_MAX))
        return messages.Held(
            handler.opened.ticket, dict(handler.filters), source, handler.is_promised, seen,
            dict(handler.passing),
        )  # fmt: skip

    def decide(self, seeking: Seeking) -> None:
        """Decide where the session is, once every site has answered."""
        if seeking.links:
            return
        service, attach = self.service, seeking.attach
        connection = seeking.joined.connection
        del self._seeking[connection]
        if connection not in service.joined:
            return
        newest = seeking.newest()
        is_sure = not seeking.unreachable or (len(newest) == 1 and not newest[0][1].is_promised)
        if not attach.is_clean and (not is_sure or len(newest) > 1 or (seeking.found and not newest)):
            text = seeking.unreachable or "the session is on its way; try again"
            service.refuse(connection, attach.request, "proxy", text)
        elif attach.is_clean or not newest:
            handler = self._open(attach)
            self._begin(seeking.joined, attach, handler, is_present=False)
        else:
            self._continue(seeking, *newest[0])

    def _continue(self, seeking: Seeking, site: str, held: messages.Held) -> None:
        """Continue the session: here, or by adopting it from another site."""
        service, attach = self.service, seeking.attach
        handler = service.buffers.by_key.get((attach.client, held.ticket))
        if site != service.site or handler is None:
            handler = self._open(attach, site, held)
        self._begin(seeking.joined, attach, handler, is_present=True)

    # --- adoption ---

    def on_listening(self, handler: Handler, token: int) -> None:
        if token:
            connection, request = self._subscribing.pop(token, (0, 0))
            self.service.send(connection, steps.Done(request))
        elif handler.source is not None and handler.id not in self.adopting:
            self._tokens += 1
            # Copies at several sites may ping one handler, and each receives the answers to all.
            own = ping_key(handler.opened.ticket)
            nonce = f"{own}-{handler.adopted}-{self._tokens}".encode()
            adopting = self.adopting[handler.id] = Adopting(self, handler, handler.source, nonce)
            adopting.begin()

    def on_pong(self, handler: Handler, message: ForeignMessage) -> None:
        if handler.id in self.adopting:
            self.adopting[handler.id].on_pong(message)

    def on_adopted(self, handler: Handler, answer_topic: str) -> None:
        """Adoption is complete: deliver what arrived here meanwhile."""
        self.service.change(handler, source=None)
        self.service.do(steps.Unlisten(handler.name, (answer_topic,), is_end=False))
        self.stream(handler)

    def adopt_again(self, id: int) -> None:
        handler = self.service.buffers.by_id.get(id)
        if handler is not None and not self.service.down and not handler.is_frozen:
            self.on_listening(handler, 0)

    def on_left(self, connection: int) -> None:
        """Handle the end of a client's connection."""
        handler = self.service.buffers.by_id.get(self._of_connection.get(connection, 0))
        if handler is not None:
            self._detach(handler)
            self._lease(handler, handler.opened.lease_s)
        seeking = self._seeking.pop(connection, None)
        if seeking is not None:
            seeking.end()
