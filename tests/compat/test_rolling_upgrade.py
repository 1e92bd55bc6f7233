"""Networks of real broker processes are upgraded one by one while clients roam and brokers are killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tomllib
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.compat.archives import extract
from tests.compat.later_build import LATER_VERSION, ROOT, make_later_build
from tests.daemon.brokers import BrokerProcess, MqttClient, roamcast

from roamcast import __version__
from roamcast.bench.builds import Build, find_build
from roamcast.bench.chaos import CROSSINGS_MIN
from roamcast.bench.processes import Process, free_port

RELEASES = tomllib.loads((ROOT / "tests" / "compat" / "releases.toml").read_text())["commits"]


def run_chaos(build: Build, earlier: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Upgrade a network of three brokers from an earlier build to this one."""
    command = [
        *build.program, "bench", "chaos", "--upgrade-from", str(earlier), "--seed", str(seed),
        "--seconds", "20", "--clients", "12", "--brokers", "3", "--keep", str(folder), "--json",
    ]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, **build.variables}, capture_output=True, text=True, timeout=400
    )
    assert done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, (result["troubles"], result["examples"], result["folder"])
    return result


def check_kept(result: dict[str, Any], earlier: str, later: str) -> None:
    crossings = result["upgrades"].pop("handoffs between them")
    assert result["upgrades"] == {"from": earlier, "to": later, "brokers": 3}
    assert crossings >= 2 * CROSSINGS_MIN
    assert (result["kept"], result["lost"], result["duplicated_qos_2"]) == (True, 0, 0)
    assert (result["out_of_order"], result["lost_sessions"]) == (0, 0)
    assert result["handoffs"] > 5
    assert result["acknowledged"] > 20


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return find_build(make_later_build(tmp_path_factory.mktemp("later")))


def test_the_later_build_starts(later: Build) -> None:
    assert later.version == LATER_VERSION


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_network_is_upgraded_to_a_later_build(later: Build, seed: int, tmp_path: Path) -> None:
    check_kept(run_chaos(later, ROOT, tmp_path, seed), __version__, LATER_VERSION)


@pytest.mark.slow
def test_a_network_is_upgraded_from_the_last_release(tmp_path: Path) -> None:
    if not RELEASES:
        pytest.skip("tests/compat/releases.toml names no release yet")
    version, commit = list(RELEASES.items())[-1]
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True)
    if packed.returncode:
        pytest.skip(f"the history of this checkout does not reach back to {version}, commit {commit}")
    earlier = tmp_path / "earlier"
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as tar:
        extract(tar, earlier)
    check_kept(run_chaos(find_build(ROOT), earlier, tmp_path / "network", 1), version, __version__)


# --- going back ---


def start(build: Build, folder: Path) -> Process:
    port = free_port()
    arguments = ["broker", "--id", "a", "--listen", f"127.0.0.1:{port}", "--data", str(folder / "a")]
    log = folder / "broker.log"
    log.unlink(missing_ok=True)
    process = Process("a", [*build.program, *arguments], port, log, variables=dict(build.variables))
    process.start()
    return process


@pytest.mark.slow
def test_going_back_is_refused_in_one_line_and_harms_nothing(later: Build, tmp_path: Path) -> None:
    this = find_build(ROOT)
    for build in (this, later):
        process = start(build, tmp_path)
        process.wait_listening()
        assert process.stop(60.0)
    snapshots = sorted((tmp_path / "a" / "journal").glob("*.snapshot"))
    before = [path.read_bytes() for path in snapshots]
    process = start(this, tmp_path)
    assert process.child is not None
    assert process.child.wait(60) == 2
    (line,) = [one for one in process.log.read_text().splitlines() if one.startswith("roamcast: ")]
    assert "a newer one wrote it" in line
    assert [path.read_bytes() for path in snapshots] == before
    process = start(later, tmp_path)
    process.wait_listening()
    assert process.stop(60.0)


@pytest.mark.slow
def test_entries_of_another_replay_number_ask_for_a_clean_stop(later: Build, tmp_path: Path) -> None:
    this = find_build(ROOT)
    process = start(this, tmp_path)
    process.wait_listening()
    process.kill()
    process = start(later, tmp_path)
    assert process.child is not None
    assert process.child.wait(60) == 2
    assert "stop it cleanly" in process.last_words()
    for build in (this, later):
        process = start(build, tmp_path)
        process.wait_listening()
        assert process.stop(60.0)


@pytest.mark.slow
def test_a_broker_that_has_served_goes_back_with_an_empty_folder(later: Build, tmp_path: Path) -> None:
    """Its sessions wait at a peer meanwhile, with all that they are owed."""
    link_port = free_port()
    b = BrokerProcess(tmp_path, "b", link_port=link_port)
    a = BrokerProcess(tmp_path, "a", peers={"b": link_port}, before=with_variables(later))
    a.wait_for("the link to b is up")
    car = MqttClient("car", a.port)
    car.subscribe("city/#", 2)
    car.leave()
    publisher = MqttClient("publisher", b.port)
    publisher.publish("city/air", b"1", 2)
    assert roamcast("broker", "drain", "--data", str(a.data), "--to", "b").returncode == 0
    a.stop()
    assert roamcast("broker", "forget", "a", "--data", str(b.data)).returncode == 0
    shutil.rmtree(a.data)
    a = BrokerProcess(tmp_path, "a", peers={"b": link_port})
    a.wait_for("the link to b is up")
    publisher.publish("city/air", b"2", 2)
    car.connect(a.port)
    assert car.present
    car.wait_for_messages(2)
    assert car.messages == [("city/air", b"1"), ("city/air", b"2")]
    for client in (car, publisher):
        client.leave()
    a.stop()
    b.stop()


def with_variables(build: Build) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in build.variables.items())]
