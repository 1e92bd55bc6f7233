"""A foreign broker network in memory: a tree of sites that propagates subscriptions hop by hop, slowly.

Nothing here knows of mobility. Links and the access of each adapter are FIFO, with delays drawn from a
seed. A subscription is acknowledged by the first broker, long before the others know it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from roamcast.mqtt.codec.topics import matches
from roamcast.proxy.adapter import AdapterError, ForeignMessage, Receive


class Channel:
    """Calls that arrive later, in their order."""

    def __init__(self, random: Random, delay_max_s: float) -> None:
        self._random, self._delay_max_s = random, delay_max_s
        self._last = 0.0
        self._calls: deque[Callable[[], object]] = deque()

    def send(self, call: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        self._last = max(self._last, loop.time() + self._random.uniform(0, self._delay_max_s))
        self._calls.append(call)
        # The event loop does not promise an order for calls that are due at the same time.
        loop.call_at(self._last, lambda: self._calls.popleft()())


class Session:
    """What a site keeps for one name."""

    def __init__(self) -> None:
        self.filters: dict[str, None] = {}
        self.queue: deque[ForeignMessage] = deque()
        self.receivers: dict[str, Receive] = {}
        self.channel: Channel | None = None
        self.generation = 0

    def put(self, message: ForeignMessage) -> None:
        self.queue.append(message)
        if self.channel is not None:
            self._deliver(self.channel)

    def attach(self, channel: Channel) -> None:
        self.generation += 1
        self.channel = channel
        for _ in self.queue:
            self._deliver(channel)

    def detach(self) -> None:
        self.generation += 1
        self.channel = None

    def _deliver(self, channel: Channel) -> None:
        generation = self.generation

        def arrive() -> None:
            if generation == self.generation:
                message = self.queue.popleft()
                for filter, receive in list(self.receivers.items()):
                    if matches(filter, message.topic):
                        receive(message)
                        break

        channel.send(arrive)


class Site:
    def __init__(self, name: str) -> None:
        self.name = name
        self.links: dict[str, tuple[Site, Channel]] = {}
        self.sessions: dict[str, Session] = {}
        self.wanted: dict[str, dict[str, None]] = {}
        """Filters by the link that they came over."""
        self.told: dict[str, dict[str, None]] = {}
        self.is_up = True

    def change(self) -> None:
        """Tell every neighbour what is wanted on this side of its link."""
        for name, (other, channel) in self.links.items():
            wanted: dict[str, None] = {}
            for session in self.sessions.values():
                wanted |= session.filters
            for link, filters in self.wanted.items():
                if link != name:
                    wanted |= filters
            if wanted != self.told.get(name, {}):
                self.told[name] = wanted
                channel.send(partial(other.hear, self.name, wanted))

    def hear(self, link: str, wanted: dict[str, None]) -> None:
        self.wanted[link] = wanted
        self.change()

    def route(self, message: ForeignMessage, came_over: str = "") -> None:
        for session in self.sessions.values():
            if any(matches(filter, message.topic) for filter in session.filters):
                session.put(message)
        for name, (other, channel) in self.links.items():
            filters = self.wanted.get(name, {})
            if name != came_over and any(matches(filter, message.topic) for filter in filters):
                channel.send(partial(other.route, message, self.name))


class Network:
    """Sites joined to a tree."""

    def __init__(self, random: Random, edges: Sequence[tuple[str, str]], delay_max_s: float = 0.5) -> None:
        self.random = random
        self.sites: dict[str, Site] = {}
        for one, other in edges:
            left, right = (self.sites.setdefault(name, Site(name)) for name in (one, other))
            left.links[other] = right, Channel(random, delay_max_s)
            right.links[one] = left, Channel(random, delay_max_s)

    def adapter(self, site: str, can_suspend: bool = True) -> MemoryAdapter:
        return MemoryAdapter(self.sites[site], self.random, can_suspend)


class MemoryAdapter:
    def __init__(self, site: Site, random: Random, can_suspend: bool) -> None:
        self.can_suspend = can_suspend
        self._site = site
        self._up, self._down = Channel(random, 0.02), Channel(random, 0.02)
        self._names: dict[str, None] = {}
        self._lost: Callable[[str], None] = lambda why: None
        self._is_open = False

    async def _at_the_site(self, work: Callable[[], None]) -> None:
        """Do this when it has come to the site, and go on when the answer is back."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        def arrive() -> None:
            if self._is_open and self._site.is_up:
                work()
                self._down.send(finish)
            else:
                done.set_exception(AdapterError("the broker is down"))

        if not (self._is_open and self._site.is_up):
            raise AdapterError("the broker is down")
        self._up.send(arrive)
        await done

    async def open(self) -> None:
        if not self._site.is_up:
            raise AdapterError("the broker is down")
        self._is_open = True

    async def subscribe(self, name: str, filter: str, receive: Receive) -> None:
        await self.resume(name, (filter,), receive)

    async def resume(self, name: str, filters: Sequence[str], receive: Receive) -> bool:
        is_kept = False

        def work() -> None:
            nonlocal is_kept
            is_kept = name in self._site.sessions
            session = self._site.sessions.setdefault(name, Session())
            session.filters |= dict.fromkeys(filters)
            session.receivers |= dict.fromkeys(filters, receive)
            if name not in self._names:
                self._names[name] = None
                session.attach(self._down)
            self._site.change()

        await self._at_the_site(work)
        return is_kept

    async def unsubscribe(self, name: str, filter: str) -> None:
        def work() -> None:
            session = self._site.sessions.get(name)
            if session is not None:
                session.filters.pop(filter, None)
                self._site.change()

        await self._at_the_site(work)
        session = self._site.sessions.get(name)
        if session is not None and not session.filters:
            session.detach()
            del self._site.sessions[name]
            self._names.pop(name, None)

    async def suspend(self, name: str) -> None:
        await self._at_the_site(self._site.sessions[name].detach)
        self._names.pop(name, None)

    async def publish(self, message: ForeignMessage) -> None:
        await self._at_the_site(lambda: self._site.route(message))

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        """As when the process is killed: what can be kept is kept, everything else ends."""
        self._is_open = False
        for name in self._names:
            session = self._site.sessions.get(name)
            if session is not None:
                session.detach()
                if not self.can_suspend:
                    del self._site.sessions[name]
        self._names.clear()
        self._site.change()

    def lose(self, why: str) -> None:
        """The broker goes away."""
        if self._is_open:
            self.cut()
            self._lost(why)

    def on_lost(self, call: Callable[[str], None]) -> None:
        self._lost = call

    def topic_of(self, levels: Sequence[str]) -> str:
        return "/".join(levels)
