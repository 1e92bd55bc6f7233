"""A notification's way as a trace: every parent is what brought it there."""

from __future__ import annotations

from tests.records.test_explaining import Log

from roamcast.protocol.notification import encode_attributes
from roamcast.records.explaining import Identity
from roamcast.records.spans import Trace, as_otlp, sampled, trace_of

WANTED = Identity("p", 5)
CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def trace(*logs: Log) -> Trace:
    return trace_of((row for log in logs for row in log.rows), "c", WANTED)


def parents(found: Trace) -> dict[str, str]:
    """The name of each span, and of its parent; ids that lead nowhere as they are."""
    spans = [one for part in as_otlp(found)["resourceSpans"] for one in part["scopeSpans"][0]["spans"]]
    names = {one["spanId"]: one["name"] for one in spans}
    assert len(names) == len(spans)
    assert {one["traceId"] for one in spans} == {found.trace_id}
    assert all(int(one["startTimeUnixNano"]) <= int(one["endTimeUnixNano"]) for one in spans)
    return {one["name"]: names.get(one["parentSpanId"], one["parentSpanId"]) for one in spans}


def test_over_links_and_two_handoffs_to_the_acknowledgement() -> None:
    a, b, c, d = (Log(node) for node in "abcd")
    a.row("published", client="p", number=4, count=3)
    a.row("forwarded", number=4, count=3, peer="b")
    b.row("forwarded", number=4, count=3, peer="c")
    d.row("handoff_started", client="c")
    d.row("handoff_finished", client="c", peer="c")
    a.row("handoff_started", client="c")
    a.row("handoff_finished", client="other", peer="b")
    a.row("handoff_finished", client="c", peer="d")
    a.row("sent", client="other", number=5)
    a.row("sent", client="c", number=5)
    a.row("acknowledged", client="c", number=5)
    b.row("handoff_finished", client="c", peer="a")
    found = trace(d, c, b, a)
    assert parents(found) == {
        "publish p": "",
        "link a to b": "publish p",
        "link b to c": "link a to b",
        "handoff c to d": "link b to c",
        "handoff d to a": "handoff c to d",
        "deliver c": "handoff d to a",
    }
    assert found == trace(a, b, c, d), "rows may come in any order"
    handoff = next(span for span in found.spans if span.name == "handoff c to d")
    assert (handoff.node, handoff.end - handoff.start) == ("d", 1.0)


def test_the_publishers_context_is_the_parent_of_the_root() -> None:
    a = Log("a")
    a.row("published", client="p", number=5)
    a.rows[-1] = a.rows[-1]._replace(attributes=encode_attributes({"topic": "t", "traceparent": CONTEXT}))
    found = trace(a)
    assert found.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert parents(found) == {"publish p": "00f067aa0ba902b7"}
    for wrong in ("00-" + "0" * 32 + "-00f067aa0ba902b7-01", "nonsense", CONTEXT.upper()):
        a.rows[-1] = a.rows[-1]._replace(attributes=encode_attributes({"traceparent": wrong}))
        assert parents(trace(a)) == {"publish p": ""}, wrong
        assert len(trace(a).trace_id) == 32


def test_all_that_publishers_sampled_each_once_with_all_its_clients() -> None:
    a, b = Log("a"), Log("b")
    for number, flags in ((5, "01"), (6, "00"), (7, "03")):
        a.row("published", client="p", number=number)
        context = f"00-{number:032x}-00f067aa0ba902b7-{flags}"
        a.rows[-1] = a.rows[-1]._replace(attributes=encode_attributes({"traceparent": context}))
        a.row("forwarded", number=number, peer="b")
        b.row("sent", client="c", number=number)
        b.row("acknowledged", client="c", number=number)
    b.row("handoff_started", client="d")
    b.row("handoff_finished", client="d", peer="a")
    b.row("acknowledged", client="d", number=7)
    traces = {found.identity.number: found for found in sampled(lambda: [*b.rows, *a.rows])}
    assert list(traces) == [5, 7]
    assert parents(traces[5]) == {
        "publish p": "00f067aa0ba902b7", "link a to b": "publish p", "deliver c": "link a to b",
    }  # fmt: skip
    assert parents(traces[7]) == {
        "publish p": "00f067aa0ba902b7", "link a to b": "publish p", "deliver c": "link a to b",
        "handoff a to b": "publish p", "deliver d": "handoff a to b",
    }  # fmt: skip
    assert traces[7].trace_id == f"{7:032x}"
