"""Running a proxy until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterable
from pathlib import Path

import uvloop

from roamcast.errors import InputError
from roamcast.net import logs
from roamcast.net.open_files import room_for
from roamcast.proxy.config import Config
from roamcast.proxy.driver import ProxyServer
from roamcast.proxy.endpoint import MqttEndpoint
from roamcast.storage.journal import JournalFailed
from roamcast.storage.restarting import FailStop

log = logging.getLogger("roamcast.proxy")


def serve(config: Config, warnings: Iterable[str] = ()) -> None:
    logs.set_up(config.log)
    for line in warnings:
        log.warning("%s", line)
    uvloop.run(_serve(config))


async def _serve(config: Config) -> None:
    fail_stop = FailStop(Path(config.data))
    server = ProxyServer(config, fail_stop=fail_stop)
    endpoint = MqttEndpoint(server) if config.mqtt.enabled else None
    listeners = 2 if endpoint is not None else 1
    server.connections_max = max(1, room_for(listeners * config.listener.connections_max) // listeners)
    loop = asyncio.get_running_loop()
    try:
        before = fail_stop.before
        fail_stop.settle([before.culprit] if before is not None and before.culprit is not None else [])
        await server.start()
        if endpoint is not None:
            await endpoint.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.end)
        await server.run()
    except JournalFailed as error:
        raise InputError(f"messages can no longer be stored: {error}") from None
    finally:
        if endpoint is not None:
            await endpoint.stop()
        await server.stop()
    log.info("site %s: stopped", config.site)
