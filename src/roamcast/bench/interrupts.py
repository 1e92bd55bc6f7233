"""Ending early: effects of Ctrl-C and SIGTERM on a command that has started processes.

A terminal sends Ctrl-C to all processes of a command at once, and each would print a traceback. Instead only
the command handles it, ends the processes that it has started, and reports it in one line.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, and hide it from processes started in the block.

    It must not interrupt between starting a process and storing it, nor while processes are being stopped.
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
    """Treat SIGTERM like Ctrl-C during the block, so that handlers of one handle both.

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
    """End worker processes that were started in the block if it is left early."""
    others = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        with interrupts_held_back():
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
        raise
