"""How a broker process handles memory: when garbage is collected, and what is returned to the system."""

import asyncio
import ctypes
import gc
from contextlib import suppress

COLLECT_AFTER = 20_000
"""Number of new container objects, minus freed ones, after which new ones are examined for garbage: 2 to 6
ms. Each is examined once, so the number does not change how much time that takes together."""
COLLECT_ALL_AFTER = 2_000
"""Number of such collections after which all objects are examined, if their number has grown enough."""
GROWN = 1.25
"""Growth since all objects were examined last, so that the time for it is in proportion."""

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


class Survivors:
    """Excludes objects that survived a collection from later ones. Nearly all of them belong to sessions, and
    live as long; examining them again stopped a broker for 60 ms, and a tenth of the time of a storm."""

    def __init__(self) -> None:
        self._collections = 0
        self._kept = gc.get_freeze_count()
        """Number of objects when all were examined."""

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" or info["generation"]:
            return
        gc.freeze()
        self._collections += 1
        if self._collections >= COLLECT_ALL_AFTER:
            with suppress(RuntimeError):  # Another thread has no loop: the next collection tries again.
                asyncio.get_running_loop().call_soon(self.collect_all)
                self._collections = 0

    def collect_all(self) -> None:
        if gc.get_freeze_count() > GROWN * self._kept:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._kept = gc.get_freeze_count()


def collect_seldom() -> None:
    """Collect garbage rarely: few objects form cycles, and collection took a quarter of a busy broker's time.

    Objects that exist now live until the end and are not examined again.
    """
    gc.collect()
    gc.freeze()
    _trim_memory()
    gc.set_threshold(COLLECT_AFTER)
    if not any(isinstance(one, Survivors) for one in gc.callbacks):
        gc.callbacks.append(Survivors())
