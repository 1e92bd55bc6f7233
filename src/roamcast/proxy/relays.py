"""The move-in proxy's part of a full move-in (section 3.2, steps 3 and 4): it asks the proxy of the
move-out and passes on what that says, in both directions, keeping nothing. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from roamcast.proxy.messages import (
    Batch,
    Download,
    Downloaded,
    Fetch,
    Message,
    MovedOut,
    MoveRefused,
    StandIn,
    Taken,
)
from roamcast.proxy.steps import Close, Dial, Joined

if TYPE_CHECKING:
    from roamcast.proxy.service import Service


class Relay(msgspec.Struct, frozen=True):
    link: int
    """The connection to the other proxy, which serves this request alone."""
    client: Joined
    asked: Download | StandIn


class Relays:
    """What clients ask of other sites."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._by_link: dict[int, Relay] = {}
        self._by_request: dict[tuple[int, int], Relay] = {}

    def begin(self, client: Joined, asked: Download | StandIn) -> None:
        service, settings = self._service, self._service.settings
        connection, request = client.connection, asked.request
        if asked.site not in settings.sites:
            text = f"site {settings.site} knows no proxy of a site {asked.site!r}"
            service.refuse(connection, request, "proxy", text)
        elif service.down:
            text = f"the broker of site {settings.site} is down ({service.down}): nothing was taken over"
            service.refuse(connection, request, "broker", text)
        elif (connection, request) in self._by_request:
            service.refuse(connection, request, "busy", "this request is under way")
        else:
            relay = Relay(service.new_link(), client, asked)
            self._by_link[relay.link] = self._by_request[connection, request] = relay
            service.do(Dial(relay.link, asked.site))

    def on_joined(self, joined: Joined) -> None:
        relay = self._by_link.get(joined.connection)
        if relay is not None:
            asked, user = relay.asked, relay.client.who
            if isinstance(asked, StandIn):
                self._service.send(joined.connection, msgspec.structs.replace(asked, site="", user=user))
            else:
                self._service.send(joined.connection, Fetch(asked.request, asked.client, asked.ticket, user))

    def on_answer(self, joined: Joined, message: Message) -> bool:
        """Whether it belongs to a relayed request."""
        relay = self._by_link.get(joined.connection)
        if relay is None:
            return False
        match message:
            case Batch():
                self._service.send(relay.client.connection, message)
            case Downloaded() | MovedOut() | MoveRefused():
                self._end(relay)
                self._service.send(relay.client.connection, message)
            case _:
                self._end(relay)
                self._refuse(relay, f"it said {type(message).__name__}")
        return True

    def on_taken(self, connection: int, taken: Taken) -> bool:
        """Whether it belongs to a relayed request."""
        relay = self._by_request.get((connection, taken.request))
        if relay is not None:
            self._service.send(relay.link, taken)
        return relay is not None

    def on_left(self, connection: int, why: str) -> None:
        relay = self._by_link.get(connection)
        if relay is not None:
            self._end(relay)
            self._refuse(relay, why or "the connection ended")
        for relay in [one for one in self._by_link.values() if one.client.connection == connection]:
            self._end(relay)

    def _end(self, relay: Relay) -> None:
        del self._by_link[relay.link], self._by_request[relay.client.connection, relay.asked.request]
        self._service.do(Close(relay.link))

    def _refuse(self, relay: Relay, why: str) -> None:
        text = f"the proxy of site {relay.asked.site} cannot be asked ({why}): what it has stays there"
        self._service.refuse(relay.client.connection, relay.asked.request, "proxy", text)
