"""Limits processes to a share of a core by the system's control groups; needs root."""

from __future__ import annotations

import os
from pathlib import Path

from roamcast.bench.processes import BenchFailed

ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
QUOTA_US_MIN = 1_000
"""Smallest quota that the system accepts."""
PERIOD_US = 20_000
"""Period of the quotas: short, so that a worker without quota left does not delay others for long."""


class CpuShares:
    """Control groups with a limit; a context manager that removes them at its end."""

    def __init__(self) -> None:
        self._groups: list[tuple[Path, int]] = []
        self._root = next((one for one in ROOTS if (one / "cgroup.procs").exists()), ROOTS[0])
        self._is_old = (self._root / "cpu.cfs_period_us").exists() or self._root == ROOTS[0]

    def limit(self, process: int, share: float) -> None:
        """Limit a process to this share of a core from now on."""
        group, quota_us = self._root / f"roamcast-bench-{process}", max(QUOTA_US_MIN, int(share * PERIOD_US))
        period_us = int(quota_us / share)
        try:
            group.mkdir()
            self._groups.append((group, process))
            if self._is_old:
                (group / "cpu.cfs_period_us").write_text(str(period_us))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (group / "cpu.max").write_text(f"{quota_us} {period_us}")
            (group / "cgroup.procs").write_text(str(process))
        except OSError as error:
            raise BenchFailed(
                f"CPU shares need writable control groups: {group} ({error.strerror})"
            ) from None

    def __enter__(self) -> CpuShares:
        return self

    def __exit__(self, *_: object) -> None:
        for group, process in self._groups:
            if os.path.exists(f"/proc/{process}"):
                (self._root / "cgroup.procs").write_text(str(process))
            group.rmdir()
