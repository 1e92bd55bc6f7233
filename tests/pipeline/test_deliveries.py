"""Judging sorted numbers in batches, against a plain look at each notification."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.pipeline.deliveries import _judge_batches
from roamcast.pipeline.subscriptions import MUST

Side = tuple[int, int, int]
"""Stream, place, and how it stands (below zero) or the sequence of the row that tells of its delivery."""

marks = st.integers(-2, 8).filter(bool)
sides = st.lists(st.tuples(st.integers(0, 3), st.integers(-6, -1), marks), max_size=40)


def plainly(rows: list[Side]) -> tuple[set[tuple[object, ...]], dict[int, tuple[int, int]]]:
    """What is worth a second look, and what each stream was owed and got."""
    marks: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for stream, place, mark in rows:
        marks[stream][place].append(mark)
    suspects: set[tuple[object, ...]] = set()
    totals = {}
    for stream, places in marks.items():
        expected = delivered = 0
        firsts: list[int] = []
        for place in sorted(places):
            standing = max((-mark for mark in places[place] if mark < 0), default=0)
            came = [mark for mark in places[place] if mark > 0]
            overtaken = bool(standing and came and firsts and min(firsts) < min(came))
            if standing and came:
                firsts.append(min(came))
            expected += standing == MUST
            delivered += len(came)
            if (standing == MUST and not came) or not standing or len(came) > 1 or overtaken:
                first = min(came) if came else None
                suspects.add((stream, place, standing or None, len(came), first, overtaken))
        totals[stream] = (expected, delivered)
    return suspects, totals


@settings(max_examples=300, deadline=None)
@given(sides, st.lists(st.integers(0, 40), max_size=5))
def test_batches_are_judged_as_one_by_one(rows: list[Side], cuts: list[int]) -> None:
    rows.sort()
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {len(rows)})
    batches = []
    for start, end in zip([0, *ends], ends, strict=False):
        columns = np.array(rows[start:end], dtype=np.int64).reshape(-1, 3).T
        batches.append(pa.RecordBatch.from_arrays([*map(pa.array, columns)], ["stream", "place", "mark"]))
    suspects: set[tuple[object, ...]] = set()
    totals: dict[int, tuple[int, int]] = {}
    for verdicts in _judge_batches(iter(batches)):
        for row in verdicts.to_pylist():
            *verdict, expected, delivered = row.values()
            if row["place"] is None:
                before = totals.get(row["stream"], (0, 0))
                totals[row["stream"]] = (before[0] + expected, before[1] + delivered)
            else:
                assert tuple(verdict) not in suspects
                suspects.add(tuple(verdict))
    assert (suspects, totals) == plainly(rows)
