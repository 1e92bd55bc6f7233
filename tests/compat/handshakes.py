"""The handshake of two brokers, written down byte for byte, and played again with this build at one end.

Nonces are fixed, so a recorded end can say what it said then. Only its proof is made anew, because a proof
covers what the other end said; how, is written down here once more, as the wire has it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import Any, Literal

import msgspec

from roamcast.broker.links.links import Links, Offer
from roamcast.net.handshake import PREFACE, Agreed, Handshake, HandshakeHello, Own
from roamcast.net.sealing import LinkKeys
from roamcast.protocol.codec import Codec

Role = Literal["dialer", "listener"]
SECRET = "a secret of the recorded brokers"
TERMS = {"network": "recorded", "mobility protocol": "multi_hop_handoff", "routing strategy": "simple"}
IDS: dict[Role, str] = {"dialer": "b0", "listener": "b1"}
PREFACE_BYTES, LENGTH_BYTES = 10, 4
FRAME_BYTES_MAX = 1 << 20


class Step(msgspec.Struct):
    """What one end wrote: the preface, or a frame without its length."""

    role: Role
    data: bytes

    @property
    def is_preface(self) -> bool:
        return len(self.data) == PREFACE_BYTES and self.data.startswith(b"roamlink")

    @property
    def fields(self) -> list[Any]:
        found: list[Any] = msgspec.msgpack.decode(self.data)
        return found


class Wire:
    """One end of a connection in memory; what is written there is cut into steps."""

    def __init__(self, role: Role, steps: list[Step]) -> None:
        self.is_dialer = role == "dialer"
        self.frame_bytes_max = FRAME_BYTES_MAX
        self._role: Role = role
        self._steps = steps
        """Of both ends, in the order of writing."""
        self.incoming = asyncio.StreamReader()
        self.other: Wire | None = None

    async def read(self, size: int) -> bytes:
        return await self.incoming.readexactly(size)

    async def read_frame(self) -> bytes:
        return await self.read(int.from_bytes(await self.read(LENGTH_BYTES), "big"))

    def write(self, data: bytes) -> None:
        if data.startswith(PREFACE):
            self._steps.append(Step(self._role, PREFACE))
        rest = data.removeprefix(PREFACE)
        while rest:
            end = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "big")
            self._steps.append(Step(self._role, rest[LENGTH_BYTES:end]))
            rest = rest[end:]
        if self.other is not None:
            self.other.incoming.feed_data(data)

    def seal(self, keys: LinkKeys) -> None:
        """Steps are written down as they are, without what protects them on their way."""


class Host:
    """Agrees to everything."""

    def __init__(self, role: Role) -> None:
        self._links = Links(IDS[role], Codec())

    def secrets(self, peer: HandshakeHello) -> tuple[str, ...]:
        return (SECRET,)

    def admits(self, peer: HandshakeHello) -> bool:
        return True

    def terms(self, peer: str) -> dict[str, str]:
        return {}

    async def claim(self, peer: HandshakeHello) -> bool:
        return True

    def offer(self, peer: str) -> Offer:
        return self._links.offer(peer)

    def doubt(self, peer: str, offer: Offer) -> str:
        return ""

    def refusal(self, peer: str, offer: Offer) -> str:
        return self._links.refusal(peer, offer)


def _end(role: Role, wire: Wire) -> Handshake:
    seed = hashlib.sha256(role.encode()).digest()
    return Handshake(wire, Own(IDS[role], seed[:16], TERMS), seed)


def record() -> list[Step]:
    """A handshake of this build with itself."""

    async def both() -> list[Step]:
        steps: list[Step] = []
        dialer, listener = Wire("dialer", steps), Wire("listener", steps)
        dialer.other, listener.other = listener, dialer
        await asyncio.gather(
            _end("dialer", dialer).run(Host("dialer")), _end("listener", listener).run(Host("listener"))
        )
        return steps

    return asyncio.run(both())


def play(recorded: list[Step], role: Role) -> tuple[Agreed, list[Step]]:
    """This build in one role, the recorded end in the other: what came of it, and what this build wrote."""

    async def story() -> tuple[Agreed, list[Step]]:
        own: list[Step] = []
        wire = Wire(role, own)
        running = asyncio.ensure_future(_end(role, wire).run(Host(role)))
        for place, step in enumerate(recorded):
            if step.role == role:
                continue
            # Until this build has said what the recorded end had heard at this place.
            heard = sum(one.role == role for one in recorded[:place])
            while len(own) < heard and not running.done():
                await asyncio.sleep(0)
            data = step.data
            if not step.is_preface and step.fields[0] == "Proof":
                data = msgspec.msgpack.encode(["Proof", _proof(step.role, recorded, own)])
            wire.incoming.feed_data(
                data if step.is_preface else len(data).to_bytes(LENGTH_BYTES, "big") + data
            )
        agreed = await asyncio.wait_for(running, 10)
        assert agreed is not None, "nobody asks to be carried here"
        return agreed, own

    return asyncio.run(story())


def _proof(role: Role, recorded: list[Step], own: list[Step]) -> bytes:
    """As it has been since handshakes have format 2."""
    hellos: dict[str, bytes] = {}
    for step in (*(one for one in recorded if one.role == role), *own):
        if not step.is_preface and step.fields[0] == "HandshakeHello":
            hellos[step.role] = step.data
    said = msgspec.msgpack.encode(("roamcast link", 2, role, hellos["dialer"], hellos["listener"]))
    return hmac.new(SECRET.encode(), said, hashlib.sha256).digest()
