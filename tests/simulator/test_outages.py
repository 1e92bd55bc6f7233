"""The engine with faults: what is held, what is lost, what is made again, and that a replay is exact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from tests.simulator.test_network import of_kind, tell

from roamcast.broker.inputs import LinkDown, LinkUp, Started, Tick, decode_entry
from roamcast.protocol.effects import Attached
from roamcast.protocol.records import Row
from roamcast.simulator import run as running
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.network import Network
from roamcast.simulator.story import parse_story

LINE = """
brokers b0-b1 b1-b2
protocol multi_hop_handoff
at 0 c attach b0
at 0 p attach b2
at 1 c subscribe TRUE
"""
"""A notification leaves b2 0.02 s after it was published, b1 0.03 s, and b0 0.04 s after."""


class Journalled(Network):
    """Shows the journals to tests."""

    made: list[Journalled]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made.append(self)

    def inputs_of(self, broker: str, *kinds: type) -> list[tuple[float, Any]]:
        entries = map(decode_entry, self._journals[broker].entries)
        return [(entry.now, item) for entry in entries for item in entry.inputs if type(item) in kinds]

    def links_of(self, broker: str, peer: str) -> list[tuple[float, bool]]:
        """When the link went down (False) or up at the broker, which may be told that it is down a second
        time, after bad frames."""
        told = self.inputs_of(broker, LinkDown, LinkUp)
        found = [(now, type(item) is LinkUp) for now, item in told if item.peer == peer]
        return [one for place, one in enumerate(found) if place == 0 or found[place - 1][1] != one[1]]


@contextmanager
def using(network: type[Network]) -> Iterator[None]:
    """Stories run in such a network."""
    with mock.patch.object(running, "Network", network):
        yield


def tell_journalled(text: str, **settings: Any) -> tuple[Journalled, list[Row]]:
    made: list[Journalled] = []
    with using(type("One", (Journalled,), {"made": made})):
        _, rows = tell(text, **settings)
    return made[0], rows


def deliveries(rows: list[Row]) -> list[tuple[int | None, float]]:
    return [(row.number, round(row.time, 6)) for row in of_kind(rows, "delivered")]


# --- links are down ---


def test_what_is_on_a_cut_link_waits_and_arrives_in_order() -> None:
    """The first is on the link when it is cut, the second is sent while it is down."""
    text = LINE + "at 9.97 p publish {}\nat 9.975 p publish {}\nat 9.995 b1 cut b2\nat 10.5 p publish {}\n"
    network, rows = tell_journalled(text + "at 12 b1 heal b2\nat 12.001 p publish {}\n")
    # Sent again from b2 when the link is up, over two links and to the client.
    assert deliveries(rows) == [(1, 12.04), (2, 12.04), (3, 12.04), (4, 12.061)]
    for broker, peer in (("b1", "b2"), ("b2", "b1")):
        assert network.links_of(broker, peer) == [(9.995, False), (12.0, True)]
        assert [row.time for row in of_kind(rows, "link_down", node=broker, peer=peer)] == [9.995]
        assert [row.time for row in of_kind(rows, "link_up", node=broker, peer=peer)] == [12.0]
    assert network.inputs_of("b0", LinkDown, LinkUp) == []


def test_a_short_cut_does_not_let_what_was_on_the_link_overtake() -> None:
    """Cut and healed while three are on their way over a link that takes long."""
    text = LINE + "link 1\n" + "".join(f"at {20 + place / 10} p publish {{}}\n" for place in range(3))
    _, rows = tell(text + "at 20.9 b1 cut b2\nat 21.05 b1 heal b2\nat 21.1 p publish {}\n")
    # All three again at 21.05; the fourth, published at 21.12, comes behind them.
    assert deliveries(rows) == [(1, 23.07), (2, 23.07), (3, 23.07), (4, 23.14)]


def test_who_is_cut_off_is_cut_off_on_both_ways() -> None:
    """What c asks for does not get out, and what it gets does not come in."""
    text = LINE + "at 5 b0 cut b1\nat 6 c publish {}\nat 6 d attach b2\nat 6.5 d subscribe TRUE\n"
    _, rows = tell(text + "at 9 b0 heal b1\nat 10 c publish {}\n")
    assert [row.time for row in of_kind(rows, "published")] == [pytest.approx(6.02), pytest.approx(10.02)]
    # c's own notifications come to it at once; d's subscription is settled when all know of it.
    assert [(row.client, row.number) for row in of_kind(rows, "delivered")] == [
        ("c", 1), ("c", 2), ("d", 2),
    ]  # fmt: skip
    assert of_kind(rows, "subscribed", client="d", reason="settled")[0].time == pytest.approx(9.03)


def test_a_link_is_up_when_nothing_keeps_it_down() -> None:
    """Cut, and both its ends crash: it is told once that it is down, and once that it is up."""
    text = LINE + "at 5 b1 cut b2\nat 6 b1 crash\nat 7 b2 crash\nat 8 b1 heal b2\nat 9 b1 restart\n"
    network, _ = tell_journalled(text + "at 9.5 p publish {}\nat 10 b2 restart\n")
    for broker, peer in (("b1", "b2"), ("b2", "b1")):
        assert network.links_of(broker, peer) == [(5.0, False), (10.0, True)]


# --- a broker crashes ---


def test_what_is_on_its_links_at_a_crash_arrives_after_the_restart_once() -> None:
    """The crash comes when one notification is on its way to b1 and another on its way from it."""
    text = LINE + "at 9.97 p publish {}\nat 9.98 p publish {}\nat 10.005 b1 crash\n"
    _, rows = tell(text + "at 11 p publish {}\nat 12 b1 restart\nat 13 p publish {}\n", records="full")
    assert deliveries(rows) == [(1, 12.03), (2, 12.04), (3, 12.04), (4, 13.06)]
    assert [row.number for row in of_kind(rows, "forwarded", node="b1", peer="b0")] == [1, 2, 3, 4]
    assert [(row.time, row.broker) for row in of_kind(rows, "crashed")] == [(10.005, "b1")]
    assert [(row.time, row.broker) for row in of_kind(rows, "started")] == [(12.0, "b1")]


def test_a_crash_behind_the_journal_keeps_the_messages_and_sends_them_after_the_restart() -> None:
    """b1 has taken the notification at 10.03, and crashes before it passes it on."""
    text = LINE + "at 10 p publish {}\nat 10.025 b1 crash unsent\nat 12 b1 restart\nat 13 p publish {}\n"
    _, rows = tell_journalled(text, records="full")
    assert of_kind(rows, "crashed")[0].time == pytest.approx(10.03)
    assert deliveries(rows) == [(1, 12.03), (2, 13.06)]
    # Its row was written after the restart, and tells of the time before.
    forwarded = of_kind(rows, "forwarded", node="b1")
    assert [(row.number, round(row.time, 6)) for row in forwarded] == [(1, 10.03), (2, 13.03)]
    assert [row.time for row in rows] == sorted(row.time for row in rows)


def test_a_broker_that_takes_no_step_before_it_is_restarted_does_not_crash() -> None:
    text = LINE + "at 5 b1 crash unsent\nat 6 b1 restart\nat 10 p publish {}\n"
    _, rows = tell(text)
    assert of_kind(rows, "crashed") == []
    assert deliveries(rows) == [(1, 10.06)]


def test_what_clients_sent_and_were_sent_is_lost_with_their_connections() -> None:
    """A notification is on the air to c, and one from it: c gets the one again, and sends the other again."""
    text = LINE + "at 9.95 p publish {}\nat 9.99 c publish {}\nat 10 b0 crash\nat 11 b0 restart\n"
    network, rows = tell_journalled(text, records="full")
    assert [row.number for row in of_kind(rows, "sent", node="b0", publisher="p")] == [1, 1]
    assert [row.time for row in of_kind(rows, "published", client="c")] == [pytest.approx(11.02)]
    delivered = of_kind(rows, "delivered")
    assert [(row.publisher, round(row.time, 6)) for row in delivered] == [("p", 11.04), ("c", 11.04)]
    assert [now for now, _ in network.inputs_of("b0", Started)] == [0.0, 11.0]
    moved = of_kind(rows, "moved", client="c")
    assert [(row.time, row.reason) for row in moved] == [(0.0, None), (10.0, "left"), (11.0, "b0")]


def test_what_was_accepted_and_not_acknowledged_is_published_once() -> None:
    """The broker journals the publication and crashes; the client, which heard nothing, sends it again."""
    text = LINE + "at 10 p publish {}\nat 10.015 b2 crash unsent\nat 11 b2 restart\nat 12 p publish {}\n"
    _, rows = tell(text)
    published = of_kind(rows, "published")
    assert [(row.number, round(row.time, 6)) for row in published] == [(1, 10.02), (2, 12.02)]
    assert [number for number, _ in deliveries(rows)] == [1, 2]


def test_a_client_may_go_elsewhere_instead() -> None:
    text = LINE + "at 10 b0 crash\nat 10.5 c attach b1\nat 10.6 p publish {}\nat 20 b0 restart\n"
    _, rows = tell(text)
    # Its session is at b0, and so is the way of the notification, which comes with the temporary queue.
    assert [(row.broker, round(row.time, 6)) for row in of_kind(rows, "delivered")] == [("b1", 20.06)]
    assert of_kind(rows, "handoff_finished")[0].broker == "b1"


def test_who_attaches_to_a_broker_that_is_down_waits_for_it_unless_it_leaves() -> None:
    text = LINE + "at 9 b1 crash\nat 10 c attach b1\nat 10 d attach b1\nat 11 d leave\nat 12 b1 restart\n"
    _, rows = tell(text + "at 13 p publish {}\n")
    came = [(row.client, row.time) for row in of_kind(rows, "moved", broker="b1") if row.reason != "left"]
    # Nobody told d to come home: it never was anywhere.
    assert came == [("c", 12.0), ("d", 14.0)]
    assert [(row.client, row.broker) for row in of_kind(rows, "delivered")] == [("c", "b1")]


def test_a_deadline_that_passed_meanwhile_is_served_after_the_restart() -> None:
    """The old broker is down when it should transfer its queue; there is nothing more that it could miss."""
    text = """
    brokers b0-b1
    protocol sub_unsub
    at 0 c attach b0
    at 0 p attach b0
    at 1 c subscribe TRUE
    at 2 c leave
    at 3 p publish {}
    at 10 c attach b1
    at 10.04 b0 crash
    at 11 b0 restart
    """
    network, rows = tell_journalled(text)
    # Asked for the session at 10.03, it waits for twice the longest delay, until 10.05.
    assert network.inputs_of("b0", Tick) == [(11.0, Tick())]
    assert deliveries(rows) == [(1, 11.03)]


def test_a_deadline_that_is_still_to_come_is_served_in_time() -> None:
    text = LINE.replace("multi_hop_handoff", "proactive") + "at 5 c attach b1\nat 8 c leave\nat 9 b1 crash\n"
    network, _ = tell_journalled(text + "at 10 b1 restart\nat 700 c attach b1\n")
    # Its copies at neighbours are given up 600 s after it left.
    assert [round(now, 6) for now, _ in network.inputs_of("b1", Tick)] == [608.0]


def test_what_waits_for_a_busy_broker_at_a_crash_comes_again_from_links_and_not_from_clients() -> None:
    """At 10.1 b1 works on the first of three notifications; c's attach to it has arrived and waits, too."""
    text = LINE + "service_s 0.05\n" + "at 9.9 p publish {}\n" * 3 + "at 10.02 c attach b1\n"
    network, rows = tell_journalled(text + "at 10.09 b1 crash\nat 12 b1 restart\n")
    assert [number for number, _ in deliveries(rows)] == [1, 2, 3]
    attached = [item for _, item in network.inputs_of("b1", Attached)]
    assert len(attached) == 1
    # The one that waited is gone with its connection, which had the number before.
    assert (attached[0].connection, attached[0].hello.moves) == (4, 2)


