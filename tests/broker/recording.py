"""Stories run with every step written down: what went into each node, and what came out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest import mock

from roamcast.broker import machine
from roamcast.broker.core import BrokerCore
from roamcast.broker.plain_client import Client
from roamcast.broker.settings import MachineSettings
from roamcast.protocol.effects import ClientEffects, Effects, Input, Received, Submitted, Told
from roamcast.protocol.messages import Acknowledge, Deliver, Message
from roamcast.protocol.records import Row
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

    def record(
        node: BrokerCore | Client, now: float, inputs: Iterable[Input], take: Callable[[Any], Any]
    ) -> Any:
        """Let `take` process the inputs, and write the step down."""
        items = tuple(inputs)
        said = repr(items)
        effects = take(items)
        steps.append(Step(node, now, items, said, effects, text_of(effects)))
        return effects

    def add(effects: Effects, out: Effects) -> None:
        """Add effects to what the machine wants done already."""
        out.sends += effects.sends
        out.to_clients += effects.to_clients
        out.client_closes += effects.client_closes
        out.records += effects.records

    class RecordingBroker(BrokerCore):
        """The shorter ways of a simulation without faults are steps, too: twins repeat them with `step`."""

        def step(self, now: float, inputs: Iterable[Input], out: Effects | None = None) -> Effects:
            effects: Effects = record(self, now, inputs, lambda items: BrokerCore.step(self, now, items))
            if out is not None:
                add(effects, out)
            return effects

        def receive_in_process(self, now: float, peer: str, message: Message, out: Effects) -> None:
            def take(_: object) -> Effects:
                effects = Effects()
                BrokerCore.receive_in_process(self, now, peer, message, effects)
                return effects

            add(record(self, now, (Received(peer, message),), take), out)

        def submit_in_process(self, now: float, items: Iterable[Submitted], out: Effects) -> None:
            def take(items: Iterable[Submitted]) -> Effects:
                effects = Effects()
                BrokerCore.submit_in_process(self, now, items, effects)
                return effects

            add(record(self, now, items, take), out)

    class RecordingClient(Client):
        is_stepping = False

        def step(self, now: float, inputs: Iterable[Input]) -> ClientEffects:
            self.is_stepping = True
            effects: ClientEffects = record(self, now, inputs, lambda items: Client.step(self, now, items))
            self.is_stepping = False
            return effects

        def take(self, now: float, message: Deliver, records: list[Row]) -> Acknowledge:
            if self.is_stepping:
                return super().take(now, message, records)

            def take(_: object) -> ClientEffects:
                effects = ClientEffects()
                effects.sends.append((self.broker, Client.take(self, now, message, effects.records)))
                return effects

            effects: ClientEffects = record(self, now, (Told(self.broker, message),), take)
            records += effects.records
            [(_, acknowledgement)] = effects.sends
            assert isinstance(acknowledgement, Acknowledge)
            return acknowledgement

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
