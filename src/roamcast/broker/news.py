"""News for operators: figures that brokers of one organisation exchange over their links.

The machine carries news to one broker of the organisation or to all, without reading them. Delivery is not
guaranteed; news change no state and are not journalled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Command, Message
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore

NEWS_BYTES_MAX = 256 * 1024
"""Limit of a news body; longer ones are refused at the border."""


class News(Message, frozen=True, tag="?News"):
    """News passed along the tree. A broker that does not know this message skips it."""

    origin: str
    to: str
    """Receiver; "" for all brokers."""
    body: bytes
    cause: ClassVar[Cause] = "handoff"
    is_optional: ClassVar[bool] = True
    is_fleeting: ClassVar[bool] = True


class TellNews(Command, frozen=True):
    """Send news of this broker to another, or to all ("")."""

    to: str
    body: bytes


class NewsDesk:
    __state__ = State("news-desk", saved=("_broker",), derived=("heard",))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._restore()

    def register_handlers(self) -> None:
        self._broker.obey(TellNews, self.on_tell)
        self._broker.serve(News, self.on_news)

    def _restore(self) -> None:
        self.heard: list[tuple[str, News]] = []
        """Received news with the peers they came from, not yet taken."""

    def on_tell(self, command: TellNews) -> None:
        self._pass_on("", News(self._broker.id, command.to, command.body))

    def on_news(self, sender: str, message: News) -> None:
        if message.to in ("", self._broker.id):
            self.heard.append((sender, message))
        if message.to != self._broker.id:
            self._pass_on(sender, message)

    def _pass_on(self, sender: str, message: News) -> None:
        broker = self._broker
        if message.to:
            hop = broker.hop_of(message.to)
            peers = [hop] if hop is not None else []
        else:
            peers = broker.peers
        for peer in peers:
            if peer != sender and not broker.is_guest(peer):
                broker.send(peer, message)
