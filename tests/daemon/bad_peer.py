"""A peer with real links that sends whatever a test wants."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from tests.daemon.brokers import DEADLINE_S, SECRET, wait_until

from roamcast.broker.inputs import MachineInput, Started
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.making import make_machine
from roamcast.daemon.config import load
from roamcast.daemon.linking import Linking
from roamcast.daemon.settings import site_settings
from roamcast.protocol.notification import Message
from roamcast.storage.kept_out import KeptOut


class BadPeer:
    """`entry` is what it says of the broker that it is linked with, besides its address."""

    def __init__(self, folder: Path, id: str, peer: str, port: int, **entry: Any) -> None:
        peers = [{"id": peer, "address": f"127.0.0.1:{port}", **entry}]
        flags = {"id": id, "data": str(folder), "peer": peers}
        self._config = load(None, {"ROAMCAST_LINK_SECRET": SECRET}, flags, lambda line: None)
        site = make_machine(site_settings(self._config))
        assert isinstance(site, BrokerMachine)
        self.site = site
        self._peer = peer
        self._messages: deque[Message] = deque()
        self._is_over = threading.Event()
        self.has_joined = False
        self.why = ""
        """Why there is no link, as it hears."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def _run(self) -> None:
        site = self.site
        kept_out = KeptOut(Path(self._config.data), time.time)
        self._linking = linking = Linking(self._config, site, self._push, kept_out, self._fail)
        self._push(Started(site.settings))
        await linking.start()
        while not self._is_over.is_set():
            self.has_joined |= self._peer in site.links.reach.next_hops
            self.why = linking.peers.statuses()[0].why
            # One after the other, so that they share turns with what others send meanwhile.
            if self._messages and self.has_joined:
                message = self._messages.popleft()
                site.links.ends[self._peer].send(message)
                linking.write(self._peer)
            await asyncio.sleep(0.01)
        await linking.stop()

    def _push(self, item: MachineInput) -> None:
        effects = self.site.step(time.time(), [item])
        self.site.journalled()
        for peer, why in effects.link_closes:
            self._linking.peers.close(peer, why)
        for peer in self.site.links.ends:
            self._linking.write(peer)

    def _fail(self, error: Exception) -> NoReturn:
        raise error

    def wait_for_link(self) -> None:
        wait_until(lambda: self.has_joined, lambda: f"the bad peer has no link: {self.why}")

    def send(self, messages: Iterable[Message]) -> None:
        self._messages.extend(messages)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(DEADLINE_S)
