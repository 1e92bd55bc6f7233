"""Stations that run AODV: publishers send each notification separately to every subscriber."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roamcast.simulator.radio.aodv import Aodv, AodvSettings
from roamcast.simulator.radio.aodv_messages import AodvMessage, Data
from roamcast.simulator.radio.ledger import Ledger, Notification
from roamcast.simulator.radio.network import Station
from roamcast.simulator.radio.workload import Publishing


class AodvProgram:
    """The host of one AODV machine."""

    def __init__(self, station: Station, ledger: Ledger, settings: AodvSettings) -> None:
        self._station = station
        self._ledger = ledger
        self.aodv = Aodv(station.number, self, settings)

    # --- for the network ---

    def on_start(self) -> None:
        self.aodv.start()

    def accepts(self, sender: int, message: AodvMessage) -> bool:
        return True

    def on_received(self, sender: int, message: AodvMessage) -> None:
        self.aodv.on_received(sender, message)

    def on_sent(self, destination: int, message: AodvMessage) -> None:
        pass

    def on_send_failed(self, destination: int, message: AodvMessage) -> None:
        if destination >= 0:
            self.aodv.on_send_failed(destination, message)

    # --- for the machine ---

    @property
    def now(self) -> float:
        return self._station.now

    def broadcast(self, message: AodvMessage) -> None:
        self._station.broadcast(type(message).__name__, message, message.payload_bytes)

    def unicast(self, neighbour: int, message: AodvMessage) -> None:
        kind = type(message).__name__
        if not self._station.unicast(neighbour, kind, message, message.payload_bytes) and kind == "Data":
            self._ledger.given_up["queue full"] += 1

    def set_timer(self, at: float, then: Callable[..., Any], *about: Any) -> None:
        self._station.set_timer(at, then, *about)

    def jitter(self, up_to_s: float) -> float:
        return self._station.chance.random() * up_to_s

    def deliver(self, data: Data) -> None:
        self._ledger.arrived(data.content, self._station.number, self.now, data.hops)

    def given_up(self, data: Data, reason: str) -> None:
        self._ledger.given_up[reason] += 1


class AodvPublisher(AodvProgram):
    """Publishes, and sends to one subscriber after the other, evenly spread over the time until the next
    publish.

    Sending all at once would overflow the station's own queue from 32 subscribers on.
    """

    def __init__(
        self,
        station: Station,
        ledger: Ledger,
        settings: AodvSettings,
        publishing: Publishing,
        subscribers: range,
    ) -> None:
        super().__init__(station, ledger, settings)
        self._publishing = publishing
        self._subscribers = subscribers
        self._number = 0

    def on_start(self) -> None:
        super().on_start()
        self._station.set_timer(self.jitter(self._publishing.every_s), self._publish)

    def _publish(self) -> None:
        if self.now >= self._publishing.until_s:
            return
        self._number += 1
        notification = (self._station.number, self._number)
        self._ledger.published(notification, self.now, len(self._subscribers))
        apart_s = self._publishing.every_s / len(self._subscribers)
        for index, subscriber in enumerate(self._subscribers):
            self._station.set_timer(self.now + index * apart_s, self._send, notification, subscriber)
        self._station.set_timer(self.now + self._publishing.every_s, self._publish)

    def _send(self, notification: Notification, subscriber: int) -> None:
        self._ledger.owed(notification, subscriber, self.now)
        self.aodv.send(subscriber, notification, self._publishing.content_bytes)
