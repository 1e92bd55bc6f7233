"""Sessions of the MQTT endpoint: handlers that listen all the time, and follow their clients. Pure.

A client of the endpoint knows nothing of proxies. Its handler stays subscribed while it is here and
while it is away; what comes is kept until the client has acknowledged it. When it connects at another
site, that site's proxy asks all others for the session and adopts it: it makes a handler of its own,
subscribes that, pings the old one through the foreign brokers (section 3.3), and fetches what it has,
which goes in front of what came here meanwhile. Everything adopted is journalled before it is
acknowledged to the old site, so either proxy may be killed at any moment.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Literal

import msgspec

from roamcast.proxy import messages
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.buffers import Adopted, Changed, Handler, Opened, Passing, Taken
from roamcast.proxy.messages import Fetch, Held, Locate, Located, Message, MoveRefused, ping_key
from roamcast.proxy.steps import (
    Attach,
    Attached,
    Close,
    Detach,
    Dial,
    Done,
    Joined,
    Listen,
    Local,
    Pass,
    PublishStep,
    Recalled,
    Subscribe,
    Unlisten,
)

if TYPE_CHECKING:
    from roamcast.proxy.service import Fetching, Service

HELD_SEEN_MAX = 1000
"""Identities that go with a session: those of what may still be on its way."""
LOCATE, ADOPT = 1, 2
"""Requests on a dialed connection: one of each."""


class Seeking(msgspec.Struct):
    """A client waits for its session, which may be at any site."""

    joined: Joined
    attach: Attach
    links: dict[int, str]
    """Sites that have not answered."""
    found: list[tuple[str, Held]]
    """Sites and what they hold: one session, or several while it is on its way from one to the next."""
    unreachable: str = ""

    def newest(self) -> list[tuple[str, Held]]:
        """Where the session went last: what nobody adopts from."""
        sources = {held.source for _, held in self.found}
        return [(site, held) for site, held in self.found if held.ticket not in sources]


class Adopting(msgspec.Struct):
    """A session comes over from another site."""

    id: int
    stage: Literal["pinging", "fetching"]
    nonce: bytes
    link: int = 0


class Residents:
    """The part of the service that works for the MQTT endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._seeking: dict[int, Seeking] = {}
        """By the connection of the client."""
        self._by_link: dict[int, Seeking | Adopting] = {}
        self._attached: dict[int, Fetching] = {}
        """By handler."""
        self._of_connection: dict[int, int] = {}
        self._subscribing: dict[int, tuple[int, int]] = {}
        """Connection and request, by the token of the Listen."""
        self._adopting: dict[int, Adopting] = {}
        self._tokens = 0

    # --- the endpoint ---

    def on_message(self, joined: Joined, message: Message | Local) -> None:
        handler = self._service.buffers.by_id.get(self._of_connection.get(joined.connection, 0))
        match message:
            case Attach():
                self._on_attach(joined, message)
            case Subscribe() if handler is not None:
                self._on_subscribe(joined.connection, handler, message)
            case messages.Taken(number=number) if handler is not None:
                stream = self._attached[handler.id]
                if handler.first <= number <= stream.sent:
                    self._service.keep(Taken(handler.id, number))
                    self.stream(handler)
            case Pass(packet_id=packet_id, identity=identity, is_passed=is_passed) if handler is not None:
                self._service.keep(Passing(handler.id, packet_id, identity, is_passed))
            case Recalled(messages=recalled) if handler is not None:
                for one in recalled:
                    self._service.put(handler, one)
            case Detach(lease_s=lease_s) if handler is not None:
                self._detach(handler)
                if lease_s <= 0:
                    self._service.end(handler, "ended")
                else:
                    self._lease(handler, lease_s)

    def _on_attach(self, joined: Joined, attach: Attach) -> None:
        service = self._service
        handler = self._resident(attach.client)
        if handler is not None and handler.opened.owner != attach.user:
            text = f"client id {attach.client!r} belongs to another user here"
            service.refuse(joined.connection, attach.request, "identity", text)
        elif service.down:
            text = f"the broker of site {service.settings.site} is down ({service.down})"
            service.refuse(joined.connection, attach.request, "broker", text)
        elif handler is not None and not attach.is_clean and not handler.is_promised:
            self._begin(joined, attach, handler, is_present=True)
        else:
            if attach.is_clean:
                self._end_all(attach.client)
            self._seek(joined, attach)

    def _resident(self, client: str) -> Handler | None:
        """The session that is here; of two, the one that came last."""
        found = self._residents_of(client)
        return next((one for one in found if not one.is_promised), found[0] if found else None)

    def _residents_of(self, client: str) -> list[Handler]:
        handlers = self._service.buffers.by_client.get(client, {}).values()
        return [one for one in handlers if one.opened.is_resident and not one.is_frozen]

    def _end_all(self, client: str) -> None:
        for handler in self._residents_of(client):
            self._end_stream(handler, "the session was taken over")
            self._service.end(handler, "ended")

    def _begin(self, joined: Joined, attach: Attach, handler: Handler, is_present: bool) -> None:
        """The session is here: what it has goes to the client."""
        service, connection = self._service, joined.connection
        self._end_stream(handler, "the session was taken over")
        service.keep(Changed(handler.id, handler.filters, 0.0, handler.source, False))
        self._of_connection[connection] = handler.id
        self._attached[handler.id] = service.new_stream(connection, attach.request, handler)
        attached = Attached(attach.request, is_present, dict(handler.filters), dict(handler.passing))
        service.send(connection, attached)
        self.stream(handler)

    def _open(self, attach: Attach, site: str = "", held: Held | None = None) -> Handler:
        """A new handler, to be filled from another site if the session is there."""
        service, settings = self._service, self._service.settings
        filters, known = (held.filters, held.seen) if held is not None else ({}, ())
        opened = Opened(
            service.buffers.next_id, attach.client, attach.user, attach.ticket, filters, attach.lease_s, 0.0,
            settings.bytes_max, True, True, known,
        )  # fmt: skip
        service.keep(opened)
        handler = service.buffers.by_id[opened.id]
        if held is not None:
            self._change(handler, filters, 0.0, (site, held.ticket))
            for packet_id, (identity, is_passed) in held.passing.items():
                service.keep(Passing(handler.id, packet_id, identity, is_passed))
        service.listen(handler)
        return handler

    def _change(
        self, handler: Handler, filters: dict[str, str], expires: float, source: tuple[str, str] | None
    ) -> None:
        self._service.keep(Changed(handler.id, filters, expires, source, handler.is_promised))

    def _lease(self, handler: Handler, lease_s: float, is_promised: bool = False) -> None:
        service = self._service
        expires = service.now + min(lease_s, service.settings.lease_max_s)
        service.keep(Changed(handler.id, handler.filters, expires, handler.source, is_promised))
        service.watch_lease(handler)

    def _on_subscribe(self, connection: int, handler: Handler, message: Subscribe) -> None:
        service = self._service
        filters = {**handler.filters, **message.add}
        for filter in message.remove:
            filters.pop(filter, None)
        if len(filters) > service.settings.filters_max:
            text = f"{len(filters)} subscriptions: at most {service.settings.filters_max} are kept"
            service.refuse(connection, message.request, "quota", text)
            return
        removed = tuple(filter for filter in message.remove if filter in handler.filters)
        self._change(handler, filters, handler.expires, handler.source)
        if removed:
            service.do(Unlisten(handler.name, removed, is_end=False))
        if not message.add:
            service.send(connection, Done(message.request))
            return
        self._tokens += 1
        self._subscribing[self._tokens] = connection, message.request
        service.do(Listen(handler.name, tuple(message.add), self._tokens))

    def on_listen_failed(self, token: int, why: str) -> None:
        connection, request = self._subscribing.pop(token, (0, 0))
        self._service.refuse(connection, request, "broker", why)

    def stream(self, handler: Handler) -> None:
        """Give the client what is ready, if it is here."""
        stream = self._attached.get(handler.id)
        if stream is not None:
            self._service.fill_window(handler, stream)

    def _detach(self, handler: Handler) -> None:
        stream = self._attached.pop(handler.id, None)
        if stream is not None:
            del self._of_connection[stream.connection]

    def _end_stream(self, handler: Handler, why: str) -> None:
        stream = self._attached.get(handler.id)
        if stream is not None:
            self._detach(handler)
            self._service.refuse(stream.connection, stream.request, "busy", why)

    def on_back(self) -> None:
        """After a restart nobody is attached, whatever was so before."""
        for handler in self._service.buffers.by_id.values():
            if handler.opened.is_resident and not handler.expires and handler.id not in self._attached:
                self._lease(handler, handler.opened.lease_s)

    def on_fetched(self, handler: Handler) -> None:
        """Another site adopts it."""
        self._end_stream(handler, "the client is at another site now")

    # --- where a session is ---

    def _seek(self, joined: Joined, attach: Attach) -> None:
        service = self._service
        before = self._seeking.get(joined.connection)
        if before is not None:
            self._forget_links(before)
        links = {service.new_link(): site for site in service.settings.sites}
        here = [(service.settings.site, self._held(one)) for one in self._residents_of(attach.client)]
        seeking = Seeking(joined, attach, links, here)
        self._seeking[joined.connection] = seeking
        for link, site in seeking.links.items():
            self._by_link[link] = seeking
            service.do(Dial(link, site))
        self._decide(seeking)

    def on_joined(self, joined: Joined) -> None:
        work = self._by_link.get(joined.connection)
        if isinstance(work, Seeking):
            attach = work.attach
            locate = Locate(LOCATE, attach.client, attach.user, attach.is_clean)
            self._service.send(joined.connection, locate)
        elif isinstance(work, Adopting):
            handler = self._service.buffers.by_id[work.id]
            assert handler.source is not None
            fetch = Fetch(ADOPT, handler.client, handler.source[1], handler.opened.owner)
            self._service.send(joined.connection, fetch)

    def on_locate(self, connection: int, locate: Locate) -> None:
        """Another site asks."""
        service = self._service
        handler = self._resident(locate.client)
        if handler is None:
            service.send(connection, Located(locate.request))
        elif handler.opened.owner != locate.user:
            text = f"client id {locate.client!r} belongs to another user at {service.settings.site}"
            service.refuse(connection, locate.request, "identity", text)
        elif locate.is_clean:
            self._end_all(locate.client)
            service.send(connection, Located(locate.request))
        else:
            residents = self._residents_of(locate.client)
            service.send(connection, Located(locate.request, tuple(map(self._held, residents))))
            for one in residents:
                self._end_stream(one, "the client is at another site now")
                self._lease(one, one.opened.lease_s, is_promised=True)

    def _held(self, handler: Handler) -> Held:
        source = handler.source[1] if handler.source is not None else ""
        seen = tuple(islice(reversed(handler.seen), HELD_SEEN_MAX))
        return Held(
            handler.opened.ticket, dict(handler.filters), source, handler.is_promised, seen,
            dict(handler.passing),
        )  # fmt: skip

    def _decide(self, seeking: Seeking) -> None:
        """When every site has answered."""
        if seeking.links:
            return
        service, attach = self._service, seeking.attach
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

    def _continue(self, seeking: Seeking, site: str, held: Held) -> None:
        """Go on with the session, here or from where it is."""
        service, attach = self._service, seeking.attach
        handler = service.buffers.by_key.get((attach.client, held.ticket))
        if site != service.settings.site or handler is None:
            handler = self._open(attach, site, held)
        self._begin(seeking.joined, attach, handler, is_present=True)

    def _forget_links(self, seeking: Seeking) -> None:
        for link in seeking.links:
            del self._by_link[link]
            self._service.do(Close(link))
        seeking.links.clear()

    # --- adoption ---

    def on_listening(self, handler: Handler, token: int) -> None:
        if token:
            connection, request = self._subscribing.pop(token, (0, 0))
            self._service.send(connection, Done(request))
        elif handler.source is not None and handler.id not in self._adopting:
            nonce = f"{handler.id}-{handler.adopted}-{self._service.new_link()}".encode()
            adopting = self._adopting[handler.id] = Adopting(handler.id, "pinging", nonce)
            self._ping(adopting)

    def _ping(self, adopting: Adopting) -> None:
        service = self._service
        handler = service.buffers.by_id.get(adopting.id)
        if self._adopting.get(adopting.id) is not adopting or adopting.stage != "pinging":
            return
        if handler is None or handler.source is None:
            del self._adopting[adopting.id]
            return
        topic = service.ping_topic(ping_key(handler.source[1]), "in-request")
        service.do(PublishStep(ForeignMessage(topic, adopting.nonce)))
        service.after(service.settings.ping_interval_s, lambda: self._ping(adopting))

    def on_pong(self, handler: Handler, message: ForeignMessage) -> None:
        adopting = self._adopting.get(handler.id)
        if adopting is None or handler.source is None or adopting.stage != "pinging":
            return
        topic = self._service.ping_topic(ping_key(handler.source[1]), "in-response")
        if message.topic == topic and message.body == adopting.nonce:
            self._dial(adopting, handler.source[0])

    def _dial(self, adopting: Adopting, site: str) -> None:
        adopting.stage, adopting.link = "fetching", self._service.new_link()
        self._by_link[adopting.link] = adopting
        self._service.do(Dial(adopting.link, site))

    def on_answer(self, joined: Joined, message: Message) -> None:
        work = self._by_link.get(joined.connection)
        if isinstance(work, Seeking):
            self._on_located(joined.connection, work, message)
        elif isinstance(work, Adopting):
            self._on_adopted(work, message)

    def _on_located(self, link: int, seeking: Seeking, message: Message) -> None:
        site = seeking.links.pop(link)
        del self._by_link[link]
        self._service.do(Close(link))
        if isinstance(message, Located):
            seeking.found += [(site, held) for held in message.held]
        else:
            text = message.text if isinstance(message, MoveRefused) else "it does not know the question"
            seeking.unreachable = f"site {site}: {text}"
        self._decide(seeking)

    def _on_adopted(self, adopting: Adopting, message: Message) -> None:
        service = self._service
        handler = service.buffers.by_id.get(adopting.id)
        if handler is None:
            self._stop(adopting)
            return
        match message:
            case messages.Batch(first=first, messages=batch):
                new = tuple(batch[max(0, handler.adopted + 1 - first) :])
                last = first + len(batch) - 1
                if new:
                    service.keep(Adopted(handler.id, last, new))
                service.send(adopting.link, messages.Taken(ADOPT, last))
                self.stream(handler)
            case messages.Downloaded(missing=""):
                self._finish(adopting, handler)
            case MoveRefused(code="unknown" | "expired"):
                self._finish(adopting, handler)
            case _:
                self._stop(adopting)
                service.after(service.settings.listen_again_s, lambda: self._adopt_again(adopting.id))

    def _finish(self, adopting: Adopting, handler: Handler) -> None:
        """Everything is here: what came here meanwhile follows."""
        assert handler.source is not None
        answer = self._service.ping_topic(ping_key(handler.source[1]), "in-response")
        self._stop(adopting)
        self._change(handler, handler.filters, handler.expires, None)
        self._service.do(Unlisten(handler.name, (answer,), is_end=False))
        self.stream(handler)

    def _stop(self, adopting: Adopting) -> None:
        self._adopting.pop(adopting.id, None)
        if self._by_link.pop(adopting.link, None) is not None:
            self._service.do(Close(adopting.link))

    def _adopt_again(self, id: int) -> None:
        handler = self._service.buffers.by_id.get(id)
        if handler is not None and not self._service.down and not handler.is_frozen:
            self.on_listening(handler, 0)

    def on_left(self, connection: int, why: str) -> None:
        """The client's connection, or one to another site."""
        service = self._service
        handler = service.buffers.by_id.get(self._of_connection.get(connection, 0))
        if handler is not None:
            self._detach(handler)
            self._lease(handler, handler.opened.lease_s)
        seeking = self._seeking.pop(connection, None)
        if seeking is not None:
            self._forget_links(seeking)
        work = self._by_link.pop(connection, None)
        if isinstance(work, Seeking):
            site = work.links.pop(connection)
            work.unreachable = f"site {site}, which may hold the session, cannot be asked ({why})"
            self._decide(work)
        elif isinstance(work, Adopting):
            self._adopting.pop(work.id, None)
            service.after(service.settings.listen_again_s, lambda: self._adopt_again(work.id))
