"""The broker in the middle of a detour: two others connect to it, and it forwards their traffic.

Each of the two dials this broker, proves who it is, and waits until the other one asks for it, too. From then
on their frames are forwarded unchanged. They contain a conversation between the two brokers, with its own
handshake and its own protection (`net/detours.py`). A relay dials nobody, and accepts no connection that was
itself carried, so there are no loops.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from roamcast.broker.links.frames import HEAD
from roamcast.config.sections import Relay as RelaySection
from roamcast.net.clients import Budget
from roamcast.net.peer_connection import PeerConnection
from roamcast.net.peer_list import read_secrets
from roamcast.protocol.codec import LENGTH_BYTES

log = logging.getLogger("roamcast.relay")

LIFE = 0
"""Frame that shows that the sender is alive."""
MET = 1
"""Frame that says that both brokers are here: what follows comes from the other one."""
DATA = 2
"""Frame with bytes of the conversation."""


def hop_frame(kind: int, data: bytes = b"") -> bytes:
    return HEAD.pack(HEAD.size - LENGTH_BYTES + len(data), kind) + data


def hop_frames(frames: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of each of these whole frames."""
    at = 0
    while at < len(frames):
        length, kind = HEAD.unpack_from(frames, at)
        start, at = at + HEAD.size, at + LENGTH_BYTES + length
        yield kind, frames[start:at]


class Relay:
    """Implements `peer_connection.Owner` for the connections of brokers that meet here."""

    def __init__(self, settings: RelaySection) -> None:
        """Raises InputError if a secret cannot be read."""
        self.settings = settings
        self.secrets = read_secrets(settings.secret_files, "relay")
        self.carried_bytes = 0
        self._waiting: dict[tuple[str, str], PeerConnection] = {}
        """Waiting brokers, by the broker that they wait for."""
        self._others: dict[PeerConnection, PeerConnection] = {}
        """For each connection of a carried link, the other one."""

    def admits(self, who: str, whom: str) -> bool:
        return who != whom and {who, whom} <= {*self.settings.brokers}

    @property
    def links(self) -> list[tuple[str, str]]:
        """Return the links that are carried now."""
        pairs = {tuple(sorted((one.peer_id, other.peer_id))) for one, other in self._others.items()}
        return [(one, other) for one, other in sorted(pairs)]

    @property
    def waiting(self) -> int:
        """Brokers that wait for another one."""
        return len(self._waiting)

    def reload(self, settings: RelaySection) -> None:
        """Use another configuration; InputError changes nothing."""
        self.secrets = read_secrets(settings.secret_files, "relay")
        self.settings = settings
        for connection in self._connections():
            if self.admits(connection.peer_id, connection.meets):
                connection.limit(self._budget())
            else:
                connection.close("this broker no longer carries their links")

    def stop(self) -> None:
        for connection in self._connections():
            connection.close("this broker stops")

    def _connections(self) -> list[PeerConnection]:
        return [*self._waiting.values(), *self._others]

    def _budget(self) -> Budget | None:
        bytes_per_s = self.settings.bytes_per_s
        return Budget(lambda: 0, None, 1, bytes_per_s) if bytes_per_s is not None else None

    def take(self, connection: PeerConnection, heartbeat_s: float, timeout_s: float) -> None:
        """Take the connection of an authenticated broker that asks for another one."""
        who, whom = connection.peer_id, connection.meets
        connection.owner = self
        if (who, whom) in self._waiting:
            self._waiting[who, whom].close("another connection takes its place")
        if len(self._connections()) >= self.settings.connections_max:
            log.warning("refusing to relay %s to %s: relay.connections_max is reached", who, whom)
            connection.close("relay.connections_max")
            return
        connection.begin(heartbeat_s, timeout_s)
        connection.limit(self._budget())
        other = self._waiting.pop((whom, who), None)
        if other is None:
            self._waiting[who, whom] = connection
        else:
            self._others[connection], self._others[other] = other, connection
            for one in (connection, other):
                one.write(hop_frame(MET))
            log.info("relaying the link between %s and %s", *sorted((who, whom)))
        connection.flush()

    # --- what connections call ---

    def arrived(self, connection: PeerConnection, frames: bytes) -> None:
        other = self._others.get(connection)
        if other is not None:
            # Heartbeats are forwarded with the rest: they do no harm.
            self.carried_bytes += len(frames)
            other.write(frames)
            if not other.is_writable:
                connection.pause_reading()

    def heartbeat(self, connection: PeerConnection) -> bytes:
        return hop_frame(LIFE)

    def writable(self, connection: PeerConnection) -> None:
        other = self._others.get(connection)
        if other is not None:
            other.is_held = False
            other.resume_reading()

    def lost(self, connection: PeerConnection) -> None:
        who, whom = connection.peer_id, connection.meets
        if self._waiting.get((who, whom)) is connection:
            del self._waiting[who, whom]
        other = self._others.pop(connection, None)
        if other is not None:
            self._others.pop(other, None)
            log.info("stopped relaying the link between %s and %s: %s", who, whom, connection.why)
            other.close(f"{who} disconnected")
