"""Fills the inbox from a broker, in a thread of its own: Spark asks for batches at any time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from threading import Event, Thread

from roamcast.client import Client, Notification
from roamcast.errors import InputError
from roamcast.pipeline.inbox import Inbox, Received
from roamcast.pipeline.source_format import PEEK_MAX, RECEIVE_MAX, Options

STOP_WITHIN_S = 5.0
LOOK_EVERY_S = 0.05
QUIET_WITHIN_S = 60.0
"""Maximum time to wait for a network that is never quiet."""


class Receiver:
    """Keeps a lasting session attached, and takes as many notifications from it as fit into the inbox."""

    def __init__(self, options: Options, inbox: Inbox) -> None:
        self._options, self._inbox = options, inbox
        self._failure: BaseException | None = None
        self._attached = Event()
        self._arrived_at = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="roamcast-receiver", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Wait until the receiver has subscribed; raise the error that ended it, if any."""
        self._attached.wait()
        if self._failure is not None:
            raise InputError(f"{self._options.client_id}: {self._failure}")

    def wait_until_quiet(self) -> None:
        """Wait until nothing has arrived for a while: the session's stored messages have then been
        received.
        """
        self.check()
        self._arrived_at = max(self._arrived_at, time.monotonic())
        end = time.monotonic() + QUIET_WITHIN_S
        while time.monotonic() - self._arrived_at < self._options.quiet_s and time.monotonic() < end:
            time.sleep(LOOK_EVERY_S)
            self.check()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(STOP_WITHIN_S)

    def _run(self) -> None:
        try:
            self._task = self._loop.create_task(self._receive())
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._failure = error
        finally:
            self._attached.set()
            self._loop.close()

    async def _receive(self) -> None:
        options = self._options
        async with options.client(clean=False) as client:
            await subscribe(client, options)
            self._attached.set()
            while arrived := await client.peek(RECEIVE_MAX):
                while self._inbox.uncommitted >= options.inbox_max:
                    # Full: the broker keeps further notifications.
                    await asyncio.sleep(LOOK_EVERY_S)
                self._inbox.append([received(one, time.time()) for one in arrived])
                # Only notifications on the disk are acknowledged.
                client.acknowledge(len(arrived))
                self._arrived_at = time.monotonic()


async def subscribe(client: Client, options: Options) -> None:
    for filter in options.filters:
        # Stored notifications come with the first subscription, not again with each restart.
        await client.subscribe(filter, qos=options.qos, where=options.where, retain_handling=1, identify=True)


def received(one: Notification, at_s: float) -> Received:
    publisher, incarnation, number = one.identity or (None, None, None)
    return Received(
        one.topic, one.payload, one.qos, one.retain, list(one.user_properties), one.content_type,
        publisher, incarnation, number, at_s,
    )  # fmt: skip


async def waiting_for(options: Options) -> list[Received]:
    """Return the notifications that the broker stores for the session. They stay there: none is
    acknowledged.
    """
    async with options.client(clean=False, receive_maximum=PEEK_MAX) as client:
        await subscribe(client, options)
        count, quiet_since = 0, time.monotonic()
        while time.monotonic() - quiet_since < options.quiet_s and count < PEEK_MAX:
            await asyncio.sleep(LOOK_EVERY_S)
            if client.waiting > count:
                count, quiet_since = client.waiting, time.monotonic()
        return [received(one, time.time()) for one in await client.peek(PEEK_MAX)] if count else []


async def retained(options: Options, where: str | None) -> list[Received]:
    """Return the matching retained messages, with a temporary client."""
    found: list[Received] = []
    async with options.client(clean=True) as client:
        for filter in options.filters:
            await client.subscribe(filter, qos=options.qos, where=where, identify=True)
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < options.quiet_s:
            if not client.waiting:
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            arrived = await client.peek(RECEIVE_MAX)
            # What is published meanwhile is not retained yet.
            found += [received(one, time.time()) for one in arrived if one.retain]
            client.acknowledge(len(arrived))
            quiet_since = time.monotonic()
    return found


def as_rows(notifications: Iterable[Received], position: int | None) -> Iterable[tuple[object, ...]]:
    """Return the columns of the source (see source.py); positions count up from that of the first
    notification.
    """
    from datetime import UTC, datetime

    for index, one in enumerate(notifications):
        yield (
            one.topic, one.payload, one.qos, one.retain, dict(one.properties), one.content_type,
            one.publisher, one.incarnation, one.number, datetime.fromtimestamp(one.received_at, UTC),
            None if position is None else position + index,
        )  # fmt: skip
