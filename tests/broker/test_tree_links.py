"""Links of the tree over one connection: which one everything belongs to, and what comes back of each."""

from __future__ import annotations

from roamcast.broker.inputs import Confirmed
from roamcast.broker.moving.tree_links import OffLink, OnLink, TreeLinks
from roamcast.mobility.moving.mobile import Rep
from roamcast.protocol.codec import Codec
from roamcast.protocol.messages import Message


def message(number: int) -> Rep:
    return Rep(f"s{number}", ())


class Pair:
    """a and b, connected; everything goes through the ends of their connection."""

    def __init__(self) -> None:
        codec = Codec()
        self.sides = {"a": TreeLinks("a", codec), "b": TreeLinks("b", codec)}
        for id, peer in (("a", "b"), ("b", "a")):
            self.sides[id].connect(peer, incarnation=ord(id))

    def flow(self, source: str, target: str) -> list[Message]:
        """What has been sent arrives: of it, what is on the link that there is."""
        frames = self.sides[source].ends[target].take()
        links, taken = self.sides[target], []
        for one in links.ends[source].receive(frames).numbered:
            if isinstance(one, OnLink):
                if links.hears(source, one):
                    links.close(source, tell=False)
                    links.adopt(source)
            elif isinstance(one, OffLink):
                if links.is_current(source, (one.number, one.child)):
                    links.close(source, tell=False)
            elif links.is_current(source):
                taken.append(one)
        links.ends[source].acknowledge()
        return taken


def test_what_is_late_from_an_earlier_link_is_left_out() -> None:
    pair = Pair()
    a, b = pair.sides["a"], pair.sides["b"]
    a.open("b")
    a.send("b", message(1))
    assert pair.flow("a", "b") == [message(1)]
    b.send("a", message(2))  # On its way while …
    assert a.close("b", tell=True) == [message(1)]
    a.open("b")  # … the link is replaced.
    assert pair.flow("b", "a") == []
    a.send("b", message(3))
    assert pair.flow("a", "b") == [message(3)]
    assert b.neighbours["a"].is_child


def test_of_two_links_opened_at_once_that_of_the_higher_broker_stays_at_both_ends() -> None:
    pair = Pair()
    a, b = pair.sides["a"], pair.sides["b"]
    a.open("b")
    a.send("b", message(1))
    b.open("a")
    b.send("a", message(2))
    assert pair.flow("a", "b") == []
    assert pair.flow("b", "a") == [message(2)]
    assert a.neighbours["b"].link == b.neighbours["a"].link == (1, "b")


def test_only_what_is_not_confirmed_comes_back() -> None:
    pair = Pair()
    a, b = pair.sides["a"], pair.sides["b"]
    a.open("b")
    for number in (1, 2):
        a.send("b", message(number))
    pair.flow("a", "b")
    assert list(a.confirmations()) == []
    b.send("a", message(9))  # It carries the acknowledgement.
    a.send("b", message(3))
    pair.flow("b", "a")
    (confirmed,) = a.confirmations()
    assert confirmed == Confirmed("b", 3)  # With the message that opens the link.
    a.confirm(confirmed.peer, confirmed.number)
    assert a.close("b", tell=False) == [message(3)]


def test_a_lost_connection_leaves_nothing() -> None:
    pair = Pair()
    a = pair.sides["a"]
    a.open("b")
    a.disconnect("b")
    a.send("b", message(1))
    assert not a.has_link("b")
    assert a.ends == {}
