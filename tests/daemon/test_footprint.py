"""What a broker loads that only serves clients."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "numpy", "pyarrow", "matplotlib", "networkx", "scipy", "lark", "prometheus_client", "wsproto",
    "typer", "zipfile", "email", "http.client", "difflib", "roamcast.daemon.replicating",
)  # fmt: skip
"""Together they take more memory than everything else of a broker."""


def test_a_broker_without_an_event_log_loads_nothing_heavy() -> None:
    said = (
        "import roamcast.cli.starting, roamcast.daemon.config, roamcast.daemon.main, sys\n"
        "from roamcast.plugins import load_protocols\n"
        "load_protocols()\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
