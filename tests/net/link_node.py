"""A broker that has only its links: what the daemon puts around `Peers`, without clients or a disk."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any, ClassVar, ParamSpec

import uvloop

from roamcast.broker.links.links import Links, LinkTurn, Offer
from roamcast.config.sections import Link, Peer
from roamcast.net.peers import Peers
from roamcast.net.tls import LinkContexts
from roamcast.protocol.codec import VERSION_MAX, VERSION_MIN, Codec
from roamcast.protocol.effects import Input, Received
from roamcast.protocol.messages import Settled
from roamcast.protocol.snapshot import freeze, thaw

DEADLINE_S = 20.0
P = ParamSpec("P")

TERMS = {"network": "test", "mobility protocol": "none"}
SECRET = "a secret of the tests"
QUICK: dict[str, Any] = {
    "port": 0,
    "secret": SECRET,
    "unlisted": "accept",
    "reconnect_min_s": 0.01,
    "reconnect_max_s": 0.1,
    "heartbeat_s": 0.05,
    "timeout_s": 2.0,
}


class Node:
    """What it was given to send arrives at its peers as `Received`."""

    made: ClassVar[list[Node]] = []
    """The nodes of the present test."""

    def __init__(self, id: str, link: Link | None = None, **more: Any) -> None:
        self.made.append(self)
        self.id = id
        self.link = link or Link(**QUICK)
        self.links = Links(id, Codec())
        self.inputs: list[Input] = []
        self.refusals: list[tuple[str, str]] = []
        self.fences: list[tuple[str, str]] = []
        """Refusals of this broker's history."""
        self.doubts: dict[str, str] = {}
        """Peers whose history is refused here, and why."""
        self.ups: list[str] = []
        self._more = more
        self.peers = self.new_peers([])

    def new_peers(self, peers: Iterable[Peer]) -> Peers:
        terms: dict[str, str] = self._more.get("terms", TERMS)
        contexts: LinkContexts | None = self._more.get("contexts")
        versions: tuple[int, int] = self._more.get("versions", (VERSION_MIN, VERSION_MAX))
        more = {name: self._more[name] for name in ("detours", "relay") if name in self._more}
        return Peers(self.id, terms, self.link, peers, self, contexts, versions, **more)

    # --- a life ---

    async def start(self, *peers: Node) -> None:
        self.peers = self.new_peers(Peer(id=one.id, address=f"127.0.0.1:{one.peers.port}") for one in peers)
        await self.peers.start()

    async def restart(self, *peers: Node) -> None:
        """As after a crash, with everything journalled; it listens on another port."""
        await self.peers.stop()
        self.links = thaw(freeze(self.links))
        for end in self.links.ends.values():
            end.down()
        await self.start(*peers)

    def send(self, peer: str, *numbers: int) -> None:
        self.links.send((peer, Settled(number)) for number in numbers)
        self.flush()

    def received(self, peer: str) -> list[int]:
        return [
            one.message.number
            for one in self.inputs
            if isinstance(one, Received) and one.peer == peer and isinstance(one.message, Settled)
        ]

    def is_up(self, peer: str) -> bool:
        return any(one.peer == peer and one.is_up for one in self.peers.statuses())

    def has_joined(self, *brokers: str) -> bool:
        return sorted(self.links.reach.next_hops) == sorted(brokers)

    def why(self, peer: str) -> str:
        return next((one.why for one in self.peers.statuses() if one.peer == peer), "")

    # --- what `Peers` asks ---

    def offer(self, peer: str) -> Offer:
        return self.links.offer(peer)

    def refusal(self, peer: str, offer: Offer) -> str:
        return self.links.refusal(peer, offer)

    def doubt(self, peer: str, offer: Offer) -> str:
        return self.doubts.get(peer, "")

    def runs_twice(self, peer: str) -> str:
        return f"{peer} runs twice"

    def on_refused(self, peer: str, why: str, is_fence: bool) -> None:
        if is_fence:
            self.fences.append((peer, why))
        self.refusals.append((peer, why))
        self.take(self.links.refused(peer, why))

    def on_link_up(self, peer: str, offer: Offer, version: int) -> None:
        self.ups.append(peer)
        incarnation = secrets.randbits(63) if self.links.begins_anew(peer, offer) else 0
        self.take(self.links.connected(peer, offer, incarnation, version))

    def on_frames(self, peer: str, frames: bytes) -> None:
        self.take(self.links.receive(peer, frames))

    def on_link_down(self, peer: str) -> None:
        self.take(self.links.disconnected(peer))

    def taken(self, peer: str) -> int:
        end = self.links.ends.get(peer)
        return end.taken if end is not None else 0

    def on_writable(self, peer: str) -> None:
        self.flush()

    def heartbeat(self, peer: str) -> bytes:
        return self.links.ends[peer].heartbeat() if peer in self.links.ends else b""

    def take(self, turn: LinkTurn) -> None:
        self.inputs += turn.inputs
        for peer, why in turn.closes:
            self.peers.close(peer, why)
        for end in self.links.ends.values():
            end.acknowledge()
        self.flush()

    def flush(self) -> None:
        for peer, end in self.links.ends.items():
            while end.has_more and self.peers.is_writable(peer) and (data := end.take()):
                self.peers.write(peer, data)


