"""Mobility protocols with one mistake each, for the fuzzer to find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from roamcast.mobility import PROTOCOLS, MobilityProtocol
from roamcast.mobility.base import STREAM
from roamcast.mobility.sub_unsub import Stay, SubUnsub, Transfer
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session


class Drops(SubUnsub):
    """Now and then a notification is not queued."""

    name = "broken_drop"

    def store(self, client: str, stay: Stay, burst: Burst) -> None:
        if burst.number % 7:
            super().store(client, stay, burst)


class Repeats(SubUnsub):
    """Now and then a notification is queued twice."""

    name = "broken_repeat"

    def store(self, client: str, stay: Stay, burst: Burst) -> None:
        super().store(client, stay, burst)
        if burst.number % 7 == 0:
            self.keep(stay.queue, client, burst)


class Reorders(SubUnsub):
    """At the merge, what the new broker has comes first."""

    name = "broken_reorder"

    def on_transfer(self, sender: str, message: Transfer) -> None:
        stay = self.stays[message.client, message.number]
        own = stay.queue.drain()
        super().on_transfer(sender, Transfer(message.client, message.number, message.base, tuple(own), {}))
        for burst in message.bursts:
            if burst not in own:
                self.keep(stay.queue, message.client, burst)
        self.host.pump(message.client)


class ForgetsToRewind(SubUnsub):
    """What was in flight when the client went away is not sent again."""

    name = "broken_no_rewind"

    def begin_delivery(self, client: str, queue: DeliveryQueue, received: int) -> None:
        self.host.deliver_from(client, queue)
        self.host.handoff_finished(client)


class IgnoresWhatTheClientHas(SubUnsub):
    """The old broker transfers also what the client acknowledged with its attach."""

    name = "broken_received"

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        super().on_depart(session, destination, {})

    def begin_delivery(self, client: str, queue: DeliveryQueue, received: int) -> None:
        # A stream of its own for each stay, so that the client cannot tell by the sequences.
        stay = self.current[client]
        stay.queue = DeliveryQueue(f"{STREAM}/{stay.number}", 0, self.host.buffer)
        stay.queue.extend(queue.drain())
        super().begin_delivery(client, stay.queue, 0)


class KeepsDuplicates(SubUnsub):
    """The two queues are joined as they are."""

    name = "broken_merge"

    def store(self, client: str, stay: Stay, burst: Burst) -> None:
        self.host.pass_to(client, stay.queue, burst)


class WaitsNoTime(SubUnsub):
    """The old broker unsubscribes at once."""

    name = "broken_no_wait"
    waits_bounds = 0


class TransfersTooEarly(SubUnsub):
    """A stay transfers its queue though the queue of the stay before has not come."""

    name = "broken_chain"

    def on_deadline(self, token: tuple[str, int]) -> None:
        self.stays[token].merged = True
        super().on_deadline(token)

    def on_transfer(self, sender: str, message: Transfer) -> None:
        if (message.client, message.number) in self.stays:
            super().on_transfer(sender, message)


BROKEN: tuple[type[MobilityProtocol], ...] = (
    *(Drops, Repeats, Reorders, ForgetsToRewind, IgnoresWhatTheClientHas),
    *(KeepsDuplicates, WaitsNoTime),
)


@contextmanager
def registered(protocol: type[MobilityProtocol]) -> Iterator[str]:
    """Known under its name in here; afterwards everything is as it was."""
    before = dict(PROTOCOLS)
    PROTOCOLS[protocol.name] = protocol
    try:
        yield protocol.name
    finally:
        PROTOCOLS.clear()
        PROTOCOLS.update(before)
