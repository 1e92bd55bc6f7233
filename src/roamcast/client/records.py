"""A client's own event log, so that an audit need not trust the broker."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from roamcast.client.notification import Notification
from roamcast.mqtt.codec.packets import Subscribe
from roamcast.mqtt.codec.topics import split_shared
from roamcast.mqtt.codec.user_properties import WHERE
from roamcast.protocol.records import NO_LOCAL, REPEATED, RETAINED, SHARED, UNPROMISED, Row, life_of

UNNAMED = "client"
"""Run id of a client whose broker does not tell its network."""
LEFT = "left"


class ClientLog:
    """Writes `moved`, `attached`, `subscribed` and `delivered` rows to a folder; closed with the client."""

    def __init__(self, folder: Path, run: str | None, client: str) -> None:
        # Loading Parquet takes longer than connecting does, and most clients keep no records.
        from roamcast.records import LogWriter

        self._writer = LogWriter(folder, run or UNNAMED)
        self._is_named = run is not None
        self._client = client
        self._node = life_of(client, int(1_000 * time.time()))
        self._sequence = 0
        self._has_shared = False
        self._is_whole = True
        self.broker: str | None = None

    def attached(self, network: str | None) -> None:
        """Note an attach, and the network that the broker named."""
        if network is not None and not self._is_named:
            # The run has one name for all rows: earlier rows are still in memory.
            self._writer.run, self._is_named = network, True
        self.write("attached")

    def subscribed(self, packet: Subscribe, qos: int) -> None:
        """Note a granted subscription and what it excludes."""
        # The selector language is loaded only if needed.
        from roamcast.mqtt.codec.topics import subscription_filter

        (entry,) = packet.entries
        shared = split_shared(entry.filter)
        text = shared[1] if shared is not None else entry.filter
        filter = subscription_filter(text, dict(packet.user_properties).get(WHERE)).text
        reasons = {SHARED: shared is not None, UNPROMISED: qos == 0, NO_LOCAL: entry.no_local}
        self._has_shared = self._has_shared or shared is not None
        for reason in (reason for reason, applies in reasons.items() if applies):
            self.write("subscribed", filter=filter, reason=reason)

    def delivered(self, notification: Notification) -> None:
        if notification.identity is None:
            # The broker sends no identity: perhaps the client subscribed before it kept records.
            self._is_whole = self._is_whole and (notification.retain or notification.qos == 0)
            return
        publisher, incarnation, number = notification.identity
        self.write(
            "delivered", publisher=publisher, incarnation=incarnation, number=number, notifications=1,
            size_bytes=len(notification.payload), reason=self._apart(notification),
        )  # fmt: skip

    def _apart(self, notification: Notification) -> str | None:
        if notification.retain:
            return RETAINED
        if self._has_shared:
            return SHARED  # It may have come by way of the group.
        return REPEATED if notification.dup else None

    def write(self, kind: str, **about: Any) -> None:
        self._sequence += 1
        client, broker = self._client, self.broker
        self._writer.write([Row(self._sequence, time.time(), self._node, kind, client, broker, **about)])

    def close(self) -> None:
        """Write the row that marks the log as complete, if it is, and close it."""
        if self.broker is not None and self._is_whole:
            self.write("moved", reason=LEFT)
        self._writer.close()
