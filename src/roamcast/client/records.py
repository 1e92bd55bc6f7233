"""What a client saw, as records of its own: the audit need not rest on a broker's word."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from roamcast.client.notification import Notification
from roamcast.protocol.records import Row


class ClientLog:
    """Writes `delivered`, `attached` and `moved` rows to a folder, closed when the client is."""

    def __init__(self, folder: Path, run: str, client: str) -> None:
        # Loading Parquet takes longer than connecting does, and most clients keep no records.
        from roamcast.records import LogWriter

        self._writer = LogWriter(folder, run)
        self._client = client
        self._sequence = 0
        self.broker: str | None = None

    def delivered(self, notification: Notification) -> None:
        publisher, incarnation, number = notification.identity or (None, None, None)
        self.write(
            "delivered", publisher=publisher, incarnation=incarnation, number=number, notifications=1,
            size_bytes=len(notification.payload),
        )  # fmt: skip

    def write(self, kind: str, **about: Any) -> None:
        self._sequence += 1
        client, broker = self._client, self.broker
        self._writer.write([Row(self._sequence, time.time(), client, kind, client, broker, **about)])

    def close(self) -> None:
        self._writer.close()
