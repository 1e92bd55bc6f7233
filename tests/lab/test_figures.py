"""Pictures: what of a run is in them, and that the same run gives the same file."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from roamcast.lab.figures import LOST, Trace, draw_departure_arrival, save, trace_of
from roamcast.protocol.records import Row

LOSSY = Trace("without", ((1.0, 1.1), (2.0, 2.1), (3.0, None), (4.0, None), (5.0, 5.1)), 2.5, 4.5)
WHOLE = Trace("with", ((1.0, 1.1), (2.0, 2.1), (3.0, 4.7), (4.0, 4.8), (5.0, 5.1)), 2.5, 4.5)


def axes_of(figure: Figure) -> list[Any]:
    """Any, because matplotlib's types allow for much that is never in a picture of ours."""
    return list(figure.axes)


def published(number: int, time: float) -> Row:
    return Row(number, time, "b1", "published", publisher="p", number=number)


def delivered(number: int, time: float, client: str = "c", count: int = 1) -> Row:
    return Row(1, time, client, "delivered", client, "b1", publisher="p", number=number, notifications=count)


def moved(time: float, reason: str | None, client: str = "c") -> Row:
    return Row(1, time, client, "moved", client, "b1", reason=reason)


def test_a_trace_is_read_from_the_rows_of_a_run() -> None:
    rows = [
        moved(10.0, None),
        *(published(number, 10.0 + number) for number in range(1, 6)),
        delivered(1, 11.5),
        delivered(1, 19.0),
        delivered(2, 12.5, client="another"),
        moved(12.1, "left"),
        moved(14.1, "b0"),
        moved(14.2, "left", client="another"),
        delivered(3, 14.6, count=2),
    ]
    trace = trace_of(rows, "c", "a trip", start_s=10.0)
    assert trace.label == "a trip"
    assert [at for at, _ in trace.notifications] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [at for _, at in trace.notifications] == pytest.approx([1.5, None, 4.6, 4.6, None])
    assert (trace.left_s, trace.attached_s) == pytest.approx((2.1, 4.1))
    assert trace.lost == 2
    assert trace.stored == pytest.approx([4.6, 4.6])


def test_lines_break_where_something_was_lost_and_crosses_mark_it() -> None:
    figure = draw_departure_arrival([LOSSY, WHOLE], "a title", "a setting")
    lossy, whole = axes_of(figure)
    joined = [list(line.get_xdata()) for line in lossy.lines if line.get_marker() == "o"]
    assert joined == [[1.0, 2.0], [5.0]]
    (crosses,) = lossy.collections
    assert [float(x) for x, _ in crosses.get_offsets()] == [3.0, 4.0]
    joined = [list(line.get_xdata()) for line in whole.lines if line.get_marker() == "o"]
    assert joined == [[1.0, 2.0, 3.0, 4.0, 5.0]]


def test_the_picture_says_what_it_shows() -> None:
    figure = draw_departure_arrival([LOSSY, WHOLE], "a title", "a setting")
    lossy, whole = axes_of(figure)
    assert [text.get_text() for text in figure.texts] == ["a title", "a setting"]
    assert [axes.get_title("left") for axes in figure.axes] == ["without", "with"]
    assert lossy.get_ylabel() == "arrived at the client, time in s"
    assert {axes.get_xlabel() for axes in figure.axes} == {"published, time in s"}
    (note,) = [text for text in lossy.texts if text.get_color() == LOST]
    assert note.get_text() == "2 of 5 lost"
    assert any("none lost:\n2 were stored" in text.get_text() for text in whole.texts)
    dashed = [line.get_xdata()[0] for line in lossy.lines if line.get_linestyle() == "--"]
    assert dashed == [2.5, 4.5]
    assert {text.get_text() for text in lossy.texts} >= {"move-out, 2 s", "move-in, 4 s"}


def test_the_same_trace_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
        files = save(draw_departure_arrival([LOSSY, WHOLE], "t", "s"), tmp_path / name / "picture")
        assert [file.name for file in files] == ["picture.png", "picture.svg"]
    for name in ("picture.png", "picture.svg"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert imread(tmp_path / "first" / "picture.png").shape[:2] == (928, 1760)
    assert ElementTree.parse(tmp_path / "first" / "picture.svg").getroot().tag.endswith("svg")
