"""What every node owes its driver: the same effects for the same inputs, however they are cut."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.broker.recording import Step, digest_of, fresh_twin, recorded_story, text_of

from roamcast.mobility import PROTOCOLS
from roamcast.protocol.effects import ClientEffects, Effects, Input, Said
from roamcast.protocol.records import Row

STORIES = [
    pytest.param(protocol, seed, marks=[pytest.mark.slow] if seed > 2 or ":" in protocol else [])
    for protocol in sorted(PROTOCOLS)
    for seed in (1, 2, 4, 6)
]
ROOT = Path(__file__).resolve().parents[2]


class Heard:
    """What each destination heard of a node, and the node's log."""

    def __init__(self) -> None:
        self.by_peer: dict[str, list[Said]] = {}
        self.by_client: dict[tuple[str, int], list[Said]] = {}
        self.closes: list[tuple[str, int, str]] = []
        self.rows: list[Row] = []

    def hear(self, effects: Effects | ClientEffects) -> None:
        for peer, message in effects.sends:
            self.by_peer.setdefault(peer, []).append(message)
        self.rows += effects.records
        if isinstance(effects, Effects):
            for client, connection, told in effects.to_clients:
                self.by_client.setdefault((client, connection), []).append(told)
            self.closes += effects.client_closes


def by_node(steps: list[Step]) -> dict[str, list[Step]]:
    nodes: dict[str, list[Step]] = {}
    for step in steps:
        nodes.setdefault(step.node.id, []).append(step)
    return nodes


@pytest.mark.parametrize(("protocol", "seed"), STORIES)
def test_a_step_changes_neither_its_inputs_nor_what_it_said_before(protocol: str, seed: int) -> None:
    """Compared at the end of the story: a node might keep an input and change it later."""
    steps = recorded_story(protocol, seed)
    assert len(steps) > 100
    for step in steps:
        assert repr(step.inputs) == step.inputs_then
        assert text_of(step.effects) == step.effects_then


@pytest.mark.parametrize(("protocol", "seed"), STORIES)
def test_the_same_inputs_give_the_same_effects(protocol: str, seed: int) -> None:
    """Into a fresh node, from the record alone: nothing else decides."""
    for steps in by_node(recorded_story(protocol, seed)).values():
        twin = fresh_twin(steps[0].node)
        for step in steps:
            assert text_of(twin.step(step.now, step.inputs)) == step.effects_then


@pytest.mark.parametrize(("protocol", "seed"), STORIES)
def test_how_inputs_are_cut_changes_nothing_that_anyone_sees(protocol: str, seed: int) -> None:
    rng = random.Random(seed)
    cut = 0
    for steps in by_node(recorded_story(protocol, seed)).values():
        one_by_one, in_batches = fresh_twin(steps[0].node), fresh_twin(steps[0].node)
        alone, together = Heard(), Heard()
        for now, batch in batches_of(steps, rng):
            for item in batch:
                alone.hear(one_by_one.step(now, [item]))
            together.hear(in_batches.step(now, batch))
            assert one_by_one.deadline() == in_batches.deadline()
            cut += len(batch) > 1
        assert vars(alone) == vars(together)
    assert cut > 10


def batches_of(steps: list[Step], rng: random.Random) -> list[tuple[float, list[Input]]]:
    """Random batches of consecutive inputs, each at the time of its last."""
    batches = []
    start = 0
    while start < len(steps):
        end = min(start + rng.choice((1, 1, 2, 5, 20)), len(steps))
        batches.append((steps[end - 1].now, [item for step in steps[start:end] for item in step.inputs]))
        start = end
    return batches


def test_an_empty_batch_does_nothing() -> None:
    for steps in by_node(recorded_story("sub_unsub", 4)).values():
        node, now = steps[-1].node, steps[-1].now
        assert not fresh_twin(node).step(now, [])
        assert not node.step(now, [])


def test_another_process_with_other_hashes_says_the_same() -> None:
    protocols = sorted(PROTOCOLS)
    program = (
        "from tests.broker.recording import digest_of; "
        f"print([digest_of(protocol, [1]) for protocol in {protocols}])"
    )
    other = "77" if os.environ.get("PYTHONHASHSEED") != "77" else "78"
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    )
    here = [digest_of(protocol, [1]) for protocol in protocols]
    assert answer.stdout.strip() == str(here)
    assert digest_of("none", [1]) != digest_of("none", [2])
