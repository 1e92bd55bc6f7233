"""The turns of a daemon: when they come, and how they fail; a snapshot that fails or hangs is tried again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from roamcast.broker.core import CoreSettings
from roamcast.broker.inputs import (
    ClientConnected,
    ClientFrames,
    LinkUp,
    MachineEffects,
    MachineInput,
    SessionSought,
    Started,
    Tree,
)
from roamcast.broker.links.end import LinkEnd
from roamcast.broker.links.links import Offer
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.news import News
from roamcast.broker.seeking import IsHere
from roamcast.broker.settings import MachineSettings
from roamcast.daemon import engine as engine_module
from roamcast.daemon.config import load
from roamcast.daemon.engine import (
    PACKETS_PER_TURN,
    PACKETS_PER_TURN_MAX,
    PACKETS_PER_TURN_MIN,
    Engine,
    shared,
)
from roamcast.daemon.linking import Linking
from roamcast.errors import InputError
from roamcast.mqtt.codec.packets import Auth, Connect, Publish, Subscribe, SubscriptionEntry
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity
from roamcast.mqtt.server.settings import EndpointSettings
from roamcast.mqtt.server.traffic import Note
from roamcast.protocol.effects import Input
from roamcast.protocol.messages import Settled
from roamcast.protocol.records import Row
from roamcast.protocol.snapshot import freezing as whole_freeze
from roamcast.storage import snapshots
from roamcast.storage.journal import Journal
from roamcast.storage.kept_out import KeptOut
from roamcast.storage.segments import read_watermark

DEADLINE_S = 60.0


class Nowhere:
    """Nobody is connected."""

    def write(self, writes: Mapping[int, list[bytes]]) -> None: ...
    def close(self, connection: int) -> None: ...
    def hold(self, connection: int) -> None: ...
    def hold_back(self, connection: int) -> bool:
        return True

    def hold_link(self, peer: str) -> None: ...
    def release(self) -> None: ...
    def write_link(self, peer: str) -> None: ...
    def close_link(self, peer: str, why: str) -> None: ...
    def note(self, note: Note) -> None: ...
    def answer(self, answer: IsHere) -> None: ...
    def news(self, peer: str, news: News) -> None: ...
    def prove_again(self, connection: int, packet: Auth) -> None: ...
    def tree(self, tree: Tree) -> None: ...


def failing(site: object) -> bytes:
    raise OSError("no room for it")


def hanging(site: object) -> bytes:
    time.sleep(10 * DEADLINE_S)
    return b""


@pytest.mark.parametrize(
    ("freeze", "limit_s", "why"),
    [(failing, DEADLINE_S, "OSError: no room for it"), (hanging, 0.2, "it took longer than 0.2 s")],
)
def test_a_snapshot_that_fails_is_said_and_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    freeze: Callable[[object], bytes],
    limit_s: float,
    why: str,
) -> None:
    monkeypatch.setattr(snapshots, "CHILD_S_MAX", limit_s)
    monkeypatch.setattr(engine_module, "SNAPSHOT_POLL_S", 0.05)
    caplog.set_level(logging.INFO, "roamcast")
    journal, _ = Journal.open(
        tmp_path / "journal", sync="process", version="1", snapshot_after_bytes=1, snapshot_retry_s=0.0
    )

    async def run() -> Engine:
        engine = Engine(BrokerMachine(MachineSettings("a")), journal, Nowhere())
        monkeypatch.setattr(engine_module, "freezing", freeze)
        await turn(engine, Started(MachineSettings("a")), lambda: engine.snapshots["failed"] == 1)
        monkeypatch.setattr(engine_module, "freezing", whole_freeze)
        monkeypatch.setattr(snapshots, "CHILD_S_MAX", DEADLINE_S)
        await turn(engine, SessionSought("c", 1), lambda: engine.snapshots["written"] == 1)
        engine.stop()
        return engine

    engine = asyncio.run(run())
    journal.close()
    assert engine.is_promising
    assert f"no snapshot: {why}" in caplog.messages
    _, recovered = Journal.open(tmp_path / "journal", sync="process", version="1")
    assert (recovered.snapshot is not None, recovered.entry_count) == (True, 0)


def test_the_watermark_follows_soon_when_nothing_more_is_journalled(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "journal", sync="process", version="1")

    async def run() -> None:
        engine = Engine(BrokerMachine(MachineSettings("a")), journal, Nowhere())
        await turn(engine, Started(MachineSettings("a")), lambda: journal.last_sequence == 1)
        await turn(
            engine, SessionSought("c", 1), lambda: journal.last_sequence == 2 and not journal.is_unmarked
        )

    asyncio.run(run())
    (segment,) = (tmp_path / "journal").glob("*.journal")
    assert read_watermark(segment).next - 1 == journal.last_sequence
    journal.close()


def test_what_comes_after_a_pause_is_dealt_with_at_once_and_the_rest_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "PAUSE_S", DEADLINE_S)

    async def run() -> list[int]:
        engine = Engine(BrokerMachine(MachineSettings("a")), None, Nowhere())
        engine.push(Started(MachineSettings("a")))
        await asyncio.sleep(0)
        turns = [engine.turns]
        later_s = time.monotonic() + 2 * DEADLINE_S
        engine.take(ClientFrames(1, b""), later_s)
        turns.append(engine.turns)
        for _ in range(3):
            engine.take(ClientFrames(1, b""), time.monotonic())
            turns.append(engine.turns)
        # What waits for its turn already is not overtaken.
        engine.take(ClientFrames(1, b""), later_s)
        turns.append(engine.turns)
        await asyncio.sleep(0)
        return [*turns, engine.turns]

    assert asyncio.run(run()) == [1, 2, 2, 2, 2, 2, 3]


@pytest.mark.parametrize(("window", "waits"), [(16, True), (3, False), (1, False)])
def test_a_lone_acknowledgement_waits_for_another_turn_if_nothing_follows_from_it(
    monkeypatch: pytest.MonkeyPatch, window: int, waits: bool
) -> None:
    monkeypatch.setattr(engine_module, "PAUSE_S", DEADLINE_S)
    settings = MachineSettings(
        "a", broker=CoreSettings(window=window), endpoint=EndpointSettings(window=window)
    )
    subscribe = write(Subscribe(1, (SubscriptionEntry("t", 1),)), 5)
    publish = [write(Publish("t", b"x", qos=1, packet_id=number), 5) for number in (1, 2)]

    async def run() -> None:
        site = BrokerMachine(settings)
        engine = Engine(site, None, Nowhere())
        for item in (Started(settings), arrival(1, "c"), ClientFrames(1, subscribe + b"".join(publish))):
            engine.push(item)
        engine.turn()
        await asyncio.sleep(0)
        in_flight = site.endpoint.sessions["c"].in_flight
        assert in_flight.count == min(window, 2)
        before = engine.turns
        engine.take(ClientFrames(1, b"\x40\x02\0\1"), time.monotonic())
        await asyncio.sleep(0)
        assert (engine.turns == before) == waits
        # The next one takes it along; and if none comes, it is taken soon.
        await turn(engine, SessionSought("c", 1), lambda: engine.turns > before)
        assert in_flight.count == 1
        engine.take(ClientFrames(1, b"\x40\x02\0\2"), time.monotonic())
        async with asyncio.timeout(DEADLINE_S):
            while in_flight.count:
                await asyncio.sleep(0.001)

    asyncio.run(run())


def test_a_message_that_comes_alone_does_not_wait_for_acknowledgements_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "PAUSE_S", DEADLINE_S)
    monkeypatch.setattr(engine_module, "ACKNOWLEDGED_S", 10 * DEADLINE_S)
    settings = MachineSettings("a", broker=CoreSettings(), endpoint=EndpointSettings())
    subscribe = write(Subscribe(1, (SubscriptionEntry("t", 1),)), 5)

    async def run() -> list[int]:
        site = BrokerMachine(settings)
        engine = Engine(site, None, Nowhere())
        clients = [(1, "c"), (2, "d")]
        for item in (Started(settings), *(arrival(*one) for one in clients), ClientFrames(1, subscribe)):
            engine.push(item)
        engine.turn()
        for _ in range(2):
            engine.push(publish(2, "t"))
            engine.turn()
        in_flight = site.endpoint.sessions["c"].in_flight
        counts, later_s = [in_flight.count], time.monotonic() + 2 * DEADLINE_S
        for number in (1, 2):
            engine.take(ClientFrames(1, b"\x40\x02\0" + bytes((number,))), time.monotonic())
        engine.take(publish(2, "t"), later_s)
        counts.append(in_flight.count)
        # Over one connection the order stays.
        engine.take(publish(1, "elsewhere"), later_s)
        counts.append(in_flight.count)
        engine.stop()
        return counts

    assert asyncio.run(run()) == [2, 3, 1]


class Followers:
    """Has everything up to `last`."""

    last = -1

    def writing(self, entry: bytes) -> None: ...
    def releasable(self) -> int:
        return self.last

    def failed(self, why: str) -> None: ...


def test_small_reads_wait_for_the_release_of_an_earlier_turn_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "COMPANY_S", 10 * DEADLINE_S)

    async def run() -> list[int]:
        followers = Followers()
        engine = Engine(BrokerMachine(MachineSettings("a")), None, Nowhere(), gate=followers)
        engine.push(Started(MachineSettings("a")))
        await asyncio.sleep(0)
        for _ in range(3):
            engine.take(ClientFrames(1, b""), time.monotonic() + DEADLINE_S)
            await asyncio.sleep(0)
        turns = [engine.turns]
        followers.last = 0
        engine.release()
        await asyncio.sleep(0)
        turns.append(engine.turns)
        engine.stop()
        monkeypatch.setattr(engine_module, "COMPANY_S", 0.0)
        followers.last = -1
        engine = Engine(BrokerMachine(MachineSettings("a")), None, Nowhere(), gate=followers)
        await turn(engine, Started(MachineSettings("a")), lambda: engine.turns == 1)
        engine.take(ClientFrames(1, b""), time.monotonic())
        async with asyncio.timeout(DEADLINE_S):
            while engine.turns == 1:
                await asyncio.sleep(0.001)
        return turns

    assert asyncio.run(run()) == [1, 2]


async def turn(engine: Engine, item: MachineInput, happened: Callable[[], bool]) -> None:
    engine.push(item)
    async with asyncio.timeout(DEADLINE_S):
        while not happened():
            await asyncio.sleep(0.01)


def test_a_site_whose_clock_was_set_back_serves_its_deadlines() -> None:
    """In spite of a clock that stands an hour before the time of its journal."""

    async def run() -> None:
        site = BrokerMachine(MachineSettings("a"))
        began = time.time() + 3600.0
        site.step(began, [Started(site.settings)])
        engine = Engine(site, None, Nowhere())
        site.endpoint.timers.set(began + 0.05, ("locate", 7))
        engine.push(SessionSought("nobody", 1))
        deadline_s = time.monotonic() + DEADLINE_S
        while site.deadline() is not None and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)
        assert site.deadline() is None
        assert site.endpoint.now >= began + 0.05

    asyncio.run(run())


# --- fail-stop ---


class Stopped(Exception):
    """Stands for the end of the process."""


class Everywhere(Nowhere):
    """Keeps what gets out."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def write(self, writes: Mapping[int, list[bytes]]) -> None:
        self.seen += writes.items()

    def close(self, connection: int) -> None:
        self.seen.append(connection)

    def write_link(self, peer: str) -> None:
        self.seen.append(peer)

    def note(self, note: Note) -> None:
        self.seen.append(note)

    def answer(self, answer: IsHere) -> None:
        self.seen.append(answer)


