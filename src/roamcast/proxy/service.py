"""The core of a mobility proxy: Caporuscio et al. section 3. Pure.

    effects  = service.step(now, inputs)
    deadline = service.deadline()

Move-out (3.2): the proxy makes a client handler, subscribes it, synchronises if asked to (3.3), and
acknowledges. Move-in: the client listens at its new site and asks the proxy there to download; that one
relays to the proxy of the move-out, which unsubscribes the handler and sends its messages.

Differences from the paper: only messages that the client has acknowledged leave the buffer, so an interrupted
download loses nothing and can be continued. The move-in proxy keeps nothing. Buffers have quotas and leases,
and survive the proxy (buffers.py). A client that left its own channel suspended at the foreign broker can
have a handler of the same name resume it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from roamcast.proxy import messages, steps
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.ahead import Ahead
from roamcast.proxy.buffers import (
    Buffers,
    Changed,
    Closed,
    Dropped,
    Entry,
    Frozen,
    Handler,
    Kept,
    Opened,
    Taken,
    size_of,
)
from roamcast.proxy.errands import AGAIN_S, BATCH_BYTES, BATCH_MESSAGES, Errand, Relay
from roamcast.proxy.messages import PING_BODY_MAX, PING_LEVELS, ping_key
from roamcast.proxy.residents import Residents

if TYPE_CHECKING:
    from roamcast.proxy.config import Config

WINDOW_MESSAGES = 8 * BATCH_MESSAGES
"""Messages of a download that may be sent before the first of them is acknowledged."""


class Moving(msgspec.Struct):
    """A move-out that is not yet acknowledged."""

    connection: int
    request: messages.MoveOut
    nonce: bytes
    """The body of this move-out's pings; only an answer with the same body counts."""
    is_resumed: bool = False
    """True if the client's own channel is resumed; the foreign broker must then still have the channel."""
    is_pinging: bool = False


class Fetching(msgspec.Struct):
    """A download from a handler of this site."""

    connection: int
    request: int
    sent: int
    """The number of the last message that was sent."""
    failed: str = ""
    """Why the foreign broker may still hold messages for the handler."""


