"""`roamcast pub` and `roamcast sub` that roam while their brokers are killed and come back."""

from __future__ import annotations

import random
import re
import subprocess
import time
from pathlib import Path

import pytest
from tests.client.servers import DEADLINE_S, ROAMCAST, Broker, line_of_brokers

LINES = 3_000


def client(*words: str, brokers: list[Broker], every_s: float, **options: int) -> subprocess.Popen[bytes]:
    stops = ",".join(f"{broker.id}={broker.address}" for broker in brokers)
    roaming = ["-c", "-q", "2", "--roam", stops, "--every", str(every_s)]
    return subprocess.Popen([ROAMCAST, *words, *roaming], stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


def await_words(broker: Broker, words: str, times: int) -> None:
    """A client that finds no broker at its start gives up, and says so: the fire begins when it is there."""
    end = time.monotonic() + DEADLINE_S
    while broker.log.read_text().count(words) < times:
        assert time.monotonic() < end, broker.log.read_text()
        time.sleep(0.02)


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_repeated_while_brokers_are_killed(tmp_path: Path) -> None:
    chance = random.Random(5)
    brokers = line_of_brokers(tmp_path, 3)
    try:
        first = client("sub", "-t", "fire", "-i", "taker", "-E", brokers=brokers[:1], every_s=1.0)
        assert first.communicate(timeout=DEADLINE_S)[1] == b""
        assert first.returncode == 0
        taker = client(
            "sub", "-t", "fire", "-i", "taker", "-C", str(LINES), "-W", "100",
            brokers=brokers, every_s=0.4, stdout=subprocess.PIPE,
        )  # fmt: skip
        giver = client(
            "pub",
            "-t",
            "fire",
            "-i",
            "giver",
            "-l",
            brokers=brokers[::-1],
            every_s=0.7,
            stdin=subprocess.PIPE,
        )
        await_words(brokers[0], "client taker connected", 2)
        await_words(brokers[2], "client giver connected", 1)
        for number in range(LINES):
            assert giver.stdin is not None
            giver.stdin.write(b"%d\n" % number)
            if number % 300 == 299:
                giver.stdin.flush()
                victim = chance.choice(brokers)
                victim.kill()
                time.sleep(chance.uniform(0.0, 0.5))  # Not to wait for anything: it is away for so long.
                victim.start()
        _, said = giver.communicate(timeout=2 * DEADLINE_S)
        assert giver.returncode == 0, said
        out, complaint = taker.communicate(timeout=2 * DEADLINE_S)
        assert taker.returncode == 0, complaint
        assert out.split() == [b"%d" % number for number in range(LINES)]
        assert re.search(rb"move \d+: at b\d=", complaint), "it roamed"
        assert b"trying again" in said + complaint or b"passed over" in said + complaint, "it was under fire"
    finally:
        for broker in brokers:
            broker.stop()
