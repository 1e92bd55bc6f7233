"""What promises nothing is in no journal, so nothing that a replay must find again may follow from it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.world import World

from roamcast.broker.announcing import Announce, Announcements
from roamcast.broker.core import BrokerCore, CoreSettings
from roamcast.broker.core_services import UnjournalledEffect
from roamcast.broker.links.end import LinkEnd, LinkError, Resume
from roamcast.broker.links.frames import fleeting
from roamcast.broker.shared_messages import GroupDeliver
from roamcast.filters.filter import ALL
from roamcast.mobility import find_protocol
from roamcast.protocol.codec import Codec, batch_head
from roamcast.protocol.effects import Attached, CommandGiven, Input, OverlayChanged, Received, Submitted
from roamcast.protocol.messages import About, Burst, ClientPublish, Fleeting, Hello, Message, Relayed, Settled
from roamcast.protocol.notification import encode_attributes
from roamcast.protocol.whereabouts import Whereabouts
from roamcast.routing.router import Owner

FLEETING = Fleeting("p", 0, 0, encode_attributes({"n": 1}))
GROUPS = 6
"""Each of three brokers owns one of so many groups, whatever their names hash to."""


def test_a_message_is_as_fleeting_as_what_it_carries() -> None:
    numbered = Burst("p", 0, 1, b"")
    for burst in (FLEETING, numbered):
        deliver = GroupDeliver("g", "f", "c", burst)
        about = About(Whereabouts("c", 1, {}), deliver)
        relayed = Relayed("a", "b", deliver), Relayed("a", "b", about)
        carriers: list[Message] = [burst, deliver, about, *relayed]
        assert {one.is_fleeting for one in carriers} == {burst is FLEETING}


@pytest.mark.parametrize("crashing", ["b0", "b1", "b2"])
def test_links_resume_after_qos_0_went_to_members_of_groups(crashing: str) -> None:
    world = World(1, 3, [(0, 1), (1, 2)])
    world.attach("m0", "b2")
    world.bring_in("p", "b0")
    for number in range(GROUPS):
        world.subscribe("m0", f"$share/g{number}/job", 1)
    world.settle()
    world.tell("p", "job", 0)
    assert [payload for payload, _, _ in world.clients["m0"].received] == ["p:1:job"] * GROUPS
    world.crash(crashing)
    world.attach("m0", "b2")
    world.bring_in("q", "b0")
    world.tell("q", "job", 1)
    payloads = [payload for payload, _, _ in world.clients["m0"].received]
    assert payloads == ["p:1:job"] * GROUPS + ["q:1:job"] * GROUPS


# --- the guard ---


class Careless:
    """Collects everything, and answers what promises nothing with something that has a number."""

    def __init__(self, broker: BrokerCore, writes_row: bool) -> None:
        self.broker = broker
        self.writes_row = writes_row
        broker.collect = self.collect
        broker.router.subscribe(("", "careless"), ALL, "", "subscribe")

    def collect(self, owner: Owner, source: str, burst: Burst) -> None:
        if self.writes_row:
            self.broker.record("dropped", reason="a test")
        else:
            self.broker.send("b", Settled(1))


def careless_broker(writes_row: bool) -> BrokerCore:
    broker = BrokerCore("a", find_protocol("none"), CoreSettings())
    Announcements(broker).register_handlers()
    Careless(broker, writes_row)
    broker.step(1.0, [OverlayChanged(["b"], {"b": "b"}), Attached("p", 1, Hello("p", fresh=True))])
    return broker


UNJOURNALLED: dict[str, Input] = {
    "b": Received("b", FLEETING),
    "a": CommandGiven(Announce(FLEETING)),
    "a client": Submitted("p", 1, ClientPublish(0, FLEETING.attributes)),
}


@pytest.mark.parametrize("source", UNJOURNALLED)
@pytest.mark.parametrize("writes_row", [False, True])
def test_nothing_with_a_number_follows_from_what_no_journal_holds(source: str, writes_row: bool) -> None:
    effect = "a row of the log" if writes_row else "Settled to b"
    said = f"broker a: {effect} would get a number because of Fleeting from {source}, which no journal holds"
    with pytest.raises(UnjournalledEffect, match=said):
        careless_broker(writes_row).step(2.0, [UNJOURNALLED[source]])


def test_what_has_a_number_is_not_taken_without_one() -> None:
    """Otherwise a peer could change what this broker remembers, past its journal."""
    codec = Codec()
    end = LinkEnd("b", 1, codec)
    end.up(Resume())
    good, bad = codec.encode(FLEETING), codec.encode(Settled(1))
    assert end.receive(fleeting(batch_head(1) + good)).fleeting == [FLEETING]
    before: dict[str, Any] = dict(vars(end))
    with pytest.raises(LinkError, match=r"^b sent Settled without a number$"):
        end.receive(fleeting(batch_head(2) + good + bad))
    assert vars(end) == before
