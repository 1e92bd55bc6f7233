"""Steering: a broker tells a client where to go next.

A client subscribes to `$roamcast/next` and publishes what it observes to `$roamcast/signal`: the names of
the access points or cells that it hears, the strongest first, one in each line; its position as
`43.263,-2.935` or a JSON object; or nothing, which asks for what the mobility protocol's model expects. If
another broker is the better one, the answer is a JSON object with the id and the address of that broker.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from roamcast.mqtt.server.moves import CONTROL

SIGNAL_TOPIC = CONTROL + b"signal"
NEXT_TOPIC = "$roamcast/next"


class SteeredBroker(msgspec.Struct, frozen=True):
    """A broker that clients may be sent to."""

    id: str
    address: str
    position: str = ""
    """Latitude and longitude; "" to ignore distance."""


class Steering(msgspec.Struct, frozen=True):
    brokers: tuple[SteeredBroker, ...] = ()
    signals: dict[str, str] = {}
    """Observable signals of each broker: name of an access point or cell to the id of the broker."""

    def address_of(self, broker: str) -> str:
        return next((one.address for one in self.brokers if one.id == broker), "")

    def answer(self, here: str, said: str, likely: Sequence[str]) -> bytes | None:
        """Return the message for a client at this broker; None if it should stay, or nothing is known."""
        broker = self._choose(said, likely)
        address = self.address_of(broker)
        if broker == here or not address:
            return None
        return msgspec.json.encode(Next(broker, address))

    def _choose(self, said: str, likely: Sequence[str]) -> str:
        if not said:
            return likely[0] if likely else ""
        heard = [self.signals[line.strip()] for line in said.splitlines() if line.strip() in self.signals]
        return heard[0] if heard else self._nearest(said)

    def _nearest(self, said: str) -> str:
        # Imported late: command-line clients load this module for every message.
        from roamcast.filters.geography import distance_m, position_of

        place = position_of(_position_text(said))
        if place is None:
            return ""
        positions = {one.id: position_of(one.position) for one in self.brokers}
        known = {id: position for id, position in positions.items() if position is not None}
        return min(known, key=lambda id: distance_m(place, known[id]), default="")


class Next(msgspec.Struct, frozen=True):
    """The payload of a message under `$roamcast/next`."""

    broker: str
    address: str


def read_next(payload: bytes) -> Next | None:
    try:
        return msgspec.json.decode(payload, type=Next)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _position_text(said: str) -> str:
    from roamcast.filters.geography import read_position

    if not said.startswith("{"):
        return said
    try:
        return read_position(msgspec.json.decode(said, type=dict)) or ""
    except (msgspec.MsgspecError, RecursionError):
        return ""