def test_connections_of_a_restarted_broker_have_new_numbers() -> None:
    text = LINE + "".join(f"at {place} b0 crash\nat {place}.5 b0 restart\n" for place in range(5, 9))
    network, _ = tell_journalled(text)
    numbers = [item.connection for _, item in network.inputs_of("b0", Attached)]
    assert len(numbers) == len(set(numbers)) == 5
    assert numbers == sorted(numbers)


def test_a_client_that_proclaimed_its_move_and_was_not_heard_goes_all_the_same() -> None:
    text = LINE + "at 10 c leave b1\nat 10.01 b0 crash\nat 10.5 c attach b1\nat 11 b0 restart\n"
    _, rows = tell(text + "at 12 p publish {}\n")
    assert [(row.broker, row.number) for row in of_kind(rows, "delivered")] == [("b1", 1)]


# --- the replay ---


def test_rows_of_a_replay_are_written_once() -> None:
    for seed in range(8):
        story = draw_story("relocation", seed, ("crash", "partition"))
        rows: list[Row] = []
        story.run(rows.extend)
        keys = [(row.node, row.sequence) for row in rows]
        assert len(keys) == len(set(keys))
        for node in {row.node for row in rows}:
            own = [row.sequence for row in rows if row.node == node]
            assert own == list(range(1, len(own) + 1))
        assert [row.time for row in rows] == sorted(row.time for row in rows)


