"""Entries are kept as one text or in a dictionary, and nobody can tell which."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.protocol.messages import Entry
from roamcast.protocol.snapshot import freeze, thaw
from roamcast.routing.collected import SHORT_MAX, Collected
from roamcast.routing.matching import Interface

FILTERS = [parse(f"topic = 'a/{number}'") for number in range(SHORT_MAX + 4)]
INTERFACES: list[Interface] = ["peer", ("c", 1), ("d",)]


def entries_of(collected: Collected) -> dict[Interface, list[Entry]]:
    return {interface: list(entries) for interface, entries in collected}


@given(st.lists(st.tuples(st.sampled_from(INTERFACES), st.sampled_from(FILTERS), st.sampled_from("cd"))))
@settings(max_examples=150, deadline=None)
def test_entries_are_counted_whatever_their_form(
    changes: list[tuple[Interface, Filter, str]],
) -> None:
    collected, counts = Collected(), Counter[tuple[Interface, Entry]]()
    for interface, filter, subscriber in changes:
        entry = (filter, subscriber)
        if counts[interface, entry] == 2:
            assert collected.remove(interface, entry) == 1
            assert collected.remove(interface, entry) == 0
            del counts[interface, entry]
        else:
            counts[interface, entry] += 1
            assert collected.add(interface, entry) == counts[interface, entry]
    assert len(collected) == len(counts)
    for (interface, entry), count in counts.items():
        assert collected.has(interface, entry)
        assert collected.of(interface)[entry] == count
    assert {interface for interface, _ in collected} == {interface for interface, _ in counts}


def test_the_form_follows_from_the_entries_and_not_from_their_history() -> None:
    straight, around = Collected(), Collected()
    for filter in FILTERS[:3]:
        straight.add(("c", 1), (filter, "c"))
    for filter in FILTERS[:3]:
        around.add(("c", 1), (filter, "c"))
    for filter in FILTERS[3:]:
        around.add(("c", 1), (filter, "c"))
    around.add(("c", 1), (FILTERS[5], "c"))
    around.add(("c", 1), (FILTERS[6], "another"))
    for entry in [(FILTERS[6], "another"), (FILTERS[5], "c"), *((filter, "c") for filter in FILTERS[3:])]:
        around.remove(("c", 1), entry)
    assert freeze(straight) == freeze(around)
    assert entries_of(thaw(freeze(around))) == entries_of(straight)


def test_what_is_not_there_cannot_be_removed() -> None:
    collected = Collected()
    collected.add(("c", 1), (FILTERS[0], "c"))
    with pytest.raises(KeyError):
        collected.remove(("c", 1), (FILTERS[1], "c"))
    with pytest.raises(KeyError):
        collected.remove(("c", 1), (FILTERS[0], "d"))


def test_a_filter_is_found_as_a_whole() -> None:
    collected = Collected()
    collected.add(("c", 1), (parse("topic = 'a/10'"), "c"))
    assert not collected.has(("c", 1), (parse("topic = 'a/1'"), "c"))
    assert collected.holder([parse("topic = 'a/10'")], "c") == ("c", 1)
    assert collected.holder([parse("topic = 'a/1'")], "c") is None
