"""Finds whose input made a turn raise: the inputs are stepped one by one on a copy of the state before the
turn.

The copy is a child process, so the inputs cannot damage the state of this process.
"""

from __future__ import annotations

import gc
import os
import select
import signal
from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec

from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import (
    ClientConnected,
    ClientFrames,
    ClientSlowed,
    ConnectionLost,
    Entry,
    LinkDown,
    LinkFrames,
    LinkRefused,
    LinkUp,
    MachineInput,
)
from roamcast.protocol.effects import Input
from roamcast.storage.kept_out import Who

CHILD_S_MAX = 60.0
ROUNDS_MAX = 16
"""Maximum number of culprits searched for in one turn."""

AnyInput = MachineInput | Input
OF_CLIENTS = ClientConnected | ClientFrames | ConnectionLost
OF_CONNECTIONS = OF_CLIENTS | ClientSlowed
OF_PEERS = LinkUp | LinkDown | LinkRefused | LinkFrames


class Verdict(msgspec.Struct):
    culprits: list[Who] = []
    is_found: bool = False
    """True if single inputs raise, including inputs that no client or peer sent (a timer)."""
    suspects: list[Who] = []
    """All senders of the turn, if no single input raises."""


def judge(site: AnyMachine, entry: Entry) -> Verdict:
    """Find who sent the inputs that raise in this turn. `site` is the state before the turn."""
    clients = {id: connection.client for id, connection in site.endpoint.connections.items()}
    for one in entry.inputs:
        if isinstance(one, ClientConnected):
            clients[one.connection] = one.identity.client
    # In the order of `step`: input from links comes first.
    left: list[tuple[Who | None, AnyInput]] = sorted(
        ((_who_brought(one, clients), one) for one in entry.inputs),
        key=lambda brought: isinstance(brought[1], OF_CLIENTS),
    )
    everyone = list(dict.fromkeys(who for who, _ in left if who is not None))
    verdict = Verdict()
    for _ in range(ROUNDS_MAX):
        raising = _first_that_raises(site, entry.now, [one for _, one in left])
        if raising is None:
            break
        verdict.is_found = True
        who = left[raising][0]
        if who is None:
            del left[raising]
        else:
            verdict.culprits.append(who)
            left = [brought for brought in left if brought[0] != who]
    if not verdict.is_found:
        verdict.suspects = everyone
    return verdict


def with_beginnings(site: AnyMachine, inputs: Sequence[AnyInput]) -> list[AnyInput]:
    """Return the inputs of a failed turn, with the beginnings of packets that arrived in earlier turns.

    The journal holds whole packets, so the state recovered from it lacks these beginnings.
    """
    came: dict[int, bytes] = {}
    for one in inputs:
        if isinstance(one, ClientFrames):
            came[one.connection] = came.get(one.connection, b"") + one.data
    found: list[AnyInput] = []
    for one in inputs:
        if isinstance(one, ClientFrames) and one.connection in came:
            beginning = _beginning(site, one.connection, came.pop(one.connection))
            found.append(ClientFrames(one.connection, beginning + one.data))
        else:
            found.append(one)
    return found


def _beginning(site: AnyMachine, id: int, came: bytes) -> bytes:
    connection = site.endpoint.connections.get(id)
    # If the connection was read before the exception, its buffer ends with the bytes of this turn.
    if connection is None or not connection.taken.endswith(came):
        return b""
    return connection.taken[: len(connection.taken) - len(came)]


def _who_brought(item: AnyInput, clients: dict[int, str]) -> Who | None:
    if isinstance(item, OF_PEERS):
        return Who("peer", item.peer)
    if isinstance(item, OF_CONNECTIONS) and item.connection in clients:
        return Who("client", clients[item.connection])
    return None


def _first_that_raises(site: AnyMachine, now: float, inputs: Iterable[AnyInput]) -> int | None:
    """Return the index of the first input that raises; None if none does, or if that cannot be determined."""
    reading, telling = os.pipe()
    child = os.fork()
    if child == 0:
        _step_in_child(site, now, inputs, telling)
    os.close(telling)
    try:
        is_told, _, _ = select.select([reading], [], [], CHILD_S_MAX)
        told = os.read(reading, 100) if is_told else b""
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return int(told) if told.isdigit() else None


def _step_in_child(site: AnyMachine, now: float, inputs: Iterable[AnyInput], telling: int) -> NoReturn:
    place = 0
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        gc.disable()
        # The child must not hold the journal's lock after the parent has ended.
        os.closerange(3, telling)
        os.closerange(telling + 1, os.sysconf("SC_OPEN_MAX"))
        for place, item in enumerate(inputs):  # noqa: B007
            site.step(now, [item])
            site.deadline()
        os._exit(0)
    except BaseException:
        os.write(telling, str(place).encode())
        os._exit(1)
