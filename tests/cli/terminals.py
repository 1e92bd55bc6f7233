"""Reading what a program showed on a terminal."""

import os
from contextlib import suppress


def read_all(terminal: int) -> str:
    """What was shown; one read alone may give only the first part of it."""
    shown = b""
    with suppress(OSError):  # which is how Linux says that the other end is closed
        while part := os.read(terminal, 65536):
            shown += part
    os.close(terminal)
    return shown.decode()
