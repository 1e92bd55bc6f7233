"""What operators see of the whole network, made of the reports of its brokers."""

import time

from roamcast.daemon.network import Handoff, Network


def test_sessions_that_moved_without_their_clients_are_no_quick_handoffs() -> None:
    network = Network("a")
    for client, duration_ms in (("c", 40.0), ("away-1", 0.0), ("away-2", 0.0), ("away-3", 0.0)):
        network.handoffs.append(Handoff(client, "b", "a", time.time(), duration_ms, 0))
    assert network.figures()["handoff_ms"] == {"p50": 40.0, "p99": 40.0}
    network.handoffs.popleft()
    assert network.figures()["handoff_ms"] is None
