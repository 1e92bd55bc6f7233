"""What is told of a notification, from rows."""

from __future__ import annotations

from roamcast.protocol.records import Row
from roamcast.records.explaining import Identity, explain
from roamcast.records.pseudonyms import pseudonyms

WANTED = Identity("p", 5)


class Log:
    """Rows of one broker, numbered as they come; time is shared by all."""

    now = 0.0

    def __init__(self, node: str) -> None:
        self.node = node
        self.rows: list[Row] = []

    def row(self, kind: str, client: str | None = None, number: int | None = None, count: int = 1,
            peer: str | None = None, reason: str | None = None) -> None:  # fmt: skip
        Log.now += 1.0
        publisher = "p" if number is not None else None
        self.rows.append(
            Row(
                len(self.rows) + 1, Log.now, self.node, kind, client, peer=peer, publisher=publisher,
                incarnation=0 if publisher else None, number=number, notifications=count, size_bytes=9,
                reason=reason,
            )
        )  # fmt: skip


def told(*logs: Log) -> tuple[list[tuple[str, str]], str]:
    found = explain((row for log in logs for row in log.rows), "c", WANTED)
    return [(step.node, step.what) for step in found.steps], found.outcome


def test_a_notification_in_bursts_over_a_link() -> None:
    a, b = Log("a"), Log("b")
    a.row("published", client="p", number=4, count=3)
    a.row("forwarded", number=4, count=3, peer="b")
    b.row("sent", client="other", number=4, count=3)
    b.row("sent", client="c", number=4, count=3)
    b.row("acknowledged", client="c", number=4, count=1)
    before = told(a, b)
    b.row("acknowledged", client="c", number=5, count=2)
    steps, outcome = told(a, b)
    assert before == (steps[:-1], "it was sent to the client, which has not acknowledged it")
    assert steps == [
        ("a", "published by p (in a burst of 3, 9 bytes)"),
        ("a", "forwarded over the link to b"),
        ("b", "sent at the client’s broker"),
        ("b", "acknowledged by the client"),
    ]
    assert outcome == "the client has received it"


def test_what_was_sent_to_a_connection_that_ended_is_not_acknowledged_by_the_next() -> None:
    a = Log("a")
    a.row("published", client="p", number=5)
    a.row("sent", client="c", number=5)
    a.row("detached", client="c", reason="silent")
    a.row("sent", client="c", number=6)
    a.row("acknowledged", client="c", number=6)
    assert told(a)[1] == "it was sent to the client, which has not acknowledged it"


def test_a_row_that_is_there_twice_is_told_once() -> None:
    a = Log("a")
    a.row("published", client="p", number=5)
    a.row("dropped", client="c", number=5, reason="overflow")
    assert told(a, a) == (
        [("a", "published by p (9 bytes)"), ("a", "dropped at the client’s broker: overflow")],
        "it was dropped for this client: overflow",
    )


def test_what_logs_cannot_tell_is_said() -> None:
    a = Log("a")
    assert told(a)[1] == "no log contains it: it was not published, or its logs are missing"
    a.row("published", client="p", number=5)
    assert 'hops need events.level = "full"' in told(a)[1]
    a.row("sent", client="other", number=5)
    assert "nothing was sent to this client" in told(a)[1]


def test_pseudonyms_are_the_same_under_the_same_key_alone() -> None:
    one, same, other = pseudonyms("key"), pseudonyms("key"), pseudonyms("another key")
    assert one("car-7") == same("car-7") != other("car-7")
    assert one("car-7") != one("car-8")
    assert "car" not in one("car-7")