class Poisoned(BrokerMachine):
    """Raises at the end of a turn in which `bad` is sought: then everything else has been done."""

    def step(self, now: float, inputs: Iterable[MachineInput | Input]) -> MachineEffects:
        inputs = list(inputs)
        effects = super().step(now, inputs)
        if any(isinstance(one, SessionSought) and one.client == "bad" for one in inputs):
            raise KeyError("bad")
        return effects


def arrival(connection: int, client: str) -> ClientConnected:
    return ClientConnected(connection, Connect(5, client), Identity(client, "", ""))


def publish(connection: int, topic: str) -> ClientFrames:
    return ClientFrames(connection, write(Publish(topic, b"x", 1, packet_id=1), 5))


def test_nothing_of_a_turn_that_raised_gets_out(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "journal", sync="process", version="1")
    failures: list[tuple[str, list[MachineInput]]] = []
    records: list[Row] = []

    def stop(error: Exception, now: float, inputs: list[MachineInput]) -> NoReturn:
        failures.append((repr(error), inputs))
        raise Stopped

    async def run() -> None:
        output = Everywhere()
        settings = MachineSettings("a", broker=CoreSettings(records="full"))
        machine = Poisoned(settings)
        engine = Engine(machine, journal, output, records.extend, on_failure=stop)
        for item in (Started(settings), arrival(1, "c"), LinkUp("b", Offer(), 7)):
            engine.push(item)
        engine.turn()
        assert output.seen
        assert records
        output.seen.clear()
        records.clear()
        written = journal.last_sequence
        engine.push(arrival(2, "d"))
        engine.push(publish(1, "t"))
        engine.push(SessionSought("bad", 1))
        with pytest.raises(Stopped):
            engine.turn()
        assert machine.endpoint.connections[2].client == "d", "the turn had done something"
        # Whatever the loop still calls, nothing comes of it, and no snapshot is made of that state.
        engine.push(publish(1, "t"))
        engine.turn()
        engine.stop()
        assert (output.seen, records, journal.last_sequence) == ([], [], written)
        assert not engine.is_promising, "links write only while this is true"

    asyncio.run(run())
    ((error, inputs),) = failures
    assert (error, inputs[-1]) == ("KeyError('bad')", SessionSought("bad", 1))
    journal.close()
    _, recovered = Journal.open(tmp_path / "journal", sync="process", version="1")
    assert recovered.snapshot is None


