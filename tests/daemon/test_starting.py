"""A broker that cannot start says why in one line; whoever has what it wanted is not disturbed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.brokers import DEADLINE_S, ROAMCAST, BrokerProcess, MqttClient, free_port, roamcast


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("running"), "first", link_port=free_port())
    yield broker
    client = MqttClient("client", broker.port)
    client.subscribe("t")
    client.publish("t", b"as ever")
    client.wait_for_messages(1)
    client.leave()
    broker.stop()


def refusal(folder: Path, *options: str, exit_code: int = 2) -> str:
    """Why a broker with these options does not start: the last line of its log."""
    command = [str(ROAMCAST), "broker", "--id", "second", "--data", str(folder / "second"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("which", ["clients", "peers", "metrics"])
def test_a_port_in_use(running: BrokerProcess, tmp_path: Path, which: str) -> None:
    options = ["--listen", "127.0.0.1:0"]
    if which == "clients":
        port, options = running.port, ["--listen", f"127.0.0.1:{running.port}"]
    elif which == "peers":
        port = running.link_port or 0
        options += ["--peer-listen", f"127.0.0.1:{port}"]
    else:
        port = running.http_port
        options += ["--set", "metrics.enabled=true", "--set", f"metrics.port={port}"]
    line = refusal(tmp_path, *options, exit_code=75)
    assert f"127.0.0.1:{port}" in line
    assert "address already in use" in line.lower()


def test_a_folder_in_use(running: BrokerProcess, tmp_path: Path) -> None:
    line = refusal(tmp_path, "--listen", "127.0.0.1:0", "--id", "first", "--data", str(running.data))
    assert f"in use by process {running.process.pid}; stop that, or name another" in line


def test_a_broken_journal_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "second")
    client = MqttClient("client", broker.port)
    client.subscribe("t")
    for number in range(50):
        client.publish("t", b"%d" % number)
    client.leave()
    broker.kill()
    files = [path for path in broker.data.rglob("*") if path.is_file()]
    (segment,) = [path for path in files if b"client" in path.read_bytes()]
    sound = segment.read_bytes()
    place = sound.index(b"client")
    damaged = sound[:place] + b"CLIENT" + sound[place + 6 :]
    segment.write_bytes(damaged)
    line = refusal(tmp_path, "--listen", "127.0.0.1:0")
    assert f"{segment}: damaged at offset" in line
    assert segment.read_bytes() == damaged
    assert roamcast("journal", "verify", str(broker.data)).returncode != 0
    # With the journal as it was, everything is there.
    segment.write_bytes(sound)
    broker.start()
    client.connect(broker.port)
    assert client.present
    client.leave()
    broker.stop()
