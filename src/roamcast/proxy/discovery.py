"""Finds the nearest proxy: the one with the shortest measured round trip."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import NamedTuple

from roamcast.proxy.messages import Echo
from roamcast.proxy.wire import Pipe, ProxyError, connect_client

ECHOES = 3


class Credentials(NamedTuple):
    """How a client connects to proxies."""

    client: str
    user: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None


async def measure(
    proxies: Mapping[str, str], credentials: Credentials, timeout_s: float = 5.0
) -> dict[str, float]:
    """Measure the shortest round trip in seconds to each proxy that answers; return them by site, the
    nearest first."""
    sites = list(proxies)
    times = await asyncio.gather(*(_round_trip(proxies[site], credentials, timeout_s) for site in sites))
    found = [(round_trip_s, site) for round_trip_s, site in zip(times, sites, strict=True) if round_trip_s]
    return {site: round_trip_s for round_trip_s, site in sorted(found)}


async def _round_trip(address: str, credentials: Credentials, timeout_s: float) -> float | None:
    try:
        async with asyncio.timeout(timeout_s):
            pipe, _ = await connect_client(address, *credentials)
            try:
                return min([await _echo(pipe, number) for number in range(ECHOES)])
            finally:
                await pipe.end()
    except (ProxyError, TimeoutError):
        return None


async def _echo(pipe: Pipe, number: int) -> float:
    sent_s = time.perf_counter()
    pipe.write(Echo(number))
    while await pipe.read() != Echo(number):
        pass
    return time.perf_counter() - sent_s
