"""Messages between brokers stay readable for builds that are in use.

`messages.json` holds every message as it was shipped. After a change that is allowed, note it there and look
at the diff:

    ROAMCAST_REGENERATE=1 python -m pytest tests/compat/test_messages.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.compat.message_table import Shape, Table, current_table, violations

from roamcast.protocol.codec import VERSION_MAX, VERSION_MIN

PATH = Path(__file__).parent / "messages.json"
REGENERATE = os.environ.get("ROAMCAST_REGENERATE") == "1"


def shipped() -> Table:
    return msgspec.json.decode(PATH.read_bytes(), type=Table)


def text_of(table: Table) -> str:
    return msgspec.json.format(msgspec.json.encode(table), indent=2).decode() + "\n"


def test_messages_are_as_they_were_shipped() -> None:
    table = shipped()
    current = current_table(table.released)
    assert violations(table, current) == []
    if REGENERATE:
        PATH.write_text(text_of(current))
    else:
        assert PATH.read_text() == text_of(current), "something is new: ROAMCAST_REGENERATE=1 notes it"


def test_no_message_is_newer_than_the_version_that_is_spoken() -> None:
    table = shipped()
    newest = max(one.since for one in table.messages.values())
    assert VERSION_MIN <= newest <= VERSION_MAX
    assert table.released <= VERSION_MAX


def lose(table: Table) -> None:
    del table.messages["Settled"]


def lose_field(table: Table) -> None:
    del table.messages["Settled"].fields["number"]


def reorder(table: Table) -> None:
    fields = table.messages["Settled"].fields
    table.messages["Settled"].fields = dict(reversed(fields.items()))


def add_without_default(table: Table) -> None:
    table.messages["Settled"].fields["more"] = "int"


def change_type(table: Table) -> None:
    table.messages["Settled"].fields["number"] = "str"


def take_default(table: Table) -> None:
    fields = table.messages["Settled"].fields
    fields["cause"] = fields["cause"].removesuffix(" = default")


def change_part(table: Table) -> None:
    del table.parts["Session"].fields["capsule"]


def raise_version(table: Table) -> None:
    table.messages["Settled"].since = 2


def add_to_released(table: Table) -> None:
    table.messages["News"] = Shape({}, since=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lose, "message 'Settled' is gone: peers still send it. Keep it; if its class got another name"),
        (lose_field, "message 'Settled' has lost the field 'number'. Fields stay where they are; new ones"),
        (reorder, "message 'Settled': the field 'number' was number 1, and is not any more"),
        (add_without_default, "message 'Settled': the new field 'more' has no default, which"),
        (change_type, "message 'Settled': the field 'number' was `int` and is `str`"),
        (take_default, "message 'Settled': the field 'cause' was `"),
        (change_part, "Session, a part of messages, has lost the field 'capsule'"),
        (raise_version, "message 'Settled': first_version and is_optional stay as they were shipped"),
        (add_to_released, "message 'News' is new, but peers of version 1 do not know it. Give it the first_"),
    ],
)
def test_each_rule_can_be_broken(change: Callable[[Table], None], said: str) -> None:
    before, after = shipped(), shipped()
    before.released = 1
    change(after)
    assert [one for one in violations(before, after) if one.startswith(said)]


def test_what_is_allowed_passes() -> None:
    before, after = shipped(), shipped()
    before.released = 1
    after.messages["Settled"].fields["more"] = "int = default"
    after.messages["News"] = Shape({"text": "str"}, since=2)
    assert violations(before, after) == []
