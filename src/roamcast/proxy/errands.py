"""Errands: the tasks for which a proxy connects to the proxy of another site. Pure.

A relay is the move-in proxy's part of a full move-in (section 3.2, steps 3 and 4): it asks the proxy of the
move-out for a client, and forwards messages in both directions. It stores nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from roamcast.proxy import messages
from roamcast.proxy.steps import Joined

if TYPE_CHECKING:
    from roamcast.proxy.service import Service

BATCH_BYTES, BATCH_MESSAGES = 256 << 10, 1000
"""Size of one batch of messages to a client or another site."""
AGAIN_S = 5.0
"""Pause before a failed request to the foreign broker, or to another site, is retried."""


class Errand(Protocol):
    """Receives the events of the connections dialed for it, until `Service.hang_up`."""

    def on_joined(self, link: int) -> None: ...
    def on_answer(self, link: int, message: messages.Message) -> None: ...
    def on_left(self, link: int, why: str) -> None:
        """Note that the connection ended or could not be made; it need not be hung up."""


class Relay:
    """One request of a client to another site, over its own connection."""

    def __init__(self, service: Service, client: Joined, asked: messages.Download | messages.StandIn) -> None:
        self._service, self._client, self._asked = service, client, asked
        self.link = service.dial(asked.site, self)

    def on_joined(self, link: int) -> None:
        self._service.send(link, msgspec.structs.replace(self._asked, site="", user=self._client.who))

    def on_answer(self, link: int, message: messages.Message) -> None:
        match message:
            case messages.Batch():
                self._service.send(self._client.connection, message)
            case messages.Downloaded() | messages.MovedOut() | messages.MoveRefused():
                self.end()
                self._service.send(self._client.connection, message)
            case _:
                self.on_left(link, messages.refusal_in(message))

    def on_left(self, link: int, why: str) -> None:
        self.end()
        why = why or "the connection ended"
        text = f"the proxy of site {self._asked.site} cannot be asked ({why}): its messages stay there"
        self._service.refuse(self._client.connection, self._asked.request, "proxy", text)

    def end(self) -> None:
        del self._service.relays[self._client.connection, self._asked.request]
        self._service.hang_up(self.link)
