"""Links between broker processes that are killed and come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.daemon.brokers import BrokerProcess, MqttClient, free_port

GROUPS = 6
"""Each broker owns one of so many groups, whatever their names hash to."""


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Brokers a, b and c: what a says to c is relayed by b."""
    ports = [free_port() for _ in "abc"]
    with ExitStack() as stack:
        brokers = []
        for place, id in enumerate("abc"):
            peers = {"abc"[place - 1]: ports[place - 1]} if place else {}
            brokers.append(BrokerProcess(tmp_path, id, link_port=ports[place], peers=peers))
            stack.callback(brokers[-1].stop)
        wait_for_links(brokers)
        yield brokers


def wait_for_links(brokers: list[BrokerProcess]) -> None:
    a, b, c = brokers
    for here, there in ((a, b), (b, a), (b, c), (c, b)):
        here.wait_for_link(there.id)


@pytest.mark.slow  # Six starts of a process; tests/broker/test_fleeting.py tells the story without any.
def test_links_resume_after_a_kill_although_qos_0_went_to_members_of_groups(
    chain: list[BrokerProcess],
) -> None:
    """QoS 0 is in no journal, so nothing that follows from it may have a number on any link."""
    a, b, c = chain
    member, publisher = MqttClient("member", c.port), MqttClient("publisher", a.port)
    for number in range(GROUPS):
        member.subscribe(f"$share/g{number}/job", qos=1)
    publisher.publish("job", b"fleeting", qos=0)
    member.wait_for_messages(GROUPS)
    for killed in (a, b, c):
        killed.kill()
        killed.start()
        wait_for_links(chain)
    member.connect(c.port)
    publisher.connect(a.port)
    publisher.publish("job", b"kept", qos=1)
    member.wait_for_messages(2 * GROUPS)
    assert member.messages == [("job", b"fleeting")] * GROUPS + [("job", b"kept")] * GROUPS
    member.leave()
    publisher.leave()
