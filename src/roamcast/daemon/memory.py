"""How a broker process handles memory: when garbage is collected, and what is returned to the system."""

import ctypes
import gc
from contextlib import suppress

COLLECT_AFTER = 50_000
"""Number of new container objects, minus freed ones, after which new ones are examined for garbage: 15 ms."""
COLLECT_OLDER_AFTER = 2
"""Number of such collections after which the surviving objects are examined again. This takes 50 ms; with a
value of 20 it would take half a second."""
COLLECT_ALL_AFTER = 200
"""Number of these second examinations after which all objects are examined, if their number has grown by a
quarter."""

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
OWN_PAGES_BYTES = 256 << 10
"""A block of at least this size, such as the body of a large message, gets its own pages, which are returned
when it is freed."""
KEPT_FREE_BYTES = 8 << 20
"""Free memory that may stay at the end of the heap, so that the next turn can use it."""


def keep_freed_memory_small() -> None:
    """Return freed memory to the system.

    Otherwise the C library raises the size from which a block gets its own pages to that of the largest
    message, and free memory between long-lived blocks is never returned.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, OWN_PAGES_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_FREE_BYTES)


def _trim_memory() -> None:
    """Return the memory that the start has freed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def collect_seldom() -> None:
    """Collect garbage rarely: few objects form cycles, and collection took a quarter of a busy broker's time.

    Objects that exist now live until the end and are not examined again.
    """
    gc.collect()
    gc.freeze()
    _trim_memory()
    gc.set_threshold(COLLECT_AFTER, COLLECT_OLDER_AFTER, COLLECT_ALL_AFTER)