class Failing(BrokerMachine):
    """Raises when it is asked for its deadline, or told what is journalled, once `fails` says so."""

    fails = ""

    def deadline(self) -> float | None:
        if self.fails == "deadline":
            raise KeyError("deadline")
        return super().deadline()

    def journalled(self, over: Collection[str] = ()) -> None:
        if self.fails == "journalled":
            raise KeyError("journalled")
        super().journalled(over)


@pytest.mark.parametrize(
    ("fails", "is_journalled"),
    [("deadline", False), ("journalled", True)],
)
def test_whatever_the_site_raises_in_a_turn_stops_the_process(
    tmp_path: Path, fails: str, is_journalled: bool
) -> None:
    """Inputs that are in the journal are not reported as lost, and nothing but their answers gets out."""
    journal, _ = Journal.open(tmp_path / "journal", sync="process", version="1")
    failures: list[tuple[str, list[MachineInput]]] = []

    def stop(error: Exception, now: float, inputs: list[MachineInput]) -> NoReturn:
        failures.append((repr(error), inputs))
        raise Stopped

    async def run() -> None:
        output, settings = Everywhere(), MachineSettings("a")
        machine = Failing(settings)
        engine = Engine(machine, journal, output, on_failure=stop)
        engine.push(Started(settings))
        engine.turn()
        machine.fails = fails
        written = journal.last_sequence
        output.seen.clear()
        engine.push(arrival(1, "c"))
        with pytest.raises(Stopped):
            engine.turn()
        assert (journal.last_sequence > written) is is_journalled
        answers = output.seen[:]
        assert len(answers) == (1 if is_journalled else 0), "CONNACK"
        engine.push(arrival(2, "d"))
        engine.turn()
        assert not engine.is_promising
        assert output.seen == answers

    asyncio.run(run())
    journal.close()
    assert failures == [(f"KeyError('{fails}')", [] if is_journalled else [arrival(1, "c")])]


