"""Unslotted CSMA-CA of IEEE 802.15.4 (7.5.1.4), with acknowledged unicast.

A station waits a random time, listens, and sends if the channel is free; otherwise it waits again, longer.
Unicast frames are acknowledged and repeated; a message longer than a frame is sent as several, one
acknowledged after the other. Broadcasts are sent once.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roamcast.simulator.radio.channel import EVERYONE, Channel, Transmission
from roamcast.simulator.radio.parameters import RadioParameters

if TYPE_CHECKING:
    from roamcast.simulator.radio.network import Program, RadioNetwork


@dataclass(slots=True)
class Outgoing:
    """A message in the queue of a station."""

    destination: int
    message: Any
    bytes_left: int
    """Bytes of the payload that are not acknowledged, including those of the frame being sent."""
    attempts: int = 0
    """Attempts to send the present frame."""
    sequence: int = 0
    """Tells the receiver a repeated frame from a new one."""
    is_whole: bool = True
    """Without acknowledgements: true if all its frames so far have arrived."""


@dataclass
class AirCounts:
    """Counters of a station's transmissions."""

    frames: int = 0
    bytes: int = 0
    acknowledgements: int = 0
    busy: int = 0
    """Attempts given up because the channel was never free."""
    overflow: int = 0
    """Messages that found the queue full."""


class MediumAccess:
    """Medium access of one station."""

    def __init__(
        self,
        station: int,
        parameters: RadioParameters,
        channel: Channel,
        network: RadioNetwork,
        chance: random.Random,
    ) -> None:
        self.station = station
        self.counts = AirCounts()
        self._parameters = parameters
        self._channel = channel
        self._network = network
        self._chance = chance
        self._queue: deque[Outgoing] = deque()
        self._backoffs = 0
        self._sequence = 0
        self._seen: dict[int, int] = {}
        self.peers: list[MediumAccess] = []

    @property
    def _program(self) -> Program:
        return self._network.programs[self.station]

    def send(self, destination: int, message: Any, payload_bytes: int) -> bool:
        """Queue a message; False if there is no room for it."""
        if len(self._queue) >= self._parameters.queue_messages:
            self.counts.overflow += 1
            return False
        self._sequence += 1
        self._queue.append(Outgoing(destination, message, payload_bytes, sequence=self._sequence))
        if len(self._queue) == 1:
            self._contend()
        return True

    # --- getting at the channel ---

    def _contend(self) -> None:
        self._backoffs = 0
        self._back_off()

    def _back_off(self) -> None:
        parameters = self._parameters
        if parameters.backoff_step_s:
            wait_s = self._chance.random() * (self._backoffs + 1) * parameters.backoff_step_s
        else:
            exponent = min(parameters.backoff_exponent_min + self._backoffs, parameters.backoff_exponent_max)
            wait_s = int(self._chance.random() * (1 << exponent)) * parameters.backoff_unit_s
        self._network.push(self._network.now + wait_s + parameters.sensing_s, self._sense)

    def _sense(self, *_: None) -> None:
        if self._channel.is_busy(self.station):
            self._wait_longer()
        else:
            self._network.push(self._network.now + self._parameters.turnaround_s, self._transmit)

    def _wait_longer(self) -> None:
        self._backoffs += 1
        if self._backoffs > self._parameters.backoffs_max:
            self.counts.busy += 1
            self._attempt_failed()
        else:
            self._back_off()

    def _transmit(self, *_: None) -> None:
        if self._channel.is_sending(self.station):
            self._wait_longer()  # It is acknowledging somebody's frame.
            return
        parameters, outgoing = self._parameters, self._queue[0]
        payload = min(outgoing.bytes_left, parameters.payload_bytes_max)
        frame_bytes = parameters.header_bytes + payload
        air_s = parameters.air_s(frame_bytes)
        self.counts.frames += 1
        self.counts.bytes += parameters.preamble_bytes + frame_bytes
        frame = self._channel.begin(self._network.now, self.station, outgoing.destination, air_s)
        self._network.push(frame.ends_at, self._end, frame)

    def _end(self, frame: Transmission, _: None) -> None:
        received = self._channel.end(self._network.now, frame)
        outgoing = self._queue[0]
        if frame.destination == EVERYONE:
            self._next()
            for receiver in received:
                self._network.programs[receiver].on_received(self.station, outgoing.message)
            self._program.on_sent(EVERYONE, outgoing.message)
            return
        if not self._parameters.acknowledged:
            self._end_unconfirmed(frame, bool(received), outgoing)
            return
        give_up_at = self._network.now + self._parameters.acknowledgement_wait_s
        if received and self._network.programs[frame.destination].accepts(self.station, outgoing.message):
            peer = self.peers[frame.destination]
            acknowledge_at = self._network.now + self._parameters.turnaround_s
            self._network.push(acknowledge_at, peer.acknowledge, self, give_up_at)
            if peer.is_news(self.station, outgoing):
                self._network.programs[frame.destination].on_received(self.station, outgoing.message)
        else:
            self._network.push(give_up_at, self._attempt_failed)

    def _end_unconfirmed(self, frame: Transmission, has_arrived: bool, outgoing: Outgoing) -> None:
        """End a unicast frame without acknowledgements: the sender assumes that it arrived."""
        outgoing.is_whole = outgoing.is_whole and has_arrived
        is_last = outgoing.bytes_left <= self._parameters.payload_bytes_max
        if not is_last:
            outgoing.bytes_left -= self._parameters.payload_bytes_max
            self._contend()
            return
        self._next()
        receiver = self._network.programs[frame.destination]
        if outgoing.is_whole and receiver.accepts(self.station, outgoing.message):
            receiver.on_received(self.station, outgoing.message)
        self._program.on_sent(outgoing.destination, outgoing.message)

    # --- acknowledgements ---

    def is_news(self, sender: int, outgoing: Outgoing) -> bool:
        """Return whether a received frame completes a message that is not a duplicate."""
        if outgoing.bytes_left > self._parameters.payload_bytes_max:
            return False
        if self._seen.get(sender) == outgoing.sequence:
            return False
        self._seen[sender] = outgoing.sequence
        return True

    def acknowledge(self, sender: MediumAccess, give_up_at: float) -> None:
        """Acknowledge the frame received from a station, which waits until the given time."""
        if self._channel.is_sending(self.station):
            self._network.push(give_up_at, sender._attempt_failed)
            return
        parameters = self._parameters
        self.counts.acknowledgements += 1
        air_s = parameters.air_s(parameters.acknowledgement_bytes)
        frame = self._channel.begin(self._network.now, self.station, sender.station, air_s)
        self._network.push(frame.ends_at, sender._acknowledged, frame, give_up_at)

    def _acknowledged(self, frame: Transmission, give_up_at: float) -> None:
        if not self._channel.end(self._network.now, frame):
            self._network.push(max(give_up_at, self._network.now), self._attempt_failed)
            return
        outgoing = self._queue[0]
        outgoing.bytes_left -= self._parameters.payload_bytes_max
        outgoing.attempts = 0
        if outgoing.bytes_left > 0:
            self._contend()
        else:
            self._next()
            self._program.on_sent(outgoing.destination, outgoing.message)

    def _attempt_failed(self, *_: None) -> None:
        outgoing = self._queue[0]
        outgoing.attempts += 1
        if outgoing.destination != EVERYONE and outgoing.attempts <= self._parameters.retries_max:
            self._contend()
            return
        self._next()
        self._program.on_send_failed(outgoing.destination, outgoing.message)

    def _next(self) -> None:
        self._queue.popleft()
        if self._queue:
            self._contend()
