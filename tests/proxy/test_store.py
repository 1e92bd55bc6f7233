"""Buffers on disk: what was written is there again, from entries and from a snapshot."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from roamcast.errors import InputError
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.buffers import (
    Adopted,
    Buffers,
    Changed,
    Closed,
    Dropped,
    Entry,
    Frozen,
    Kept,
    Opened,
    Taken,
    size_of,
)
from roamcast.proxy.store import Store


def opened(id: int, *, is_unique: bool = True) -> Opened:
    return Opened(id, f"client-{id}", "", "t" * 16, {"a/#": ""}, 60.0, 100.0, 1 << 20, is_unique, False)


def message(number: int) -> ForeignMessage:
    return ForeignMessage(f"a/{number}", b"x" * number, {"n": str(number)}, f"m{number}")


def random_entries(seed: int) -> list[Entry]:
    random = Random(seed)
    entries: list[Entry] = [opened(id, is_unique=id != 2) for id in (1, 2, 3)]
    entries.append(Changed(3, {"a/#": "1", "b": "0"}, 0.0, ("b", "s" * 16)))
    for number in range(60):
        id = random.randint(1, 3)
        choices: list[Entry] = [
            *[Kept(id, message(number))] * 2,
            Taken(id, random.randint(1, 20)),
            Dropped(id, 1),
        ]
        entries.append(random.choice(choices))
    entries += [Adopted(3, 2, (message(100), message(5))), Frozen(1), Closed(2, "expired")]
    return entries


def content(buffers: Buffers) -> bytes:
    return buffers.freeze()


@pytest.mark.parametrize("seed", range(5))
def test_entries_and_snapshots_give_the_same_buffers_again(seed: int, tmp_path: Path) -> None:
    store = Store(tmp_path / "one")
    entries = random_entries(seed)
    for entry in entries:
        store.buffers.apply(entry)
    store.write(entries)
    wanted = content(store.buffers)
    assert store.buffers.bytes == sum(
        size_of(one) for handler in store.buffers.by_id.values() for one in (*handler.ready, *handler.later)
    )
    store._journal.close()  # As if killed: no snapshot.
    again = Store(tmp_path / "one")
    assert content(again.buffers) == wanted
    again.close()
    third = Store(tmp_path / "one")
    assert content(third.buffers) == wanted
    assert third.buffers.bytes == again.buffers.bytes
    third.close()


def test_a_folder_belongs_to_one_proxy(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(InputError, match="in use by process"):
        Store(tmp_path)
    store.close()


def test_adopted_messages_come_first_and_copies_are_left_out() -> None:
    buffers = Buffers()
    for entry in (
        opened(1),
        Changed(1, {}, 0.0, ("b", "s" * 16)),
        Kept(1, message(3)),
        Kept(1, message(4)),
        Adopted(1, 2, (message(2), message(3))),
        Taken(1, 2),
        Changed(1, {}, 0.0, None),
    ):
        buffers.apply(entry)
    handler = buffers.by_id[1]
    assert [one.identity for one in handler.ready] == ["m4"]
    assert handler.bytes == buffers.bytes == size_of(message(4))