class Relay:
    """Stands between a dialer and a listener, and can cut or stop what passes through it."""

    def __init__(self, target: Node) -> None:
        self.target = target
        self.accepted = 0
        self.is_open = True
        """Whether who dials reaches the target."""
        self.heard = b""
        """What the last dialer said."""
        self.change: Callable[[bytes], bytes] | None = None
        """What to make, once, of the next bytes of the dialer."""
        self._writers: list[asyncio.StreamWriter] = []
        self._going = asyncio.Event()
        self._going.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def peer(self) -> Peer:
        return Peer(id=self.target.id, address=f"127.0.0.1:{self.port}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.transport.abort()
            return
        self.accepted += 1
        self.heard = b""
        there = await asyncio.open_connection("127.0.0.1", self.target.peers.port)
        self._writers += [writer, there[1]]
        await asyncio.gather(
            self._copy(reader, there[1], is_dialer=True), self._copy(there[0], writer, is_dialer=False)
        )

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_dialer: bool
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._going.wait()
                if is_dialer:
                    self.heard += data
                    if self.change is not None:
                        data, self.change = self.change(data), None
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    def stop(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._going.clear()

    def go_on(self) -> None:
        self._going.set()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        self._server.close()
        self.go_on()
        self.cut()


def live(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test under uvloop, as the daemon, or under asyncio's loop; its nodes are stopped at the end."""

    async def main(*arguments: P.args, **named: P.kwargs) -> None:
        try:
            async with asyncio.timeout(3 * DEADLINE_S):
                await test(*arguments, **named)
        finally:
            for node in Node.made:
                await node.peers.stop()
            Node.made.clear()

    @wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        if named.get("loop") == "asyncio":
            asyncio.run(main(*arguments, **named))
        else:
            uvloop.run(main(*arguments, **named))

    return run


async def joined(a: Node, b: Node) -> None:
    """Start both and let b dial a."""
    await a.start()
    await b.start(a)
    await until(lambda: a.has_joined(b.id) and b.has_joined(a.id))


async def dialed_over_relay(dialer: Node, target: Node) -> Relay:
    """Start a relay to a node that listens, and the dialer, which reaches the node over the relay."""
    relay = Relay(target)
    await relay.start()
    await dialer.start()
    dialer.peers.reload(dialer.link, [relay.peer()])
    return relay


async def until(condition: Callable[[], object]) -> None:
    """Waits until it holds; fails if it does not in time."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true in time"
        await asyncio.sleep(0.002)
