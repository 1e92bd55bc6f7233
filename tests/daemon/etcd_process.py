"""A real etcd of one member, for tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.daemon.brokers import free_port, wait_until

from roamcast.config.sections import Replication
from roamcast.net.etcd import Etcd, EtcdFailed

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")


class EtcdProcess:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.url = client
        self._command = [
            "etcd", "--data-dir", str(folder),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        with open(f"{self.folder}.log", "ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(self.answers, lambda: f"etcd does not answer, see {self.folder}.log")

    def answers(self) -> bool:
        try:
            Etcd(Replication(etcd=(self.url,)), "test", "nobody", 2.0).look()
        except EtcdFailed:
            return False
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
