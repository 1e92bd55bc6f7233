"""Each protocol's file begins with a table: the document's steps, and the methods that are them."""

from __future__ import annotations

import inspect
import re
import sys

import pytest

from roamcast.mobility import MOBILE_PROTOCOLS, PROTOCOLS

OURS = {"none", "roam"}
"""They have no steps of a document."""
FILES = sorted({one.__module__ for one in (*PROTOCOLS.values(), *MOBILE_PROTOCOLS.values())})
ROW = re.compile(r"^\|(.+)\|(.+)\|$", re.MULTILINE)


def rows_of(module: str) -> list[tuple[str, str]]:
    return [
        (step.strip(), here.strip())
        for step, here in ROW.findall(sys.modules[module].__doc__ or "")
        if set(step.strip()) != {"-"}
    ][1:]


TABLED = [
    module for module in FILES if module.rpartition(".")[2] not in (*OURS, "mft_published", "proactive")
]


@pytest.mark.parametrize("module", TABLED)
def test_the_table_names_methods_that_are_there(module: str) -> None:
    methods = {
        name
        for _, kind in inspect.getmembers(sys.modules[module], inspect.isclass)
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
    }
    rows = rows_of(module)
    assert len(rows) >= 3, "no table of the document's steps"
    for step, here in rows:
        named = [name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", here)]
        assert named, f"{step}: no method is named"
        assert set(named) <= methods, f"{step}: {set(named) - methods} is not there"


def test_the_eight_cases_of_the_proactive_algorithm_name_methods() -> None:
    """A table of its own form: number, case, method, message."""
    module = sys.modules["roamcast.mobility.proactive"]
    cases = re.findall(
        r"^    (\d)  .*?  +([a-z_]+(?:, [a-z_]+)*)(?:  |$)", module.__doc__ or "", re.MULTILINE
    )
    assert [number for number, _ in cases] == list("12345678")
    for _, methods in cases:
        for name in methods.split(", "):
            assert hasattr(module.Proactive, name)