def test_without_faults_nothing_is_journalled() -> None:
    story = parse_story(LINE + "at 10 p publish {}\n")
    assert not any(journal.entries for journal in story.run().network._journals.values())
    network = parse_story(LINE + "at 10 b0 cut b1\n").run().network
    assert all(journal.entries for journal in network._journals.values())


# --- loss ---


def test_loss_delays_and_loses_nothing() -> None:
    text = LINE + "".join(f"at {10 + place / 50} p publish {{}}\n" for place in range(100))
    _, punctual = tell(text)
    _, late = tell(text, loss=0.3)
    assert [number for number, _ in deliveries(late)] == list(range(1, 101))
    pairs = zip(deliveries(punctual), deliveries(late), strict=True)
    delays = [after - before for (_, before), (_, after) in pairs]
    assert all(delay > -1e-9 for delay in delays)
    # Nearly half of what goes over two links is sent again, at least once, 0.02 s later.
    assert 30 < sum(delay > 0.015 for delay in delays) < 70


def test_loss_is_drawn_for_each_link_by_itself() -> None:
    text = LINE + "".join(f"at {10 + place} p publish {{}}\n" for place in range(30))
    _, alone = tell(text, loss=0.3)
    _, together = tell(text + "at 0 q attach b0\nat 15.5 q publish {}\n", loss=0.3)
    mine = [(row.number, row.time) for row in of_kind(together, "delivered", publisher="p")]
    assert mine == [(row.number, row.time) for row in of_kind(alone, "delivered")]
