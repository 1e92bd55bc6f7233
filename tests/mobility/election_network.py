"""Brokers in reach of each other, as far as their heartbeats go: for tests of the election."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable

from roamcast.mobility.moving.election import (
    Broadcast,
    Election,
    ElectionEffect,
    ElectionSettings,
    ParentChanged,
)

Edge = tuple[str, str]


class ElectionNetwork:
    """Heartbeats take a random time to whoever is in reach when they are sent. Cycles are counted."""

    def __init__(
        self,
        edges: Iterable[Edge],
        settings: ElectionSettings | None = None,
        seed: int = 0,
        make: Callable[..., Election] = Election,
    ) -> None:
        self.edges = {frozenset(edge): None for edge in edges}
        self.settings = settings or ElectionSettings()
        self.rng = random.Random(seed)
        self.now = 0.0
        self.make = make
        self.migrations = 0
        """Changes from one parent to another."""
        self.cycles = 0
        self.events = 0
        self.is_stormy = False
        """Whether there were far more heartbeats than rounds."""
        self.nodes: dict[str, Election] = {}
        self._heap: list[tuple[float, int, str, str, object]] = []
        self._pushed = 0
        for name in sorted({name for edge in self.edges for name in edge}):
            self.start(name)

    def start(self, name: str, incarnation: int = 0) -> None:
        self.nodes[name] = self.make(name, self.settings, incarnation, speed_of(name, self.settings))
        self._do(name, self.nodes[name].start(self.now))

    def stop(self, name: str) -> None:
        del self.nodes[name]

    def cut(self, *edges: Edge) -> None:
        for edge in edges:
            del self.edges[frozenset(edge)]

    def join(self, *edges: Edge) -> None:
        self.edges |= {frozenset(edge): None for edge in edges}

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        events_max = self.events + 1_000 + int(seconds * 20 * len(self.edges))
        while self.events < events_max:
            self.events += 1
            timers = [(at, name) for name, node in self.nodes.items() if (at := node.deadline()) is not None]
            timer = min(timers)
            if self._heap and self._heap[0][0] <= timer[0]:
                if self._heap[0][0] > end:
                    break
                self.now, _, sender, receiver, heartbeat = heapq.heappop(self._heap)
                if receiver in self.nodes and frozenset((sender, receiver)) in self.edges:
                    node = self.nodes[receiver]
                    self._do(receiver, node.on_heartbeat(self.now, sender, heartbeat))  # type: ignore[arg-type]
            else:
                if timer[0] > end:
                    break
                self.now = max(self.now, timer[0])
                self._do(timer[1], self.nodes[timer[1]].on_timer(self.now))
        else:
            self.is_stormy = True
        self.now = end

    def _do(self, name: str, effects: list[ElectionEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Broadcast):
                for edge in self.edges:
                    if name in edge:
                        (other,) = edge - {name}
                        self._pushed += 1
                        at = self.now + self.rng.uniform(0.001, 0.02)
                        heapq.heappush(self._heap, (at, self._pushed, name, other, effect.heartbeat))
            elif isinstance(effect, ParentChanged):
                self.migrations += effect.old is not None and effect.new is not None
                self.cycles += self._has_cycle(name)

    def _has_cycle(self, name: str) -> bool:
        seen: dict[str, None] = {}
        at: str | None = name
        while at is not None and at in self.nodes:
            if at in seen:
                return True
            seen[at] = None
            at = self.nodes[at].parent
        return False

    def leaders(self) -> dict[str, str]:
        return {name: node.leader for name, node in self.nodes.items()}

    def wrongs(self) -> list[str]:
        """What is not as it should be once everything has come to rest."""
        wrongs = ["a cycle of parents"] * self.cycles + ["a storm of heartbeats"] * self.is_stormy
        for part in self.parts():
            lowest = min(part, key=lambda name: (speed_of(name, self.settings), name))
            for name in part:
                node = self.nodes[name]
                if node.leader != lowest:
                    wrongs.append(f"{name} follows {node.leader} instead of {lowest}")
                elif (node.parent is None) != (name == lowest):
                    wrongs.append(f"{name} has the parent {node.parent}")
                elif node.parent is not None and name not in self.nodes[node.parent].children:
                    wrongs.append(f"{node.parent} does not know its child {name}")
                for child in node.children:
                    if child not in self.nodes or self.nodes[child].parent != name:
                        wrongs.append(f"{name} has {child} for a child")
        return wrongs

    def parts(self) -> list[list[str]]:
        left = dict.fromkeys(self.nodes)
        parts: list[list[str]] = []
        while left:
            part: dict[str, None] = {}
            border = [next(iter(left))]
            while border:
                name = border.pop()
                if name in left:
                    del left[name]
                    part[name] = None
                    border += [one for edge in self.edges if name in edge for one in edge]
            parts.append(list(part))
        return parts


def speed_of(name: str, settings: ElectionSettings) -> float:
    """Two of three are fast, also the one with the lowest name; 0 for all where nobody asks."""
    return float(settings.backbone and int(name[1:]) % 3 != 1)
