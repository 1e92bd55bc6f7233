"""A client of brokers that move: its messages to them, and how it handles their answers (Amozarrain 4.1).

A subscriber increments a timestamp with every message about itself, remembers its subscriptions, and
corrects a broker with outdated knowledge of them (FILTERS), which occurs after a partition. Published
events are numbered, so that an event repeated after a lost link is recognised as a duplicate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from roamcast.filters.filter import Filter
from roamcast.mobility.moving.mft import Bsub
from roamcast.mobility.moving.mobile import Filters, Identity, Mig, Sub, Uns, identities
from roamcast.protocol.messages import Message
from roamcast.protocol.notification import Burst


class MobileSubscriber:
    """Subscriber, publisher or both; every call returns the messages to send to its broker, if connected."""

    def __init__(self, id: str, incarnation: int = 0, remembers: int = 64) -> None:
        """`remembers`: number of last events named at connect, so that brokers suppress duplicates."""
        self.id = id
        self.incarnation = incarnation
        self.broker = ""
        """Broker it is connected to; "" while disconnected."""
        self.timestamp = 0
        self.filters: dict[str, Filter] = {}
        self.published = 0
        self._since = 0
        self._last_broker = ""
        self._had: deque[Identity] = deque(maxlen=remembers)
        self._unsent: list[Burst] = []
        """Published events that have not reached a broker."""

    def connect(self, broker: str) -> list[Message]:
        """Connect to a broker, maybe the former one. A new subscriber need not announce itself."""
        self.broker = broker
        self.timestamp += bool(self._last_broker)
        last_broker, self._last_broker = self._last_broker, broker
        unsent, self._unsent = self._unsent, []
        return [Mig(self.id, last_broker, self.timestamp, 0, self._since, tuple(self._had)), *unsent]

    def disconnect(self, unacknowledged: Sequence[Message] = ()) -> None:
        """Handle the loss of the link; of the unacknowledged messages, only events are sent again."""
        self.broker = ""
        self._unsent = [*(one for one in unacknowledged if isinstance(one, Burst)), *self._unsent]

    def subscribe(self, filter: Filter) -> list[Message]:
        if filter.text in self.filters:
            return []
        self.filters[filter.text] = filter
        since = self._change()
        return [Sub(filter, self.id, self.timestamp, 0, since)] if self.broker else []

    def unsubscribe(self, filter: Filter) -> list[Message]:
        if self.filters.pop(filter.text, None) is None:
            return []
        since = self._change()
        return [Uns(filter, self.id, self.timestamp, 0, since)] if self.broker else []

    def publish(
        self, attributes: bytes, bodies: tuple[bytes, ...] = (b"",), now: float = 0.0
    ) -> list[Message]:
        first = self.published + 1
        self.published += len(bodies)
        burst = Burst(self.id, self.incarnation, first, attributes, now, bodies, len(bodies))
        if self.broker:
            return [burst]
        self._unsent.append(burst)
        return []

    def receive(self, message: Message) -> list[Message]:
        """Handle a message of the broker: an event, or the subscriptions that the broker knows."""
        if isinstance(message, Burst):
            self._had.extend(identities(message))
        if not isinstance(message, Filters):
            return []
        known = {filter.text: filter for filter in message.filters}
        if message.since < 0:
            missing = [filter for text, filter in self.filters.items() if text not in known]
            extra = [filter for text, filter in known.items() if text not in self.filters]
            subscribe: list[Message] = [Sub(one, self.id, *self._next()) for one in missing]
            return subscribe + [Uns(one, self.id, *self._next()) for one in extra]
        if message.since == self._since and known == self.filters:
            return []
        self._change()
        return [Bsub(self.id, tuple(self.filters.values()), self.timestamp, 0)]

    def _next(self) -> tuple[int, int, int]:
        """Return timestamp, hops and `since` of one more change."""
        since = self._change()
        return self.timestamp, 0, since

    def _change(self) -> int:
        """Count one change; return the number of the previous change."""
        self.timestamp += 1
        since, self._since = self._since, self.timestamp
        return since
