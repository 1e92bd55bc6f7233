"""Questions to the broker that has a session, while the session moves."""

import asyncio
from typing import Any

import msgspec
import pytest

from roamcast.daemon import watching
from roamcast.daemon.network import Network
from roamcast.daemon.reports import ClientRow, Told, decode_body, encode_body
from roamcast.daemon.watching import NoSession, SessionMoved, Watching


class Asked(Watching):
    """Two brokers; the session has left a, and the next report says so if there is one."""

    def __init__(self, *, next_report: bool) -> None:
        self.network = Network("c")
        self.network.clients["car"] = "a", ClientRow("car", True, 0)
        self._reported = asyncio.Condition()
        self.next_report = next_report
        self.asked: list[str] = []

    async def gathered(self) -> Network:
        return self.network

    async def ask(self, broker: str, command: str, **arguments: str) -> dict[str, Any]:
        self.asked.append(broker)
        if broker == "b":
            return {"answered": command, **arguments}
        if self.next_report:
            self.report = asyncio.create_task(self._move())
        raise SessionMoved("the session is not at a any more")

    async def _move(self) -> None:
        self.network.clients["car"] = "b", ClientRow("car", True, 0)
        await self._notify()


def test_a_question_follows_a_session_that_moves() -> None:
    async def follow() -> None:
        asked = Asked(next_report=True)
        assert await asked.ask_holder("car", "client") == {"answered": "client", "client": "car"}
        assert asked.asked == ["a", "b"]

    asyncio.run(follow())


@pytest.mark.parametrize("client", ["car", "bus"])
def test_a_session_that_nobody_reports_is_not_asked_for(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FOLLOW_S", 0.05)
    with pytest.raises(NoSession, match=client):
        asyncio.run(Asked(next_report=False).ask_holder(client, "client"))


def test_an_answer_says_that_the_session_has_moved() -> None:
    told = Told(7, {}, "the session is not at a any more", has_moved=True)
    assert decode_body(encode_body(told)) == told
    older = msgspec.msgpack.encode(["told", 7, {}, "no"])
    assert decode_body(older) == Told(7, {}, "no")
