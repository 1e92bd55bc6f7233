"""Ending early: what Ctrl-C and SIGTERM do to a command that has started processes.

A terminal sends Ctrl-C to all processes of a command at once. Each would show where it was interrupted;
instead, the command alone sees it, ends those that it has started, and says so in one line.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, and processes started meanwhile never see it.

    It must not come between starting a process and remembering it, nor while processes are being stopped.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # No other thread is ever interrupted.
        return
    held: list[int] = []
    # Blocking is for the processes, which inherit it. Here it does not suffice: the system may hand the
    # signal to a thread of some library, from where Python passes it on to this one.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handler)
        if held:
            raise KeyboardInterrupt


@contextmanager
def terminations_as_interrupts() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C while the block runs: whoever handles that, handles both.

    A shell lets its background jobs ignore Ctrl-C, but not SIGTERM.
    """

    def interrupt(number: int, frame: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def workers_ended() -> Iterator[None]:
    """Worker processes that are started in the block are gone when something ends it early."""
    others = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        with interrupts_held_back():
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
        raise
