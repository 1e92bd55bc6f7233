"""Tables that are too wide for a terminal are cut between columns, never within a number."""

import os
import pty
import sys

import pytest
from tests.cli.terminals import read_all

from roamcast.cli.tables import parts, table_in_parts

COLUMNS = ["protocol", "published", "out of order", "lost"]
ROWS = [["none", 12345, 0, 7], ["multi_hop_handoff", 1234567890, 0, 0]]


@pytest.mark.parametrize(
    ("width", "groups"),
    [(1000, [[1, 2, 3]]), (59, [[1, 2, 3]]), (58, [[1, 2], [3]]), (51, [[1], [2, 3]]), (5, [[1], [2], [3]])],
)
def test_columns_are_grouped_by_what_fits(width: int, groups: list[list[int]]) -> None:
    assert parts(COLUMNS, ROWS, width) == groups


def test_a_pipe_gets_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    table_in_parts(COLUMNS, ROWS, title="a title")
    shown = capsys.readouterr().out
    assert shown.count("multi_hop_handoff") == 1
    assert shown.startswith("a title")


def test_a_narrow_terminal_gets_every_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("COLUMNS", "51")
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        table_in_parts(COLUMNS, ROWS, title="a title")
    shown = read_all(ours)
    assert "1,234,567,890" in shown
    assert "…" not in shown
    assert shown.count("multi_hop_handoff") == 2
    assert shown.count("a title") == 1
