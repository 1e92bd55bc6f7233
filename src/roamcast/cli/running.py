"""Runs a client from the command line: signals, roaming, messages on stderr, and the exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from roamcast.cli.flags import Values
from roamcast.cli.mosquitto import addresses_of, say, target_of
from roamcast.client import Client, ClientError, ConnectError
from roamcast.client.attachment import ATTACHED
from roamcast.mqtt.codec.reasons import connack_3_1_1

EXIT_FAILED = 1
"""Exit code if a broker or the network refused."""
EXIT_TERMINATED = 143


class Words(logging.Handler):
    """Prints connection messages on stderr: the beginning and end of each outage."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno == logging.DEBUG:
            say(text)
        elif record.msg is not ATTACHED:
            if text != self._last:
                say(f"{text}; trying again")
            self._last = text
        elif self._last:
            say(text)
            self._last = ""


def run_client(values: Values, work: Coroutine[Any, Any, int]) -> int:
    """Run until the client ends or is stopped; an error of a broker or the network becomes one line."""
    log = logging.getLogger("roamcast.client")
    log.propagate = False
    log.setLevel(logging.DEBUG if values.debug else logging.INFO)
    words = Words()
    if not values.quiet:
        log.addHandler(words)
    try:
        return asyncio.run(_until_told_to_stop(work))
    except ClientError as error:
        if not values.quiet:
            say(str(error))
        return exit_code(error, values.protocol_version)
    finally:
        log.removeHandler(words)


def exit_code(error: ClientError, version: int) -> int:
    """Return the exit code for a refused connection, as Mosquitto's clients do."""
    reason = error.reason if isinstance(error, ConnectError) else None
    if not reason:
        return EXIT_FAILED
    return int(reason) if version == 5 else connack_3_1_1(reason)


async def _until_told_to_stop(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.get_running_loop().create_task(work)
    told = False

    def stop() -> None:
        nonlocal told
        told = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if told:
            return EXIT_TERMINATED
        raise


@asynccontextmanager
async def roaming(client: Client, values: Values, progress: Callable[[], str]) -> AsyncIterator[None]:
    """Let the client roam while the block runs, if a flag asks for it."""
    if values.roam is None:
        yield
        return
    task = asyncio.get_running_loop().create_task(_roam(client, values, progress))
    try:
        yield
    finally:
        task.cancel()
        # If the client has failed, the block has seen the error, too.
        await asyncio.gather(task, return_exceptions=True)


async def _roam(client: Client, values: Values, progress: Callable[[], str]) -> None:
    """Move from broker to broker forever, skipping brokers that do not answer."""
    stops = addresses_of(values, target_of(values))
    place, moves = 0, 0
    while len(stops) > 1:
        await asyncio.sleep(values.every)
        place = (place + 1) % len(stops)
        broker, equals, _ = stops[place].partition("=")
        began = time.monotonic()
        try:
            await client.move_to(broker if equals else stops[place], proclaimed=values.proclaim)
        except ConnectError as error:
            if not values.quiet:
                say(f"{error}; skipped")
            continue
        moves += 1
        if not values.quiet:
            took_ms = (time.monotonic() - began) * 1000
            say(f"move {moves}: at {stops[place]} after {took_ms:.0f} ms; {progress()}")


def flush_all(text: bytes) -> None:
    """Flush standard output: printed notifications may be acknowledged afterwards."""
    if sys.stdout is not None:  # stdout is None if the shell has closed it.
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
