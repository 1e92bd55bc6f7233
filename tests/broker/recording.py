"""Stories run with every step written down: what went into each node, and what came out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest import mock

from roamcast.broker import machine
from roamcast.broker.core import BrokerCore
from roamcast.broker.plain_client import Client
from roamcast.broker.settings import MachineSettings
from roamcast.protocol.effects import ClientEffects, Effects, Input
from roamcast.simulator import access
from roamcast.simulator.fuzz import draw_story


@dataclass
class Step:
    """One call of `step`; the texts are from the moment of the call."""

    node: BrokerCore | Client
    now: float
    inputs: tuple[Input, ...]
    inputs_then: str
    effects: Effects | ClientEffects
    effects_then: str


def text_of(effects: Effects | ClientEffects) -> str:
    return repr(effects)


@contextmanager
def recording() -> Iterator[list[Step]]:
    """Every step of every node that a simulation makes in here."""
    steps: list[Step] = []

    def record(node: BrokerCore | Client, now: float, inputs: Iterable[Input]) -> Any:
        items = tuple(inputs)
        said = repr(items)
        kind = BrokerCore if isinstance(node, BrokerCore) else Client
        effects = kind.step(node, now, items)  # type: ignore[arg-type]
        steps.append(Step(node, now, items, said, effects, text_of(effects)))
        return effects

    class RecordingBroker(BrokerCore):
        def step(self, now: float, inputs: Iterable[Input], out: Effects | None = None) -> Effects:
            effects: Effects = record(self, now, inputs)
            if out is not None:  # The machine adds what it wants done to what is there.
                out.sends += effects.sends
                out.to_clients += effects.to_clients
                out.client_closes += effects.client_closes
                out.records += effects.records
            return effects

    class RecordingClient(Client):
        def step(self, now: float, inputs: Iterable[Input]) -> ClientEffects:
            effects: ClientEffects = record(self, now, inputs)
            return effects

    with (
        mock.patch.object(machine, "BrokerCore", RecordingBroker),
        mock.patch.object(access, "Client", RecordingClient),
    ):
        yield steps


@lru_cache(maxsize=2)
def recorded_story(protocol: str, seed: int) -> list[Step]:
    with recording() as steps:
        draw_story(protocol, seed).run()
    return steps


def fresh_twin(node: BrokerCore | Client) -> BrokerCore | Client:
    """A node like this one was at the beginning."""
    if isinstance(node, Client):
        return Client(node.id, node._names_last_broker)
    settings = MachineSettings(
        node.id, node.protocol.name, front="plain", encodes=False, broker=node.settings
    )
    return machine.BrokerMachine(settings).broker


def digest_of(protocol: str, seeds: Iterable[int]) -> str:
    """A digest of everything that every node said in the stories of these seeds."""
    digest = hashlib.sha256()
    for seed in seeds:
        for step in recorded_story(protocol, seed):
            digest.update(f"{step.node.id} {step.now!r} {step.effects_then}\n".encode())
    return digest.hexdigest()
