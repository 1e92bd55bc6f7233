"""Runs `roamcast` with a machine that raises on some inputs, after it has changed its state.

python poisoned_broker.py SECONDS broker --id a …

- A packet of a client that holds the word `poison`.
- Frames of a link that hold the words `poison for peers`.
- A timer, once a client with the id `bomb` has a session.
Whoever brings one is kept out for SECONDS at first instead of half a minute, and after two fail-stops
that nobody can be blamed for the process ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from roamcast.broker.inputs import ClientFrames, LinkFrames, MachineEffects, MachineInput, Tick
from roamcast.broker.machine import BrokerMachine
from roamcast.cli import main
from roamcast.protocol.effects import Input
from roamcast.storage import kept_out

UNEXPLAINED_MAX = 2

whole_step = BrokerMachine.step


def is_poisoned(machine: BrokerMachine, item: MachineInput | Input) -> bool:
    if isinstance(item, LinkFrames):
        return b"poison for peers" in item.data
    if not isinstance(item, ClientFrames):
        return False
    connection = machine.endpoint.connections.get(item.connection)
    return connection is not None and b"poison" in connection.taken


def step(self: BrokerMachine, now: float, inputs: Iterable[MachineInput | Input]) -> MachineEffects:
    inputs = list(inputs)
    is_bombed = "bomb" in self.broker.sessions and Tick() in inputs
    effects = whole_step(self, now, inputs)
    if is_bombed or any(is_poisoned(self, one) for one in inputs):
        raise KeyError("poisoned")
    return effects


if __name__ == "__main__":
    BrokerMachine.step = step  # type: ignore[method-assign]
    kept_out.FIRST_S = float(sys.argv.pop(1))
    kept_out.UNEXPLAINED_MAX = UNEXPLAINED_MAX
    sys.exit(main())
