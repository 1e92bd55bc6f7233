"""A broker process in a folder, for tests that talk to real ones."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROAMCAST = Path(sys.executable).parent / "roamcast"
DEADLINE_S = 30.0


class BrokerProcess:
    """Runs `roamcast broker` with a configuration; what it logs is kept."""

    def __init__(self, folder: Path, config: str, files_max: int | None = None) -> None:
        """`files_max` is how many files it may have open."""
        self.folder = folder
        (folder / "site.toml").write_text(config)
        self.lines: list[str] = []
        command = [str(ROAMCAST), "broker", "--config", "site.toml"]
        if files_max is not None:
            command = ["/bin/sh", "-c", f'ulimit -n {files_max} && exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.port = int(self.wait_for(r"listens on (\d+)")[1])

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as log:
            for line in log:
                self.lines.append(line)

    def wait_for(self, pattern: str) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def look() -> bool:
            found.extend(match for line in list(self.lines) if (match := re.search(pattern, line)))
            return bool(found)

        wait_until(look, lambda: f"nothing like {pattern} in {''.join(self.lines)}")
        return found[0]

    def stop(self) -> None:
        self.process.terminate()
        code = self.process.wait(timeout=DEADLINE_S)
        self._reader.join()
        assert code == 0, "".join(self.lines)


def wait_until(happened: Callable[[], bool], complaint: Callable[[], str]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < end, complaint()
        time.sleep(0.01)


def broker_fixture(config: str) -> Callable[[pytest.TempPathFactory], Iterator[BrokerProcess]]:
    """A fixture: one broker with this configuration for all tests of a module."""

    @pytest.fixture(scope="module")
    def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
        started = BrokerProcess(tmp_path_factory.mktemp("broker"), config)
        yield started
        started.stop()

    return broker
