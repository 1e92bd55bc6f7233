"""Ways to each worker of a site: the system sends connections from one source port to one worker.

A probe finds out which worker it is. The result holds until a worker restarts.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

from roamcast.bench.mqtt_load import PATIENCE_S, LoadConnection
from roamcast.bench.processes import HOST, BenchFailed, free_port
from roamcast.mqtt.codec import packets

NAME_TOPIC = "$SYS/broker/roamcast/id"
PROBES_MAX = 4_000
RESET = struct.pack("ii", 1, 0)
"""Closes a connection so that its source port can be used again at once."""


class WorkerDoor:
    """Opens connections to one worker."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sources: deque[int] = deque()

    def __call__(self) -> socket.socket:
        for _ in range(len(self.sources)):
            self.sources.rotate(1)
            try:
                return _connect(self.port, self.sources[0])
            except OSError:
                continue  # It is in use.
        raise BenchFailed(f"all {len(self.sources)} known ways to a worker are in use")


def find_doors(port: int, count: int, each: int) -> dict[str, WorkerDoor]:
    """Return, by worker id, a door for this many concurrent connections to each of `count` workers."""
    doors: dict[str, WorkerDoor] = {}
    for _ in range(PROBES_MAX):
        source = free_port()
        try:
            worker = _worker_at(port, source)
        except (OSError, BenchFailed):
            continue  # The port is taken, or the worker has not met the others yet.
        if worker not in doors:
            # Since it listens, connections from the same ports go elsewhere.
            for door in doors.values():
                door.sources.clear()
        door = doors.setdefault(worker, WorkerDoor(port))
        if source not in door.sources:
            door.sources.append(source)
        if len(doors) == count and all(len(one.sources) >= each for one in doors.values()):
            return dict(sorted(doors.items()))
    raise BenchFailed(f"{PROBES_MAX} connections came to {len(doors)} of {count} workers only")


def _worker_at(port: int, source: int) -> str:
    client = LoadConnection(lambda: _connect(port, source), f"probe{source}")
    try:
        client.subscribe([NAME_TOPIC], 0)
        told = client.receive_packet()
        assert isinstance(told, packets.Publish)
        return told.payload.decode()
    finally:
        client.close()


def _connect(port: int, source: int) -> socket.socket:
    made = socket.socket()
    try:
        made.settimeout(PATIENCE_S)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        made.bind((HOST, source))
        made.connect((HOST, port))
    except OSError:
        made.close()
        raise
    return made
