"""Proxies and clients as they are, in virtual time: sockets, disks and the foreign broker are in memory.

One seed decides everything: each wait of the event loop jumps to the next thing that is due.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import msgspec
import pytest
from tests.proxy.foreign import Channel, MemoryAdapter, Network

from roamcast.proxy import wire
from roamcast.proxy.buffers import Buffers, Entry, decode_entry, encode_entry
from roamcast.proxy.client import Options, RoamingClient
from roamcast.proxy.config import Buffers as BufferSettings
from roamcast.proxy.config import Config, Neighbour, Peers, Proactive
from roamcast.proxy.driver import ProxyServer
from roamcast.proxy.wire import Pipe, ProxyError

SECRET = "a secret of sixteen or more"
Result = TypeVar("Result")
Given = ParamSpec("Given")


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits and nothing is due"
        self._loop.now += max(0.0, timeout)
        return super().select(0)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def in_virtual_time(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """A test that is a coroutine, run by a loop whose waits jump to what is due next."""

    @wraps(test)
    def told(*args: Given.args, **kwargs: Given.kwargs) -> None:
        run(test(*args, **kwargs))

    return told


class _Writer:
    """One direction of a connection in memory, as far as a Pipe uses it."""

    def __init__(self, channel: Channel, reader: asyncio.StreamReader) -> None:
        self._channel, self._reader = channel, reader
        self._is_closed = False
        self.transport = self

    def write(self, data: bytes) -> None:
        self._channel.send(lambda: self._reader.feed_data(data))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._channel.send(self._reader.feed_eof)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closed

    async def drain(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        return None


class MemoryStore:
    """What a killed proxy leaves behind is exactly what it wrote."""

    def __init__(self, written: list[bytes] | None = None) -> None:
        self.written = written if written is not None else []
        self.buffers = Buffers()
        for data in self.written:
            self.buffers.apply(decode_entry(data))

    def write(self, entries: Iterable[Entry]) -> None:
        self.written.extend(map(encode_entry, entries))

    def tend(self) -> None:
        pass

    def close(self) -> None:
        pass


class World:
    def __init__(
        self,
        network: Network,
        monkeypatch: pytest.MonkeyPatch,
        buffers: BufferSettings | None = None,
        can_suspend: bool = True,
        proactive: Proactive | None = None,
    ) -> None:
        self.network, self.random = network, network.random
        self.servers: dict[str, ProxyServer] = {}
        self.stores: dict[str, MemoryStore] = {}
        self.pipes: dict[str, list[_Writer]] = {}
        self.proxies = {site: f"{site}:1" for site in network.sites}
        self._buffers, self._can_suspend = buffers or BufferSettings(), can_suspend
        self._proactive = proactive or Proactive()
        monkeypatch.setattr(wire, "connect", self._connect)
        for site in network.sites:
            self.start(site)

    def start(self, site: str, secret: str = SECRET) -> ProxyServer:
        """A proxy begins, with what the last one at this site has written."""
        store = self.stores[site] = MemoryStore(self.stores[site].written if site in self.stores else None)
        neighbours = tuple(Neighbour(other, self.proxies[other]) for other in self.proxies if other != site)
        config = Config(
            site=site, proxies=neighbours, peers=Peers(secret=secret), buffers=self._buffers,
            proactive=self._proactive,
        )  # fmt: skip
        adapter = self.network.adapter(site, self._can_suspend)
        clock = asyncio.get_running_loop().time
        server = self.servers[site] = ProxyServer(config, adapter, store, clock)  # type: ignore[arg-type]
        server.begin()
        return server

    def kill(self, site: str) -> None:
        """As with kill -9: nothing is said, nothing is written."""
        server = self.servers.pop(site)
        for task in list(server._tasks):
            task.cancel()
        if server._timer is not None:
            server._timer.cancel()
        server.step = lambda inputs=(): None  # type: ignore[method-assign]
        adapter = server.adapter
        assert isinstance(adapter, MemoryAdapter)
        adapter.cut()
        for writer in self.pipes.pop(site, []):
            writer.close()

    def stop_broker(self, site: str) -> None:
        self.network.sites[site].is_up = False
        adapter = self.servers[site].adapter
        assert isinstance(adapter, MemoryAdapter)
        adapter.lose("the connection broke")

    def client(self, id: str, options: Options | None = None) -> RoamingClient:
        return RoamingClient(
            id, self.proxies, options, adapter=lambda welcome: self.network.adapter(welcome.site)
        )

    async def _connect(self, address: str, tls: object = None) -> Pipe:
        site = address.partition(":")[0]
        server = self.servers.get(site)
        if server is None:
            raise ProxyError("connection refused")
        readers = asyncio.StreamReader(), asyncio.StreamReader()
        delay_s = self.random.choice((0.001, 0.05))
        there, back = (_Writer(Channel(self.random, delay_s), reader) for reader in readers)
        self.pipes.setdefault(site, []).extend((there, back))
        server.spawn(server.serve(readers[0], back))  # type: ignore[arg-type]
        pipe = Pipe(readers[1], there)  # type: ignore[arg-type]
        await pipe.exchange_prefaces(is_dialer=True)
        return pipe


async def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something, in virtual time."""
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.01)


def with_options(**values: Any) -> Options:
    return msgspec.structs.replace(Options(again_s=0.5), **values)
