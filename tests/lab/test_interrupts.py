"""Interrupted runs of the lab: one line, exit code 130, and nothing is left of what they started."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from roamcast.bench.foreign_brokers import missing
from roamcast.bench.interrupts import interrupts_held_back, terminations_as_interrupts
from roamcast.bench.processes import roamcast_command, wait_until

HAS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()
pytestmark = pytest.mark.skipif(not HAS_CHILDREN, reason="the system does not show a process's children")
WORKER, SERVER = "multiprocessing.forkserver", "mosquitto"


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Every process below this one, and its command."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        try:
            yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        yield from descendants(child)


def interrupt(tmp_path: Path, arguments: list[str], awaited: str, count: int, number: int) -> None:
    """Begin, wait for so many processes of a kind, interrupt, and look for what is left."""
    places = {**os.environ, "TMPDIR": str(tmp_path)}
    command = roamcast_command("lab", "run", *arguments, "--out", str(tmp_path / "out"))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=places
    ) as process:
        try:
            has_begun = wait_until(
                lambda: sum(awaited in name for _, name in descendants(process.pid)) >= count, 120
            )
            started = [child for child, _ in descendants(process.pid)]
            if number == signal.SIGINT:  # To the whole group, as a terminal does.
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert has_begun
    assert (process.returncode, out) == (130, "")
    assert err.splitlines() == [f"{arguments[0]} ...", "roamcast: interrupted"]
    assert wait_until(lambda: not any(map(is_running, started)), 10)
    assert [path.name for path in tmp_path.iterdir() if path.name != "out"] == []


def is_running(pid: int) -> bool:
    """A process that has ended is not, even if nobody has asked yet how it did."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_over_processes(tmp_path: Path, number: int) -> None:
    interrupt(tmp_path, ["wang-fig5", "--workers", "2"], WORKER, 3, number)


@pytest.mark.skipif(missing("mosquitto") is not None, reason=missing("mosquitto") or "")
def test_servers_that_have_just_been_started(tmp_path: Path) -> None:
    interrupt(tmp_path, ["caporuscio-traces"], SERVER, 3, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.skipif(missing("mosquitto") is not None, reason=missing("mosquitto") or "")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_trips_over_real_brokers(tmp_path: Path, number: int) -> None:
    interrupt(tmp_path, ["caporuscio-ping", "--workers", "2"], WORKER, 3, number)


def test_interrupts_wait_until_it_is_a_good_moment() -> None:
    done = []

    def hold() -> None:
        with terminations_as_interrupts(), interrupts_held_back():
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
            done.append("to the end")

    with pytest.raises(KeyboardInterrupt):
        hold()
    assert done == ["to the end"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_background_job_that_ignores_ctrl_c_ends_by_sigterm() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), terminations_as_interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_temporary_files_go_is_what_the_others_look_at(tmp_path: Path) -> None:
    """Else it would be no wonder that nothing is left there."""
    places = {**os.environ, "TMPDIR": str(tmp_path)}
    script = "import tempfile; print(tempfile.gettempdir())"
    said = subprocess.run(
        [*roamcast_command()[:2], script], env=places, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == str(tmp_path) != tempfile.gettempdir()
