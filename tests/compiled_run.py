"""Print what comes of some stories: every row, the verdict, and the state hash of every broker at the end.

`python -m tests.compiled_run` runs with whichever build of the package it finds; both must print the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from roamcast import state
from roamcast.protocol.records import Row
from roamcast.protocol.snapshot import state_hash
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.mqtt_draw import draw_mqtt_story
from roamcast.simulator.mqtt_run import run_mqtt
from roamcast.simulator.network import Network
from roamcast.simulator.run import run_checked

PROTOCOLS = ("multi_hop_handoff", "relocation", "proactive", "phoenix", "sub_unsub")
FAULTS = ("crash", "partition")
SEEDS = range(4)


def outcome(protocol: str, seed: int, faults: Sequence[str], speaks_mqtt: bool) -> str:
    rows = hashlib.sha256()
    networks: list[Network] = []

    def observe(new: list[Row]) -> None:
        for row in new:
            rows.update(repr(row).encode())

    if speaks_mqtt:
        result = run_mqtt(*draw_mqtt_story(protocol, seed, faults), observe, prepare=networks.append)
    else:
        story = draw_story(protocol, seed, faults)
        settings = replace(story.settings, records="full")
        run = run_checked(
            story.topology, settings, story.actions, observe, prepare=networks.append, faults=bool(faults)
        )
        result = run.result
    (network,) = networks
    hashes = [state_hash(machine)[:12] for machine in network.machines.values()]
    return f"{protocol} {seed} {rows.hexdigest()[:12]} {result.violations} {network.steps} {hashes}"


def main() -> None:
    print("compiled" if not state.__file__.endswith(".py") else "Python")
    for protocol in PROTOCOLS:
        for seed in SEEDS:
            print(outcome(protocol, seed, (), speaks_mqtt=False))
            print(outcome(protocol, seed, FAULTS, speaks_mqtt=False))
            if protocol != "sub_unsub":
                print(outcome(protocol, seed, FAULTS, speaks_mqtt=True))


if __name__ == "__main__":
    main()
