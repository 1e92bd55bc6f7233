"""The inbox: what is in it survives, once and in order; what was committed goes."""

from pathlib import Path

import pytest

from roamcast.errors import InputError
from roamcast.pipeline import inbox as module
from roamcast.pipeline.inbox import Inbox, Received, decode


def one(number: int, publisher: str | None = "garage") -> Received:
    incarnation, counted = (None, None) if publisher is None else (1, number)
    body = str(number).encode()
    return Received("road", body, 1, False, [], None, publisher, incarnation, counted, 0.0)


def some(*numbers: int) -> list[Received]:
    return [one(number) for number in numbers]


def payloads(inbox: Inbox, start: int, end: int) -> list[int]:
    return [int(decode(body).payload) for body in inbox.read(start, end)]


def test_positions_stay_the_same_over_a_restart(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    assert inbox.append(some(*range(5))) == 5
    assert (inbox.first, inbox.committed, inbox.end) == (0, 0, 5)
    inbox.commit(3)
    inbox.close()
    other = Inbox(tmp_path)
    assert other.id == inbox.id
    assert (other.committed, other.end, other.uncommitted) == (3, 5, 2)
    assert payloads(other, 3, 5) == [3, 4]
    other.append(some(5))
    assert payloads(other, 2, 6) == [2, 3, 4, 5], "Spark may repeat the batch that it committed last"
    other.close()


@pytest.mark.parametrize(
    ("arrived", "kept"),
    [
        (some(2, 3, 4), [4]),
        (some(1, 2, 3), []),
        (some(4, 3, 4), [4]),
        ([one(3, None)], [3]),
        ([one(3, "depot")], [3]),
        ([one(3)._replace(incarnation=2)], [3]),
        ([one(3)._replace(payload=b"33")], [33]),
    ],
)
def test_what_comes_again_is_stored_once(arrived: list[Received], kept: list[int], tmp_path: Path) -> None:
    """It comes again when a broker was restarted, and when the reader was."""
    inbox = Inbox(tmp_path)
    inbox.append(some(1, 2, 3))
    assert inbox.append(arrived) == len(kept)
    assert payloads(inbox, 3, inbox.end) == kept
    inbox.close()
    restarted = Inbox(tmp_path)
    assert restarted.append([one for one in arrived if one.publisher is not None]) == 0
    restarted.close()


def test_the_oldest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    inbox = Inbox(tmp_path)
    assert inbox.append(some(1, 2, 3, 2, 3)) == 3
    assert inbox.append(some(1)) == 1
    inbox.close()


def test_a_write_that_was_cut_short_is_as_if_it_never_was(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.append(some(1, 2))
    inbox.close()
    (segment,) = tmp_path.glob("*.inbox")
    segment.write_bytes(segment.read_bytes()[:-3])
    other = Inbox(tmp_path)
    assert other.end == 1
    assert other.append(some(2)) == 1, "it was not acknowledged, and comes again"
    assert payloads(other, 0, 2) == [1, 2]
    other.close()


def test_what_was_committed_goes_and_damage_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(module, "REMEMBERED", 4)
    inbox = Inbox(tmp_path)
    for number in range(40):
        inbox.append(some(number))
    before = len(list(tmp_path.glob("*.inbox")))
    inbox.commit(20)
    assert 1 < len(list(tmp_path.glob("*.inbox"))) < before
    assert 0 < inbox.first <= 20
    assert payloads(inbox, 20, 40) == list(range(20, 40))
    with pytest.raises(InputError, match="they do not belong together"):
        inbox.read(0, 20)
    inbox.close()
    first = min(tmp_path.glob("*.inbox"))
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(InputError, match="is damaged"):
        Inbox(tmp_path)


def test_one_process_has_it_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_WITHIN_S", 0.0)
    inbox = Inbox(tmp_path)
    with pytest.raises(InputError, match="another query reads into it"):
        Inbox(tmp_path)
    inbox.close()
    Inbox(tmp_path).close()
    with pytest.raises(InputError, match=r"inbox .*: cannot be used"):
        Inbox(tmp_path / "lock" / "below")
