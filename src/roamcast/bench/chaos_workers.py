"""`roamcast bench chaos --workers`: the same chaos, with sites of several workers behind one port.

Clients return at any worker of any site, including the one where they were. Single workers are killed and
suspended, and so are whole sites with all their processes.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from roamcast.bench.broker_network import BrokerNetwork, damage_tail
from roamcast.bench.builds import THIS_BUILD, Build
from roamcast.bench.chaos import KINDS, Chaos, Fault
from roamcast.bench.processes import STOP_S, Process, cpu_s_of, wait_until
from roamcast.bench.roaming_clients import World
from roamcast.daemon.workers import worker_folder

OF_WORKERS = {
    "kill worker": "kill -9 of one worker of a site, which the site starts again",
    "stop worker": "SIGSTOP of one worker, and SIGCONT after its clients have moved on",
}


@dataclass
class SiteProcess(Process):
    """A supervisor and its workers; signals go to all of them."""

    has_group: ClassVar[bool] = True

    def workers(self) -> list[int]:
        """Return the ids of the running worker processes."""
        with suppress(OSError):
            return [int(one) for one in self._children().read_text().split()]
        return []

    def _children(self) -> Path:
        return Path(f"/proc/{self.pid}/task/{self.pid}/children")

    def send(self, number: signal.Signals) -> None:
        if self.is_running:
            os.killpg(self.pid, number)

    def cpu_s(self) -> float:
        return sum(map(cpu_s_of, self.workers() or [self.pid]))

    def kill(self) -> None:
        super().kill()
        wait_until(self._is_empty, STOP_S)

    def _is_empty(self) -> bool:
        """Return true when the last process of the group has ended."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        return False


class WorkersNetwork(BrokerNetwork):
    process = SiteProcess


class WorkersChaos(Chaos):
    def __init__(self, *about: Any, workers: int) -> None:
        self.workers = workers
        self.killed = 0
        """Number of workers that were killed alone."""
        super().__init__(*about)

    def _make_network(self) -> BrokerNetwork:
        settings = (*self.settings, f"workers={self.workers}")
        build: Build = self.upgrade_from or THIS_BUILD
        return WorkersNetwork(self.folder, self.tree, settings, build=build)

    def _kinds_of_faults(self) -> dict[str, str]:
        return KINDS | OF_WORKERS

    def _make_world(self) -> World:
        world = super()._make_world()
        world.may_return = True
        return world

    async def _trouble_broker(self, fault: Fault) -> None:
        match fault.kind:
            case "kill worker":
                self._signal_one(fault, signal.SIGKILL)
                self.killed += 1
            case "stop worker":
                stopped = self._signal_one(fault, signal.SIGSTOP)
                self._hurry(at=fault.target, hops=[fault.target])
                await asyncio.sleep(fault.seconds)
                with suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGCONT)
            case _:
                await super()._trouble_broker(fault)

    def _signal_one(self, fault: Fault, number: signal.Signals) -> int:
        """Send a signal to one worker of a site; return its process id."""
        site = self.network.brokers[fault.target]
        assert isinstance(site, SiteProcess)
        process = random.Random(f"{self.seed} {fault.at_s}").choice(site.workers())
        os.kill(process, number)
        return process

    def _damage(self, number: int, tail: str, rng: random.Random) -> None:
        worker = rng.randrange(self.workers) + 1
        damage_tail(worker_folder(self.network.data(number), worker) / "journal", tail, rng)

    def _read_logs(self) -> None:
        super()._read_logs()
        for site in self.network.brokers:
            lines = site.log.read_text(errors="replace").splitlines()
            wrong = [line for line in lines if "ended with exit code" in line or "fail-stop" in line]
            self.troubles += [f"{site.log}: {line}" for line in wrong]

    def _result(self, found: Any, world: World) -> dict[str, Any]:
        return super()._result(found, world) | {"workers": self.workers, "workers_killed": self.killed}
