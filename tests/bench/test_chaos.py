"""Chaos with real processes: a short run in every suite, a long one with the slow tests."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.daemon.etcd_process import needs_etcd

from roamcast.bench import chaos
from roamcast.bench.broker_network import damage_tail
from roamcast.bench.chaos import KINDS, OF_LINKS, draw_faults, draw_tree
from roamcast.bench.relays import Relay
from roamcast.cli import build_app, run
from roamcast.storage.journal import Journal
from roamcast.storage.recovery import find_recoverable
from roamcast.storage.segments import HEADER_BYTES, SYNCED, WATERMARK_AT, pack_watermark

HOST = "127.0.0.1"


@pytest.mark.slow  # 18 s
def test_a_short_one_keeps_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "chaos", "--seconds", "8", "--seed", "3", "--clients", "16", "--brokers", "3"]
    code = run(build_app(), [*arguments, "--sync", "group", "--json"])
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert code == 0, (result["troubles"], result["examples"], result["folder"])
    assert output.err.startswith("seed 3\n")
    assert (result["kept"], result["lost"], result["duplicated_qos_2"]) == (True, 0, 0)
    assert result["folder"] is None
    assert "journal.sync=group" in result["settings"]
    assert result["faults"]["unheard"] == 1
    assert result["unknown"] >= result["faults"]["unheard"] * chaos.UNHEARD
    assert result["recovered"] > 0, "what nobody was told of has arrived"
    assert result["handoffs"] > 5
    assert result["acknowledged"] > 20
    assert result["delivered"] >= result["expected"] > 20
    assert sum(result["faults"].values()) >= 3
    assert sum(result["clients"].values()) == 16


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "sync"), [(1, "process"), (2, "group")])
def test_a_long_one_keeps_every_promise(seed: int, sync: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "chaos", "--seconds", "60", "--seed", str(seed), "--sync", sync, "--json"]
    code = run(build_app(), arguments)
    result = json.loads(capsys.readouterr().out)
    assert code == 0, (result["troubles"], result["examples"], result["folder"])
    assert result["handoffs"] > 200
    assert min(result["faults"].values()) > 0


@needs_etcd
@pytest.mark.slow
def test_replicas_whose_disks_are_lost_keep_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "chaos", "--seconds", "20", "--seed", "4", "--clients", "16", "--brokers", "3"]
    code = run(build_app(), [*arguments, "--replicas", "1", "--wipe", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert code == 0, (result["troubles"], result["examples"], result["folder"])
    assert (result["lost"], result["duplicated_qos_2"], result["out_of_order"]) == (0, 0, 0)
    assert result["lost_sessions"] == 0
    assert result["disks_wiped"] > 0
    assert result["served_again"]["kills"] + result["served_again_otherwise"]["kills"] > 0
    assert result["delivered"] >= result["expected"] > 20


def test_a_broker_alone_has_nothing_but_its_disk(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["bench", "chaos", "--wipe"]) == 2
    assert "--replicas" in capsys.readouterr().err


def forget(journal: Path, kind: str, rng: random.Random) -> int:
    """Make a journal forget its last segment, and that there was anything in it: a disk that lies."""
    scan = find_recoverable(journal).scans[-1]
    empty = pack_watermark(scan.head.marker, HEADER_BYTES, scan.head.first, 0, SYNCED)
    with scan.path.open("r+b") as file:
        for place in WATERMARK_AT:
            file.seek(place)
            file.write(empty)
        file.seek(HEADER_BYTES)
        file.write(bytes(scan.end - HEADER_BYTES))
    return scan.end - HEADER_BYTES


@pytest.mark.slow
def test_brokers_that_forget_are_found_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(chaos, "damage_tail", forget)
    monkeypatch.setattr(chaos, "KINDS", {"kill, torn tail": ""})
    monkeypatch.setattr(chaos, "DRAIN_S", 10.0)
    arguments = ["bench", "chaos", "--seconds", "8", "--seed", "5", "--clients", "16", "--brokers", "3"]
    assert run(build_app(), [*arguments, "--keep", str(tmp_path), "--json"]) == 1
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert not result["kept"]
    assert result["lost"] + result["lost_sessions"] > 0
    assert output.err.endswith(f"a promise was broken with seed 5; logs and journals are in {tmp_path}\n")
    assert (tmp_path / "b0.log").exists()


def test_the_seed_decides_tree_and_faults() -> None:
    def drawn(seed: int) -> object:
        rng = random.Random(seed)
        return draw_tree(rng, 5), draw_faults(rng, 60, 5, 4)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    faults = draw_faults(random.Random(1), 60, 5, 4)
    assert {fault.kind for fault in faults} == set(KINDS)
    for one in faults:
        for other in faults:
            if one is not other and one.target == other.target:
                is_same = (one.kind in OF_LINKS) == (other.kind in OF_LINKS)
                assert not is_same or not one.at_s <= other.at_s <= one.at_s + one.seconds


@pytest.mark.parametrize("kind", ["torn", "flipped"])
def test_a_damaged_tail_takes_nothing_that_was_promised(kind: str, tmp_path: Path) -> None:
    entries = [b"entry %d" % number for number in range(5)]
    for seed in range(12):
        folder = tmp_path / f"{kind}-{seed}"
        journal, _ = Journal.open(folder, sync="process", version="1")
        for entry in entries:
            journal.append(entry)
            journal.commit()
        journal.close()
        assert damage_tail(folder, kind, random.Random(seed)) > 0
        journal, recovered = Journal.open(folder, sync="process", version="1")
        assert list(recovered.entries) == entries
        assert recovered.cut_bytes > 0
        journal.close()


# --- relays ---


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


def relayed(story: Callable[[Relay, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
    async def tell() -> None:
        server = await asyncio.start_server(echo, HOST, 0)
        relay = Relay(server.sockets[0].getsockname()[1])
        await relay.start()
        reader, writer = await asyncio.open_connection(HOST, relay.port)
        await asyncio.wait_for(story(relay, reader, writer), 20)
        writer.close()
        await relay.close()
        server.close()

    asyncio.run(tell())


def test_a_relay_delays_in_order() -> None:
    async def story(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        relay.delays_s[1] = 0.3
        started_s = loop.time()
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        assert loop.time() - started_s > 0.29
        writer.write(b"b")
        await asyncio.sleep(0.05)
        relay.heal()
        writer.write(b"c")
        assert await reader.readexactly(2) == b"bc"

    relayed(story)


def test_a_relay_cuts_both_sides_and_refuses_while_it_is_closed() -> None:
    async def story(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        relay.is_open = False
        relay.cut()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        reader, refused = await asyncio.open_connection(HOST, relay.port)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        refused.close()
        relay.heal()
        reader, writer = await asyncio.open_connection(HOST, relay.port)
        writer.write(b"d")
        assert await reader.read(1) == b"d"
        writer.close()

    relayed(story)


def test_what_a_relay_swallowed_never_comes() -> None:
    async def story(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay.is_swallowed[0] = True
        writer.write(b"a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        relay.heal()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)

    relayed(story)
