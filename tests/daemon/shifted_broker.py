"""A broker whose system clock is shifted by the seconds in a file: `shifted_broker.py FILE ARGUMENTS`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

file = Path(sys.argv.pop(1))
real = time.time


def shifted() -> float:
    return real() + float(file.read_text() or 0)


time.time = shifted

from roamcast.cli import main  # noqa: E402

main()