def test_a_link_that_raises_outside_of_a_turn_stops_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []

    def stop(error: Exception, now: float, inputs: list[MachineInput]) -> NoReturn:
        failures.append(repr(error))
        raise Stopped

    def fail(end: LinkEnd, *more: object) -> bytes:
        raise KeyError(end.peer)

    async def run() -> None:
        machine = BrokerMachine(MachineSettings("a"))
        engine = Engine(machine, None, Nowhere(), on_failure=stop)
        engine.push(Started(MachineSettings("a")))
        engine.push(LinkUp("b", Offer(), 7))
        engine.turn()
        config = load(None, {"ROAMCAST_LINK_SECRET": "s" * 32}, {"id": "a"}, lambda line: None)
        linking = Linking(config, machine, engine.push, KeptOut(Path(), lambda: 0.0), engine.fail)
        monkeypatch.setattr(linking.peers, "is_writable", lambda peer: True)
        machine.links.send([("b", Settled(1, "subscribe"))])
        for name in ("take", "heartbeat"):
            monkeypatch.setattr(LinkEnd, name, fail)
        with pytest.raises(Stopped):
            linking.on_writable("b")
        with pytest.raises(Stopped):
            linking.heartbeat("b")
        assert not engine.is_promising

    asyncio.run(run())
    assert failures == ["KeyError('b')"] * 2


def test_settings_that_do_not_fit_the_state_are_no_fail_stop() -> None:
    async def run() -> None:
        engine = Engine(BrokerMachine(MachineSettings("a")), None, Nowhere())
        engine.push(Started(MachineSettings("b")))
        with pytest.raises(InputError, match="it cannot become 'b'"):
            engine.turn()

    asyncio.run(run())


def test_a_turn_takes_as_many_packets_as_it_has_time_for() -> None:
    packets = PACKETS_PER_TURN
    for _ in range(20):
        packets = shared(packets, 0.1, is_flooded=True)
    assert packets == PACKETS_PER_TURN_MIN
    for _ in range(100):
        packets = shared(packets, 0.001, is_flooded=True)
    assert packets == PACKETS_PER_TURN_MAX
    for _ in range(200):
        packets = shared(packets, 0.001, is_flooded=False)
    assert packets == PACKETS_PER_TURN
    assert shared(0, 1.0, is_flooded=True) == 0