class Service:
    """The handlers of one site, and the connections of clients and other proxies."""

    def __init__(
        self, config: Config, can_suspend: bool, topic_of: steps.TopicOf, buffers: Buffers | None = None
    ) -> None:
        self.config = config
        self.site, self.limits = config.site, config.buffers
        self.buffers = buffers or Buffers()
        self.now = 0.0
        self.down = "it has not been reached yet"
        """Why the foreign broker cannot be used; empty while it is connected."""
        self.joined: dict[int, steps.Joined] = {}
        self.relays: dict[tuple[int, int], Relay] = {}
        """Requests of clients to other sites, by connection and request number."""
        self._can_suspend, self._topic_of = can_suspend, topic_of
        self._ping_prefix = topic_of((*PING_LEVELS, "x"))[:-1]
        self._effects: list[steps.Effect] = []
        self._moving: dict[int, Moving] = {}
        self._fetching: dict[int, Fetching] = {}
        self._listening: dict[int, None] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._links = 0
        self._errands: dict[int, Errand] = {}
        self._residents = Residents(self)
        self.ahead = Ahead(self)
        for handler in self.buffers.by_id.values():
            self.watch_lease(handler)

    def step(self, now: float, inputs: Iterable[steps.Input]) -> list[steps.Effect]:
        self.now = now
        self._effects = []
        for input in inputs:
            self._take(input)
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        return self._effects

    def deadline(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    def _take(self, input: steps.Input) -> None:
        match input:
            case steps.Received(name=name, message=message):
                self._on_received(name, message)
            case steps.Got(connection=connection, message=message):
                self._on_message(self.joined[connection], message)
            case steps.Joined():
                self.joined[input.connection] = input
                if input.role == "dialed":
                    self._on_dialed(input.connection)
            case steps.Left(connection=connection, why=why):
                self._on_left(connection, why)
            case steps.Listening():
                self._on_listening(input)
            case steps.Unlistened(name=name, is_end=True):
                self._on_unlistened(name)
            case steps.ForeignFailed():
                self._on_foreign_failed(input)
            case steps.ForeignLost(why=why):
                self.down = why or "it went away"
                self._listening.clear()
            case steps.ForeignBack():
                self.down = ""
                self._residents.on_back()
                if not self._can_suspend:
                    self.ahead.on_foreign_back()
                for handler in self.buffers.by_id.values():
                    self.listen(handler, is_resumed=True)

    # --- what happens, as effects ---

    def keep(self, entry: Entry) -> None:
        self.buffers.apply(entry)
        self._effects.append(steps.Keep(entry))

    def open(self, opened: Opened) -> Handler:
        self.keep(opened)
        handler = self.buffers.by_id[opened.id]
        self.watch_lease(handler)
        return handler

    def change(self, handler: Handler, **changes: Any) -> None:
        """Change these fields of a handler."""
        as_it_is = Changed(handler.id, handler.filters, handler.expires, handler.source, handler.is_promised)
        self.keep(msgspec.structs.replace(as_it_is, **changes))

    def do(self, effect: steps.Effect) -> None:
        self._effects.append(effect)

    def send(self, connection: int, message: messages.Message | steps.Local) -> None:
        if connection in self.joined:
            self._effects.append(steps.Send(connection, message))

    def refuse(self, connection: int, request: int, code: messages.Code, text: str) -> None:
        self.send(connection, messages.MoveRefused(request, code, text[:500]))

    def new_stream(self, connection: int, request: int, handler: Handler) -> Fetching:
        return Fetching(connection, request, handler.first - 1)

    def dial(self, site: str, errand: Errand) -> int:
        """Connect to the proxy of a site and return the number of the connection."""
        self._links -= 1
        self._errands[self._links] = errand
        self.do(steps.Dial(self._links, site))
        return self._links

    def hang_up(self, link: int) -> None:
        """Close a dialed connection; its errand gets no further calls."""
        if self._errands.pop(link, None) is not None:
            self.do(steps.Close(link))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (self.now + delay_s, self._timer_count, call))

    # --- connections ---

    def _on_message(self, joined: steps.Joined, message: messages.Message | steps.Local) -> None:
        connection = joined.connection
        if joined.role == "dialed" and not isinstance(message, steps.Local):
            if connection in self._errands:
                self._errands[connection].on_answer(connection, message)
            return
        if joined.role == "endpoint":
            self._residents.on_message(joined, message)
            return
        match message:
            case messages.Echo():
                self.send(connection, message)
            case messages.MoveOut() if joined.role == "client":
                self._on_move_out(connection, joined.who, message)
            case messages.StandIn() | messages.Download():
                self._on_request(joined, message)
            case messages.Locate() if joined.role == "proxy":
                self._residents.on_locate(connection, message)
            case messages.Surround() if joined.role == "proxy":
                self.ahead.on_surround(joined, message)
            case messages.Prefix() if joined.role == "proxy":
                self.ahead.on_prefix(connection, message)
            case messages.Forget() if joined.role == "proxy":
                self.ahead.on_forget(joined, message)
            case messages.Taken(request=request, number=number):
                relay = self.relays.get((connection, request))
                if relay is not None:
                    self.send(relay.link, message)
                else:
                    self._on_taken(connection, request, number)
            case _:
                self.refuse(
                    connection, 0, "unknown", f"a {joined.role} may not send {type(message).__name__}"
                )
                self.do(steps.Close(connection))

    def _on_request(self, joined: steps.Joined, asked: messages.StandIn | messages.Download) -> None:
        """Handle a request of a client, or of another proxy for a client. Only a proxy may name the user."""
        connection = joined.connection
        if joined.role == "client" and asked.site not in ("", self.site):
            self._relay(joined, asked)
            return
        user = joined.who if joined.role == "client" else asked.user
        if isinstance(asked, messages.StandIn):
            self._on_stand_in(connection, user, asked)
        else:
            by_site = joined.who if joined.role == "proxy" else ""
            self._on_fetch(connection, asked.request, asked.client, asked.ticket, user, by_site)

    def _relay(self, client: steps.Joined, asked: messages.StandIn | messages.Download) -> None:
        key = connection, request = client.connection, asked.request
        if asked.site not in self.config.sites:
            text = f"site {self.site} knows no proxy of a site {asked.site!r}"
            self.refuse(connection, request, "proxy", text)
        elif self.down:
            text = f"the broker of site {self.site} is down ({self.down}): no message was taken over"
            self.refuse(connection, request, "broker", text)
        elif key in self.relays:
            self.refuse(connection, request, "busy", "this request is under way")
        else:
            self.relays[key] = Relay(self, client, asked)
            self.ahead.graph.on_reconnect(asked.site, self.now)

    def _on_dialed(self, link: int) -> None:
        if link in self._errands:
            self._errands[link].on_joined(link)
        else:  # The connection was closed before the answer.
            self.do(steps.Close(link))

    def _on_left(self, connection: int, why: str) -> None:
        errand = self._errands.pop(connection, None)
        if errand is not None:
            errand.on_left(connection, why)
        for key in [key for key in self.relays if key[0] == connection]:
            self.relays[key].end()
        self._residents.on_left(connection)
        self.ahead.on_left(connection)
        self.joined.pop(connection, None)
        for id, fetching in list(self._fetching.items()):
            if fetching.connection == connection:
                del self._fetching[id]
                self.renew(self.buffers.by_id[id])

    # --- move-out ---

    def _on_move_out(
        self, connection: int, user: str, request: messages.MoveOut, is_resumed: bool = False
    ) -> None:
        handler = self.buffers.by_key.get((request.client, request.ticket))
        obstacle = self._obstacle(user, request, handler)
        if obstacle is not None:
            self.refuse(connection, request.request, *obstacle)
            return
        is_resumed = is_resumed and handler is None
        if handler is None:
            handler = self._open(user, request)
        nonce = f"{handler.id}-{request.request}".encode()[:PING_BODY_MAX]
        before = self._moving.get(handler.id)
        is_resumed = is_resumed or (before is not None and before.is_resumed)
        self._moving[handler.id] = Moving(connection, request, nonce, is_resumed)
        if handler.id in self._listening:
            self._synchronise(handler)
        elif before is None:
            self.listen(handler, is_resumed)

    def _on_stand_in(self, connection: int, user: str, request: messages.StandIn) -> None:
        """Take over the channel that a client left suspended: a move-out after the client has gone."""
        key = request.client, request.ticket
        if key in self.buffers.by_key and self.buffers.by_key[key].is_frozen:
            self._acknowledge_lease(connection, request.request, self.buffers.by_key[key])
        elif self.buffers.gone.get(key) == "taken":  # The client did not get the answers.
            self.send(connection, messages.MovedOut(request.request, 0.0, 0))
        else:
            move = messages.MoveOut(
                request.request, request.client, request.ticket, request.filters, "basic", 0.0,
                request.lease_s, request.bytes_max, request.is_unique,
            )  # fmt: skip
            self._on_move_out(connection, user, move, is_resumed=True)

    def _obstacle(
        self, user: str, request: messages.MoveOut, handler: Handler | None
    ) -> tuple[messages.Code, str] | None:
        client, limits = request.client, self.limits
        if any(one.opened.owner != user for one in self.buffers.by_client.get(client, {}).values()):
            return "identity", f"client id {client!r} belongs to another user at this site"
        if self.down:
            return "broker", f"the broker of site {self.site} is down ({self.down}): stay attached"
        if handler is not None:
            return ("busy", "this stay is being downloaded") if handler.is_frozen else None
        if (client, request.ticket) in self.buffers.gone:
            return "expired", f"client {client!r}: this ticket was used before; draw a new one"
        if len(request.filters) > limits.filters_max:
            return "quota", f"{len(request.filters)} filters: at most {limits.filters_max} are kept"
        if len(self.buffers.by_id) >= limits.clients_max:
            return "quota", f"site {self.site} already keeps {limits.clients_max} clients, its maximum"
        if self.buffers.bytes >= limits.bytes_total_max:
            return "quota", f"the buffers of site {self.site} are full"
        return None

    def _open(self, owner: str, request: messages.MoveOut) -> Handler:
        limits = self.limits
        lease_s = min(request.lease_s or limits.lease_s, limits.lease_max_s)
        return self.open(Opened(
            self.buffers.next_id, request.client, owner, request.ticket, dict.fromkeys(request.filters, ""),
            lease_s, self.now + lease_s, min(request.bytes_max or limits.bytes_max, limits.bytes_max),
            request.is_unique, False,
        ))  # fmt: skip

    def listen(self, handler: Handler, is_resumed: bool = False) -> None:
        self.do(steps.Listen(handler.name, self._foreign_filters(handler), is_resumed=is_resumed))

    def _foreign_filters(self, handler: Handler) -> tuple[str, ...]:
        """The client's filters, then those for pings: a ping proves that all filters before it are effective.

        A handler that waits for its download only answers pings, until the download is done.
        """
        key = ping_key(handler.opened.ticket)
        topics = [self.ping_topic(key, "in-request")]
        if handler.is_frozen:
            return tuple(topics)
        if handler.source is not None:
            topics.append(self.ping_topic(ping_key(handler.source[1]), "in-response"))
        if not handler.opened.is_resident:
            topics.append(self.ping_topic(key, "out-response"))
        return (*handler.filters, *topics)

    def ping_topic(self, key: str, kind: str) -> str:
        return self._topic_of((*PING_LEVELS, key, kind))

    def _on_listening(self, listening: steps.Listening) -> None:
        handler = self.buffers.by_name.get(listening.name)
        if handler is None or handler.is_frozen or self.down:
            return
        self._listening[handler.id] = None
        self._residents.on_listening(handler, listening.token)
        moving = self._moving.get(handler.id)
        if moving is not None and moving.is_resumed and not listening.is_kept:
            text = f"the broker of site {self.site} has not kept the messages for {handler.client!r}"
            self._give_up(handler, "expired", text)
        elif moving is not None:
            self._synchronise(handler)
        else:
            self.ahead.surround(handler)

    def _synchronise(self, handler: Handler) -> None:
        """Make sure that the subscriptions are effective before the client goes away (section 3.3)."""
        moving = self._moving[handler.id]
        match moving.request.sync:
            case "basic":
                self._acknowledge(handler, moving)
            case "delay":
                self.after(moving.request.delay_s, lambda: self._acknowledge(handler, moving))
            case "ping":
                moving.is_pinging = True
                topic = self.ping_topic(ping_key(handler.opened.ticket), "out-request")
                self.ping(topic, moving.nonce, lambda: self._moving.get(handler.id) is moving)
                self.after(self.config.ping.timeout_s, lambda: self._on_no_pong(handler, moving))

    def ping(self, topic: str, nonce: bytes, is_awaited: Callable[[], bool]) -> None:
        """Publish a ping through the foreign broker, and repeat it while its answer is awaited."""
        if is_awaited():
            self.do(steps.PublishStep(ForeignMessage(topic, nonce)))
            self.after(self.config.ping.interval_s, lambda: self.ping(topic, nonce, is_awaited))

    def _on_no_pong(self, handler: Handler, moving: Moving) -> None:
        if self._moving.get(handler.id) is moving:
            self._give_up(handler, "ping", "no ping came back through the broker: stay attached")

    def _acknowledge(self, handler: Handler, moving: Moving) -> None:
        if self._moving.get(handler.id) is not moving:
            return
        del self._moving[handler.id]
        self._acknowledge_lease(moving.connection, moving.request.request, handler)
        self.ahead.surround(handler)

    def _acknowledge_lease(self, connection: int, request: int, handler: Handler) -> None:
        opened = handler.opened
        self.send(connection, messages.MovedOut(request, opened.lease_s, opened.bytes_max))

    def _give_up(self, handler: Handler, code: messages.Code, text: str) -> None:
        """Refuse a move-out that cannot be promised, and remove its handler."""
        moving = self._moving.pop(handler.id)
        self.refuse(moving.connection, moving.request.request, code, text)
        self.end(handler, "refused")

    # --- the foreign broker ---

    def _on_received(self, name: str, message: ForeignMessage) -> None:
        handler = self.buffers.by_name.get(name)
        if handler is None:
            return
        if message.topic.startswith(self._ping_prefix):
            self._on_ping(handler, message)
            return
        if not handler.is_frozen and not handler.knows(message):
            self.put(handler, message)

    def put(self, handler: Handler, message: ForeignMessage) -> None:
        """Put a message into the buffer if there is room, and send it to a waiting client."""
        size = size_of(message)
        while not self._has_room(handler, size):
            self.keep(Dropped(handler.id, 1))
            if self.limits.overflow == "newest" or not handler.ready or handler.id in self._fetching:
                return
            self.keep(Taken(handler.id, handler.first))
        self.keep(Kept(handler.id, message))
        if handler.id in self._fetching:
            self._send_batches(handler)
        else:
            self._residents.stream(handler)

    def _has_room(self, handler: Handler, size: int) -> bool:
        fits = handler.bytes + size <= handler.opened.bytes_max
        return fits and self.buffers.bytes + size <= self.limits.bytes_total_max

    def _on_ping(self, handler: Handler, message: ForeignMessage) -> None:
        key = ping_key(handler.opened.ticket)
        moving = self._moving.get(handler.id)
        if message.topic == self.ping_topic(key, "in-request") and len(message.body) <= PING_BODY_MAX:
            if handler.source is not None:
                return  # The session is not complete yet: the other site repeats its ping.
            self.ahead.on_ping(handler, message.body)
            answer = self.ping_topic(key, "in-response")
            self.do(steps.PublishStep(ForeignMessage(answer, message.body)))
        elif message.topic == self.ping_topic(key, "out-response") and moving is not None:
            if moving.is_pinging and message.body == moving.nonce:
                self._acknowledge(handler, moving)
        else:
            self._residents.on_pong(handler, message)

    def _on_foreign_failed(self, failed: steps.ForeignFailed) -> None:
        handler = self.buffers.by_name.get(failed.name)
        if handler is None:
            return
        if failed.what == "unlisten":
            fetching = self._fetching.get(handler.id)
            if fetching is not None:
                fetching.failed = failed.why
                self._send_batches(handler)
        elif failed.token:
            self._residents.on_listen_failed(failed.token, failed.why)
        elif handler.id in self._moving:
            self._give_up(handler, "broker", f"the broker of site {self.site}: {failed.why}")
        elif not self.down:
            self.after(AGAIN_S, lambda: self._listen_again(handler.id))

    def _listen_again(self, id: int) -> None:
        handler = self.buffers.by_id.get(id)
        if handler is not None and id not in self._listening and not self.down:
            self.listen(handler)

    # --- download ---

    def _on_fetch(
        self, connection: int, request: int, client: str, ticket: str, user: str, by_site: str
    ) -> None:
        handler = self.buffers.by_key.get((client, ticket))
        if handler is None:
            self._answer_unknown(connection, request, client, ticket)
            return
        if handler.opened.owner != user:
            self.refuse(
                connection, request, "identity", f"client {client!r} belongs to another user at this site"
            )
            return
        if handler.opened.copy_of is None:
            self.ahead.on_fetched(handler, by_site)
        elif handler.source is not None:
            self.refuse(connection, request, "busy", f"the copy for {client!r} is not complete")
            return
        else:
            self.ahead.serve(handler)
        earlier = self._fetching.pop(handler.id, None)
        if earlier is not None:
            self.refuse(earlier.connection, earlier.request, "busy", "another download of this client began")
        self._moving.pop(handler.id, None)
        self._residents.on_fetched(handler)
        fetching = self.new_stream(connection, request, handler)
        self._fetching[handler.id] = fetching
        was_frozen, before = handler.is_frozen, self._foreign_filters(handler)
        if self.down and not self._can_suspend and not handler.is_frozen:
            # The foreign broker kept nothing for the handler, so no more messages can come.
            self.keep(Frozen(handler.id))
        if handler.opened.is_resident and not handler.is_frozen:
            # The ping came after all messages that only this site gets; the other site gets all later ones.
            # This site must not take those too: after a kill there may be a gap before them.
            self.keep(Frozen(handler.id))
        if not was_frozen and not self.down:
            stays = self.ping_topic(ping_key(ticket), "in-request")
            self.do(steps.Unlisten(handler.name, tuple(filter for filter in before if filter != stays)))
        self._send_batches(handler)

    def _answer_unknown(self, connection: int, request: int, client: str, ticket: str) -> None:
        why = self.buffers.gone.get((client, ticket))
        if why == "taken":  # The client did not get the end of an earlier download.
            self.send(connection, messages.Downloaded(request))
        elif why == "expired":
            text = f"client {client!r} was away for longer than its lease: its buffer was deleted"
            self.refuse(connection, request, "expired", text)
        elif client in self.buffers.by_client:
            text = f"client {client!r} has a buffer at {self.site}, but not under this ticket"
            self.refuse(connection, request, "identity", text)
        else:
            text = f"client {client!r} has no buffer at {self.site}"
            self.refuse(connection, request, "unknown", text)

    def _on_unlistened(self, name: str) -> None:
        handler = self.buffers.by_name.get(name)
        if handler is None or handler.is_frozen:
            return
        self._listening.pop(handler.id, None)
        self.keep(Frozen(handler.id))
        if handler.id in self._fetching:
            self._send_batches(handler)

    def _send_batches(self, handler: Handler) -> None:
        fetching = self._fetching[handler.id]
        self.fill_window(handler, fetching)
        if handler.ready:
            return
        if handler.is_frozen:
            dropped = handler.dropped
            del self._fetching[handler.id]
            self.do(steps.Unlisten(handler.name, self._foreign_filters(handler), is_end=False))
            self.keep(Closed(handler.id, "taken"))
            self.ahead.on_closed(handler, "taken")
            self.send(fetching.connection, messages.Downloaded(fetching.request, dropped))
        elif fetching.failed or self.down:
            self._break_off(handler, fetching, fetching.failed or self.down)

    def fill_window(self, handler: Handler, fetching: Fetching) -> None:
        """Send buffered messages, at most one window ahead of the acknowledgements."""
        while fetching.sent < handler.last and fetching.sent - handler.first < WINDOW_MESSAGES:
            chosen = handler.slice(fetching.sent + 1, BATCH_BYTES, BATCH_MESSAGES)
            batch = messages.Batch(fetching.request, fetching.sent + 1, tuple(chosen))
            fetching.sent += len(chosen)
            self.send(fetching.connection, batch)

    def _break_off(self, handler: Handler, fetching: Fetching, why: str) -> None:
        """End a download early: the foreign broker may hold more, which the client must ask for later."""
        del self._fetching[handler.id]
        self.renew(handler)
        text = f"the broker of site {self.site} is down ({why}): ask again later"
        self.send(fetching.connection, messages.Downloaded(fetching.request, 0, text[:500]))

    def _on_taken(self, connection: int, request: int, number: int) -> None:
        if self.ahead.on_taken(connection, request, number):
            return
        for id, fetching in self._fetching.items():
            if fetching.connection == connection and fetching.request == request:
                handler = self.buffers.by_id[id]
                if handler.first <= number <= fetching.sent:
                    self.keep(Taken(id, number))
                    self._send_batches(handler)
                return

    # --- leases ---

    def renew(self, handler: Handler) -> None:
        self.change(handler, expires=self.now + handler.opened.lease_s)

    def watch_lease(self, handler: Handler) -> None:
        if handler.expires:
            self.after(handler.expires - self.now, lambda: self._check_lease(handler.id))

    def _check_lease(self, id: int) -> None:
        handler = self.buffers.by_id.get(id)
        if handler is None or not handler.expires:
            return
        if id in self._fetching or handler.expires > self.now:
            self.after(max(1.0, handler.expires - self.now), lambda: self._check_lease(id))
            return
        self.end(handler, "expired")

    def is_fetched(self, handler: Handler) -> bool:
        return handler.id in self._fetching

    def end(self, handler: Handler, why: Literal["expired", "refused", "ended", "taken"]) -> None:
        """Remove a handler together with its buffer."""
        self._moving.pop(handler.id, None)
        self._listening.pop(handler.id, None)
        self.do(steps.Unlisten(handler.name, self._foreign_filters(handler)))
        self.keep(Closed(handler.id, why))
        self.ahead.on_closed(handler, why)
