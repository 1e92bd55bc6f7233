"""The host monitor: it watches which proxy is near and moves clients, so that applications need not know.

    async with HostMonitor([client]):
        async for message in client: …

A host that knows that its network will go down calls `going_down`, and `back` when there is a network again
(a power or network daemon can call these). Without these calls the monitor only measures: it notices a nearer
proxy in time, but a cut connection too late for a move-out. Messages between the cut and the next move-in are
then kept only if the foreign broker can keep a client's channel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType

from roamcast.proxy.client import MoveFailed, RoamingClient
from roamcast.proxy.discovery import measure

log = logging.getLogger("roamcast.proxy")


class HostMonitor:
    """Moves all clients of one host between the proxies that they know."""

    def __init__(
        self,
        clients: Sequence[RoamingClient],
        *,
        interval_s: float = 1.0,
        rounds: int = 3,
        factor: float = 0.7,
    ) -> None:
        """A client moves when another proxy was nearer by this factor in `rounds` measurements in a row."""
        self._clients = clients
        self._interval_s, self._rounds, self._factor = interval_s, rounds, factor
        self._nearer: dict[tuple[str, str], int] = {}
        self._is_up = True
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HostMonitor:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def going_down(self, *, is_returning: bool = False) -> None:
        """Move out while possible: the network of this host will soon be down. A host that will wake at
        the same place says `is_returning`."""
        self._is_up = False
        attached = [client for client in self._clients if client.is_attached]
        await asyncio.gather(*(self._move_out(client, is_returning) for client in attached))

    def back(self) -> None:
        """Move in again: there is a network."""
        self._is_up = True
        self._wake.set()

    async def _run(self) -> None:
        while True:
            if self._is_up:
                await asyncio.gather(*(self._look(client) for client in self._clients))
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), self._interval_s)
            except TimeoutError:
                continue

    async def _look(self, client: RoamingClient) -> None:
        """Measure once, and move clients if needed."""
        found = await measure(client.proxies, client.credentials)
        if not found or not self._is_up:
            return
        best = next(iter(found))
        here = client.site
        if here is None or (self._is_worth_it(client.id, here, best, found) and await self._move_out(client)):
            await self._move_in(client, best)

    def _is_worth_it(self, client: str, here: str, best: str, found: dict[str, float]) -> bool:
        is_nearer = best != here and found[best] < self._factor * found.get(here, float("inf"))
        key = client, best
        rounds = self._nearer.get(key, 0) + 1 if is_nearer else 0
        self._nearer = {one: count for one, count in self._nearer.items() if one[0] != client}
        if rounds:
            self._nearer[key] = rounds
        return rounds >= self._rounds

    async def _move_out(self, client: RoamingClient, is_returning: bool = False) -> bool:
        try:
            await client.move_out(is_returning=is_returning)
        except MoveFailed as error:
            log.warning("client %s stays where it is: %s", client.id, error)
            return False
        return True

    async def _move_in(self, client: RoamingClient, site: str) -> None:
        try:
            result = await client.move_in(site)
        except MoveFailed as error:
            log.warning("client %s is not attached: %s", client.id, error)
            return
        log.info("client %s is at %s: %d messages were kept for it", client.id, site, result.downloaded)
